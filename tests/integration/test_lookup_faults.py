"""F01 to F20: lookup faults that other systems had, each under its id and with its whole kind.

Hand-stepped where the order is the point, with real threads where they are.
"""

from __future__ import annotations

import sys
import threading
import time
from itertools import permutations, product

import pytest

from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupPhase, Outcome
from kvtier.lookup import Question
from kvtier.results import MissReason
from kvtier.runtime import ThreadRuntime
from kvtier.telemetry.recording import RecordingObserver
from tests.support.lookups import (
    BAD_ANSWERS,
    PATIENCE,
    CountingKey,
    HandRuntime,
    OwnerGuard,
    ScriptedLookups,
    counting_key,
    ctx,
    key,
)

P = LookupPhase
A, B, C = ctx("a"), ctx("b"), ctx("c")
K = key(0)
FEW = [1, 2, 3, 7]


def yes(keys):
    return [True] * len(keys)


def no(keys):
    return [False] * len(keys)


def fails(keys):
    raise OSError("unreachable")


def by_hand(answer=yes, **settings) -> ScriptedLookups:
    return ScriptedLookups(HandRuntime(), answer, table=OwnerGuard, **settings)


def threaded(answer=yes, **settings) -> ScriptedLookups:
    return ScriptedLookups(ThreadRuntime(), answer, table=OwnerGuard, **settings)


def phases(lookups, tenant=None) -> dict[OffloadKey, LookupPhase]:
    entries = lookups.snapshot().entries
    return {k: entry.phase for (scope, k), entry in entries.items() if scope == tenant}


def ask_all(lookups, keys, context) -> list[bool | None]:
    return [lookups.lookup(k, context) for k in keys]


def step(lookups) -> None:
    """The step ends, and the worker answers all it has."""
    lookups.flush()
    lookups.step_worker()


def is_empty(lookups) -> bool:
    snapshot = lookups.snapshot()
    return not (snapshot.entries or snapshot.held or snapshot.batch or lookups.has_pending_work())


def soon(reply, wanted, lookups) -> None:
    """With a real worker: `reply()` becomes `wanted` as steps pass."""
    limit = time.monotonic() + PATIENCE
    while reply() is not wanted:
        assert time.monotonic() < limit
        lookups.flush()
        time.sleep(0.001)


# -- F01: a failed load is a miss, and not a livelock (vllm 49176) -------------------------------


@pytest.mark.parametrize("holders", FEW)
@pytest.mark.parametrize("scoped", [False, True], ids=["every scope", "one scope"])
def test_f01_after_a_failed_load_everybody_reads_a_miss_and_nothing_is_asked(holders, scoped):
    lookups = by_hand(yes)
    contexts = [ctx(f"r{number}") for number in range(holders)]
    for context in contexts:
        lookups.lookup(K, context)
    step(lookups)
    assert [lookups.lookup(K, context) for context in contexts] == [True] * holders
    lookups.mark_miss([K], contexts[0] if scoped else None)
    for _ in range(5):
        assert [lookups.lookup(K, context) for context in [*contexts, A]] == [False] * (holders + 1)
        step(lookups)
    assert len(lookups.calls) == 1
    for context in [*contexts, A]:
        lookups.cleanup(context.req_id)
    assert lookups.lookup(K, A) is None, "the miss ends with its last holder"


# -- F02: an answer of an older generation (vllm 54872) -------------------------------------------


def leaves_and_returns(lookups):
    """In flight, unclaimed, swept, asked anew: the same key under a new generation."""
    lookups.lookup(K, A)
    lookups.flush()
    lookups.cleanup("a")
    lookups.step_worker()
    lookups.flush()
    lookups.lookup(K, A)


def fails_and_is_asked_again(lookups):
    lookups.answer = fails
    lookups.lookup(K, B)
    step(lookups)
    lookups.answer = yes
    lookups.lookup(K, A)


def is_taken_back_and_asked(lookups):
    lookups.lookup(K, B)
    lookups.cleanup("b")
    lookups.lookup(K, A)


