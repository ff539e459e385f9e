"""Promotion, tiers and primary: what other systems got wrong, each under its id, with its kind.

The ids are those of the list of faults; the report behind each is named in the
test. F21 drives the manager by a pass loop that is written from the definition
of E*, not by `kvtier.scheduler`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, permutations

import pytest
from structlog.testing import capture_logs

from kvtier.errors import TierError, UsageError
from kvtier.results import LookupResult, MissReason
from kvtier.runtime import Runtime, ThreadRuntime, VirtualRuntime
from kvtier.tiering import DeferReason, TieringOffloadingManager
from kvtier.tiers.base import JobResult, LoadStoreSpec
from kvtier.tiers.host import CPUOffloadingManager
from kvtier.tiers.store import BlockStore, StoreTier
from tests.support.fake_tier import Boom, Rig, ctx, key, one_pass
from tests.support.stores import ScriptedStore

HIT, HIT_PENDING = LookupResult.HIT, LookupResult.HIT_PENDING
RETRY, MISS = LookupResult.RETRY, LookupResult.MISS

BLOCK_BYTES = 32


def over_stores(cap: int, runtime: Runtime, *stores: BlockStore) -> TieringOffloadingManager:
    """A manager over real tiers with these back ends."""
    primary = CPUOffloadingManager(cap, BLOCK_BYTES)
    tiers = [
        StoreTier(store, primary.view, tier_type="s", label=f"{n}:s", runtime=runtime)
        for n, store in enumerate(stores, 1)
    ]
    return TieringOffloadingManager(primary, tiers, runtime=runtime)


def until_told(ask: Callable[[], int | None], end_step: Callable[[], None]) -> tuple[int, int]:
    """The answer of a request that is looked up once a step, and after how many passes."""
    for passes in range(1, 60):
        answer = ask()
        if answer is not None:
            return answer, passes
        end_step()
    raise AssertionError("no answer after 59 passes")


# F01 and its kind: a block that a tier says it has, and cannot give


@pytest.mark.parametrize("caching", [True, False], ids=["verdict kept", "F28: no verdict kept"])
@pytest.mark.parametrize("n_blocks", [1, 2, 4])
@pytest.mark.parametrize("late", [0, 1, 3])
def test_f01_f28_one_load_in_total_then_a_miss(caching: bool, n_blocks: int, late: int) -> None:
    """vllm 49176: found, load fails, found again, for ever."""
    rig = Rig(cap=8)
    blocks = range(n_blocks)
    for n in blocks:
        rig.tier.answers[key(n)] = [RETRY, HIT, MISS] if caching else [RETRY, HIT]
    rig.start("a")

    def end_step() -> None:
        rig.step()
        if rig.manager.open_promotions:
            rig.step(late)
            rig.tier.report_all(success=False)

    assert until_told(lambda: rig.one_pass("a", *blocks), end_step) == (0, 3)
    assert [rig.lookup("a", n) for n in blocks] == [MISS] * n_blocks
    assert rig.reason("a", 0) is MissReason.LOAD_FAILED
    rig.step()
    assert rig.manager.counts.promotions.submitted == 1
    assert rig.tier.loads == []
    rig.finish("a")
    rig.expect_idle()


@pytest.mark.parametrize("reports_pending", [False, True])
def test_f01_f28_through_lookup(reports_pending: bool) -> None:
    """The same through vLLM's entry point."""
    rig = Rig(cap=8, lookup_reports_pending=reports_pending)
    rig.tier.has(0)
    rig.start("a")
    seen = []
    for _ in range(6):
        seen.append(rig.lookup("a", 0))
        rig.step()
        rig.tier.report_all(success=False)
    assert seen == [HIT_PENDING if reports_pending else RETRY, *[MISS] * 5]
    assert rig.manager.counts.promotions.submitted == 1


def test_f28_every_request_may_try_once_and_no_more() -> None:
    """Two requests with notes of the same block, the second's own load fails too."""
    rig = Rig(cap=8)
    rig.tier.has(0)
    rig.start("a", "b")
    for _ in range(10):
        for req_id in "ab":
            rig.one_pass(req_id, 0)
        rig.step()
        rig.tier.report_all(success=False)
    # b joined a's load, so its failure settled the block for both.
    assert rig.manager.counts.promotions.submitted == 1
    rig.start("c")
    for _ in range(10):
        rig.one_pass("c", 0)
        rig.step()
        rig.tier.report_all(success=False)
    assert rig.manager.counts.promotions.submitted == 2


def test_f28_a_preempted_request_may_try_once_more() -> None:
    rig = Rig(cap=8)
    rig.tier.has(0)
    rig.start("a")
    for _ in range(3):
        for _ in range(5):
            rig.one_pass("a", 0)
            rig.step()
            rig.tier.report_all(success=False)
        rig.manager.forget(ctx("a"))
    assert rig.manager.counts.promotions.submitted == 3


