"""Lookups as a tier uses them: the seed's stories, the order of things, observers, threads."""

from __future__ import annotations

import threading
import time

import pytest
import structlog

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupPhase, Outcome, Transition
from kvtier.lookup import AsyncLookupManager, LookupLimits
from kvtier.results import MissReason
from kvtier.runtime import ThreadRuntime
from kvtier.telemetry.recording import RecordingObserver
from tests.support.lookups import (
    PATIENCE,
    HandRuntime,
    OwnerGuard,
    ScriptedLookups,
    TwoOwners,
    Unprintable,
    ctx,
    key,
)

P = LookupPhase
A, B, C = ctx("a"), ctx("b"), ctx("c")
K, OTHER = key(1), key(2)


def by_hand(answer=None, **settings) -> ScriptedLookups:
    return ScriptedLookups(HandRuntime(), answer, table=OwnerGuard, **settings)


def phase(lookups: ScriptedLookups, k: OffloadKey = K, tenant=None) -> LookupPhase:
    entry = lookups.snapshot().entries.get((tenant, k))
    return P.ABSENT if entry is None else entry.phase


def is_empty(lookups: ScriptedLookups) -> bool:
    snapshot = lookups.snapshot()
    return not (snapshot.entries or snapshot.held or snapshot.batch or lookups.has_pending_work())


def answered(answer=None, **settings) -> ScriptedLookups:
    """Lookups in which `a` has asked for `K` and the answer is there to be drained."""
    lookups = by_hand(answer, **settings)
    lookups.lookup(K, A)
    lookups.flush()
    lookups.step_worker()
    return lookups


def yes(keys):
    return [True] * len(keys)


def no(keys):
    return [False] * len(keys)


def fails(keys):
    raise OSError("unreachable")


# -- the seed's stories ------------------------------------------------------------------------


def test_the_three_phases_of_one_found_key():
    lookups = by_hand(yes)
    assert phase(lookups) is P.ABSENT
    assert lookups.lookup(K, A) is None
    assert phase(lookups) is P.PENDING
    assert lookups.lookup(K, A) is None
    lookups.flush()
    assert phase(lookups) is P.IN_FLIGHT
    assert lookups.lookup(K, A) is None
    lookups.step_worker()
    assert phase(lookups) is P.IN_FLIGHT
    lookups.flush()
    assert phase(lookups) is P.RESOLVED
    assert lookups.lookup(K, A) is True
    lookups.cleanup("a")
    assert is_empty(lookups)


def test_a_request_ends_while_its_probe_is_in_flight_and_a_second_takes_over_the_same_probe():
    lookups = by_hand(yes)
    assert lookups.lookup(K, A) is None
    lookups.flush()
    lookups.cleanup("a")
    assert phase(lookups) is P.IN_FLIGHT
    assert lookups.snapshot().entries[None, K].waiters == frozenset()
    assert lookups.lookup(K, B) is None
    assert phase(lookups) is P.IN_FLIGHT
    assert lookups.snapshot().entries[None, K].generation == 1
    lookups.flush()
    lookups.step_worker()
    assert lookups.lookup(K, B) is True
    assert phase(lookups) is P.RESOLVED
    assert lookups.calls == [([K], A)]
    lookups.cleanup("b")
    assert is_empty(lookups)


def test_an_unclaimed_probe_is_reclaimed_by_flush_without_any_lookup():
    lookups = by_hand(yes)
    lookups.lookup(K, A)
    lookups.flush()
    lookups.cleanup("a")
    lookups.step_worker()
    assert phase(lookups) is P.IN_FLIGHT
    assert lookups.has_pending_work()
    lookups.flush()
    assert is_empty(lookups)
    assert lookups.counts.unclaimed == 1


def test_an_unclaimed_probe_is_reclaimed_by_shutdown_without_any_lookup():
    lookups = by_hand(yes)
    lookups.lookup(K, A)
    lookups.flush()
    lookups.cleanup("a")
    lookups.shutdown(None)
    assert is_empty(lookups)
    assert (lookups.counts.resolved, lookups.counts.unclaimed) == (1, 1)


def test_an_answer_of_an_older_generation_before_the_real_one_is_discarded():
    lookups = by_hand(yes)
    lookups.lookup(K, A)
    lookups.flush()
    (asked,) = lookups.worker.posted
    lookups.worker.inject(type(asked)(None, A, [K], [asked.generations[0] - 1]), [False])
    lookups.drain_results()
    assert phase(lookups) is P.IN_FLIGHT
    assert lookups.counts.discarded == 1
    lookups.flush()
    lookups.step_worker()
    assert lookups.lookup(K, A) is True