@pytest.mark.parametrize("older", [1, 2])
@pytest.mark.parametrize("answer", [[True], [False], None], ids=["yes", "no", "failed"])
@pytest.mark.parametrize("moment", [P.PENDING, P.IN_FLIGHT, P.RESOLVED])
@pytest.mark.parametrize(
    "past", [leaves_and_returns, fails_and_is_asked_again, is_taken_back_and_asked]
)
def test_f02_an_older_answer_is_discarded_and_the_real_one_applies(past, moment, answer, older):
    recorder = RecordingObserver()
    lookups = by_hand(yes, observer=recorder)
    past(lookups)
    assert phases(lookups) == {K: P.PENDING}
    if moment is not P.PENDING:
        lookups.flush()
    if moment is P.RESOLVED:
        lookups.step_worker()
        lookups.drain_results()
    generation = lookups.snapshot().entries[None, K].generation
    recorder.clear()
    before = lookups.snapshot()
    lookups.worker.inject(Question(None, B, [K], [generation - older]), answer)
    lookups.drain_results()
    assert lookups.snapshot() == before
    assert [t.outcome for t in recorder.transitions] == [Outcome.DISCARDED]
    assert (lookups.counts.discarded, lookups.counts.illegal) == (1, 0)
    step(lookups)
    assert lookups.lookup(K, A) is True


def test_f02_the_same_answer_twice_is_applied_once():
    lookups = by_hand(yes)
    lookups.lookup(K, A)
    lookups.flush()
    (asked,) = lookups.worker.posted
    lookups.step_worker()
    lookups.worker.inject(asked, [False])
    assert lookups.lookup(K, A) is True
    assert (lookups.counts.resolved, lookups.counts.discarded, lookups.counts.illegal) == (1, 1, 1)


# -- F03: a request that ends takes its question back (vllm 55075) --------------------------------


@pytest.mark.parametrize("keys", FEW)
@pytest.mark.parametrize("leavers", FEW)
def test_f03_what_nobody_wants_any_more_is_not_asked(keys, leavers):
    lookups = by_hand(yes)
    numbers = [key(number) for number in range(keys)]
    for number in range(leavers):
        ask_all(lookups, numbers, ctx(f"r{number}"))
    lookups.lookup(numbers[-1], B)
    for number in range(leavers):
        lookups.cleanup(f"r{number}")
    step(lookups)
    assert lookups.calls == [([numbers[-1]], ctx("r0"))]
    assert lookups.lookup(numbers[-1], B) is True
    assert lookups.counts.abandoned == keys - 1


def test_f03_with_nobody_left_the_back_end_is_not_called():
    lookups = by_hand(yes)
    lookups.lookup(K, A)
    lookups.cleanup("a")
    lookups.flush()
    assert not lookups.lane.tasks
    assert is_empty(lookups)


# -- F04, F05: a second request takes over what is out (vllm 55823, seen in 0.33.0) ---------------


@pytest.mark.parametrize("keys", FEW)
@pytest.mark.parametrize("verdict", [True, False])
@pytest.mark.parametrize("answered", [False, True], ids=["F04 not answered", "F05 answered"])
@pytest.mark.parametrize("drained_by", ["b itself", "another key", "nobody"])
def test_f04_f05_one_call_serves_whoever_comes_after_the_asker_left(
    keys, verdict, answered, drained_by
):
    lookups = by_hand(lambda asked: [verdict] * len(asked))
    numbers = [key(number) for number in range(keys)]
    ask_all(lookups, numbers, A)
    lookups.flush()
    if answered:
        lookups.step_worker()
    lookups.cleanup("a")
    if drained_by == "another key":
        lookups.lookup(key(99), C)
    elif drained_by == "nobody":
        lookups.drain_results()
    replies = ask_all(lookups, numbers, B)
    assert replies == [verdict if answered else None] * keys
    step(lookups)
    lookups.flush()
    assert ask_all(lookups, numbers, B) == [verdict] * keys
    assert [asked for asked, _ in lookups.calls if key(99) not in asked] == [numbers]
    assert lookups.counts.unclaimed == 0


