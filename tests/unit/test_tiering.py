"""The rules of the tiering manager, one by one, against the text of its contract."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey
from kvtier.results import LookupResult, MissReason
from kvtier.runtime import VirtualRuntime
from kvtier.tiering import DeferReason, TieringOffloadingManager
from kvtier.tiering.counts import TieringCounts
from kvtier.tiering.jobs import JobLedger
from kvtier.tiers.base import JobResult, LoadStoreSpec
from kvtier.tiers.host import CPUOffloadingManager
from tests.support.fake_tier import BLOCK_BYTES, Boom, FakeTier, Rig, ctx, key

HIT, HIT_PENDING = LookupResult.HIT, LookupResult.HIT_PENDING
RETRY, MISS = LookupResult.RETRY, LookupResult.MISS


# Constructor


@pytest.mark.parametrize(("cap", "headroom"), [(4, -1), (4, 4), (4, 9), (1, 1)])
def test_headroom_is_at_least_0_and_below_the_slots(cap: int, headroom: int) -> None:
    with pytest.raises(UsageError, match="headroom"):
        Rig(cap, headroom=headroom)


@pytest.mark.parametrize(("cap", "room"), [(1, 1), (2, 1), (3, 2), (8, 7)])
def test_default_headroom_is_one_slot_if_there_is_more_than_one(cap: int, room: int) -> None:
    assert Rig(cap).manager.room() == room


def test_a_bound_below_0_is_refused() -> None:
    with pytest.raises(UsageError, match="deferral_bound"):
        Rig(deferral_bound=-1)


def test_labels_number_the_tiers_from_the_primary() -> None:
    primary = CPUOffloadingManager(2, BLOCK_BYTES)
    tiers = [FakeTier("fs"), FakeTier("memory")]
    manager = TieringOffloadingManager(primary, tiers, runtime=VirtualRuntime())
    assert manager.labels == ("0:primary", "1:fs", "2:memory")


# locate, step by step


def test_the_first_locate_of_a_step_polls_and_no_other() -> None:
    rig = Rig(tiers=2)
    rig.start("a", "b")
    for req_id in "ab":
        rig.locate(req_id, 1)
    rig.fill("a", 2)
    rig.step()
    assert [len(tier.calls("get_finished_jobs")) for tier in rig.tiers] == [1, 1]


def test_prepare_store_polls_if_nothing_was_located() -> None:
    rig = Rig(cap=1)
    rig.tier.has(1)
    rig.start("a", "b")
    rig.lookup("a", 1)
    rig.step()
    rig.finish("a")
    rig.tier.report_all(success=False)
    # The failed load gives its slot back just in time.
    rig.fill("b", 2)
    assert rig.locate("b", 2) is HIT
    assert len(rig.tier.calls("get_finished_jobs")) == 2


def test_on_schedule_end_polls_if_nothing_else_did() -> None:
    rig = Rig()
    rig.step(3)
    assert len(rig.tier.calls("get_finished_jobs")) == 3


def test_a_ready_block_is_a_hit_and_stays_until_the_step_ends() -> None:
    rig = Rig(cap=1)
    rig.start("a", "b")
    rig.fill("b", 1)
    rig.tier.report_all()
    rig.step()
    assert rig.locate("a", 1) is HIT
    assert rig.manager.prepare_store([key(2)], ctx("b")).no_room == (key(2),)
    rig.step()
    rig.fill("b", 2)
    assert rig.locate("a", 1) is MISS


def test_nowhere_is_settled_for_the_life_of_the_request() -> None:
    rig = Rig(tiers=2)
    rig.start("a", "b")
    assert rig.locate("a", 1) is MISS
    assert rig.reason("a", 1) is MissReason.ABSENT
    rig.tiers[1].has(1)
    assert rig.locate("a", 1) is MISS
    assert [tier.asked(1) for tier in rig.tiers] == [1, 1]
    assert rig.locate("b", 1) is RETRY  # another request asks for itself


def test_without_secondary_tiers_what_is_not_here_is_nowhere() -> None:
    rig = Rig(tiers=0)
    rig.start("a")
    assert rig.locate("a", 1) is MISS
    rig.finish("a")
    rig.step()
    rig.expect_idle()


def test_a_settled_block_is_never_pending_but_may_be_a_hit() -> None:
    rig = Rig()
    rig.start("a", "b")
    assert rig.locate("a", 1) is MISS
    spec = rig.manager.prepare_store([key(1)], ctx("b")).store_spec
    assert rig.locate("a", 1) is MISS
    assert rig.locate("b", 1) is HIT_PENDING
    rig.manager.complete_store(spec, ctx("b"))
    assert rig.locate("a", 1) is HIT


def test_a_tier_that_has_it_is_noted_and_not_asked_again() -> None:
    rig = Rig(tiers=2)
    rig.tiers[0].has(1)
    rig.start("a")
    for _ in range(3):
        assert rig.locate("a", 1) is RETRY
        assert rig.manager.noted(key(1), ctx("a"))
        rig.step()
    assert [tier.asked(1) for tier in rig.tiers] == [1, 0]


@pytest.mark.parametrize("unknown", [RETRY, HIT_PENDING])
def test_an_open_question_in_one_tier_does_not_hide_a_later_tiers_hit(
    unknown: LookupResult,
) -> None:
    rig = Rig(tiers=3)
    rig.tiers[0].answers[key(1)] = [unknown]
    rig.tiers[2].has(1)
    rig.start("a")
    assert rig.locate("a", 1) is RETRY
    assert rig.manager.noted(key(1), ctx("a"))
    rig.promote("a", 1)
    rig.step()
    assert [len(tier.loads) for tier in rig.tiers] == [0, 0, 1]


def test_an_open_question_is_asked_again_until_it_is_answered() -> None:
    rig = Rig(tiers=2)
    rig.tiers[1].answers[key(1)] = [RETRY, RETRY, MISS]
    rig.start("a")
    answers = [rig.locate("a", 1) for _ in range(4)]
    assert answers == [RETRY, RETRY, MISS, MISS]
    assert not rig.manager.noted(key(1), ctx("a"))
    assert [tier.asked(1) for tier in rig.tiers] == [3, 3]
    # Why it is missed is asked once it is: of both tiers.
    assert [len(tier.calls("miss_reason")) for tier in rig.tiers] == [1, 1]


def test_a_write_under_way_is_waited_for_and_keeps_its_block_when_it_is_done() -> None:
    rig = Rig(cap=1)
    rig.start("a", "b")
    spec = rig.manager.prepare_store([key(1)], ctx("b")).store_spec
    assert rig.locate("a", 1) is HIT_PENDING
    rig.manager.complete_store(spec, ctx("b"))
    rig.tier.report_all()
    rig.step(2)
    assert rig.manager.prepare_store([key(2)], ctx("b")).no_room == (key(2),)
    assert rig.locate("a", 1) is HIT
    rig.manager.prepare_load([], ctx("a"))
    rig.step()
    assert rig.manager.prepare_store([key(2)], ctx("b")).no_room == ()


def test_a_write_that_was_waited_for_and_is_gone_settles_the_block() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a", "b")
    spec = rig.manager.prepare_store([key(1)], ctx("b")).store_spec
    assert rig.locate("a", 1) is HIT_PENDING
    rig.manager.complete_store(spec, ctx("b"), success=False)
    assert rig.locate("a", 1) is MISS
    assert rig.reason("a", 1) is MissReason.LOST
    assert rig.tier.asked(1) == 0


def test_a_request_never_waits_for_a_second_write_of_a_block() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a", "b", "c")
    spec = rig.manager.prepare_store([key(1)], ctx("b")).store_spec
    assert rig.locate("a", 1) is HIT_PENDING
    rig.manager.complete_store(spec, ctx("b"), success=False)
    rig.lookup("c", 1)  # a new write of it
    assert rig.locate("a", 1) is MISS
    assert rig.reason("a", 1) is MissReason.LOST
    assert rig.holders(1) == {"c"}
    rig.step()
    rig.tier.report_all()
    assert rig.locate("a", 1) is HIT  # readable after all, and not by its own waiting
    assert rig.manager.source(key(1), ctx("a")) == "0:primary"
    assert rig.manager.source(key(1), ctx("c")) == "1:t1"


def test_promote_does_not_start_a_second_write_either() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a", "b")
    rig.locate("a", 1)
    spec = rig.manager.prepare_store([key(1)], ctx("b")).store_spec
    assert rig.promote("a", 1) == [key(1)]
    rig.manager.complete_store(spec, ctx("b"), success=False)
    assert rig.promote("a", 1) == []
    assert rig.reason("a", 1) is MissReason.LOST


def test_of_several_failed_tiers_the_gravest_reason_is_given() -> None:
    rig = Rig(tiers=3)
    rig.start("a")
    cases = [
        ([MissReason.ABSENT, MissReason.ABSENT, MissReason.ABSENT], MissReason.ABSENT),
        ([MissReason.CLOSED, MissReason.ABSENT, MissReason.ABSENT], MissReason.CLOSED),
        ([MissReason.CLOSED, MissReason.ABSENT, MissReason.DEADLINE], MissReason.DEADLINE),
        (
            [MissReason.DEADLINE, MissReason.LOOKUP_ERROR, MissReason.CLOSED],
            MissReason.LOOKUP_ERROR,
        ),
    ]
    for n, (reasons, expected) in enumerate(cases):
        for tier, reason in zip(rig.tiers, reasons, strict=True):
            tier.reasons[key(n)] = reason
        assert rig.locate("a", n) is MISS
        assert rig.reason("a", n) is expected


def test_a_block_never_read_or_not_missed_is_beyond() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a")
    assert rig.reason("a", 1) is MissReason.BEYOND
    rig.locate("a", 1)
    assert rig.reason("a", 1) is MissReason.BEYOND


# Promotion


def test_one_load_for_each_tier_and_request_at_the_end_of_the_step() -> None:
    rig = Rig(cap=8, tiers=2)
    rig.tiers[0].has(1, 2, 5)
    rig.tiers[1].has(3, 4)
    rig.start("a", "b")
    for n in (1, 3, 2, 4):
        rig.locate("a", n)
    rig.locate("b", 5)
    assert rig.promote("a", 1, 3, 2, 4) == [key(1), key(3), key(2), key(4)]
    assert rig.promote("b", 5) == [key(5)]
    assert not any(tier.jobs for tier in rig.tiers)
    rig.step()
    made = [[(j.req_context.req_id, j.keys) for j in tier.loads] for tier in rig.tiers]
    assert made == [
        [("a", (key(1), key(2))), ("b", (key(5),))],
        [("a", (key(3), key(4)))],
    ]
    for tier in rig.tiers:
        for job in tier.loads:
            slots = [status.slot for k in job.keys if (status := rig.primary.block(k)) is not None]
            assert list(job.slots) == slots
    rig.step()
    assert [len(tier.loads) for tier in rig.tiers] == [2, 1]


def test_loads_go_out_before_the_tiers_hear_that_the_step_ended() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a")
    rig.lookup("a", 1)
    rig.step()
    assert [call[0] for call in rig.tier.journal[-2:]] == ["submit_load", "on_schedule_end"]


@pytest.mark.parametrize(("cap", "headroom"), [(5, 0), (5, 1), (5, 4), (2, 1), (1, 0)])
def test_promotions_stop_at_the_budget(cap: int, headroom: int) -> None:
    rig = Rig(cap, headroom=headroom)
    blocks = range(cap + 1)
    rig.tier.has(*blocks)
    rig.start("a")
    for n in blocks:
        rig.locate("a", n)
    assert rig.manager.room() == cap - headroom
    assert rig.promote("a", *blocks) == [key(n) for n in blocks[: cap - headroom]]
    assert rig.manager.room() == 0
    assert rig.reason("a", cap) is MissReason.NO_ROOM
    assert rig.manager.counts.promotions.no_room == headroom + 1


def test_joining_a_write_is_allowed_at_no_room() -> None:
    rig = Rig(cap=2)
    rig.tier.has(1, 2)
    rig.start("a", "b", "c")
    for n in (1, 2):
        rig.locate("b", n)
    rig.locate("c", 1)
    rig.locate("a", 1)
    rig.promote("a", 1)
    assert rig.manager.room() == 0
    assert rig.promote("b", 1, 2) == [key(1)]
    assert rig.locate("c", 1) is HIT_PENDING
    assert rig.holders(1) == {"a", "b", "c"}
    rig.step()
    assert [job.keys for job in rig.tier.loads] == [(key(1),)]


def test_room_is_never_less_than_none() -> None:
    rig = Rig(cap=3, headroom=2)
    rig.start("a", "b")
    rig.manager.prepare_store([key(1), key(2)], ctx("b"))
    for n in (1, 2):
        rig.locate("a", n)
    assert rig.primary.awaited == 2
    assert rig.manager.room() == 0


def test_room_counts_what_may_not_be_evicted() -> None:
    rig = Rig(cap=3)
    rig.start("a", "b")
    rig.fill("a", 1, 2)
    rig.settle()
    assert rig.manager.room() == 2
    rig.locate("b", 1)
    rig.locate("b", 2)
    assert rig.manager.room() == 1  # one free slot, two pinned ones
    rig.step()
    assert rig.manager.room() == 2


def test_no_room_is_not_settled() -> None:
    rig = Rig(cap=2)
    rig.tier.has(1, 2)
    rig.start("a", "b")
    assert rig.lookup("a", 1) is RETRY
    assert rig.lookup("b", 2) is MISS
    assert rig.reason("b", 2) is MissReason.NO_ROOM
    rig.finish("a")
    assert rig.lookup("b", 2) is RETRY
    assert rig.reason("b", 2) is MissReason.BEYOND


def test_refuse_notes_no_room_until_the_block_is_located_again() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a")
    rig.locate("a", 1)
    rig.manager.refuse([key(1)], ctx("a"))
    assert rig.reason("a", 1) is MissReason.NO_ROOM
    assert rig.manager.counts.promotions.no_room == 1
    assert rig.locate("a", 1) is RETRY
    assert rig.reason("a", 1) is MissReason.BEYOND


def test_only_what_was_found_can_be_promoted() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a")
    rig.locate("a", 1)
    with pytest.raises(UsageError, match="not found in any tier"):
        rig.promote("a", 1, 2)
    rig.step()
    assert rig.tier.loads == []


def test_a_promoted_block_is_waited_for_from_the_moment_it_became_readable() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a", "b")
    rig.locate("a", 1)
    rig.fill("b", 1)  # between a's pass and its end
    assert rig.promote("a", 1) == [key(1)]
    assert rig.holders(1) == {"a"}
    rig.step()
    assert rig.tier.loads == []
    assert rig.locate("a", 1) is HIT


@pytest.mark.parametrize("reports_pending", [False, True])
def test_lookup_promotes_at_once(reports_pending: bool) -> None:
    rig = Rig(cap=2, lookup_reports_pending=reports_pending)
    rig.tier.has(1, 2)
    rig.tier.answers[key(3)] = [RETRY, MISS]
    rig.start("a")
    assert rig.lookup("a", 1) is (HIT_PENDING if reports_pending else RETRY)
    assert rig.lookup("a", 1) is HIT_PENDING
    assert rig.lookup("a", 2) is MISS
    assert rig.lookup("a", 3) is RETRY
    assert rig.lookup("a", 3) is MISS
    rig.step()
    assert [job.keys for job in rig.tier.loads] == [(key(1),)]
    rig.tier.report_all()
    assert rig.lookup("a", 1) is HIT


def test_source_is_the_tier_whose_write_was_waited_for() -> None:
    rig = Rig(cap=6, tiers=2)
    rig.tiers[1].has(1)
    rig.start("a", "b", "c")
    rig.lookup("a", 1)
    rig.locate("b", 1)
    spec = rig.manager.prepare_store([key(2)], ctx("c")).store_spec
    rig.locate("b", 2)
    rig.step()
    rig.tiers[1].report_all()
    rig.manager.complete_store(spec, ctx("c"))
    sources = []
    for req_id, n in (("a", 1), ("b", 1), ("b", 2), ("c", 1)):
        assert rig.locate(req_id, n) is HIT
        sources.append(rig.manager.source(key(n), ctx(req_id)))
    assert sources == ["2:t2", "2:t2", "0:primary", "0:primary"]
    rig.manager.prepare_load([key(1)], ctx("a"))
    assert rig.manager.source(key(1), ctx("a")) == "2:t2"


def test_source_is_the_primary_if_the_write_that_was_waited_for_failed() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a", "b")
    rig.lookup("a", 1)
    rig.step()
    rig.tier.report_all(success=False)
    rig.step()
    rig.fill("b", 1)
    assert rig.locate("a", 1) is HIT
    assert rig.manager.source(key(1), ctx("a")) == "0:primary"


def test_pending_reason_tells_probe_promotion_and_store_apart() -> None:
    rig = Rig()
    rig.tier.has(2, 3)
    rig.tier.answers[key(1)] = [RETRY]
    rig.start("a", "b")
    for n in (1, 2, 3):
        rig.locate("a", n)
    rig.promote("a", 3)
    rig.manager.prepare_store([key(4)], ctx("b"))
    rig.locate("a", 4)
    reasons = [rig.manager.pending_reason(key(n), ctx("a")) for n in (1, 2, 3, 4)]
    promotion = DeferReason.PROMOTION
    assert reasons == [DeferReason.PROBE, promotion, promotion, DeferReason.STORE]
    rig.step()
    assert rig.manager.pending_reason(key(3), ctx("a")) is promotion


# The deferral bound


def test_a_request_over_its_bound_reads_only_what_is_readable_at_once() -> None:
    rig = Rig(deferral_bound=2)
    rig.tier.has(1, 2)
    rig.tier.answers[key(3)] = [RETRY]
    rig.start("a", "b")
    rig.fill("b", 4)
    for _ in range(2):
        assert [rig.lookup("a", n) for n in (1, 3)] != [MISS, MISS]
        rig.manager.defer(ctx("a"), DeferReason.PROBE)
        rig.step()
    assert [rig.locate("a", n) for n in (1, 2, 3, 4)] == [MISS, MISS, MISS, HIT]
    assert [rig.reason("a", n) for n in (1, 2, 3)] == [MissReason.BOUND] * 3
    assert rig.manager.counts.deferrals[DeferReason.PROBE] == 2


def test_a_request_over_its_bound_waits_for_nothing_and_its_slot_stays_with_the_writer() -> None:
    rig = Rig(cap=1, deferral_bound=1)
    rig.tier.has(1)
    rig.start("a", "b")
    rig.lookup("a", 1)
    rig.step()
    rig.manager.defer(ctx("a"), DeferReason.PROMOTION)
    assert rig.holders(1) == {"a"}
    assert rig.locate("a", 1) is MISS
    assert rig.holders(1) == set()
    assert rig.manager.prepare_store([key(2)], ctx("b")).no_room == (key(2),)
    assert rig.promote("a", 1) == []


def test_an_old_write_gets_no_new_waiters_but_keeps_its_own() -> None:
    rig = Rig(deferral_bound=3)
    rig.tier.has(1)
    rig.start("a", "b", "c")
    rig.lookup("a", 1)
    rig.step(3)
    assert rig.locate("b", 1) is HIT_PENDING  # 3 steps old: not older than the bound
    rig.step()
    assert rig.locate("c", 1) is MISS
    assert rig.reason("c", 1) is MissReason.BOUND
    assert rig.locate("b", 1) is HIT_PENDING
    rig.tier.report_all()
    rig.step()
    assert rig.locate("c", 1) is HIT


def test_preemption_forgets_everything_but_the_deferrals() -> None:
    rig = Rig(deferral_bound=2)
    rig.tier.has(1, 2)
    rig.start("a")
    rig.lookup("a", 1)
    rig.locate("a", 2)
    rig.locate("a", 3)
    rig.manager.defer(ctx("a"), DeferReason.PROMOTION)
    rig.manager.forget(ctx("a"))
    assert rig.manager.table_sizes() == {"requests": 1, "lookups": 0, "jobs": 0, "pins": 0}
    rig.tier.has(3)
    assert [rig.locate("a", n) for n in (1, 2, 3)] == [RETRY] * 3
    assert [rig.tier.asked(n) for n in (1, 2, 3)] == [2, 2, 2]
    rig.manager.defer(ctx("a"), DeferReason.PROMOTION)
    assert rig.locate("a", 1) is MISS


# Who waits, and for how long


def test_admission_ends_all_waiting() -> None:
    rig = Rig(cap=6)
    rig.tier.has(1, 2, 3)
    rig.start("a", "b")
    rig.lookup("a", 1)
    rig.lookup("a", 2)
    rig.locate("b", 2)
    rig.step()
    rig.tier.report_all()
    assert rig.locate("a", 1) is HIT
    rig.manager.prepare_load([key(1)], ctx("a"))
    assert [rig.holders(n) for n in (1, 2)] == [set(), {"b"}]


def test_a_refused_prepare_load_leaves_the_request_waiting() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a")
    rig.lookup("a", 1)
    with pytest.raises(UsageError, match="still being written"):
        rig.manager.prepare_load([key(1)], ctx("a"))
    assert rig.holders(1) == {"a"}


@pytest.mark.parametrize("how", ["finish", "forget", "admit"])
def test_a_queued_promotion_passes_to_the_oldest_other_waiter(how: str) -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("z", "a", "b", "c")
    rig.locate("c", 1)
    rig.lookup("a", 1)
    rig.lookup("b", 1)
    rig.locate("c", 1)  # found it before b did, waits since after b
    leave = {
        "finish": rig.manager.on_request_finished,
        "forget": rig.manager.forget,
        "admit": lambda ctx: rig.manager.prepare_load([], ctx),
    }[how]
    leave(ctx("a"))
    rig.step()
    assert [job.req_context.req_id for job in rig.tier.loads] == ["b"]
    assert rig.tier.broken == []


def test_a_queued_promotion_nobody_waits_for_is_dropped() -> None:
    rig = Rig(cap=1)
    rig.tier.has(1)
    rig.start("a", "b")
    rig.lookup("a", 1)
    assert rig.manager.has_pending_work()
    rig.manager.forget(ctx("a"))
    assert not rig.manager.has_pending_work()
    rig.fill("b", 2)
    assert rig.locate("b", 2) is HIT
    rig.step()
    assert rig.tier.loads == []
    assert rig.manager.counts.promotions.submitted == 0


def test_questions_are_let_go_at_once_when_a_request_finishes() -> None:
    rig = Rig(tiers=2)
    rig.start("a")
    rig.locate("a", 1)
    rig.finish("a")
    for tier in rig.tiers:
        assert [c[0] for c in tier.journal[-2:]] == ["release_lookups", "on_request_finished"]
    assert rig.manager.table_sizes()["requests"] == 0
    rig.finish("a", "never heard of")  # nothing to finish
    assert len(rig.tier.calls("on_request_finished")) == 1


# The engine's transfers


def test_only_a_request_with_transfers_of_its_own_is_busy() -> None:
    rig = Rig(cap=6)
    rig.tier.has(9)
    rig.start("a", "b")
    manager, a = rig.manager, ctx("a")
    rig.lookup("a", 9)
    rig.step()
    assert not manager.is_busy(a)  # a load into the primary is what it waits for
    filling = manager.prepare_store([key(1)], a).store_spec
    assert manager.is_busy(a)
    manager.complete_store(filling, a)
    assert not manager.is_busy(a)  # the cascade reads a slot, not the request
    reading = manager.prepare_load([key(1)], a)
    assert manager.is_busy(a)
    assert not manager.is_busy(ctx("b"))
    manager.forget(a)
    assert manager.is_busy(a)
    manager.complete_load(reading, a)
    assert not manager.is_busy(a)


def test_what_the_engine_filled_is_stored_into_every_tier_and_pinned_until_reported() -> None:
    rig = Rig(cap=2, tiers=2)
    rig.start("a")
    rig.fill("a", 1, 2)
    assert [[job.keys for job in tier.stores] for tier in rig.tiers] == [[(key(1), key(2))]] * 2
    assert rig.manager.open_stores == 2
    for pins, tier in ((4, rig.tiers[0]), (2, rig.tiers[1])):
        assert rig.primary.references == pins
        assert rig.manager.prepare_store([key(3)], ctx("a")).no_room == (key(3),)
        tier.report_all()
        rig.step(2)
    assert rig.primary.references == 0
    assert rig.manager.counts.stores.ok == 2
    assert rig.manager.counts.stores.skipped == 2
    rig.fill("a", 3)
    assert rig.locate("a", 3) is HIT


@pytest.mark.parametrize("success", [True, False])
def test_a_store_that_failed_in_the_engine_is_cascaded_nowhere(success: bool) -> None:
    rig = Rig(tiers=2)
    rig.start("a")
    rig.fill("a", 1, success=success)
    assert [len(tier.stores) for tier in rig.tiers] == [success, success]
    assert rig.locate("a", 1) is (HIT if success else MISS)


def test_promotions_are_cascaded_nowhere() -> None:
    rig = Rig(tiers=2)
    rig.tiers[0].has(1)
    rig.start("a")
    rig.lookup("a", 1)
    rig.step()
    rig.tiers[0].report_all()
    rig.step()
    assert rig.tiers[1].stores == []


@pytest.mark.parametrize("n_tiers", [0, 1, 2])
def test_completions_must_be_the_requests_own(n_tiers: int) -> None:
    rig = Rig(cap=6, tiers=n_tiers)
    rig.start("a", "b")
    manager = rig.manager
    spec = manager.prepare_store([key(1)], ctx("a")).store_spec
    with pytest.raises(UsageError, match="not filling"):
        manager.complete_store(spec, ctx("b"))
    with pytest.raises(UsageError, match="not filling"):
        manager.complete_store(spec, ctx("nobody"))
    manager.complete_store(spec, ctx("a"))
    with pytest.raises(UsageError, match="not filling"):
        manager.complete_store(spec, ctx("a"))
    read = manager.prepare_load([key(1)], ctx("a"))
    with pytest.raises(UsageError, match="not reading"):
        manager.complete_load(read, ctx("b"))  # nor is the reference of a cascade b's
    manager.complete_load(read, ctx("a"))
    with pytest.raises(UsageError, match="not reading"):
        manager.complete_load(read, ctx("a"))
    assert rig.primary.references == n_tiers


def test_a_promotion_cannot_be_completed_from_outside() -> None:
    rig = Rig()
    rig.tier.has(1)
    rig.start("a")
    rig.lookup("a", 1)
    block = rig.primary.block(key(1))
    assert block is not None
    forged = LoadStoreSpec((key(1),), (block.slot,), (block.write_id,))
    with pytest.raises(UsageError, match="not filling"):
        rig.manager.complete_store(forged, ctx("a"))


def test_parts_of_a_load_and_two_loads_of_a_block_can_be_given_back_one_by_one() -> None:
    rig = Rig(tiers=0)
    rig.start("a")
    rig.fill("a", 1, 2)
    manager, a = rig.manager, ctx("a")
    both, again = manager.prepare_load([key(1), key(2)], a), manager.prepare_load([key(1)], a)
    for part in (both.only([key(1)]), both.only([key(2)]), again):
        assert manager.is_busy(a)
        manager.complete_load(part, a)
    assert not manager.is_busy(a)
    assert rig.primary.references == 0


def test_touch_reaches_every_tier() -> None:
    rig = Rig(cap=2, tiers=2)
    rig.start("a")
    rig.fill("a", 1)
    rig.fill("a", 2)
    rig.settle()
    rig.manager.touch([key(1)], ctx("a"))
    assert [tier.calls("touch") for tier in rig.tiers] == [[((key(1),), "a")]] * 2
    rig.fill("a", 3)  # over block 2, which is now the least recent
    assert [rig.primary.lookup(key(n), ctx("a")) for n in (1, 2)] == [HIT, MISS]


# Misuse, and ids that come back


def test_every_call_needs_a_live_request() -> None:
    rig = Rig()
    rig.start("gone", "going")
    filling = rig.manager.prepare_store([key(9)], ctx("going")).store_spec
    rig.finish("gone", "going")
    manager = rig.manager
    for req in (ctx("gone"), ctx("going"), ctx("new")):
        for call in (
            lambda r: manager.lookup(key(1), r),
            lambda r: manager.locate(key(1), r),
            lambda r: manager.noted(key(1), r),
            lambda r: manager.pending_reason(key(1), r),
            lambda r: manager.source(key(1), r),
            lambda r: manager.miss_reason(key(1), r),
            lambda r: manager.promote([], r),
            lambda r: manager.refuse([], r),
            lambda r: manager.defer(r, DeferReason.PROBE),
            lambda r: manager.forget(r),
            lambda r: manager.is_busy(r),
            lambda r: manager.prepare_load([], r),
            lambda r: manager.prepare_store([], r),
            lambda r: manager.touch([], r),
        ):
            with pytest.raises(UsageError, match="on_new_request"):
                call(req)
    manager.complete_store(filling, ctx("going"), success=False)
    rig.step()
    rig.expect_idle()


def test_a_live_id_cannot_begin_again_and_a_finished_one_can() -> None:
    rig = Rig(deferral_bound=1)
    rig.tier.has(1)
    rig.start("a")
    with pytest.raises(UsageError, match="live already"):
        rig.start("a")
    rig.lookup("a", 1)
    rig.manager.defer(ctx("a"), DeferReason.PROMOTION)
    rig.finish("a")
    rig.start("a")
    assert rig.lookup("a", 1) is RETRY
    assert rig.tier.calls("on_new_request") == [("a",), ("a",)]
    rig.finish("a")
    rig.step()
    rig.expect_idle()


def test_an_id_that_comes_back_during_a_store_is_one_request_to_the_tiers() -> None:
    rig = Rig()
    rig.start("a")
    spec = rig.manager.prepare_store([key(1)], ctx("a")).store_spec
    rig.finish("a")
    rig.start("a")
    assert rig.manager.is_busy(ctx("a"))
    rig.manager.complete_store(spec, ctx("a"))
    assert not rig.manager.is_busy(ctx("a"))
    rig.finish("a")
    calls = [c[0] for c in rig.tier.journal if c[0] != "release_lookups"]
    assert calls == ["on_new_request", "get_finished_jobs", "submit_store", "on_request_finished"]
    rig.settle()
    rig.expect_idle()


def test_an_id_that_comes_back_starts_over() -> None:
    rig = Rig(deferral_bound=1)
    rig.tier.has(2)
    rig.start("a")
    spec = rig.manager.prepare_store([key(9)], ctx("a")).store_spec
    rig.locate("a", 1)
    rig.lookup("a", 2)
    rig.manager.defer(ctx("a"), DeferReason.STORE)
    rig.finish("a")
    rig.start("a")
    rig.tier.has(1)
    assert [rig.lookup("a", n) for n in (1, 2)] == [RETRY, RETRY]
    rig.manager.complete_store(spec, ctx("a"), success=False)


def test_an_id_that_comes_back_during_a_load_is_another_request_to_the_tiers() -> None:
    rig = Rig()
    rig.start("a")
    rig.fill("a", 1)
    spec = rig.manager.prepare_load([key(1)], ctx("a"))
    rig.finish("a")
    rig.start("a")
    rig.manager.complete_load(spec, ctx("a"))
    rig.finish("a")
    assert len(rig.tier.calls("on_new_request")) == 2
    assert len(rig.tier.calls("on_request_finished")) == 2
    rig.settle()
    rig.expect_idle()


# Tiers that misbehave


@pytest.mark.parametrize("answer", [True, False, None, 1, "HIT", MissReason.ABSENT])
def test_an_answer_that_is_no_lookup_result_is_refused_by_name(answer: object) -> None:
    rig = Rig(tiers=2)
    rig.tiers[1].answers[key(1)] = [answer]
    rig.start("a")
    with pytest.raises(UsageError, match="2:t2"):
        rig.locate("a", 1)
    rig.finish("a")
    rig.step()
    rig.expect_idle()


def test_a_lookup_that_raises_is_a_miss_of_that_tier() -> None:
    rig = Rig(tiers=2)
    rig.tiers[0].answers[key(1)] = [Boom()]
    rig.tiers[0].answers[key(2)] = [Boom()]
    rig.tiers[0].answers[key(3)] = [Boom(), MISS]
    rig.tiers[1].has(1)
    rig.tiers[1].answers[key(3)] = [RETRY, MISS]
    rig.start("a")
    with capture_logs() as logs:
        assert rig.locate("a", 1) is RETRY
        assert rig.locate("a", 2) is MISS
        assert rig.reason("a", 2) is MissReason.LOOKUP_ERROR
        assert rig.locate("a", 3) is RETRY
        assert rig.locate("a", 3) is MISS
        assert rig.reason("a", 3) is MissReason.ABSENT
    assert rig.manager.counts.tier_errors == 3
    assert [(log["tier"], log["call"]) for log in logs] == [("1:t1", "lookup")] * 3


NOT_RAISED = [
    "miss_reason",
    "get_finished_jobs",
    "touch",
    "on_new_request",
    "on_request_finished",
    "release_lookups",
    "on_schedule_end",
    "has_pending_work",
    "drain_jobs",
    "submit_load",
    "submit_store",
]


@pytest.mark.parametrize("method", NOT_RAISED)
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_what_one_tier_raises_keeps_nothing_from_the_others(method: str, bad: int) -> None:
    rig = Rig(cap=8, tiers=3)
    rig.tiers[bad].raises.add(method)
    for n, tier in enumerate(rig.tiers):
        tier.has(n)
    with capture_logs() as logs:
        rig.start("a")
        for n in range(3):
            assert rig.lookup("a", n) is RETRY
        assert rig.lookup("a", 9) is MISS
        rig.fill("a", 8)
        rig.manager.touch([key(8)], ctx("a"))
        rig.step()
        for tier in rig.tiers:
            tier.report_all()
        rig.manager.reset_cache()
        rig.finish("a")
        rig.step()
        rig.manager.has_pending_work()
    assert rig.manager.counts.tier_errors > 0
    assert {(log["tier"], log["call"]) for log in logs} == {(f"{bad + 1}:t{bad + 1}", method)}
    calls = [[call[0] for call in tier.journal] for tier in rig.tiers]
    assert all(calls[n].count(method) == calls[bad].count(method) > 0 for n in range(3))
    assert rig.manager.open_promotions + rig.manager.open_stores == (
        2 if method == "get_finished_jobs" else 0
    )


def test_has_pending_work_asks_the_tiers_and_believes_only_an_answer() -> None:
    rig = Rig(tiers=2)
    assert not rig.manager.has_pending_work()
    rig.tiers[1].busy = True
    assert rig.manager.has_pending_work()
    rig.tiers[1].raises.add("has_pending_work")
    with capture_logs():
        assert not rig.manager.has_pending_work()


def test_what_was_reported_before_a_tier_raised_counts() -> None:
    rig = Rig(cap=8, tiers=2)
    rig.tiers[0].has(1)
    rig.tiers[0].has(2)
    rig.tiers[1].has(3)
    rig.start("a", "b")
    for req_id, n in (("a", 1), ("b", 2), ("a", 3)):
        rig.lookup(req_id, n)
    rig.step()
    first, second = rig.tiers[0].loads
    rig.tiers[0].report(first)
    rig.tiers[0].reports.append(Boom())
    rig.tiers[1].report_all()
    with capture_logs():
        assert [rig.locate(r, n) for r, n in (("a", 1), ("b", 2), ("a", 3))] == [
            HIT,
            HIT_PENDING,
            HIT,
        ]
    rig.step()
    rig.tiers[0].report(second)
    assert rig.locate("b", 2) is HIT


# Reports: what a tier may claim


KEYS: tuple[OffloadKey, ...] = (key(1), key(2), key(3))
ALL = frozenset(KEYS)


@pytest.mark.parametrize(
    ("success", "named", "moved", "errors"),
    [
        (True, None, ALL, 0),
        (True, KEYS, ALL, 0),
        (False, None, set(), 0),
        (False, (), set(), 0),
        (False, {key(2)}, {key(2)}, 0),
        (False, [key(3), key(1), key(3)], {key(1), key(3)}, 0),
        (False, KEYS, ALL, 0),
        (False, [key(2), key(8), key(9)], {key(2)}, 2),
        (False, [key(9)], set(), 1),
        # It says that all made it and names fewer: no more than those.
        (True, [key(1)], {key(1)}, 1),
        (True, (), set(), 1),
        (True, [*KEYS, key(9)], ALL, 1),
        # It says neither yes nor no.
        (1, None, set(), 1),
        (None, None, set(), 1),
        ("ok", KEYS, ALL, 1),
        # It names no collection of keys.
        (True, 7, set(), 1),
        (False, [[]], set(), 1),
    ],
)
@pytest.mark.parametrize("promotion", [True, False])
def test_a_report_is_read_as_promising_the_least(
    success: object, named: object, moved: set[OffloadKey], errors: int, promotion: bool
) -> None:
    counts = TieringCounts()
    ledger = JobLedger(counts)
    job = ledger.open(1, LoadStoreSpec(KEYS, (4, 5, 6), (7, 8, 9)), promotion, ctx("a"), 0.0)
    report = JobResult(job.transfer.job_id, success, named)  # type: ignore[arg-type]
    assert ledger.close(1, report) == (job, frozenset(moved))
    assert counts.protocol_errors == errors
    mine, other = counts.promotions, counts.stores
    if not promotion:
        mine, other = other, mine  # type: ignore[assignment]
    assert (mine.submitted, mine.ok, mine.partial, mine.failed, mine.raised) == (
        1,
        len(moved) == 3,
        0 < len(moved) < 3,
        not moved,
        0,
    )
    assert other.submitted == 0
    assert len(ledger) == 0


def test_a_report_ends_only_a_job_that_its_tier_has() -> None:
    counts = TieringCounts()
    ledger = JobLedger(counts)
    spec = LoadStoreSpec(KEYS, (4, 5, 6), (7, 8, 9))
    job = ledger.open(1, spec, True, ctx("a"), 0.0)
    refused = ledger.open(1, spec, True, ctx("a"), 0.0)
    ledger.refused(refused)
    ids = job.transfer.job_id, refused.transfer.job_id
    good = JobResult(ids[0], success=True)
    for tier, report in [
        (2, good),
        (1, JobResult(ids[1], success=True)),
        (1, JobResult(99, success=True)),
        (1, JobResult([], success=True)),  # type: ignore[arg-type]
        (1, None),
        (1, ids[0]),
        (1, (ids[0], True)),
    ]:
        assert ledger.close(tier, report) is None
    assert counts.protocol_errors == 7
    assert ledger.close(1, good) == (job, ALL)
    assert ledger.close(1, good) is None
    assert counts.protocol_errors == 8
    assert (counts.promotions.submitted, counts.promotions.raised, counts.promotions.ok) == (
        2,
        1,
        1,
    )


def test_job_ids_are_never_used_twice() -> None:
    rig = Rig(cap=8, tiers=3)
    rig.start("a")
    for n in range(3):
        rig.fill("a", n)
        for tier in rig.tiers:
            tier.report_all()
        rig.step()
    seen = [job_id for tier in rig.tiers for job_id in tier._submitted]
    assert len(set(seen)) == 9


def test_bad_reports_do_not_stop_the_good_ones() -> None:
    rig = Rig(cap=8, tiers=2)
    rig.tiers[0].has(1)
    rig.tiers[1].has(2)
    rig.start("a")
    rig.lookup("a", 1)
    rig.lookup("a", 2)
    rig.step()
    (first,), (second,) = rig.tiers[0].loads, rig.tiers[1].loads
    rig.tiers[0].reports = [None, JobResult(second.job_id, success=True), JobResult(99, True)]
    rig.tiers[0].report(first)
    rig.tiers[0].reports.append(JobResult(first.job_id, success=False))
    assert [rig.locate("a", n) for n in (1, 2)] == [HIT, HIT_PENDING]
    assert rig.manager.counts.protocol_errors == 4
    rig.expect_sums()
