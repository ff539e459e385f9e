"""The lookup table alone: no worker, no queue, the time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest

from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupPhase
from kvtier.lookup import EntryView, LookupLimits, LookupTable, Question
from kvtier.request import ReqContext
from tests.support.lookups import CountingKey, counting_key, ctx, key

P = LookupPhase


def tenant_of(context: ReqContext) -> Hashable:
    return (context.kv_transfer_params or {}).get("tenant")


class Driver:
    """Short words for the table's events, at the time `now`."""

    def __init__(self, **limits: Any) -> None:
        self.table = LookupTable("1:t", LookupLimits(**limits))
        self.now = 0.0

    def ask(self, req_id: str, number: int, tenant: Hashable = None) -> bool | None:
        return self.table.lookup(key(number), ctx(req_id, tenant), tenant_of, self.now)

    def send(self) -> list[Question]:
        self.table.sweep(self.now)
        return self.table.take_batch(self.now)

    def answer(self, question: Question, *verdicts: bool | None) -> None:
        assert self.table.answer(question, verdicts, self.now) == []

    def resolve(self, verdict: bool | None) -> None:
        for question in self.send():
            self.answer(question, *[verdict] * len(question.keys))

    def entry(self, number: int, tenant: Hashable = None) -> EntryView:
        return self.table.snapshot().entries[tenant, key(number)]

    @property
    def pending(self) -> list[tuple[Hashable, OffloadKey]]:
        return list(self.table.snapshot().batch)


# -- the batch -----------------------------------------------------------------------------------


def test_a_batch_is_one_question_per_scope_in_the_order_in_which_it_was_asked():
    t = Driver()
    for req_id, number, tenant in [("a", 3, "x"), ("b", 1, "y"), ("c", 2, "x"), ("a", 1, "x")]:
        assert t.ask(req_id, number, tenant) is None
    first, second = t.send()
    assert (first.scope, first.keys) == ("x", [key(3), key(2), key(1)])
    assert (second.scope, second.keys) == ("y", [key(1)])
    assert (first.generations, second.generations) == ([1, 3, 4], [2])


def test_a_question_has_the_context_of_the_request_that_first_asked_its_first_key():
    t = Driver()
    t.ask("a", 1)
    t.ask("b", 2)
    t.table.release("a", t.now)
    (question,) = t.send()
    assert question.req_context == ctx("b")
    t = Driver()
    t.ask("a", 1)
    t.ask("b", 1)
    t.table.release("a", t.now)
    (question,) = t.send()
    assert question.req_context == ctx("a")


def test_whoever_asks_the_same_key_joins_and_the_last_to_leave_takes_it_back():
    t = Driver()
    for req_id in ("a", "b", "c"):
        assert t.ask(req_id, 1) is None
    t.ask("a", 2)
    assert t.entry(1).waiters == {"a", "b", "c"}
    for req_id in ("a", "c"):
        t.table.release(req_id, t.now)
    assert t.pending == [(None, key(1))]
    t.table.release("b", t.now)
    assert t.send() == []
    assert t.table.snapshot().entries == {}
    counts = t.table.counts
    assert (counts.issued, counts.joined, counts.abandoned) == (2, 2, 2)


def test_a_key_asked_again_goes_to_the_end_of_the_batch():
    t = Driver()
    t.ask("a", 1)
    t.resolve(None)
    t.ask("b", 2)
    assert t.ask("b", 1) is None
    assert t.pending == [(None, key(2)), (None, key(1))]
    assert t.entry(1).generation == 3


@pytest.mark.parametrize("most", [1, 2, 3])
def test_only_so_many_batches_are_out_and_each_until_its_last_answer(most):
    t = Driver(max_batches_out=most)
    batches = []
    for number in range(most):
        t.ask("a", number, "x")
        t.ask("a", 100 + number, "y")
        batches.append(t.send())
    t.ask("a", 50)
    assert t.send() == []
    assert t.table.snapshot().batches_out == most
    left, right = batches[0]
    t.answer(left, True)
    assert t.send() == []
    t.answer(right, True)
    assert t.table.snapshot().batches_out == most - 1
    assert [question.keys for question in t.send()] == [[key(50)]]


# -- error, excuse, lifetime, deadline -------------------------------------------------------------


def test_a_failed_question_reads_false_until_somebody_new_asks_it_again():
    t = Driver()
    t.ask("a", 1)
    t.ask("b", 1)
    t.resolve(None)
    assert [t.ask("a", 1), t.ask("b", 1), t.ask("a", 1)] == [False] * 3
    assert t.pending == []
    assert t.ask("c", 1) is None
    assert t.entry(1).excused == {"a", "b"}
    assert [t.ask("a", 1), t.ask("b", 1), t.ask("c", 1)] == [False, False, None]
    assert t.ask("d", 1) is None, "a later asker waits"
    t.resolve(True)
    assert [t.ask(req_id, 1) for req_id in "abcd"] == [True] * 4
    assert t.entry(1).excused == frozenset()


def test_an_excused_request_that_leaves_and_returns_waits_like_anybody():
    t = Driver()
    t.ask("a", 1)
    t.resolve(None)
    t.ask("b", 1)
    t.table.release("a", t.now)
    assert t.entry(1).excused == frozenset()
    assert t.ask("a", 1) is None


def test_a_question_that_fails_again_is_an_error_again():
    t = Driver()
    t.ask("a", 1)
    for number, req_id in enumerate("bcd", start=2):
        t.resolve(None)
        assert t.ask(req_id, 1) is None
        assert t.entry(1).generation == number
    assert t.table.counts.lookup_errors == 3