def test_f05_after_the_flush_it_is_too_late_and_asked_anew():
    lookups = by_hand(yes)
    lookups.lookup(K, A)
    step(lookups)
    lookups.cleanup("a")
    lookups.flush()
    assert lookups.lookup(K, B) is None
    assert lookups.counts.unclaimed == 1


# -- F06: one scope is slow (vllm 57474) ----------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(["slow", "x", "y"])))
def test_f06_each_scope_is_published_as_soon_as_it_is_answered(order):
    lookups = by_hand(yes)
    for number, tenant in enumerate(order):
        lookups.lookup(key(number), ctx(tenant, tenant))
    lookups.flush()
    for number in range(len(order)):
        lookups.lane.step()
        lookups.drain_results()
        for later, other in enumerate(order):
            wanted = P.RESOLVED if later <= number else P.IN_FLIGHT
            assert phases(lookups, other) == {key(later): wanted}


@pytest.mark.parametrize("scopes", FEW)
def test_f06_with_a_real_worker_a_hung_scope_holds_back_nobody_before_it(scopes):
    with threaded(yes) as lookups:
        lookups.hangs = lambda keys: keys == [K]
        fast = [(key(number + 1), ctx("a", number)) for number in range(scopes)]
        for k, context in fast:
            lookups.lookup(k, context)
        lookups.lookup(K, ctx("a", "slow"))
        lookups.flush()
        assert lookups.entered.wait(PATIENCE)
        for k, context in fast:
            soon(lambda k=k, context=context: lookups.lookup(k, context), True, lookups)
        assert lookups.lookup(K, ctx("a", "slow")) is None
        lookups.let_go.set()
        soon(lambda: lookups.lookup(K, ctx("a", "slow")), True, lookups)


# -- F07: the back end is silent and there is a deadline (vllm 45765) -----------------------------


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("holders", FEW)
def test_f07_at_the_deadline_it_is_false_and_the_late_answer_serves_later_askers(
    holders, sent, late
):
    lookups = by_hand(lambda keys: [late] * len(keys), deadline=5.0)
    contexts = [ctx(f"r{number}") for number in range(holders)]
    for context in contexts:
        assert lookups.lookup(K, context) is None
    if sent:
        lookups.flush()
    lookups.runtime.advance(6.0)
    for context in contexts:
        assert lookups.lookup(K, context) is False
        assert lookups.why_false(K, context) is MissReason.DEADLINE
    step(lookups)
    assert lookups.lookup(K, B) is late
    assert lookups.lookup(K, contexts[0]) is late
    assert len(lookups.calls) == 1
    assert (lookups.counts.discarded, lookups.counts.illegal) == (0, 0)


def test_f07_a_hung_back_end_does_not_keep_anybody_past_the_deadline():
    with threaded(yes, deadline=0.05) as lookups:
        lookups.hangs = lambda keys: True
        lookups.lookup(K, A)
        lookups.flush()
        assert lookups.entered.wait(PATIENCE)
        soon(lambda: lookups.lookup(K, A), False, lookups)
        assert phases(lookups) == {K: P.IN_FLIGHT}
        lookups.let_go.set()
        soon(lambda: lookups.lookup(K, A), True, lookups)


# -- F08: a store makes a miss a hit (fork pr 631) ------------------------------------------------


@pytest.mark.parametrize("first", [yes, no, fails])
@pytest.mark.parametrize("forced", [False, True], ids=["as answered", "after a failed load"])
def test_f08_after_a_store_a_held_key_is_a_hit_without_a_probe(first, forced):
    lookups = by_hand(first)
    lookups.lookup(K, A)
    step(lookups)
    lookups.lookup(K, A)
    if forced:
        lookups.mark_miss([K])
    lookups.mark_hit([K], C)
    assert [lookups.lookup(K, A), lookups.lookup(K, B)] == [True, True]
    assert len(lookups.calls) == 1


