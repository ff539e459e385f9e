"""`StoreTier` over back ends that fail, lie, dawdle and hang."""

from __future__ import annotations

import errno
import threading
import time
from itertools import combinations

import pytest

from kvtier.errors import BlockMissing, DamagedBlock, TierError, UsageError
from kvtier.results import LookupResult, MissReason
from kvtier.runtime import ThreadRuntime, VirtualRuntime
from kvtier.tiers.base import TransferJob
from tests.support.stores import BLOCK, ScriptedStore, TenantStore, TierDriver, block, ctx, key

HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY


@pytest.fixture(params=[VirtualRuntime, ThreadRuntime])
def runtime(request):
    return request.param()


@pytest.fixture
def store():
    store = ScriptedStore()
    yield store
    store.free_all()


@pytest.fixture
def driver(store, runtime):
    driver = TierDriver(store, runtime)
    yield driver
    store.heal()
    store.free_all()
    driver.tier.shutdown()


def some(numbers):
    """Every choice of at least one of `numbers`."""
    numbers = tuple(numbers)
    return [chosen for n in range(1, len(numbers) + 1) for chosen in combinations(numbers, n)]


def keys(numbers):
    return tuple(key(n) for n in numbers)


class TestTransfers:
    def test_what_was_stored_is_found_and_loaded(self, driver):
        assert driver.ask(0) is MISS
        assert driver.tier.miss_reason(key(0), ctx()) is MissReason.ABSENT
        stored = driver.store(range(5))
        assert (stored.success, stored.successful_keys) == (True, None)
        assert stored.transfer_bytes == 5 * BLOCK
        assert [driver.ask(n, ctx("b")) for n in range(6)] == [HIT] * 5 + [MISS]
        loaded = driver.load(range(5))
        assert (loaded.success, loaded.transfer_bytes) == (True, 5 * BLOCK)
        assert [driver.slot(n) for n in range(5)] == [block(n) for n in range(5)]

    def test_the_caller_never_waits_for_the_back_end(self):
        store = ScriptedStore()
        driver = TierDriver(store, ThreadRuntime())
        holds = [store.hold(op) for op in ("contains", "get", "put")]
        began = time.monotonic()
        driver.submit_store([0])
        driver.submit_load([1])
        assert driver.tier.lookup(key(2), ctx()) is RETRY
        driver.tier.on_schedule_end()
        assert driver.tier.get_finished_jobs() == []
        assert time.monotonic() - began < 1
        for hold in holds:
            assert hold.entered.wait(10)
            hold.free()
        assert len(driver.results(2)) == 2
        driver.tier.shutdown()

    def test_every_job_is_reported_once_however_many_there_are(self, driver):
        driver.store(range(8))
        jobs = [driver.submit_load([n % 8, (n + 3) % 8]) for n in range(60)]
        results = driver.results(60)
        assert set(results) == {job.job_id for job in jobs}
        assert all(result.success for result in results.values())
        assert driver.tier.get_finished_jobs() == []
        assert not driver.tier.has_pending_work()

    def test_time_spent_moving_is_reported_without_time_spent_waiting(self):
        runtime = VirtualRuntime()
        store = ScriptedStore(runtime)
        store.latency = lambda: 0.5
        driver = TierDriver(store, runtime, lanes=1)
        driver.submit_store(range(3))
        driver.submit_store(range(3, 5))
        times = [result.transfer_time for result in driver.results(2).values()]
        assert times == pytest.approx([1.5, 1.0])

    @pytest.mark.parametrize("lanes", [1, 2, 5])
    def test_any_number_of_lanes_does(self, lanes, runtime):
        driver = TierDriver(ScriptedStore(), runtime, lanes=lanes)
        for n in range(10):
            driver.submit_store([n])
        assert all(result.success for result in driver.results(10).values())
        driver.tier.shutdown()

    def test_lanes_below_one_are_refused(self):
        with pytest.raises(UsageError, match="lanes must be at least 1"):
            TierDriver(ScriptedStore(), VirtualRuntime(), lanes=0)

    def test_a_lane_that_hangs_is_avoided(self):
        store = ScriptedStore()
        driver = TierDriver(store, ThreadRuntime())
        stuck = store.hold("put", key(0))
        job = driver.submit_store([0])
        assert stuck.entered.wait(10)
        for n in range(1, 9):
            assert driver.store([n]).success
        stuck.free()
        assert driver.result(job).success
        driver.tier.shutdown()

    @pytest.mark.parametrize("op", ["load", "store"])
    @pytest.mark.parametrize(
        ("slots", "flipped", "complaint"),
        [
            ((0,), False, "2 keys, 1 slots"),
            ((0, 1, 2), False, "2 keys, 3 slots"),
            ((0, 32), False, "slots"),
            ((-1, 0), False, "slots"),
            ((0, 1), True, "other way"),
        ],
    )
    def test_a_job_that_makes_no_sense_is_refused(self, driver, op, slots, flipped, complaint):
        submit = driver.tier.submit_load if op == "load" else driver.tier.submit_store
        with pytest.raises(UsageError, match=complaint):
            submit(TransferJob(7, keys([0, 1]), slots, (op == "load") is not flipped, ctx()))
        assert not driver.tier.has_pending_work()

    def test_a_job_id_that_is_out_is_refused_and_may_come_again_later(self, driver):
        job = driver.submit_store([0])
        with pytest.raises(UsageError, match="submitted before"):
            driver.tier.submit_store(job)
        driver.result(job)
        driver.tier.submit_store(job)
        assert driver.result(job).success