# -- join, drain, answer -----------------------------------------------------------------------


def test_the_first_lookup_after_a_flush_applies_what_came():
    lookups = answered(yes)
    assert lookups.lookup(OTHER, B) is None
    assert phase(lookups) is P.RESOLVED


def test_a_lookup_that_drains_is_one_call_to_a_subclass_that_wraps_it():
    class Wrapped(ScriptedLookups):
        asked = 0

        def lookup(self, key, req_context):
            self.asked += 1
            return super().lookup(key, req_context)

    lookups = Wrapped(HandRuntime(), yes)
    for number in range(1, 4):
        lookups.lookup(K, A)
        assert lookups.asked == number
        lookups.flush()
        lookups.step_worker()


def test_results_are_drained_once_per_flush():
    lookups = by_hand(yes)
    lookups.lookup(K, A)
    lookups.flush()
    assert lookups.lookup(K, A) is None
    lookups.step_worker()
    assert lookups.lookup(K, A) is None
    assert phase(lookups) is P.IN_FLIGHT
    lookups.flush()
    assert lookups.lookup(K, A) is True


def test_whoever_asks_in_the_step_in_which_an_answer_nobody_waits_for_arrives_takes_it():
    lookups = answered(yes)
    lookups.cleanup("a")
    lookups.lookup(OTHER, C)
    assert lookups.snapshot().unclaimed == {(None, K)}
    assert lookups.lookup(K, B) is True
    assert lookups.snapshot().unclaimed == frozenset()
    lookups.flush()
    assert phase(lookups) is P.RESOLVED
    assert lookups.counts.backend_calls == 2


def test_an_error_nobody_waits_for_is_asked_again_and_excuses_nobody():
    lookups = answered(fails)
    lookups.cleanup("a")
    lookups.drain_results()
    assert lookups.lookup(K, B) is None
    entry = lookups.snapshot().entries[None, K]
    assert (entry.generation, entry.phase, entry.excused) == (2, P.PENDING, frozenset())


def test_one_lookup_can_resolve_a_probe_and_ask_it_again():
    recorder = RecordingObserver()
    lookups = answered(fails, observer=recorder)
    recorder.clear()
    assert lookups.lookup(K, B) is None
    assert [t.outcome for t in recorder.transitions] == [Outcome.LOOKUP_ERROR, Outcome.ASKED_AGAIN]
    assert lookups.lookup(K, A) is False
    assert lookups.why_false(K, A) is MissReason.LOOKUP_ERROR


def test_the_call_gets_the_context_of_whoever_asked_the_current_question():
    answers = iter([fails, yes])
    lookups = answered(lambda keys: next(answers)(keys))
    lookups.lookup(K, B)
    lookups.cleanup("b")
    assert phase(lookups) is P.PENDING
    lookups.flush()
    lookups.step_worker()
    assert lookups.calls == [([K], A), ([K], B)]


def test_a_lookup_of_a_held_verdict_asks_nobody_anything():
    asked = []

    class Scoped(ScriptedLookups):
        def probe_scope(self, req_context):
            asked.append(req_context.req_id)
            return None

    lookups = Scoped(HandRuntime(), yes)
    lookups.lookup(K, A)
    lookups.flush()
    lookups.lookup(K, A)
    lookups.step_worker()
    lookups.flush()
    lookups.lookup(K, A)
    assert asked == ["a"]
    lookups.lookup(K, B)
    lookups.lookup(K, B)
    assert asked == ["a", "b"]


@pytest.mark.parametrize("limits", [{}, {"deadline": 5.0}, {"verdict_lifetime": 5.0}])
def test_the_clock_is_read_on_a_repeat_only_if_there_is_a_limit(limits):
    lookups = by_hand(yes, **limits)
    lookups.lookup(K, A)
    lookups.flush()
    lookups.drain_results()
    reads = lookups.runtime.reads
    lookups.lookup(K, A)
    assert lookups.runtime.reads - reads == len(limits)