@pytest.mark.parametrize("failure", ["gone", "unreadable"])
def test_f01_f45_with_a_real_tier(failure: str) -> None:
    """LMCache 2420: the block is gone after a `True` verdict. A failed load, and no `KeyError`."""
    runtime = VirtualRuntime()
    store = ScriptedStore()
    manager = over_stores(4, runtime, store)
    store.answers = lambda keys: [True for _ in keys]
    if failure == "unreadable":
        store.fail("get", OSError("EIO"))
    keys = [key(n) for n in range(3)]
    for req_id in ("a", "b"):
        manager.on_new_request(ctx(req_id))

        def end_step() -> None:
            manager.on_schedule_end()
            while runtime.wait(0.0):
                pass

        with capture_logs():
            told = until_told(partial(one_pass, manager, ctx(req_id), keys), end_step)
        assert told == (0, 3)
        assert manager.miss_reason(keys[0], ctx(req_id)) is MissReason.LOAD_FAILED
        manager.on_request_finished(ctx(req_id))
        manager.on_schedule_end()
    assert store.count("get") == 6  # each request tried each block once
    assert manager.counts.promotions.failed == 2
    assert not manager.has_pending_work()
    assert not any(manager.table_sizes().values())


# F21 and its kind: more blocks than slots


def run_passes(
    rig: Rig, prompts: Mapping[str, Sequence[int]], *, report_after: int
) -> dict[str, int]:
    """Each request is looked up once a step; admitted ones load and finish. Their hits."""
    hits: dict[str, int] = {}
    age: dict[int, int] = {}
    for _ in range(60):
        for req_id, blocks in prompts.items():
            if req_id in hits:
                continue
            end = rig.one_pass(req_id, *blocks)
            if end is not None:
                hits[req_id] = end
                keys = [key(n) for n in blocks[:end]]
                spec = rig.manager.prepare_load(keys, ctx(req_id))
                rig.manager.complete_load(spec, ctx(req_id))
                rig.finish(req_id)
        rig.step()
        for job in rig.tier.loads:
            age[job.job_id] = age.get(job.job_id, 0) + 1
            if age[job.job_id] > report_after:
                rig.tier.report(job)
        if len(hits) == len(prompts) and not rig.tier.jobs:
            rig.step()
            rig.expect_idle()
            return hits
    raise AssertionError(f"still waiting after 60 steps: {set(prompts) - set(hits)}")