class TestFailures:
    @pytest.mark.parametrize("what", ["missing", "damaged", "unreadable"])
    def test_f27_a_block_that_cannot_be_loaded_fails_alone(self, what):
        for bad in some(range(4)):
            store, runtime = ScriptedStore(), VirtualRuntime()
            driver = TierDriver(store, runtime)
            driver.store(range(4))
            for n in bad:
                if what == "missing":
                    del store.frames[key(n)]
                elif what == "damaged":
                    store.frames[key(n)] = store.frames[key(n)][:-1] + b"\0"
                else:
                    store.fail("get", OSError(errno.EIO, "bad sector"), at=key(n))
            good = [n for n in range(4) if n not in bad]
            result = driver.load(range(4))
            assert not result.success
            assert result.successful_keys == keys(good)
            assert result.transfer_bytes == len(good) * BLOCK
            assert [driver.slot(n) for n in good] == [block(n) for n in good]
            assert all(driver.slot(n) == bytes(BLOCK) for n in bad), "an unverified byte got in"
            assert [driver.ask(n, ctx("a")) for n in good] == [HIT] * len(good)

    @pytest.mark.parametrize("op", ["load", "store"])
    def test_order_and_number_of_blocks_do_not_matter(self, op):
        for numbers in ([3, 1, 2, 0], [2], [0, 1], list(range(31, -1, -1))):
            store = ScriptedStore()
            driver = TierDriver(store, VirtualRuntime())
            driver.store(numbers)
            store.fail("get" if op == "load" else "put", OSError("no"), at=key(numbers[0]))
            result = driver.load(numbers) if op == "load" else driver.store(numbers)
            assert result.successful_keys == keys(numbers[1:])
            assert driver.tier.errors == {"OSError": 1}

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (OSError(errno.EIO, "bad sector"), "OSError EIO"),
            (OSError(errno.ENOSPC, "full"), "OSError ENOSPC"),
            (OSError(errno.EACCES, "locked"), "PermissionError EACCES"),
            (OSError("no number"), "OSError"),
            (OSError(10**6, "no such number"), "OSError"),
            (TimeoutError("slow"), "TimeoutError"),
            (TierError("no"), "TierError"),
            (ValueError("bug"), "ValueError"),
            (SystemExit(1), "SystemExit"),
            (BlockMissing("gone"), "BlockMissing"),
        ],
        ids=repr,
    )
    def test_an_error_that_is_no_damage_leaves_the_block(self, driver, store, error, kind):
        driver.store([0])
        store.fail("get", error, at=key(0))
        assert not driver.load([0]).success
        assert store.count("delete") == 0
        assert driver.tier.errors == {kind: 1}
        store.heal()
        assert driver.load([0]).success

    def test_damage_removes_the_block(self, driver, store):
        driver.store([0, 1])
        store.alter[key(0)] = lambda raw: raw[:20]
        assert not driver.load([0, 1]).success
        assert set(store.frames) == {key(1)}
        assert driver.tier.errors == {"DamagedBlock": 1}

    def test_damage_that_the_back_end_finds_by_itself_removes_the_block(self, driver, store):
        driver.store([0])
        store.fail("get", DamagedBlock("etag mismatch"))
        assert not driver.load([0]).success
        assert store.frames == {}

    def test_damage_that_cannot_be_removed_is_still_a_failed_load(self, driver, store):
        driver.store([0])
        store.alter[key(0)] = lambda raw: b""
        store.fail("delete", OSError(errno.EROFS, "read-only"))
        assert not driver.load([0]).success
        assert driver.tier.errors == {"DamagedBlock": 1}

    def test_f40_no_alteration_of_a_frame_reaches_a_slot(self):
        store = ScriptedStore()
        driver = TierDriver(store, VirtualRuntime())
        driver.store([0, 1])
        whole = store.frames[key(0)]
        alterations = [whole[:n] for n in range(0, len(whole), 3)]
        alterations += [whole + b"\0", whole + whole, store.frames[key(1)], b"\0" * len(whole)]
        for at in range(len(whole)):
            flipped = bytearray(whole)
            flipped[at] ^= 0x40
            alterations.append(bytes(flipped))
        for raw in alterations:
            store.frames[key(0)] = raw
            result = driver.load([0])
            assert (result.success, result.successful_keys) == (False, ())
            assert driver.slot(0) == bytes(BLOCK)
            assert key(0) not in store.frames
        assert driver.tier.errors == {"DamagedBlock": len(alterations)}

    @pytest.mark.parametrize("raw", [b"", b"junk", bytes(500)], ids=["empty", "junk", "zeros"])
    def test_f44_a_damaged_block_is_replaced_by_a_store_not_skipped(self, driver, store, raw):
        store.frames[key(0)] = raw
        assert driver.store([0]).success
        assert driver.load([0]).success
        assert driver.slot(0) == block(0)

    def test_a_slot_that_changes_while_it_is_stored_is_found_out_on_load(self, driver, store):
        real_put = store.put

        def late_put(key, frame, req_context):
            driver.view.slot(0)[5] ^= 1
            real_put(key, frame, req_context)

        store.put = late_put
        assert driver.store([0]).success
        assert not driver.load([0]).success
        assert driver.tier.errors == {"DamagedBlock": 1}