def test_scopes_are_those_of_the_context_and_one_by_default():
    class Plain(AsyncLookupManager):
        def batch_lookup(self, keys, req_context):
            return yes(keys)

    runtime = HandRuntime()
    plain, scoped = Plain("1:t", runtime=runtime), by_hand()
    for lookups in (plain, scoped):
        lookups.lookup(K, ctx("a", "red"))
        lookups.lookup(K, ctx("b", "blue"))
    assert set(plain.snapshot().entries) == {(None, K)}
    assert set(scoped.snapshot().entries) == {("red", K), ("blue", K)}


def test_a_scope_that_cannot_be_told_is_the_callers_error_and_changes_nothing():
    class Broken(ScriptedLookups):
        def probe_scope(self, req_context):
            raise LookupError("who is that?")

    lookups = Broken(HandRuntime(), yes)
    with pytest.raises(LookupError):
        lookups.lookup(K, A)
    assert is_empty(lookups)
    with pytest.raises(TypeError):
        by_hand().lookup(K, ctx("a", ["not hashable"]))


@pytest.mark.parametrize(
    "limits",
    [
        {"deadline": 0},
        {"deadline": -1.0},
        {"deadline": float("nan")},
        {"verdict_lifetime": 0},
        {"verdict_lifetime": float("nan")},
        {"deadline": 2.0, "verdict_lifetime": 2.0},
        {"deadline": 2.0, "verdict_lifetime": 1.0},
        {"max_batches_out": 0},
        {"max_batches_out": -1},
    ],
)
def test_limits_that_make_no_sense_are_refused_before_a_thread_is_started(limits):
    runtime = HandRuntime()
    with pytest.raises(UsageError):
        ScriptedLookups(runtime, yes, **limits)
    assert not runtime.lanes
    with pytest.raises(UsageError):
        LookupLimits(**limits)


# -- marks -------------------------------------------------------------------------------------


def test_a_miss_without_a_context_is_for_every_scope_a_hit_for_one():
    red, blue = ctx("a", "red"), ctx("b", "blue")
    lookups = by_hand(yes)
    lookups.lookup(K, red)
    lookups.lookup(K, blue)
    lookups.flush()
    lookups.step_worker()
    lookups.mark_miss([K])
    lookups.drain_results()
    assert [lookups.lookup(K, red), lookups.lookup(K, blue)] == [True, True]
    lookups.mark_miss([K])
    assert [lookups.lookup(K, red), lookups.lookup(K, blue)] == [False, False]
    lookups.mark_hit([K], red)
    assert [lookups.lookup(K, red), lookups.lookup(K, blue)] == [True, False]
    lookups.mark_hit([K], blue)
    lookups.mark_miss([K], red)
    assert [lookups.lookup(K, red), lookups.lookup(K, blue)] == [False, True]


def test_a_store_while_the_question_is_out_outlives_a_miss_in_between():
    """Scope by scope: the miss is about an older load, the store is newer than the question."""
    red, blue = ctx("a", "red"), ctx("b", "blue")
    lookups = by_hand(no)
    lookups.lookup(K, red)
    lookups.lookup(K, blue)
    lookups.flush()
    lookups.mark_hit([K], red)
    lookups.mark_miss([K])
    lookups.step_worker()
    assert [lookups.lookup(K, red), lookups.lookup(K, blue)] == [True, False]


def test_a_store_before_the_question_is_sent_needs_no_mark():
    lookups = by_hand(no)
    lookups.lookup(K, A)
    lookups.mark_hit([K], A)
    assert lookups.snapshot().entries[None, K].stored is False
    lookups.flush()
    lookups.step_worker()
    assert lookups.lookup(K, A) is False


def test_a_forced_miss_does_not_age_and_a_hit_gives_a_new_lifetime():
    lookups = answered(yes, verdict_lifetime=10.0)
    lookups.lookup(K, A)
    lookups.mark_miss([K])
    lookups.runtime.advance(1_000.0)
    assert lookups.lookup(K, A) is False
    lookups.mark_hit([K], A)
    lookups.runtime.advance(9.0)
    assert lookups.lookup(K, A) is True
    lookups.runtime.advance(2.0)
    assert lookups.lookup(K, A) is None
    assert phase(lookups) is P.PENDING


def test_a_mark_ends_an_error():
    lookups = answered(fails)
    lookups.drain_results()
    lookups.mark_miss([K])
    assert lookups.lookup(K, B) is False
    assert lookups.why_false(K, B) is MissReason.ABSENT
    assert phase(lookups) is P.RESOLVED


# -- why a lookup reads False ------------------------------------------------------------------