@pytest.mark.parametrize("cap", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("excess", [1, 2, 10])
@pytest.mark.parametrize("report_after", [0, 3])
def test_f21_a_prefix_longer_than_the_primary(cap: int, excess: int, report_after: int) -> None:
    """vllm 49902. What fits is loaded, once; the rest is computed."""
    rig = Rig(cap)
    blocks = range(cap + excess)
    rig.tier.has(*blocks)
    rig.start("a")
    budget = max(1, cap - 1)
    assert run_passes(rig, {"a": blocks}, report_after=report_after) == {"a": budget}
    assert rig.manager.counts.promotions.submitted == 1


@pytest.mark.parametrize("order", list(permutations("ab")))
@pytest.mark.parametrize("headroom", [0, 1, 2, 3])
def test_f21_two_requests_that_do_not_fit_together(order: tuple[str, ...], headroom: int) -> None:
    """vllm 49902: each holds half of what the other needs."""
    rig = Rig(cap=4, headroom=headroom)
    prompts = {req_id: {"a": range(0, 3), "b": range(10, 13)}[req_id] for req_id in order}
    rig.tier.has(*range(0, 3), *range(10, 13))
    rig.start(*order)
    first = min(3, 4 - headroom)
    hits = run_passes(rig, prompts, report_after=1)
    assert hits == {order[0]: first, order[1]: 4 - headroom - first}
    assert rig.manager.counts.promotions.submitted <= 2


@pytest.mark.parametrize("n_requests", [3, 10])
@pytest.mark.parametrize("shared", [0, 2])
def test_f21_many_requests(n_requests: int, shared: int) -> None:
    """A crowd. The first takes the room, everybody is answered, no block is loaded twice."""
    rig = Rig(cap=4)
    prompts: dict[str, list[int]] = {}
    for n in range(n_requests):
        own = range(100 * n, 100 * n + 3 - shared)
        prompts[f"r{n}"] = [*range(9000, 9000 + shared), *own]
    blocks = {n for prompt in prompts.values() for n in prompt}
    rig.tier.has(*blocks)
    rig.start(*prompts)
    hits = run_passes(rig, prompts, report_after=2)
    assert hits["r0"] == 3
    assert all(hit >= shared for hit in hits.values())
    assert max(Counter(rig.tier.loaded).values()) == 1


# F22 and F29: no room


def test_f22_a_promotion_does_not_push_out_what_was_just_found() -> None:
    """vllm 39702, 54914."""
    rig = Rig(cap=1)
    rig.tier.has(2)
    rig.start("w", "a")
    rig.fill("w", 1)
    rig.settle()
    assert rig.lookup("a", 1) is HIT
    assert rig.lookup("a", 2) is MISS
    assert rig.reason("a", 2) is MissReason.NO_ROOM
    assert len(rig.manager.prepare_load([key(1)], ctx("a"))) == 1


@pytest.mark.parametrize("cap", [2, 3, 5])
def test_f22_whatever_the_order_of_lookups(cap: int) -> None:
    """Some blocks are here, others in the tier: those that were a `HIT` are there to be loaded."""
    for here in combinations(range(cap + 1), cap - 1):
        rig = Rig(cap, headroom=0)
        rig.tier.has(*range(cap + 1))
        rig.start("w", "a")
        rig.fill("w", *here)
        rig.settle()
        found = [n for n in range(cap + 1) if rig.lookup("a", n) is HIT]
        assert len(rig.manager.prepare_load([key(n) for n in found], ctx("a"))) == len(found)
        # The first block that is not here may take the free slot, or the slot of a block that
        # is here and was not found yet; whatever was found stays.
        assert set(found) <= set(here)


@pytest.mark.parametrize("pin", ["reference", "step pin", "waiter", "write", "cascade"])
def test_f29_a_full_primary_is_a_miss_and_counted(pin: str) -> None:
    """vllm 40020: allocation failure."""
    rig = Rig(cap=1)
    rig.tier.has(1)
    rig.start("w", "a")
    if pin == "waiter":
        rig.tier.has(9)
        rig.lookup("w", 9)
        rig.step()
        rig.tier.report_all()
    elif pin == "write":
        rig.manager.prepare_store([key(9)], ctx("w"))
    else:
        rig.fill("w", 9)
        if pin != "cascade":
            rig.settle()
    if pin == "reference":
        rig.manager.prepare_load([key(9)], ctx("w"))
    elif pin == "step pin":
        rig.locate("w", 9)
    assert rig.lookup("a", 1) is MISS
    assert rig.reason("a", 1) is MissReason.NO_ROOM
    assert rig.manager.counts.promotions.no_room == 1
    rig.step()
    assert rig.tier.loads == []


# F23: a load that is never reported


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_f23_the_wait_is_bounded_and_the_slot_stays_with_the_writer(bound: int) -> None:
    """vllm 49829."""
    rig = Rig(cap=2, deferral_bound=bound)
    rig.tier.has(1)
    rig.start("a", "b")
    passes = {"a": 0, "b": 0}
    hits: dict[str, int] = {}
    for _ in range(3 * bound + 3):
        for req_id in "ab":
            if req_id not in hits:
                passes[req_id] += 1
                end = rig.one_pass(req_id, 1)
                if end is not None:
                    hits[req_id] = end
                    rig.manager.prepare_load([], ctx(req_id))
        rig.step()
    assert hits == {"a": 0, "b": 0}
    assert passes == {"a": bound + 1, "b": bound + 1}
    rig.start("c")
    assert rig.one_pass("c", 1) == 0  # the write is older than the bound
    (job,) = rig.tier.loads
    output = rig.manager.prepare_store([key(7), key(8)], ctx("c"))
    assert len(output.store_spec) == 1
    assert output.store_spec.slots[0] not in job.slots
    rig.manager.complete_store(output.store_spec, ctx("c"))
    rig.finish("a", "b", "c")
    assert rig.manager.has_pending_work()
    rig.settle()
    rig.expect_idle()


def test_f23_the_bound_counts_all_rounds_of_a_request() -> None:
    """vllm 53087: the count starts anew with every preemption."""
    rig = Rig(cap=4, deferral_bound=5)
    rig.tier.has(1)
    rig.start("a")
    deferred = 0
    for _ in range(20):
        if rig.one_pass("a", 1) is not None:
            break
        deferred += 1
        rig.step()
        rig.manager.forget(ctx("a"))
    assert deferred == 5
    assert sum(rig.manager.counts.deferrals.values()) == 5


def test_f23_without_a_bound_a_late_report_still_serves() -> None:
    rig = Rig(cap=2)
    rig.tier.has(1)
    rig.start("a", "b")
    for _ in range(30):
        assert [rig.one_pass(req_id, 1) for req_id in "ab"] == [None, None]
        rig.step()
    rig.tier.report_all()
    assert [rig.one_pass(req_id, 1) for req_id in "ab"] == [1, 1]


# F24 and F25: a tier that raises when it is given a job


@pytest.mark.parametrize("failing", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}])
def test_f24_a_load_that_raises_is_a_failed_job_at_once(failing: set[int]) -> None:
    """LMCache 4384: some of the requests of a step."""
    rig = Rig(cap=8, tiers=2)
    rig.tiers[0].has(0, 1, 2)
    rig.tiers[1].has(5)
    rig.start("r0", "r1", "r2", "other")
    for n in range(3):
        rig.lookup(f"r{n}", n)
    rig.lookup("other", 5)
    rig.tiers[0].refuses = {f"r{n}" for n in failing}
    with capture_logs() as logs:
        rig.step()
    assert [log["call"] for log in logs] == ["submit_load"] * len(failing)
    assert rig.manager.counts.promotions.raised == len(failing)
    submitted = [args[0] for args in rig.tiers[0].calls("submit_load")]
    assert submitted == ["r0", "r1", "r2"]  # nobody's twice
    assert len(rig.tiers[1].loads) == 1
    assert all(len(tier.calls("on_schedule_end")) == 1 for tier in rig.tiers)
    for n in range(3):
        assert rig.locate(f"r{n}", n) is (MISS if n in failing else HIT_PENDING)
        if n in failing:
            assert rig.reason(f"r{n}", n) is MissReason.LOAD_FAILED
            assert rig.primary.block(key(n)) is None
    rig.finish("r0", "r1", "r2", "other")
    rig.settle()
    rig.expect_idle()


