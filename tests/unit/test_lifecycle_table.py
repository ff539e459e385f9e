"""The lifecycle table: complete, every row of some use, and what is illegal changes nothing."""

from __future__ import annotations

from itertools import product

import pytest

from kvtier.errors import IllegalTransition, UsageError
from kvtier.lifecycle import TABLE, Guard, LookupPhase, Outcome, Trigger
from kvtier.lookup import LookupLimits, LookupTable, Question
from kvtier.lookup.entry import ABSENTEE, Entry
from kvtier.lookup.guards import GUARDS, Event
from tests.support.lookups import ctx, key

P, T, O = LookupPhase, Trigger, Outcome  # noqa: E741

EVERY_PAIR = list(product(LookupPhase, Trigger))
EVERY_ROW = [(phase, trigger, row) for (phase, trigger), rows in TABLE.items() for row in rows]

ALWAYS_ILLEGAL = {
    # Nothing to send, to let go of, to sweep, to close.
    (P.ABSENT, T.SEND),
    (P.ABSENT, T.RELEASE),
    (P.ABSENT, T.SWEEP),
    (P.ABSENT, T.CLOSE),
    # A question that is out, or has its answer, is not sent.
    (P.IN_FLIGHT, T.SEND),
    (P.RESOLVED, T.SEND),
    # Only a verdict can be unclaimed.
    (P.PENDING, T.SWEEP),
    (P.IN_FLIGHT, T.SWEEP),
}

MOVES = {
    (P.ABSENT, T.JOIN, P.PENDING),
    (P.PENDING, T.SEND, P.IN_FLIGHT),
    (P.IN_FLIGHT, T.ANSWER, P.RESOLVED),
    # Asked again: after an error, or past the verdict lifetime.
    (P.RESOLVED, T.JOIN, P.PENDING),
    # The last one lets go; what is in flight stays.
    (P.PENDING, T.RELEASE, P.ABSENT),
    (P.RESOLVED, T.RELEASE, P.ABSENT),
    (P.RESOLVED, T.SWEEP, P.ABSENT),
    # Shutdown ends what has no answer; verdicts are kept for who holds them.
    (P.PENDING, T.CLOSE, P.ABSENT),
    (P.IN_FLIGHT, T.CLOSE, P.ABSENT),
}


def test_every_phase_and_trigger_has_a_cell_and_there_are_no_others():
    assert set(TABLE) == set(EVERY_PAIR)


@pytest.mark.parametrize(("phase", "trigger"), EVERY_PAIR)
def test_some_row_of_a_cell_always_fits(phase, trigger):
    *guarded, last = TABLE[phase, trigger]
    assert last.guard is None
    assert all(row.guard is not None for row in guarded)


@pytest.mark.parametrize(("phase", "trigger"), EVERY_PAIR)
def test_the_rows_of_a_cell_differ_in_guard_and_in_what_they_do(phase, trigger):
    rows = TABLE[phase, trigger]
    assert len({row.guard for row in rows}) == len(rows)
    assert len({(row.target, row.outcome) for row in rows}) == len(rows)


def test_every_outcome_and_every_guard_is_used():
    assert {row.outcome for _, _, row in EVERY_ROW} == set(Outcome)
    assert {row.guard for _, _, row in EVERY_ROW} == {*Guard, None}
    assert set(GUARDS) == set(Guard)


def test_the_phase_changes_are_those_of_the_contract():
    moves = {(phase, trigger, row.target) for phase, trigger, row in EVERY_ROW}
    assert {
        (source, trigger, target) for source, trigger, target in moves if source is not target
    } == MOVES


def test_what_is_always_illegal_is_what_the_contract_has_no_words_for():
    illegal = {
        (phase, trigger)
        for phase, trigger in EVERY_PAIR
        if TABLE[phase, trigger][0].outcome is O.ILLEGAL
    }
    assert illegal == ALWAYS_ILLEGAL


def test_an_illegal_row_goes_nowhere_and_so_does_one_that_touches_nothing():
    for phase, _, row in EVERY_ROW:
        if row.outcome in (O.ILLEGAL, O.UNTOUCHED, O.DISCARDED):
            assert row.target is phase


def test_yes_takes_an_answer_or_a_store():
    says_yes = {
        (phase, trigger, row.guard)
        for phase, trigger, row in EVERY_ROW
        if row.outcome in (O.HIT, O.FORCED_HIT)
    }
    assert says_yes == {
        (P.IN_FLIGHT, T.ANSWER, Guard.YES),
        (P.IN_FLIGHT, T.ANSWER, Guard.STORED),
        (P.RESOLVED, T.MARK_HIT, None),
    }


def test_a_question_that_is_out_is_neither_sent_nor_asked_again():
    for (phase, trigger), rows in TABLE.items():
        if phase is P.IN_FLIGHT and trigger is not T.ANSWER and trigger is not T.CLOSE:
            assert {row.target for row in rows} == {P.IN_FLIGHT}


# -- what is illegal changes nothing -----------------------------------------------------------


def table_in(phase: LookupPhase) -> tuple[LookupTable, Entry]:
    """A table with one probe in `phase`, and another in each phase beside it."""
    table = LookupTable("1:t", LookupLimits(deadline=10.0, verdict_lifetime=20.0))
    number = int(phase)
    order = (P.RESOLVED, P.IN_FLIGHT, P.PENDING)
    for state in order:
        table.lookup(key(state), ctx("a"), None, 0.0)
        table.lookup(key(state), ctx("b"), None, 0.0)
        if state is P.PENDING:
            continue
        questions = table.take_batch(1.0)
        if state is P.RESOLVED:
            for question in questions:
                table.answer(question, [True] * len(question.keys), 2.0)
    if phase is P.ABSENT:
        return table, ABSENTEE
    entry = table.held["a"][key(number)]
    assert entry.phase is phase
    return table, entry


@pytest.mark.parametrize(("phase", "trigger"), EVERY_PAIR)
@pytest.mark.parametrize("own", [True, False], ids=["own generation", "another"])
@pytest.mark.parametrize("now", [3.0, 12.0, 30.0])
def test_every_pair_is_legal_or_raises_and_changes_nothing(phase, trigger, own, now):
    table, entry = table_in(phase)
    before, counts = table.snapshot(), repr(table.counts)
    event = Event(now, "c", True, entry.generation + (not own), True)
    cell = TABLE[phase, trigger]
    # A forged answer under a generation that is not out is the one case that depends.
    forged = trigger is T.ANSWER and phase in (P.PENDING, P.RESOLVED)
    if (phase, trigger) in ALWAYS_ILLEGAL or (forged and own):
        with pytest.raises(IllegalTransition, match=rf"{trigger.name} .* while {phase.name}"):
            table._row(entry, trigger, event)
    else:
        assert table._row(entry, trigger, event) in cell
    assert table.snapshot() == before
    assert repr(table.counts) == counts


def test_an_illegal_transition_is_misuse():
    assert issubclass(IllegalTransition, UsageError)


@pytest.mark.parametrize("phase", [P.PENDING, P.RESOLVED])
@pytest.mark.parametrize("answer", [True, False, None])
def test_an_answer_that_no_question_waits_for_comes_back_as_the_error_it_is(phase, answer):
    table, entry = table_in(phase)
    before = table.snapshot()
    question = Question(None, ctx("a"), [entry.key], [entry.generation])
    (error,) = table.answer(question, [answer], 3.0)
    assert isinstance(error, IllegalTransition)
    assert table.snapshot() == before
    assert (table.counts.illegal, table.counts.discarded) == (1, 1)