def test_why_false_names_what_stands_behind_it():
    lookups = by_hand(no, deadline=5.0)
    lookups.lookup(K, A)
    lookups.runtime.advance(6.0)
    assert lookups.lookup(K, A) is False
    assert lookups.why_false(K, A) is MissReason.DEADLINE
    lookups.flush()
    assert lookups.why_false(K, A) is MissReason.DEADLINE
    lookups.step_worker()
    assert lookups.lookup(K, A) is False
    assert lookups.why_false(K, A) is MissReason.ABSENT
    lookups.mark_hit([K], A)
    lookups.mark_miss([K], A)
    assert lookups.why_false(K, A) is MissReason.ABSENT


def test_why_false_changes_nothing_and_reads_no_result():
    lookups = answered(no)
    before = lookups.snapshot()
    for context in (A, B):
        lookups.why_false(K, context)
    assert lookups.snapshot() == before


@pytest.mark.parametrize(
    ("answer", "reason"), [(no, MissReason.ABSENT), (fails, MissReason.LOOKUP_ERROR)]
)
def test_after_shutdown_why_false_tells_a_held_verdict_from_none(answer, reason):
    lookups = answered(answer)
    lookups.shutdown(None)
    for context in (A, B):
        assert lookups.lookup(K, context) is False
        assert lookups.why_false(K, context) is reason
        assert lookups.lookup(OTHER, context) is False
        assert lookups.why_false(OTHER, context) is MissReason.CLOSED


# -- pending work ------------------------------------------------------------------------------


def test_there_is_work_while_something_is_asked_out_or_unclaimed():
    lookups = by_hand(yes)
    assert not lookups.has_pending_work()
    lookups.lookup(K, A)
    assert lookups.has_pending_work()
    lookups.flush()
    assert lookups.has_pending_work()
    lookups.step_worker()
    assert lookups.has_pending_work()
    lookups.cleanup("a")
    lookups.drain_results()
    assert lookups.has_pending_work()
    lookups.flush()
    assert not lookups.has_pending_work()


def test_a_held_verdict_is_no_work():
    lookups = answered(yes)
    lookups.flush()
    assert lookups.lookup(K, A) is True
    assert not lookups.has_pending_work()


# -- batches out -------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 3])
def test_questions_wait_while_the_most_batches_are_out_and_then_go_as_one(most):
    lookups = by_hand(yes, max_batches_out=most)
    for number in range(most + 3):
        lookups.lookup(key(number), A)
        lookups.flush()
    assert len(lookups.lane.tasks) == most
    assert lookups.snapshot().batches_out == most
    lookups.lane.step()
    lookups.flush()
    assert len(lookups.lane.tasks) == most
    lookups.step_worker()
    assert [len(keys) for keys, _ in lookups.calls] == [*[1] * most, 3]


def test_a_batch_is_out_until_its_last_scope_is_answered():
    lookups = by_hand(yes, max_batches_out=1)
    lookups.lookup(K, ctx("a", "quick"))
    lookups.lookup(K, ctx("b", "hangs"))
    lookups.flush()
    lookups.lookup(OTHER, ctx("a", "quick"))
    lookups.lane.step()
    lookups.flush()
    assert lookups.lookup(K, ctx("a", "quick")) is True
    assert phase(lookups, OTHER, "quick") is P.PENDING
    assert lookups.snapshot().batches_out == 1
    lookups.lane.step()
    lookups.flush()
    assert phase(lookups, OTHER, "quick") is P.IN_FLIGHT


def test_an_empty_flush_posts_nothing():
    lookups = by_hand(yes)
    for _ in range(3):
        lookups.flush()
    lookups.lookup(K, A)
    lookups.cleanup("a")
    lookups.flush()
    assert not lookups.lane.tasks
    assert lookups.snapshot().batches_out == 0


# -- shutdown, by hand -------------------------------------------------------------------------


def test_shutdown_keeps_verdicts_and_ends_questions():
    lookups = by_hand(yes, max_batches_out=1)
    lookups.lookup(key(1), A)
    lookups.flush()
    lookups.lookup(key(2), A)
    lookups.lookup(key(3), B)
    lookups.shutdown(None)
    assert lookups.lookup(key(1), A) is True
    assert lookups.lookup(key(1), C) is True
    assert [lookups.lookup(key(2), A), lookups.lookup(key(3), B)] == [False, False]
    assert lookups.lookup(key(4), C) is False
    assert set(lookups.snapshot().entries) == {(None, key(1))}
    assert lookups.snapshot().entries[None, key(1)].waiters == {"a"}
    counts = lookups.counts
    assert (counts.issued, counts.resolved, counts.closed) == (3, 1, 2)