@pytest.mark.parametrize("bad", [[0], [1], [0, 1]])
@pytest.mark.parametrize("finish_first", [False, True])
@pytest.mark.parametrize("n_blocks", [1, 3])
def test_f25_a_store_that_raises_is_a_failed_job_at_once(
    bad: list[int], finish_first: bool, n_blocks: int
) -> None:
    """The request is finalized all the same, its slots unpinned, the other tier served."""
    rig = Rig(cap=4, tiers=2)
    for n in bad:
        rig.tiers[n].raises.add("submit_store")
    rig.start("a")
    keys = [key(n) for n in range(n_blocks)]
    spec = rig.manager.prepare_store(keys, ctx("a")).store_spec
    if finish_first:
        rig.finish("a")
    with capture_logs():
        rig.manager.complete_store(spec, ctx("a"))
    good = 2 - len(bad)
    assert rig.primary.references == good * n_blocks
    assert rig.manager.counts.stores.raised == len(bad)
    assert rig.manager.open_stores == good
    assert all(len(tier.calls("submit_store")) == 1 for tier in rig.tiers)
    rig.finish("a")
    assert all(tier.calls("on_request_finished") == [("a",)] for tier in rig.tiers)
    for n in bad:
        rig.tiers[n].jobs.clear()  # it did not take the job
    rig.settle()
    rig.expect_idle()


# F26, F30, F33: finishing


@pytest.mark.parametrize("n_blocks", [1, 3])
@pytest.mark.parametrize("tier", [0, 1])
def test_f26_nothing_is_submitted_for_a_request_that_finished(n_blocks: int, tier: int) -> None:
    """vllm 49022."""
    rig = Rig(cap=4, tiers=2)
    rig.tiers[tier].has(*range(n_blocks))
    rig.start("a")
    for n in range(n_blocks):
        assert rig.lookup("a", n) is RETRY
    rig.finish("a")
    assert rig.primary.available == 4
    rig.step()
    assert rig.manager.counts.promotions.submitted == 0
    rig.expect_idle()


@pytest.mark.parametrize("leaving", ["a", "ab", "ba", "ac", "abc", "cba", "b"])
def test_f26_a_queued_load_goes_on_under_the_oldest_that_is_left(leaving: str) -> None:
    """vllm 49022, with others waiting for the same blocks."""
    rig = Rig(cap=4)
    rig.tier.has(1, 2)
    rig.start("a", "b", "c")
    for req_id in "abc":
        for n in (1, 2):
            rig.lookup(req_id, n)
    rig.finish(*leaving)
    rig.step()
    left = [req_id for req_id in "abc" if req_id not in leaving]
    assert [job.req_context.req_id for job in rig.tier.loads] == left[:1]
    assert rig.manager.counts.promotions.submitted == bool(left)
    assert rig.tier.broken == []
    rig.tier.report_all()
    for req_id in left:
        assert [rig.locate(req_id, n) for n in (1, 2)] == [HIT, HIT]
    rig.finish(*left)
    rig.step()
    rig.expect_idle()


