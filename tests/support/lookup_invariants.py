"""The eleven things that always hold of lookups, as functions over what can be seen.

Each returns nothing and fails by an assert. `Facts` is one moment: the table's
snapshot, where every question is, and what the back end has said so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupPhase
from kvtier.lookup import EntryView, Question, Snapshot
from kvtier.request import ReqContext

__all__ = ["HISTORY", "STATE", "Asking", "Facts", "Said", "askings", "reply_is_explained"]

PENDING, IN_FLIGHT, RESOLVED = LookupPhase.PENDING, LookupPhase.IN_FLIGHT, LookupPhase.RESOLVED

Place = tuple[Hashable, OffloadKey]
Asking = tuple[Hashable, OffloadKey, int]
"""Scope, key, generation."""


def askings(question: Question) -> list[Asking]:
    pairs = zip(question.keys, question.generations, strict=True)
    return [(question.scope, k, generation) for k, generation in pairs]


@dataclass
class Facts:
    snapshot: Snapshot
    waiters: Mapping[Place, int]
    """How many requests each entry believes to wait for it."""
    out: list[Asking]
    """Questions in the queue, with the worker, or answered and not applied."""
    posted: list[Question]
    """All that the worker was ever given."""
    calls: list[tuple[list[OffloadKey], ReqContext]]
    """All that the back end was ever asked."""
    answers: list[tuple[Asking, bool | None]]
    """What the worker published and the manager took; `None`: failed."""
    forced: set[Asking]
    """Those that a mark has touched."""
    flagged: bool
    """The stop flag is set, or shutdown has returned."""
    swept: bool
    """The last call was a flush."""


def a_verdict_is_applied_only_to_the_generation_that_asked(facts: Facts) -> None:
    answers = dict(facts.answers)
    for (scope, key), entry in facts.snapshot.entries.items():
        asking = (scope, key, entry.generation)
        if entry.phase is RESOLVED:
            assert asking in answers
            if asking not in facts.forced:
                assert entry.verdict is (answers[asking] is True)
                assert entry.error is (answers[asking] is None)


def there_is_at_most_one_answer_per_generation(facts: Facts) -> None:
    assert max(Counter(asking for asking, _ in facts.answers).values(), default=0) <= 1


def in_flight_means_that_exactly_one_question_is_out(facts: Facts) -> None:
    if facts.flagged:
        return
    flying = [
        (scope, key, entry.generation)
        for (scope, key), entry in facts.snapshot.entries.items()
        if entry.phase is IN_FLIGHT
    ]
    assert Counter(flying) == Counter(facts.out)


def at_most_one_question_per_key_is_out(facts: Facts) -> None:
    places = Counter((scope, key) for scope, key, _ in facts.out)
    assert max(places.values(), default=0) <= 1


def a_verdict_is_held_exactly_when_resolved(facts: Facts) -> None:
    for entry in facts.snapshot.entries.values():
        assert (type(entry.verdict) is bool) is (entry.phase is RESOLVED)


def forward_and_reverse_index_agree(facts: Facts) -> None:
    entries = facts.snapshot.entries
    forward = {(req_id, place) for place, entry in entries.items() for req_id in entry.waiters}
    reverse = {(req_id, place) for req_id, held in facts.snapshot.held.items() for place in held}
    assert forward == reverse
    assert facts.waiters == {place: len(entry.waiters) for place, entry in entries.items()}


def whoever_is_there_is_waited_for(facts: Facts) -> None:
    unclaimed = set()
    for place, entry in facts.snapshot.entries.items():
        if entry.phase is PENDING:
            assert entry.waiters
        if entry.phase is RESOLVED and not entry.waiters:
            unclaimed.add(place)
    assert unclaimed == facts.snapshot.unclaimed
    if facts.swept:
        assert not unclaimed


def the_batch_is_exactly_the_pending_entries(facts: Facts) -> None:
    entries = facts.snapshot.entries
    pending = [place for place, entry in entries.items() if entry.phase is PENDING]
    assert list(facts.snapshot.batch) == sorted(pending, key=lambda p: entries[p].generation)


def the_back_end_is_called_at_most_once_per_generation(facts: Facts) -> None:
    posted = Counter(asking for question in facts.posted for asking in askings(question))
    assert max(posted.values(), default=0) <= 1
    given = [(question.keys, question.req_context) for question in facts.posted]
    assert facts.calls == given[: len(facts.calls)]


def after_shutdown_nothing_is_open(facts: Facts) -> None:
    if facts.snapshot.closed:
        assert {entry.phase for entry in facts.snapshot.entries.values()} <= {RESOLVED}
        assert facts.snapshot.batches_out == 0


def marks_stand_where_they_belong(facts: Facts) -> None:
    for entry in facts.snapshot.entries.values():
        if entry.error:
            assert (entry.phase, entry.verdict) == (RESOLVED, False)
        if entry.stored:
            assert entry.phase is IN_FLIGHT
        assert entry.excused <= entry.waiters
        if entry.phase is RESOLVED:
            assert not entry.excused


@dataclass
class Said:
    """What a request was last told about a key, since it began to hold it."""

    reply: bool | None
    entry: EntryView | None
    marked_hit: bool = False
    marked_miss: bool = False


def reply_is_explained(
    said: Said, req_id: str, *, overdue: bool, closed: bool, before: Said | None
) -> None:
    """`before`: what it was told before, if it has held the key since and verdicts do not age."""
    entry, reply = said.entry, said.reply
    if entry is not None and entry.phase is RESOLVED:
        assert reply is entry.verdict
    elif reply is None:
        assert entry is not None
        assert not overdue
        assert req_id not in entry.excused
    else:
        assert reply is False
        assert closed or (entry is not None and (req_id in entry.excused or overdue))
    if before is None or before.reply is None:
        return
    assert reply is not None
    if before.reply and not reply:
        assert before.marked_miss
    if reply and not before.reply:
        was = before.entry
        asked_since = was is not None and (was.phase is not RESOLVED or was.error)
        assert before.marked_hit or asked_since


STATE = (
    in_flight_means_that_exactly_one_question_is_out,
    at_most_one_question_per_key_is_out,
    a_verdict_is_held_exactly_when_resolved,
    forward_and_reverse_index_agree,
    whoever_is_there_is_waited_for,
    the_batch_is_exactly_the_pending_entries,
    after_shutdown_nothing_is_open,
    marks_stand_where_they_belong,
)
"""Numbers 3 to 7, 9 and 10 of the contract: a glance at the present."""

HISTORY = (
    a_verdict_is_applied_only_to_the_generation_that_asked,
    there_is_at_most_one_answer_per_generation,
    the_back_end_is_called_at_most_once_per_generation,
)
"""Numbers 1, 2 and 8: they look back over the whole run. Number 11 is `reply_is_explained`."""