def test_after_shutdown_nothing_is_asked_but_marks_and_cleanup_work():
    lookups = answered(yes)
    lookups.shutdown(None)
    before = lookups.counts.issued
    lookups.lookup(OTHER, B)
    lookups.flush()
    assert not lookups.lane.tasks
    assert lookups.counts.issued == before
    lookups.mark_miss([K])
    assert lookups.lookup(K, A) is False
    lookups.mark_hit([K], A)
    assert lookups.lookup(K, A) is True
    lookups.cleanup("a")
    lookups.cleanup("b")
    assert is_empty(lookups)
    assert lookups.lookup(K, A) is False


def test_after_shutdown_a_verdict_does_not_age():
    lookups = answered(yes, verdict_lifetime=1.0)
    lookups.shutdown(None)
    lookups.runtime.advance(100.0)
    assert lookups.lookup(K, A) is True


def test_a_second_shutdown_does_nothing(monkeypatch):
    lookups = answered(yes)
    lookups.shutdown(None)
    before = lookups.snapshot()
    monkeypatch.setattr(lookups.lane, "stop", None)
    lookups.shutdown(0.0)
    lookups.shutdown(None)
    assert lookups.snapshot() == before


@pytest.mark.parametrize("in_time", [0, 1, 2])
def test_a_late_publication_is_never_applied(in_time):
    lookups = by_hand(yes, max_batches_out=3)
    for number in range(3):
        lookups.lookup(key(number), ctx("a", number))
    lookups.flush()
    lookups.hangs = lambda keys: keys == [key(in_time)]
    lookups.lane.in_time = in_time
    lookups.shutdown(1.0)
    assert lookups.lane.stopping
    assert len(lookups.snapshot().entries) == in_time
    lookups.let_go.set()
    lookups.lane.finish()
    lookups.step_worker()
    assert len(lookups.calls) == in_time + 1, "no question was begun after the flag was set"
    lookups.drain_results()
    lookups.flush()
    assert len(lookups.snapshot().entries) == in_time
    assert [lookups.lookup(key(number), ctx("a", number)) for number in range(3)] == [
        number < in_time for number in range(3)
    ]
    assert (lookups.counts.closed, lookups.counts.discarded) == (3 - in_time, 1)


# -- observers ---------------------------------------------------------------------------------


class Grumpy:
    """Raises at the `nth` transition, and at `wants` if `nth` is 0."""

    def __init__(self, nth: int) -> None:
        self.nth, self.seen = nth, 0

    def wants(self, req_context, tier):
        if self.nth == 0:
            raise ValueError("not in the mood")
        return True

    def on_transition(self, transition):
        self.seen += 1
        if self.seen == self.nth:
            raise ValueError("enough")


def script(lookups: ScriptedLookups) -> list[object]:
    """Asks, joins, answers, marks, releases, sweeps and a shutdown; all that was returned."""
    replies: list[object] = []
    for context in (A, B):
        replies += [lookups.lookup(k, context) for k in (K, OTHER)]
    lookups.flush()
    lookups.step_worker()
    replies += [lookups.lookup(K, C), lookups.snapshot()]
    lookups.mark_miss([K])
    lookups.mark_hit([OTHER], A)
    lookups.cleanup("a")
    lookups.lookup(key(3), C)
    lookups.flush()
    lookups.lookup(key(4), C)
    replies += [lookups.lookup(k, B) for k in (K, OTHER)]
    lookups.shutdown(None)
    lookups.cleanup("b")
    lookups.cleanup("c")
    return [*replies, lookups.snapshot(), repr(lookups.counts)]


def total_transitions() -> int:
    recorder = RecordingObserver()
    script(by_hand(observer=recorder))
    return len(recorder.transitions)


def test_an_observer_may_raise_what_cannot_even_be_shown():
    class Mute(Grumpy):
        def on_transition(self, transition):
            raise Unprintable

    with structlog.testing.capture_logs() as logs:
        assert script(by_hand(observer=Mute(1))) == script(by_hand())
    assert [line["error"] for line in logs] == ["<Unprintable>"]