@pytest.mark.parametrize("answer", [no, fails])
@pytest.mark.parametrize("missed_again", [False, True])
@pytest.mark.parametrize("orphan", [False, True])
def test_f08_an_older_probes_no_cannot_undo_a_store(answer, missed_again, orphan):
    lookups = by_hand(answer)
    lookups.lookup(K, A)
    lookups.flush()
    lookups.mark_hit([K], C)
    if missed_again:
        lookups.mark_miss([K])
    if orphan:
        lookups.cleanup("a")
    lookups.step_worker()
    assert lookups.lookup(K, B) is True
    assert lookups.snapshot().entries[None, K].error is False


def test_f08_a_store_in_another_scope_does_not_count():
    lookups = by_hand(no)
    lookups.lookup(K, ctx("a", 1))
    lookups.flush()
    lookups.mark_hit([K], ctx("c", 2))
    lookups.step_worker()
    assert lookups.lookup(K, ctx("a", 1)) is False


# -- F09: the block went away behind the tier's back (seen in 0.33.0) -----------------------------


@pytest.mark.parametrize("holders", FEW)
def test_f09_past_its_lifetime_a_verdict_is_asked_again(holders):
    verdict = True
    lookups = by_hand(lambda keys: [verdict] * len(keys), verdict_lifetime=10.0)
    contexts = [ctx(f"r{number}") for number in range(holders)]
    for context in contexts:
        lookups.lookup(K, context)
    step(lookups)
    lookups.drain_results()
    verdict = False
    lookups.runtime.advance(9.0)
    assert [lookups.lookup(K, context) for context in contexts] == [True] * holders
    lookups.runtime.advance(2.0)
    assert [lookups.lookup(K, context) for context in contexts] == [None] * holders
    step(lookups)
    assert [lookups.lookup(K, context) for context in contexts] == [False] * holders
    assert len(lookups.calls) == 2


def test_f09_an_aged_verdict_that_nobody_claimed_is_asked_again_too():
    lookups = by_hand(yes, verdict_lifetime=10.0)
    lookups.lookup(K, A)
    step(lookups)
    lookups.cleanup("a")
    lookups.drain_results()
    lookups.runtime.advance(11.0)
    assert lookups.lookup(K, B) is None
    assert phases(lookups) == {K: P.PENDING}


# -- F10: a failed question is not an absent block (seen in 0.33.0) -------------------------------


@pytest.mark.parametrize("bad", BAD_ANSWERS)
@pytest.mark.parametrize("second", [yes, no])
def test_f10_who_failed_reads_false_and_who_comes_asks_again(bad, second):
    recorder = RecordingObserver()
    scripts = {"bad": iter([BAD_ANSWERS[bad], second]), "good": iter([yes])}
    lookups = by_hand(
        lambda keys: next(scripts["good" if key(1) in keys else "bad"])(keys), observer=recorder
    )
    a, b = ctx("a", "bad"), ctx("b", "bad")
    lookups.lookup(K, a)
    lookups.lookup(key(1), ctx("o", "good"))
    step(lookups)
    assert lookups.lookup(K, a) is False
    assert lookups.why_false(K, a) is MissReason.LOOKUP_ERROR
    assert [t.key for t in recorder.transitions if t.outcome is Outcome.LOOKUP_ERROR] == [K]
    assert lookups.lookup(key(1), ctx("o", "good")) is True
    assert lookups.lookup(K, b) is None
    for _ in range(2):
        assert lookups.lookup(K, a) is False
        lookups.flush()
    assert lookups.why_false(K, a) is MissReason.LOOKUP_ERROR
    lookups.step_worker()
    wanted = second([K])[0]
    assert [lookups.lookup(K, b), lookups.lookup(K, a)] == [wanted, wanted]
    assert lookups.counts.lookup_errors == 1


# -- F11, F12: as many answers as keys, or none (seen in 0.33.0, vllm 44193) ----------------------