@pytest.mark.parametrize("tiers", [1, 2])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("success", [True, False])
def test_f30_the_cascade_goes_before_the_finish(tiers: int, parts: int, success: bool) -> None:
    """vllm 46284: a store that is still open when its request finishes, in one piece or more."""
    rig = Rig(cap=4, tiers=tiers)
    rig.start("a")
    specs = [rig.manager.prepare_store([key(n)], ctx("a")).store_spec for n in range(parts)]
    rig.finish("a")
    assert all(tier.calls("release_lookups") == [("a",)] for tier in rig.tiers)
    for spec in specs:
        assert all(tier.calls("on_request_finished") == [] for tier in rig.tiers)
        assert rig.manager.has_pending_work()
        rig.manager.complete_store(spec, ctx("a"), success)
    for tier in rig.tiers:
        told = [name for name in tier.names if name.startswith(("submit", "on_request"))]
        assert told == ["submit_store"] * parts * success + ["on_request_finished"]
    rig.settle()
    rig.expect_idle()


def _new(rig: Rig) -> None:
    pass


def _asking(rig: Rig) -> None:
    rig.tier.answers[key(1)] = [RETRY]
    rig.one_pass("a", 1)


def _queued(rig: Rig) -> None:
    rig.tier.has(1)
    rig.one_pass("a", 1)


def _loading(rig: Rig) -> None:
    _queued(rig)
    rig.step()


def _loaded(rig: Rig) -> None:
    _loading(rig)
    rig.tier.report_all()


def _pinned(rig: Rig) -> None:
    _loaded(rig)
    assert rig.one_pass("a", 1) == 1


def _load_failed(rig: Rig) -> None:
    _loading(rig)
    rig.tier.report_all(success=False)


def _joined_store(rig: Rig) -> None:
    rig.start("w")
    rig.manager.prepare_store([key(1)], ctx("w"))
    rig.one_pass("a", 1)


PHASES = [_new, _asking, _queued, _loading, _loaded, _pinned, _load_failed, _joined_store]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("steps_before", [0, 1])
@pytest.mark.parametrize("other", [False, True])
def test_f33_f35_an_abort_in_every_phase_lets_everything_go(
    phase: Callable[[Rig], None], steps_before: int, other: bool
) -> None:
    """LMCache 1034, vllm 44100; SGLang 31296: and no slot is free before its writer is done."""
    rig = Rig(cap=2)
    rig.start("a", "b")
    phase(rig)
    if other:
        rig.one_pass("b", 1)
    rig.step(steps_before)
    rig.finish("a")
    for job in rig.tier.loads:
        block = rig.primary.block(key(1))
        assert block is not None
        assert (block.slot, block.ready) == (job.slots[0], False)
        spec = rig.manager.prepare_store([key(8), key(9)], ctx("b")).store_spec
        assert job.slots[0] not in spec.slots
        rig.manager.complete_store(spec, ctx("b"), success=False)
    rig.finish("b")
    if phase is _joined_store:
        block = rig.primary.block(key(1))
        assert block is not None
        spec = LoadStoreSpec((key(1),), (block.slot,), (block.write_id,))
        rig.manager.complete_store(spec, ctx("w"), success=False)
        rig.finish("w")
    rig.settle()
    rig.expect_idle()


@pytest.mark.parametrize("order", list(permutations(["finish", "read", "filled"])))
def test_f33_an_abort_while_the_engine_reads_or_fills(order: tuple[str, ...]) -> None:
    """The references and the slots are let go by the completions, in whatever order."""
    rig = Rig(cap=4)
    rig.start("a")
    rig.fill("a", 1)
    reading = rig.manager.prepare_load([key(1)], ctx("a"))
    filling = rig.manager.prepare_store([key(2)], ctx("a")).store_spec
    for event in order:
        if event == "finish":
            rig.finish("a")
        elif event == "read":
            rig.manager.complete_load(reading, ctx("a"))
        else:
            rig.manager.complete_store(filling, ctx("a"), success=False)
        told = order.index(event) >= max(order.index("finish"), order.index("filled"))
        assert len(rig.tier.calls("on_request_finished")) == told
    rig.settle()
    rig.expect_idle()


def test_f33_a_pin_of_a_lookup_that_came_to_nothing_ends_with_the_step() -> None:
    rig = Rig(cap=1)
    rig.start("w", "a")
    rig.fill("w", 1)
    rig.settle()
    assert rig.locate("a", 1) is HIT
    rig.finish("a")
    assert rig.primary.available == 0
    rig.step()
    assert rig.primary.available == 1


# F27 and F34: loads that are done in part, or not at all


@pytest.mark.parametrize("bad", [c for r in range(5) for c in combinations(range(4), r)])
def test_f27_only_the_blocks_that_failed_are_missed(bad: tuple[int, ...]) -> None:
    """vllm 50321: one unreadable block spoils the whole load."""
    rig = Rig(cap=8)
    rig.tier.has(*range(4))
    rig.start("a", "b")
    for req_id in "ab":
        for n in range(4):
            rig.lookup(req_id, n)
    rig.step()
    (job,) = rig.tier.loads
    rig.tier.report(job, [key(n) for n in range(4) if n not in bad])
    for req_id in "ab":
        assert [rig.locate(req_id, n) for n in range(4)] == [
            MISS if n in bad else HIT for n in range(4)
        ]
        assert all(rig.reason(req_id, n) is MissReason.LOAD_FAILED for n in bad)
    counts = rig.manager.counts.promotions
    assert (counts.ok, counts.partial, counts.failed) == (not bad, 0 < len(bad) < 4, len(bad) == 4)
    assert rig.manager.counts.protocol_errors == 0