@pytest.mark.parametrize("nth", range(total_transitions() + 1))
def test_an_observer_that_raises_is_dropped_reported_once_and_changes_nothing(nth):
    expected = script(by_hand())
    grumpy = Grumpy(nth)
    with structlog.testing.capture_logs() as logs:
        assert script(by_hand(observer=grumpy)) == expected
    assert grumpy.seen == nth
    assert [line["event"] for line in logs] == ["observer_dropped"]


class Ticking(HandRuntime):
    """A clock on which no two readings are the same."""

    def now(self):
        self.advance(1.0)
        return super().now()


def test_transitions_are_numbered_by_one_in_the_order_of_events_on_one_clock():
    recorder = RecordingObserver()
    script(ScriptedLookups(Ticking(), observer=recorder))
    seen = recorder.transitions
    assert [t.seq for t in seen] == list(range(1, len(seen) + 1))
    assert [t.time for t in seen] == sorted(t.time for t in seen)
    assert len({t.time for t in seen}) > 5
    assert [(t.key, t.outcome) for t in seen[:8]] == [
        (K, Outcome.ASKED),
        (OTHER, Outcome.ASKED),
        (K, Outcome.JOINED),
        (OTHER, Outcome.JOINED),
        (K, Outcome.SENT),
        (OTHER, Outcome.SENT),
        (K, Outcome.HIT),
        (OTHER, Outcome.HIT),
    ]


def test_what_a_flush_applies_sweeps_and_sends_is_told_in_the_order_of_time():
    recorder = RecordingObserver()
    lookups = ScriptedLookups(Ticking(), yes, observer=recorder)
    lookups.lookup(K, A)
    lookups.flush()
    lookups.lookup(OTHER, B)
    lookups.step_worker()
    lookups.cleanup("a")
    recorder.clear()
    lookups.flush()
    seen = recorder.transitions
    assert [t.outcome for t in seen] == [Outcome.HIT, Outcome.UNCLAIMED, Outcome.SENT]
    assert [t.time for t in seen] == sorted(t.time for t in seen)


def test_a_probes_transitions_hang_together():
    recorder = RecordingObserver()
    script(by_hand(observer=recorder))
    last: dict[OffloadKey, LookupPhase] = {}
    for t in recorder.transitions:
        assert t.source is last.get(t.key, P.ABSENT)
        last[t.key] = t.target
    assert set(last.values()) == {P.ABSENT}


def test_nobody_is_told_of_a_request_that_is_not_wanted(monkeypatch):
    recorder = RecordingObserver(wanted=lambda context, tier: False)

    def built(*args):
        raise AssertionError("a transition that nobody wants was built")

    monkeypatch.setattr("kvtier.lookup.reporter.Transition", built)
    lookups = by_hand(observer=recorder)
    script(lookups)
    assert recorder.transitions == ()


def test_a_wanted_request_that_joins_is_told_from_then_on():
    recorder = RecordingObserver(wanted=lambda context, tier: context.req_id == "b")
    lookups = by_hand(observer=recorder)
    lookups.lookup(K, A)
    lookups.flush()
    lookups.lookup(K, B)
    lookups.step_worker()
    lookups.flush()
    lookups.cleanup("b")
    lookups.cleanup("a")
    assert [(t.source, t.outcome, t.req_id) for t in recorder.transitions] == [
        (P.IN_FLIGHT, Outcome.JOINED, "b"),
        (P.IN_FLIGHT, Outcome.HIT, None),
        (P.RESOLVED, Outcome.RELEASED, "b"),
        (P.RESOLVED, Outcome.RELEASED, "a"),
    ]
    assert [t.seq for t in recorder.transitions] == [1, 2, 3, 4]


def test_only_the_probes_of_a_wanted_request_are_told():
    recorder = RecordingObserver(wanted=lambda context, tier: context.req_id == "b")
    lookups = by_hand(observer=recorder)
    lookups.lookup(K, A)
    lookups.lookup(OTHER, B)
    lookups.lookup(key(3), C)
    lookups.flush()
    assert {t.key for t in recorder.transitions} == {OTHER}


def test_an_observer_is_asked_once_per_request_and_life():
    asked = []

    def wanted(context, tier):
        asked.append((context.req_id, tier))
        return True

    lookups = by_hand(observer=RecordingObserver(wanted=wanted))
    for _ in range(3):
        for context in (A, B):
            lookups.lookup(K, context)
            lookups.lookup(OTHER, context)
        lookups.flush()
    assert asked == [("a", "1:test"), ("b", "1:test")]
    lookups.cleanup("a")
    lookups.lookup(K, A)
    assert asked[2:] == [("a", "1:test")]