@pytest.mark.parametrize("keys", [1, 2, 3, 7])
@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_f11_f12_a_misfit_answer_fails_its_group_and_the_worker_lives(bad, keys):
    numbers = [key(number) for number in range(keys)]
    lookups = by_hand(lambda asked: BAD_ANSWERS[bad](asked) if asked == numbers else yes(asked))
    ask_all(lookups, numbers, ctx("a", "broken"))
    lookups.lookup(key(50), ctx("a", "fine"))
    step(lookups)
    assert ask_all(lookups, numbers, ctx("a", "broken")) == [False] * keys
    assert lookups.lookup(key(50), ctx("a", "fine")) is True
    assert set(phases(lookups, "broken").values()) == {P.RESOLVED}
    assert lookups.counts.lookup_errors == keys
    lookups.lookup(key(60), ctx("a", "broken"))
    step(lookups)
    assert lookups.lookup(key(60), ctx("a", "broken")) is True


@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_f12_a_real_worker_lives_on_too(bad):
    with threaded(lambda keys: BAD_ANSWERS[bad](keys) if K in keys else yes(keys)) as lookups:
        lookups.lookup(K, A)
        lookups.flush()
        soon(lambda: lookups.lookup(K, A), False, lookups)
        lookups.lookup(key(1), A)
        soon(lambda: lookups.lookup(key(1), A), True, lookups)


# -- F13: a failed load while a newer question is on its way (vllm 0.24 to 0.32) -------------------