class TestVerdicts:
    def test_a_failed_load_is_a_miss_from_then_on_and_is_not_asked_again(self, driver, store):
        driver.store(range(3))
        assert [driver.ask(n) for n in range(3)] == [HIT] * 3
        calls = store.count("contains")
        store.fail("get", OSError(errno.EIO, "bad sector"), at=key(1))
        driver.load(range(3))
        assert [driver.ask(n) for n in range(3)] == [HIT, MISS, HIT]
        assert [driver.ask(n, ctx("b")) for n in range(3)] == [HIT, MISS, HIT]
        assert store.count("contains") == calls

    def test_a_failed_load_is_a_miss_in_every_scope(self, runtime):
        store = TenantStore()
        driver = TierDriver(store, runtime)
        one, two = ctx("a", "one"), ctx("b", "two")
        for who in (one, two):
            driver.store([0], who)
            assert driver.ask(0, who) is HIT
        store.of["one"].frames.clear()
        assert not driver.load([0], one).success
        assert (driver.ask(0, one), driver.ask(0, two)) == (MISS, MISS)
        driver.tier.shutdown()

    def test_f08_a_completed_store_is_a_hit_without_a_probe(self, driver, store):
        assert driver.ask(0) is MISS
        calls = store.count("contains")
        driver.store([0])
        assert driver.ask(0, ctx("b")) is HIT
        assert store.count("contains") == calls

    def test_the_blocks_of_a_failed_store_that_made_it_are_hits(self, driver, store):
        assert [driver.ask(n) for n in range(3)] == [MISS] * 3
        store.fail("put", OSError(errno.ENOSPC, "full"), at=key(1))
        assert not driver.store(range(3)).success
        assert [driver.ask(n) for n in range(3)] == [HIT, MISS, HIT]

    def test_a_store_is_a_hit_in_the_scope_of_its_request_only(self, runtime):
        driver = TierDriver(TenantStore(), runtime)
        one, two = ctx("a", "one"), ctx("b", "two")
        assert (driver.ask(0, one), driver.ask(0, two)) == (MISS, MISS)
        driver.store([0], one)
        assert (driver.ask(0, one), driver.ask(0, two)) == (HIT, MISS)
        driver.tier.shutdown()

    @pytest.mark.parametrize("tenants", [("one", "two"), ("one", None), ("x", "y", "z")])
    def test_f16_tenants_that_ask_for_the_same_key_get_their_own_answers(self, runtime, tenants):
        for owners in some(tenants):
            store = TenantStore()
            driver = TierDriver(store, runtime)
            askers = {tenant: ctx(f"r{n}", tenant) for n, tenant in enumerate(tenants)}
            for tenant in owners:
                store.tenant(askers[tenant]).frames[key(0)] = b""
            for who in askers.values():
                assert driver.tier.lookup(key(0), who) is RETRY
            answers = {tenant: driver.ask(0, who) for tenant, who in askers.items()}
            assert answers == {tenant: HIT if tenant in owners else MISS for tenant in tenants}
            assert driver.tier.lookups.counts.issued == len(tenants)
            assert all(store.of[tenant].count("contains") == 1 for tenant in tenants)
            driver.tier.shutdown()

    @pytest.mark.parametrize(
        "answers",
        [
            pytest.param(lambda keys: [True] * (len(keys) - 1), id="f11-one-too-few"),
            pytest.param(lambda keys: [], id="f11-none"),
            pytest.param(lambda keys: [True] * (len(keys) + 1), id="one-too-many"),
            pytest.param(lambda keys: [True] * (len(keys) - 1) + [None], id="not-a-bool"),
            pytest.param(lambda keys: None, id="not-an-iterable"),
            pytest.param(lambda keys: (1 // (n - 2) > -5 for n in range(3)), id="f12-lazy-raise"),
        ],
    )
    def test_answers_that_cannot_be_matched_with_keys_are_errors(self, driver, store, answers):
        store.answers = answers
        for n in range(3):
            driver.tier.lookup(key(n), ctx())
        assert [driver.ask(n) for n in range(3)] == [MISS] * 3
        reasons = {driver.tier.miss_reason(key(n), ctx()) for n in range(3)}
        assert reasons == {MissReason.LOOKUP_ERROR}
        store.answers = None
        driver.tier.on_request_finished(ctx())
        driver.store([0])
        assert (driver.ask(0, ctx("b")), driver.ask(1, ctx("b"))) == (HIT, MISS)

    def test_f10_a_question_that_failed_is_asked_again_for_somebody_new(self, driver, store):
        store.frames[key(0)] = b""
        store.fail("contains", OSError(errno.EIO, "bad sector"))
        assert driver.ask(0, ctx("a")) is MISS
        store.heal()
        assert driver.ask(0, ctx("b")) is HIT
        assert store.count("contains") == 2

    @pytest.mark.parametrize("let_go", ["release_lookups", "on_request_finished"])
    def test_f03_a_request_that_lets_go_takes_its_questions_back(self, driver, store, let_go):
        driver.tier.lookup(key(0), ctx("a"))
        driver.tier.lookup(key(1), ctx("a"))
        driver.tier.lookup(key(1), ctx("b"))
        getattr(driver.tier, let_go)(ctx("a"))
        assert driver.ask(1, ctx("b")) is MISS
        assert [call[1] for call in store.calls] == [(key(1),)]

    def test_f07_past_the_deadline_a_lookup_is_a_miss_with_that_reason(self):
        store, runtime = ScriptedStore(), VirtualRuntime()
        driver = TierDriver(store, runtime, deadline=2.0)
        driver.tier.lookup(key(0), ctx())
        runtime.sleep(2.5)
        assert driver.tier.lookup(key(0), ctx()) is MISS
        assert driver.tier.miss_reason(key(0), ctx()) is MissReason.DEADLINE

    def test_f09_a_verdict_past_its_lifetime_is_asked_again(self):
        store, runtime = ScriptedStore(), VirtualRuntime()
        driver = TierDriver(store, runtime, verdict_lifetime=60.0)
        driver.store([0])
        assert driver.ask(0) is HIT
        store.frames.clear()
        runtime.sleep(61.0)
        assert driver.ask(0) is MISS

    def test_f18_pending_work_is_jobs_reports_and_open_questions(self, driver):
        tier = driver.tier
        assert not tier.has_pending_work()
        job = driver.submit_store([0])
        assert tier.has_pending_work()
        assert tier.drain_jobs(10)
        assert tier.has_pending_work(), "the report is not fetched yet"
        assert [result.job_id for result in tier.get_finished_jobs()] == [job.job_id]
        assert not tier.has_pending_work()
        tier.lookup(key(1), ctx())
        tier.on_schedule_end()
        tier.on_request_finished(ctx())
        assert tier.has_pending_work(), "the answer is still to come"
        until = driver.runtime.now() + 10
        while tier.has_pending_work() and driver.runtime.now() < until:
            tier.on_schedule_end()
            driver.runtime.wait(0.05)
        assert not tier.has_pending_work()


class TestDrain:
    @pytest.mark.parametrize("timeout", [10.0, None])
    def test_after_a_drain_no_job_touches_the_primary(self, driver, timeout):
        driver.store(range(8))
        for _ in range(5):
            driver.submit_load(range(8))
        assert driver.tier.drain_jobs(timeout)
        assert [driver.slot(n) for n in range(8)] == [block(n) for n in range(8)]
        assert len(list(driver.tier.get_finished_jobs())) == 5

    def test_with_nothing_to_drain_it_is_done_at_once(self, driver):
        assert driver.tier.drain_jobs(0)

    @pytest.mark.parametrize("timeout", [0.0, 0.1])
    def test_a_drain_that_cannot_end_says_so_in_time(self, timeout):
        store = ScriptedStore()
        driver = TierDriver(store, ThreadRuntime())
        stuck = store.hold("put", key(0))
        driver.submit_store([0])
        began = time.monotonic()
        assert not driver.tier.drain_jobs(timeout)
        assert time.monotonic() - began < timeout + 2
        stuck.free()
        assert driver.tier.drain_jobs(10)
        driver.tier.shutdown()


class TestShutdown:
    def test_jobs_that_were_submitted_are_finished_first(self, driver, store):
        for n in range(20):
            driver.submit_store([n])
        driver.tier.shutdown(10)
        results = list(driver.tier.get_finished_jobs())
        assert [result.success for result in results] == [True] * 20
        assert len(store.frames) == 20
        assert not driver.tier.has_pending_work()

    def test_it_closes_the_back_end_once(self, driver, store):
        for _ in range(3):
            driver.tier.shutdown()
        assert store.count("close") == 1

    def test_it_waits_as_long_as_it_takes_without_a_timeout(self, store):
        driver = TierDriver(store, ThreadRuntime())
        hold = store.hold("put")
        driver.submit_store([0])
        timer = threading.Timer(0.2, hold.free)
        timer.start()
        driver.tier.shutdown(None)
        assert [result.success for result in driver.tier.get_finished_jobs()] == [True]
        timer.join()

    def test_afterwards_everything_is_safe_and_nothing_starts(self, driver, store):
        driver.store([0])
        driver.ask(0)
        tier = driver.tier
        tier.shutdown()
        calls = len(store.calls)
        for submit in (driver.submit_load, driver.submit_store):
            with pytest.raises(UsageError, match="shut down"):
                submit([1])
        assert tier.lookup(key(0), ctx()) is HIT
        assert tier.lookup(key(1), ctx()) is MISS
        assert tier.miss_reason(key(1), ctx()) is MissReason.CLOSED
        tier.on_schedule_end()
        tier.on_request_finished(ctx())
        assert tier.get_finished_jobs() == []
        assert tier.drain_jobs(0)
        assert not tier.has_pending_work()
        assert len(store.calls) == calls

    def test_a_back_end_that_cannot_be_closed_is_an_error_after_all_else_is_done(
        self, driver, store
    ):
        store.fail("close", OSError(errno.EIO, "bad sector"))
        driver.submit_store([0])
        with pytest.raises(TierError, match=r"1:test could not be closed: .*bad sector"):
            driver.tier.shutdown()
        assert [result.success for result in driver.tier.get_finished_jobs()] == [True]
        driver.tier.shutdown()

    @pytest.mark.parametrize("op", ["contains", "get", "put", "delete", "close"])
    @pytest.mark.parametrize("timeout", [0.0, 0.2])
    def test_f14_it_is_bounded_whichever_call_hangs(self, store, op, timeout):
        runtime = ThreadRuntime()
        driver = TierDriver(store, runtime)
        other = TierDriver(ScriptedStore(), runtime, label="2:other")
        driver.store(range(2))
        hold = store.hold(op)
        if op == "contains":
            driver.tier.lookup(key(0), ctx())
            driver.tier.on_schedule_end()
        elif op == "put":
            driver.submit_store([0])
        elif op in ("get", "delete"):
            store.alter[key(0)] = lambda raw: b""
            driver.submit_load([0])
        assert op == "close" or hold.entered.wait(10)
        began = time.monotonic()
        driver.tier.shutdown(timeout)
        assert time.monotonic() - began < timeout + 2
        assert driver.tier.lookup(key(0), ctx()) is MISS
        assert [r.success for r in driver.tier.get_finished_jobs()] == [False] * (
            op in ("get", "put", "delete")
        )
        assert not driver.tier.has_pending_work()
        assert hold.entered.wait(10)
        assert other.store([3]).success
        assert other.ask(3) is HIT
        other.tier.shutdown()

    @pytest.mark.parametrize("lanes", [1, 2, 4])
    def test_f14_it_is_bounded_though_everything_hangs_at_once(self, store, lanes):
        driver = TierDriver(store, ThreadRuntime(), lanes=lanes)
        driver.store([0])
        holds = [store.hold(op) for op in ("contains", "get", "put", "close")]
        driver.tier.lookup(key(1), ctx())
        driver.tier.on_schedule_end()
        for _ in range(lanes):
            driver.submit_load([0])
            driver.submit_store([1])
        assert holds[0].entered.wait(10)
        assert holds[1].entered.wait(10)
        began = time.monotonic()
        driver.tier.shutdown(0.8)
        assert 0.8 <= time.monotonic() - began < 1.5
        assert len(list(driver.tier.get_finished_jobs())) == 2 * lanes
        assert holds[3].entered.wait(10)

    @pytest.mark.parametrize("behind", [0, 1, 7])
    def test_what_did_not_end_in_time_is_reported_failed_once_and_never_started(
        self, store, behind
    ):
        driver = TierDriver(store, ThreadRuntime(), lanes=1)
        hold = store.hold("put", key(0))
        jobs = [driver.submit_store([0, 1])]
        assert hold.entered.wait(10)
        jobs += [driver.submit_store([n, n + 1]) for n in range(2, 2 + behind)]
        driver.tier.shutdown(0.1)
        results = list(driver.tier.get_finished_jobs())
        assert [result.job_id for result in results] == [job.job_id for job in jobs]
        assert not any(result.success or result.successful_keys for result in results)
        hold.free()
        assert ended(driver)
        assert driver.tier.get_finished_jobs() == []
        assert set(store.frames) == {key(0)}, "a block was begun after shutdown had given up"

    @pytest.mark.parametrize("number", [1, 3])
    def test_a_load_that_comes_back_after_shutdown_reaches_no_slot(self, store, number):
        driver = TierDriver(store, ThreadRuntime())
        driver.store(range(number))
        hold = store.hold("get")
        driver.submit_load(range(number))
        assert hold.entered.wait(10)
        driver.tier.shutdown(0.05)
        for n in range(number):
            driver.view.slot(n)[:] = b"R" * BLOCK
        hold.free()
        assert ended(driver)
        assert [driver.slot(n) for n in range(number)] == [b"R" * BLOCK] * number


def ended(driver):
    """Whether the transfer lanes end, now that nothing holds them."""
    names = {f"kvtier {driver.tier.label} transfer {n}" for n in range(8)}
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not names & {thread.name for thread in threading.enumerate()}:
            return True
        time.sleep(0.01)
    return False


class TestDeterminism:
    def run(self, seed):
        """Stores, loads, lookups and faults with no order of their own; what was seen, in order."""
        runtime = VirtualRuntime(seed)
        store = ScriptedStore(runtime)
        delays = iter([0.001, 0.02, 0.003, 0.05] * 500)
        store.latency = lambda: next(delays)
        driver = TierDriver(store, runtime, deadline=0.5)
        store.fail("get", OSError(errno.EIO, "bad sector"), at=key(5))
        store.fail("put", OSError(errno.ENOSPC, "full"), at=key(7))
        seen: list[object] = []
        for step in range(40):
            who = ctx(f"r{step}")
            if step < 30:
                (driver.submit_load if step % 3 else driver.submit_store)([step % 8, step % 5 + 8])
            for n in range(step % 4, 12):
                seen.append((n, driver.tier.lookup(key(n), who).name))
            driver.tier.on_schedule_end()
            runtime.wait(0.01)
            seen += driver.tier.get_finished_jobs()
            if step % 5 == 4:
                driver.tier.on_request_finished(ctx(f"r{step - 2}"))
        driver.tier.shutdown()
        seen += driver.tier.get_finished_jobs()
        return seen, store.calls, runtime.now(), dict(driver.tier.errors)

    @pytest.mark.parametrize("seed", range(5))
    def test_the_same_seed_is_the_same_run(self, seed):
        assert self.run(seed) == self.run(seed)

    def test_seeds_are_different_runs(self):
        assert len({repr(self.run(seed)) for seed in range(5)}) == 5