def test_f27_with_a_real_tier() -> None:
    runtime = VirtualRuntime()
    store = ScriptedStore()
    manager = over_stores(8, runtime, store)
    keys = [key(n) for n in range(4)]

    def work() -> None:
        manager.on_schedule_end()
        while runtime.wait(0.0):
            pass

    manager.on_new_request(ctx("w"))
    spec = manager.prepare_store(keys, ctx("w")).store_spec
    manager.complete_store(spec, ctx("w"))
    work()
    manager.on_request_finished(ctx("w"))
    work()
    assert manager.reset_cache()
    store.fail("get", OSError("EIO"), at=keys[2])
    manager.on_new_request(ctx("a"))
    with capture_logs():
        assert until_told(lambda: one_pass(manager, ctx("a"), keys), work) == (2, 3)
        assert [manager.locate(k, ctx("a")) for k in keys] == [HIT, HIT, MISS, HIT]
    assert manager.counts.promotions.partial == 1


@pytest.mark.parametrize("named", [None, (), (key(7),)])
def test_f34_a_failed_load_never_becomes_readable(named: tuple[object, ...] | None) -> None:
    """Dynamo 15079: whatever else the report says, or a second one."""
    rig = Rig(cap=2)
    rig.tier.has(1)
    rig.start("a", "b")
    rig.lookup("a", 1)
    rig.step()
    (job,) = rig.tier.loads
    del rig.tier.jobs[job.job_id]
    rig.tier.reports = [
        JobResult(job.job_id, success=False, successful_keys=named),  # type: ignore[arg-type]
        JobResult(job.job_id, success=True),
    ]
    assert rig.locate("a", 1) is MISS
    assert rig.primary.lookup(key(1), ctx("a")) is MISS
    rig.fill("b", 8, 9)
    assert [rig.locate("a", n) for n in (8, 9)] == [HIT, HIT]


def test_f34_a_failed_fill_never_becomes_readable() -> None:
    rig = Rig(cap=2)
    rig.start("a", "b")
    spec = rig.manager.prepare_store([key(1)], ctx("b")).store_spec
    assert rig.locate("a", 1) is HIT_PENDING
    rig.manager.complete_store(spec, ctx("b"), success=False)
    assert rig.locate("a", 1) is MISS
    assert rig.tier.stores == []


# F35: a slot is free when its own writer says so, and not before


@pytest.mark.parametrize("how", ["finish", "forget", "bound"])
@pytest.mark.parametrize("success", [True, False])
def test_f35_a_cancelled_load_keeps_its_slot_until_it_is_reported(how: str, success: bool) -> None:
    """SGLang 31296."""
    rig = Rig(cap=1, deferral_bound=3)
    rig.tier.has(1)
    rig.start("a", "b")
    rig.lookup("a", 1)
    rig.step()
    if how == "finish":
        rig.finish("a")
    elif how == "forget":
        rig.manager.forget(ctx("a"))
    else:
        for _ in range(3):
            rig.manager.defer(ctx("a"), DeferReason.PROMOTION)
        assert rig.locate("a", 1) is MISS
    for _ in range(5):
        assert rig.manager.prepare_store([key(2)], ctx("b")).no_room == (key(2),)
        rig.step()
    rig.tier.report_all(success=success)
    assert len(rig.manager.prepare_store([key(2)], ctx("b")).store_spec) == 1


# F31: reset


def test_f31_a_reset_waits_for_the_tiers_first() -> None:
    """vllm 45268."""
    rig = Rig(cap=4, tiers=2)
    rig.tiers[0].has(1)
    rig.start("a")
    rig.lookup("a", 1)
    rig.fill("a", 2)
    rig.step()
    assert rig.manager.reset_cache(timeout=3.0)
    assert [tier.calls("drain_jobs") for tier in rig.tiers] == [[(1.5,)], [(3.0,)]]
    assert not rig.manager.held
    assert len(rig.primary) == 0
    assert rig.primary.available == 4
    # a waited for a write that is gone.
    assert rig.locate("a", 1) is MISS
    assert rig.reason("a", 1) is MissReason.LOST
    rig.finish("a")
    rig.step()
    rig.expect_idle()