@pytest.mark.parametrize("moment", [P.PENDING, P.IN_FLIGHT])
@pytest.mark.parametrize("answer", [yes, no])
@pytest.mark.parametrize("scoped", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_f13_mark_miss_leaves_an_open_question_alone(moment, answer, scoped, times):
    lookups = by_hand(answer)
    lookups.lookup(K, A)
    if moment is P.IN_FLIGHT:
        lookups.flush()
    before = lookups.snapshot()
    for _ in range(times):
        lookups.mark_miss([K, key(77)], A if scoped else None)
    assert lookups.snapshot() == before
    step(lookups)
    lookups.flush()
    assert lookups.lookup(K, A) is answer([K])[0]


# -- F14: shutdown while the back end blocks for ever (seen in 0.33.0) ----------------------------


@pytest.mark.parametrize("answered", [0, 1, 2])
@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_f14_shutdown_returns_within_its_timeout(answered, timeout):
    lookups = threaded(yes, max_batches_out=3)
    lookups.hangs = lambda keys: keys == [key(answered)]
    contexts = [ctx(f"r{number}", number) for number in range(3)]
    for number, context in enumerate(contexts):
        lookups.lookup(key(number), context)
        lookups.flush()
    limit = time.monotonic() + PATIENCE
    while len(lookups.calls) <= answered:
        assert time.monotonic() < limit
    before = time.monotonic()
    lookups.shutdown(timeout)
    assert time.monotonic() - before < timeout + 2.0
    assert len(lookups.snapshot().entries) == answered
    assert [lookups.lookup(key(n), contexts[n]) for n in range(3)] == [
        n < answered for n in range(3)
    ]
    (thread,) = [t for t in threading.enumerate() if t.name == "kvtier-lookup-1:test"]
    assert thread.daemon, "a process can end although this thread does not"
    lookups.shutdown(timeout)
    lookups.let_go.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(lookups.calls) == answered + 1, "no question was begun after the timeout"
    lookups.drain_results()
    lookups.flush()
    assert [lookups.lookup(key(n), contexts[n]) for n in range(3)] == [
        n < answered for n in range(3)
    ]


# -- F15: lookups and flushes after shutdown (seen in 0.33.0) -------------------------------------


@pytest.mark.parametrize("unsent", [0, *FEW])
@pytest.mark.parametrize("out", [0, 1, 3])
def test_f15_after_shutdown_nothing_is_pending_and_nothing_is_sent(unsent, out):
    lookups = by_hand(yes)
    sent = [key(number) for number in range(out)]
    waiting = [key(100 + number) for number in range(unsent)]
    ask_all(lookups, sent, A)
    lookups.flush()
    ask_all(lookups, waiting, A)
    lookups.shutdown(None)
    assert not lookups.has_pending_work()
    assert set(phases(lookups).values()) <= {P.RESOLVED}
    assert ask_all(lookups, sent, A) == [True] * out
    assert ask_all(lookups, [*waiting, key(200)], A) == [False] * (unsent + 1)
    assert ask_all(lookups, [*waiting, key(200)], B) == [False] * (unsent + 1)
    calls = len(lookups.calls)
    for _ in range(3):
        lookups.flush()
    assert not lookups.lane.tasks
    assert len(lookups.calls) == calls
    assert set(phases(lookups)) == set(sent)
    assert lookups.counts.closed == unsent
    lookups.cleanup("a")
    assert is_empty(lookups)


# -- F16: tenants do not see each other's answers (seen in 0.33.0) --------------------------------


@pytest.mark.parametrize("tenants", FEW)
def test_f16_a_tenant_gets_its_own_probe_and_its_own_answer(tenants):
    class Tenants(ScriptedLookups):
        def batch_lookup(self, keys, req_context):
            super().batch_lookup(keys, req_context)
            return [req_context.kv_transfer_params["tenant"] % 2 == 0] * len(keys)

    lookups = Tenants(HandRuntime())
    contexts = [ctx(f"r{number}", number % tenants) for number in range(3 * tenants)]
    for context in contexts:
        assert lookups.lookup(K, context) is None
    step(lookups)
    assert [lookups.lookup(K, context) for context in contexts] == [
        number % tenants % 2 == 0 for number in range(3 * tenants)
    ]
    assert len(lookups.calls) == tenants


# -- F17: the worker is stuck while requests come and go (seen in 0.33.0) --------------------------


@pytest.mark.parametrize("most", [1, 2, 3])
def test_f17_what_is_with_a_stuck_worker_is_bounded_and_the_rest_is_taken_back(most):
    lookups = by_hand(yes, max_batches_out=most)
    for number in range(1_000):
        context = ctx(f"r{number}", number % 2)
        lookups.lookup(key(number), context)
        lookups.lookup(key(number + 1), context)
        lookups.flush()
        lookups.cleanup(context.req_id)
    assert len(lookups.lane.tasks) <= most
    assert len(lookups.snapshot().entries) <= 2 * most
    lookups.lookup(K, ctx("last"))
    lookups.step_worker()
    step(lookups)
    assert lookups.lookup(K, ctx("last")) is True
    assert sum(len(keys) for keys, _ in lookups.calls) == 2 * most + 1
    lookups.cleanup("last")
    lookups.flush()
    assert is_empty(lookups)


def test_f17_with_a_real_worker():
    with threaded(yes) as lookups:
        lookups.hangs = lambda keys: True
        for number in range(1_000):
            lookups.lookup(key(number), ctx(f"r{number}"))
            lookups.flush()
            lookups.cleanup(f"r{number}")
        lookups.let_go.set()
        lookups.lookup(key(5_000), A)
        soon(lambda: lookups.lookup(key(5_000), A), True, lookups)
        assert sum(len(keys) for keys, _ in lookups.calls) == 3


# -- F18: nothing is left of a request that went while its answer was on the way (LMCache 5006) ----


@pytest.mark.parametrize("answer", [yes, no, fails])
@pytest.mark.parametrize("keys", FEW)
@pytest.mark.parametrize("marked", [False, True])
def test_f18_an_idle_tick_reclaims_what_nobody_waits_for(answer, keys, marked):
    lookups = by_hand(answer)
    ask_all(lookups, [key(number) for number in range(keys)], A)
    lookups.flush()
    lookups.cleanup("a")
    if marked:
        lookups.mark_hit([K], C)
    assert lookups.has_pending_work()
    lookups.flush()
    assert lookups.has_pending_work()
    lookups.step_worker()
    lookups.flush()
    assert is_empty(lookups)


# -- F19: the same request id asks again after a time-out (LMCache 3685) --------------------------


@pytest.mark.parametrize("moment", ["pending", "in flight", "answered", "drained"])
@pytest.mark.parametrize("let_go", [False, True])
@pytest.mark.parametrize("answer", [yes, no, fails])
def test_f19_a_request_that_asks_again_misses_or_waits_and_the_late_answer_is_used_once(
    moment, let_go, answer
):
    lookups = by_hand(answer, deadline=5.0)
    lookups.lookup(K, A)
    if moment != "pending":
        lookups.flush()
    lookups.runtime.advance(6.0)
    assert lookups.lookup(K, A) is False
    if moment in ("answered", "drained"):
        lookups.step_worker()
    if moment == "drained":
        lookups.drain_results()
    if let_go:
        lookups.cleanup("a")
    lookups.lookup(K, A)
    replies = []
    for _ in range(4):
        step(lookups)
        replies.append(lookups.lookup(K, A))
    assert replies[-1] is (answer is yes)
    counts = lookups.counts
    assert counts.issued == counts.resolved + counts.abandoned
    assert counts.resolved == len(lookups.calls)
    assert (counts.discarded, counts.illegal) == (0, 0)
    lookups.cleanup("a")
    assert is_empty(lookups)


# -- F20: polling is cheap (LMCache 4983) --------------------------------------------------------


def cost(poll) -> int:
    """Lines of Python run, C functions called and keys looked up, all by number."""
    counted = 0

    def trace(frame, event, arg):
        nonlocal counted
        counted += event in ("call", "line")
        return trace

    def profile(frame, event, arg):
        nonlocal counted
        counted += event == "c_call"

    CountingKey.hashed = 0
    before = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        poll()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return counted + CountingKey.hashed


LIMITS = [{}, {"deadline": 5.0}, {"verdict_lifetime": 5.0}]


def poll_cost(requests: int, keys: int, limits, state: str) -> int:
    lookups = ScriptedLookups(HandRuntime(), fails if state == "excused" else yes, **limits)
    numbers = [counting_key(number) for number in range(keys)]
    contexts = [ctx(f"r{number}") for number in range(requests)]
    for context in contexts:
        ask_all(lookups, numbers, context)
    if state != "pending":
        lookups.flush()
    if state in ("held", "excused"):
        lookups.step_worker()
    lookups.drain_results()
    if state == "excused":
        ask_all(lookups, numbers, ctx("new"))
    if state == "overdue":
        lookups.runtime.advance(6.0)
    k, context = numbers[keys // 2], contexts[requests // 2]
    lookups.lookup(k, context)
    return cost(lambda: lookups.lookup(k, context))


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("state", ["pending", "in flight", "held", "excused", "overdue"])
def test_f20_a_poll_costs_the_same_however_many_wait_for_however_much(limits, state):
    alone = poll_cost(1, 1, limits, state)
    assert alone > 0
    assert poll_cost(128, 1, limits, state) == alone
    assert poll_cost(1, 300, limits, state) == alone
    assert poll_cost(128, 30, limits, state) == alone


def test_f20_a_poll_waits_for_nobody_and_sleeps_never(monkeypatch):
    """128 requests poll while the worker is inside the back end."""
    with threaded(yes) as lookups:
        monkeypatch.setattr(time, "sleep", None)
        lookups.hangs = lambda keys: True
        contexts = [ctx(f"r{number}") for number in range(128)]
        for context in contexts:
            lookups.lookup(K, context)
        lookups.flush()
        assert lookups.entered.wait(PATIENCE)
        for _ in range(50):
            assert {lookups.lookup(K, context) for context in contexts} == {None}
            lookups.flush()
        assert len(lookups.calls) == 1
        lookups.let_go.set()
        monkeypatch.undo()
        soon(lambda: lookups.lookup(K, A), True, lookups)
        assert {lookups.lookup(K, context) for context in contexts} == {True}


@pytest.mark.parametrize(("keys", "requests"), list(product([1, 40], [1, 128])))
def test_f20_many_requests_for_the_same_keys_are_one_call(keys, requests):
    lookups = by_hand(yes)
    numbers = [key(number) for number in range(keys)]
    for number in range(requests):
        ask_all(lookups, numbers, ctx(f"r{number}"))
    step(lookups)
    for number in range(requests):
        assert ask_all(lookups, numbers, ctx(f"r{number}")) == [True] * keys
    assert [asked for asked, _ in lookups.calls] == [numbers]