def test_a_transition_tells_what_happened():
    recorder = RecordingObserver()
    lookups = by_hand(observer=recorder)
    lookups.runtime.advance(2.5)
    lookups.lookup(K, ctx("a", "red"))
    (seen,) = recorder.transitions
    assert isinstance(seen, Transition)
    assert (seen.time, seen.tier, seen.scope, seen.key) == (2.5, "1:test", "red", K)
    assert (seen.generation, seen.waiters, seen.req_id) == (1, 1, "a")


# -- one owner at a time -----------------------------------------------------------------------


def test_the_guard_raises_when_a_second_thread_enters():
    inside, leave = threading.Event(), threading.Event()

    class Slow(ScriptedLookups):
        def probe_scope(self, req_context):
            inside.set()
            assert leave.wait(PATIENCE)
            return None

    lookups = Slow(HandRuntime(), yes, table=OwnerGuard)
    first = threading.Thread(target=lookups.lookup, args=(K, A))
    first.start()
    assert inside.wait(PATIENCE)
    for enter in (lookups.flush, lookups.snapshot, lambda: lookups.cleanup("a")):
        with pytest.raises(TwoOwners):
            enter()
    leave.set()
    first.join(PATIENCE)
    assert lookups.lookup(K, A) is None


def test_the_guard_raises_when_an_observer_calls_back():
    class Meddler:
        def wants(self, req_context, tier):
            return True

        def on_transition(self, transition):
            lookups.cleanup("a")

    lookups = by_hand(observer=Meddler())
    with structlog.testing.capture_logs() as logs:
        lookups.lookup(K, A)
        lookups.flush()
    assert "TwoOwners" in logs[0]["error"]


def test_the_worker_never_enters_the_table():
    """A real worker, its owner busy all the time: the guard has nothing to say."""
    runtime = ThreadRuntime()
    lookups = ScriptedLookups(
        runtime, lambda keys: [k != key(0) for k in keys], table=OwnerGuard, max_batches_out=3
    )
    limit = time.monotonic() + PATIENCE
    with lookups:
        for round_ in range(60):
            contexts = [ctx(f"{round_}-{n}", n % 2) for n in range(4)]
            waiting = {(k, c.req_id): (k, c) for c in contexts for k in map(key, range(5))}
            while waiting:
                assert time.monotonic() < limit
                for name, (k, context) in list(waiting.items()):
                    if (verdict := lookups.lookup(k, context)) is not None:
                        assert verdict is (k != key(0))
                        del waiting[name]
                lookups.flush()
            for context in contexts:
                lookups.cleanup(context.req_id)
    assert is_empty(lookups)
    counts = lookups.counts
    assert counts.issued == counts.resolved + counts.abandoned + counts.closed
    assert counts.illegal == 0


# -- real threads ------------------------------------------------------------------------------


def threads_of(lookups: ScriptedLookups) -> list[threading.Thread]:
    name = f"kvtier-lookup-{lookups.tier}"
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_no_thread_is_left_after_a_clean_shutdown():
    before = set(threading.enumerate())
    with ScriptedLookups(ThreadRuntime(), yes) as lookups:
        (thread,) = set(threading.enumerate()) - before
        assert thread.daemon
        assert thread.name == "kvtier-lookup-1:test"
        lookups.lookup(K, A)
        lookups.flush()
    assert set(threading.enumerate()) <= before
    assert lookups.lookup(K, A) is True


def test_the_context_manager_shuts_down_when_its_body_raises():
    lookups = ScriptedLookups(ThreadRuntime(), yes)
    with pytest.raises(ZeroDivisionError), lookups:
        raise ZeroDivisionError
    assert not threads_of(lookups)
    assert lookups.snapshot().closed


def test_shutdown_without_a_timeout_waits_for_the_back_end():
    lookups = ScriptedLookups(ThreadRuntime(), yes)
    lookups.hangs = lambda keys: True
    lookups.lookup(K, A)
    lookups.flush()
    assert lookups.entered.wait(PATIENCE)
    threading.Timer(0.05, lookups.let_go.set).start()
    lookups.shutdown(None)
    assert lookups.let_go.is_set()
    assert lookups.lookup(K, A) is True