@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("out", ["load", "store", "engine load", "engine store"])
def test_f31_a_slot_in_use_is_not_given_away_by_a_reset(out: str, success: bool) -> None:
    """vllm 45268: the late writer or reader, of every kind."""
    rig = Rig(cap=1)
    rig.tier.hangs.add("drain_jobs")
    rig.tier.has(1)
    rig.start("a", "b")
    manager, a = rig.manager, ctx("a")
    end: Callable[[], None]
    if out == "load":
        rig.lookup("a", 1)
        end = partial(rig.settle, success=success)
    elif out == "store":
        rig.fill("a", 1)
        end = partial(rig.settle, success=success)
    elif out == "engine store":
        spec = manager.prepare_store([key(1)], a).store_spec
        end = partial(manager.complete_store, spec, a, success)
    else:
        rig.fill("a", 1)
        rig.settle()
        read = manager.prepare_load([key(1)], a)
        end = partial(manager.complete_load, read, a)
    rig.step()
    assert not manager.reset_cache()
    assert manager.held
    for _ in range(3):
        assert manager.prepare_store([key(2)], ctx("b")).no_room == (key(2),)
        assert rig.locate("b", 1) is not HIT  # nor is the old block found
        rig.step()
    end()
    assert not manager.held
    assert rig.primary.holding == 0
    assert rig.locate("b", 1) is not HIT
    assert len(rig.tier.stores) == 0  # what came before the reset is not stored after it
    assert len(manager.prepare_store([key(2)], ctx("b")).store_spec) == 1


def test_f31_what_was_filled_before_a_reset_is_not_stored_in_place_of_what_came_after() -> None:
    rig = Rig(cap=2)
    rig.start("a", "b")
    before = rig.manager.prepare_store([key(1)], ctx("a")).store_spec
    rig.step()
    rig.manager.reset_cache()
    rig.fill("b", 1)
    rig.manager.complete_store(before, ctx("a"))
    after = rig.primary.block(key(1))
    assert after is not None
    assert [job.slots for job in rig.tier.stores] == [(after.slot,)]
    assert rig.locate("a", 1) is HIT


def test_f31_promotions_are_on_hold_for_a_bounded_time() -> None:
    """The hold shows, and ends; the slot stays with its writer."""
    rig = Rig(cap=4, hold_limit=10.0)
    rig.tier.hangs.add("drain_jobs")
    rig.tier.has(1, 2)
    rig.start("a", "b")
    rig.lookup("a", 1)
    rig.step()
    (job,) = rig.tier.loads
    assert not rig.manager.reset_cache(timeout=1.0)
    assert rig.manager.held
    assert rig.manager.room() == 0
    assert rig.one_pass("b", 2) == 0  # and it does not wait for the hold
    assert rig.reason("b", 2) is MissReason.HELD
    assert rig.lookup("b", 2) is MISS
    assert rig.manager.counts.promotions.no_room == 0
    rig.runtime.sleep(10.0)
    assert not rig.manager.held
    assert rig.lookup("b", 2) is RETRY
    rig.step()
    assert rig.tier.loads[1].slots[0] not in job.slots
    assert rig.primary.holding == 1
    rig.finish("a", "b")
    rig.settle()
    rig.expect_idle()


def test_f31_a_load_from_before_a_reset_says_nothing_about_the_one_after() -> None:
    rig = Rig(cap=4, hold_limit=0.0)
    rig.tier.hangs.add("drain_jobs")
    rig.tier.has(1)
    rig.start("a", "b")
    rig.lookup("a", 1)
    rig.step()
    rig.manager.reset_cache()
    rig.lookup("b", 1)
    rig.step()
    before, after = rig.tier.loads
    assert before.slots != after.slots
    rig.tier.report(before, made=())
    assert rig.locate("b", 1) is HIT_PENDING
    rig.step()
    rig.tier.report(after)
    assert rig.locate("b", 1) is HIT
    assert rig.primary.available == 3


def test_f31_the_hold_is_over_when_the_last_slot_is_back() -> None:
    rig = Rig(cap=4)
    rig.tier.hangs.add("drain_jobs")
    rig.tier.has(1, 2)
    rig.start("a")
    rig.lookup("a", 1)
    rig.step()
    rig.manager.reset_cache()
    assert rig.manager.held
    rig.tier.report_all()
    assert rig.lookup("a", 2) is RETRY
    assert not rig.manager.held


def test_f31_reset_is_for_between_steps() -> None:
    rig = Rig(cap=4)
    rig.tier.has(1)
    rig.start("a")
    rig.lookup("a", 1)
    with pytest.raises(UsageError, match="between steps"):
        rig.manager.reset_cache()
    assert rig.holders(1) == {"a"}
    rig.step()
    rig.manager.reset_cache()


# F14 and F32: shutdown