def test_a_verdict_past_its_lifetime_is_asked_again_and_everybody_waits():
    t = Driver(verdict_lifetime=10.0)
    t.ask("a", 1)
    t.ask("b", 1)
    t.resolve(True)
    t.now = 9.5
    assert t.ask("a", 1) is True
    t.now = 10.5
    assert t.ask("a", 1) is None
    assert t.ask("b", 1) is None
    entry = t.entry(1)
    assert entry.waiters == {"a", "b"}
    assert (entry.excused, entry.born) == (frozenset(), 10.5)
    t.resolve(False)
    t.now = 20.0
    assert t.ask("b", 1) is False, "the lifetime counts from the new verdict"


@pytest.mark.parametrize(
    ("asker", "excused"), [("b", frozenset({"a"})), ("a", frozenset())], ids=["new", "old"]
)
def test_an_old_error_is_first_of_all_an_error(asker, excused):
    t = Driver(verdict_lifetime=10.0)
    t.ask("a", 1)
    t.resolve(None)
    t.now = 11.0
    assert t.ask(asker, 1) is None
    assert t.entry(1).excused == excused


def test_past_the_deadline_lookups_read_false_while_the_question_goes_on():
    t = Driver(deadline=5.0)
    t.ask("a", 1)
    t.now = 4.0
    assert t.ask("a", 1) is None
    t.now = 6.0
    assert t.ask("a", 1) is False
    assert t.ask("b", 1) is False
    (question,) = t.send()
    assert [t.ask("a", 1), t.ask("c", 1)] == [False, False]
    assert t.send() == []
    t.answer(question, True)
    assert [t.ask(req_id, 1) for req_id in "abc"] == [True] * 3
    assert t.table.counts.issued == 1


def test_asking_again_is_a_new_birth_for_the_deadline():
    t = Driver(deadline=5.0)
    t.ask("a", 1)
    t.resolve(None)
    t.now = 100.0
    assert t.ask("b", 1) is None
    t.now = 104.0
    assert t.ask("b", 1) is None
    t.now = 106.0
    assert [t.ask("b", 1), t.ask("a", 1)] == [False, False]


def test_a_deadline_counts_from_the_instant_it_is_reached_a_lifetime_is_lived_out():
    t = Driver(deadline=5.0, verdict_lifetime=10.0)
    t.ask("a", 1)
    t.now = 5.0
    assert t.ask("a", 1) is False
    t.resolve(True)
    t.now = 15.0
    assert t.ask("a", 1) is True
    t.now = 15.1
    assert t.ask("a", 1) is None


# -- answers -----------------------------------------------------------------------------------


def test_a_stored_block_turns_no_and_failed_into_yes():
    t = Driver()
    for number in range(3):
        t.ask("a", number)
    (question,) = t.send()
    t.table.mark_hit([key(0), key(1), key(2), key(3)], None, t.now)
    t.answer(question, True, False, None)
    assert [t.ask("a", number) for number in range(3)] == [True] * 3
    assert t.table.counts.lookup_errors == 0
    assert not t.entry(2).error


def test_an_answer_applies_key_by_key_and_what_is_illegal_does_not_stop_the_rest():
    t = Driver()
    for number in range(4):
        t.ask("a", number)
    (question,) = t.send()
    t.answer(Question(None, ctx("a"), question.keys[:1], question.generations[:1]), True)
    stale = Question(
        None, ctx("a"), [key(1), key(9), *question.keys], [0, 1, *question.generations]
    )
    (refused,) = t.table.answer(stale, [False] * 6, t.now)
    assert key(0).hex() in str(refused)
    assert [t.ask("a", number) for number in range(4)] == [True, False, False, False]
    counts = t.table.counts
    assert (counts.resolved, counts.discarded, counts.illegal) == (4, 3, 1)


def test_an_answer_to_a_scope_that_nobody_asked_in_is_discarded():
    t = Driver()
    t.ask("a", 1, "x")
    (question,) = t.send()
    t.answer(Question("y", ctx("a"), question.keys, question.generations), True)
    assert t.entry(1, "x").phase is P.IN_FLIGHT
    assert t.table.counts.discarded == 1


# -- counters and costs ----------------------------------------------------------------------------


def test_the_peaks_are_of_a_steps_end_and_of_what_is_out():
    t = Driver(max_batches_out=3)
    for number in range(3):
        t.ask("a", number)
    first = t.send()
    t.ask("a", 7)
    second = t.send()
    for question, verdicts in [(first[0], [True] * 3), (second[0], [True])]:
        t.answer(question, *verdicts)
    t.table.release("a", t.now)
    t.send()
    assert (t.table.counts.peak_entries, t.table.counts.peak_out) == (4, 4)


def hashes_of(do: Callable[[], object]) -> int:
    CountingKey.hashed = 0
    do()
    return CountingKey.hashed


@pytest.mark.parametrize("requests", [1, 20])
def test_the_end_costs_as_much_per_hold_however_many_requests_there_are(requests):
    table = LookupTable("1:t", LookupLimits())
    keys = [counting_key(number) for number in range(40)]
    for number, k in enumerate(keys):
        table.lookup(k, ctx(f"r{number % requests}"), None, 0.0)
    assert hashes_of(lambda: table.close(0.0)) <= 3 * len(keys)
    assert table.snapshot().entries == {}
    assert not any(table.held.values())