@pytest.mark.parametrize("n_tiers", [1, 2, 3])
def test_f32_every_tier_is_shut_down_and_the_first_error_raised_at_the_end(n_tiers: int) -> None:
    """vllm 52290."""
    for bad in (c for r in range(n_tiers + 1) for c in combinations(range(n_tiers), r)):
        rig = Rig(tiers=n_tiers)
        for n in bad:
            rig.tiers[n].raises.add("shutdown")
        with capture_logs():
            if bad:
                with pytest.raises(Boom, match=f"t{bad[0] + 1}: shutdown"):
                    rig.manager.shutdown()
            else:
                rig.manager.shutdown()
            rig.manager.shutdown()  # nothing more to do
        assert [len(tier.calls("shutdown")) for tier in rig.tiers] == [1] * n_tiers
        assert rig.manager.counts.tier_errors == len(bad)


@pytest.mark.parametrize("hanging", [(), (0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_f14_a_tier_that_hangs_leaves_the_others_their_share(hanging: tuple[int, ...]) -> None:
    """Each gets an equal part of what is left, and together no more than there is."""
    rig = Rig(tiers=3)
    for n in hanging:
        rig.tiers[n].hangs.add("shutdown")
    rig.manager.shutdown(timeout=6.0)
    assert rig.runtime.now() <= 6.0
    shares = [tier.calls("shutdown")[0][0] for tier in rig.tiers]
    left, expected = 6.0, []
    for n in range(3):
        expected.append(left / (3 - n))
        left -= expected[-1] if n in hanging else 0.0
    assert shares == pytest.approx(expected)


def test_f14_a_tier_that_overstays_leaves_the_others_their_turn() -> None:
    rig = Rig(tiers=3)
    rig.tiers[0].hangs.add("shutdown")
    late = rig.tiers[0].shutdown
    rig.tiers[0].shutdown = lambda timeout=None: late(60.0)  # type: ignore[method-assign]
    rig.manager.shutdown(timeout=6.0)
    assert [tier.calls("shutdown") for tier in rig.tiers[1:]] == [[(0.0,)], [(0.0,)]]


def test_f14_no_timeout_is_no_timeout_for_anyone() -> None:
    rig = Rig(tiers=2)
    rig.manager.shutdown(None)
    assert [tier.calls("shutdown") for tier in rig.tiers] == [[(None,)], [(None,)]]


def test_f14_f32_with_real_tiers_and_threads() -> None:
    """A back end that never returns, one that raises when it is closed, and a good one."""
    runtime = ThreadRuntime()
    stores = [ScriptedStore() for _ in range(3)]
    hold = stores[0].hold("contains")
    stores[1].fail("close", OSError("no"))
    manager = over_stores(4, runtime, *stores)
    manager.on_new_request(ctx("a"))
    try:
        assert manager.lookup(key(1), ctx("a")) is RETRY
        manager.on_schedule_end()
        assert hold.entered.wait(10)
        began = runtime.now()
        with capture_logs(), pytest.raises(TierError, match="2:s"):
            manager.shutdown(timeout=0.9)
        assert runtime.now() - began < 5.0
        assert [store.count("close") for store in stores[1:]] == [1, 1]
        assert not manager.has_pending_work()
        assert manager.locate(key(1), ctx("a")) is MISS
    finally:
        hold.free()


def test_after_shutdown_nothing_is_asked_started_or_waited_for() -> None:
    rig = Rig(cap=6)
    rig.tier.has(1, 2)
    rig.start("a")
    rig.fill("a", 5)
    rig.lookup("a", 1)
    rig.locate("a", 2)
    spec = rig.manager.prepare_store([key(4)], ctx("a")).store_spec
    rig.manager.shutdown()
    asked = len(rig.tier.calls("lookup"))
    assert [rig.lookup("a", n) for n in (1, 2, 3, 5)] == [MISS, MISS, MISS, HIT]
    assert [rig.reason("a", n) for n in (1, 2, 3)] == [
        MissReason.LOST,
        MissReason.CLOSED,
        MissReason.CLOSED,
    ]
    assert rig.one_pass("a", 1, 2) == 0
    rig.manager.complete_store(spec, ctx("a"))
    rig.step()
    assert len(rig.tier.calls("lookup")) == asked
    assert rig.tier.loads == []
    assert [job.keys for job in rig.tier.stores] == [(key(5),)]
    assert not rig.manager.has_pending_work()
    rig.finish("a")
    rig.settle()
    rig.expect_idle()


def test_what_a_tier_reports_while_it_is_shut_down_is_taken_in() -> None:
    rig = Rig(cap=4)
    rig.tier.has(1)
    rig.start("a")
    rig.lookup("a", 1)
    rig.step()
    rig.locate("a", 1)  # this step has polled
    rig.tier.report_all(success=False)
    rig.manager.shutdown()
    assert rig.manager.open_promotions == 0
    assert rig.primary.available == 4
