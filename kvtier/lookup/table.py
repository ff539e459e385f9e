"""`LookupTable`: the lifecycle as a machine without threads, clocks or queues.

Every method is one event. It takes the time as an argument, finds the row of
`kvtier.lifecycle.TABLE` that fits, and applies it; nothing else ever changes an
entry. What leaves the machine are return values: a reply to a lookup, the
questions to send. What comes in from outside is checked against the table:
`IllegalTransition` is raised and nothing has changed.

Three structures, and what ties them together:

* `entries[scope][key]`: the probes. Sharing happens inside a scope only.
* `held[req_id][key]`: which request waits for, or holds, which probe. It is the
  exact reverse of the `waiters` of the entries, and the cached path: a repeated
  lookup of a resolved probe reads `held[req_id][key].verdict` and nothing else.
* `batch`: the `PENDING` entries, in the order in which they were asked.

One caller at a time owns the table. It has no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from kvtier.errors import IllegalTransition
from kvtier.keys import OffloadKey
from kvtier.lifecycle import (
    TABLE,
    LookupObserver,
    LookupPhase,
    Outcome,
    Row,
    Trigger,
)
from kvtier.lookup.entry import (
    ABSENTEE,
    NO_BATCH,
    NOTHING_HELD,
    UNMARKED,
    Batch,
    Entry,
    EntryView,
    LookupCounts,
    Marks,
    Question,
    Snapshot,
    new_entry,
)
from kvtier.lookup.guards import NO_EVENT, Event, LookupLimits, Shortcuts, Table, compile_rows
from kvtier.lookup.reporter import Reporter
from kvtier.request import ReqContext

__all__ = ["LookupTable"]

# Bound once: reading a member off its class costs more than the rest of a row.
_ABSENT, _PENDING, _IN_FLIGHT, _RESOLVED = LookupPhase
_JOIN, _SEND, _ANSWER, _MARK_MISS, _MARK_HIT, _RELEASE, _SWEEP, _CLOSE = Trigger
_ASKED_AGAIN, _JOINED = Outcome.ASKED_AGAIN, Outcome.JOINED
_EXCUSED, _DEADLINE = Outcome.EXCUSED, Outcome.DEADLINE
_HIT, _LOOKUP_ERROR = Outcome.HIT, Outcome.LOOKUP_ERROR
_FORCED_HIT, _FORCED_MISS, _NOTED = Outcome.FORCED_HIT, Outcome.FORCED_MISS, Outcome.NOTED
_ABANDONED, _CLOSED = Outcome.ABANDONED, Outcome.CLOSED
_DISCARDED, _ILLEGAL = Outcome.DISCARDED, Outcome.ILLEGAL


class LookupTable:
    """The probes of one tier.

    `observer_failed` is told the error of an observer that raised and is dropped.
    `table` is the lifecycle table, a parameter so that tests can show that a wrong
    one is noticed.
    """

    def __init__(
        self,
        tier: str,
        limits: LookupLimits,
        *,
        observer: LookupObserver | None = None,
        observer_failed: Callable[[Exception], None] | None = None,
        table: Table = TABLE,
    ) -> None:
        self.tier = tier
        self.limits = limits
        self._counts = LookupCounts()
        self.closed = False
        self.held: dict[str, dict[OffloadKey, Entry]] = {}
        self.reporter = Reporter(tier, observer, observer_failed)
        self._report, self._wanted = self.reporter.report, self.reporter.wanted
        self._entries: dict[Hashable, dict[OffloadKey, Entry]] = {}
        self._batch: dict[int, Entry] = {}
        self._unclaimed: list[Entry] = []
        self._batches_out = 0
        self._out = 0
        self._generation = 0
        self._joined = 0
        self._asking, self._answering = Event(), Event()
        self._cells = [
            [compile_rows(table[phase, trigger]) for phase in LookupPhase] for trigger in Trigger
        ]
        self._at_once = Shortcuts(table, limits)
        self._shares = self._at_once.shares

    # -- events ---------------------------------------------------------------------------

    def lookup(
        self,
        key: OffloadKey,
        req_context: ReqContext,
        scope_of: Callable[[ReqContext], Hashable] | None,
        now: float,
    ) -> bool | None:
        """A request asks. The verdict, `False` by excuse or deadline, or `None`: ask again.

        `scope_of` (`None`: one scope for all) is called only if this request has not
        asked for `key` before.
        """
        req_id = req_context.req_id
        mine = self.held.get(req_id, NOTHING_HELD)
        entry = mine.get(key)
        if entry is not None:
            return entry.verdict if self.closed else self._join(entry, req_context, False, now)
        scope = None if scope_of is None else scope_of(req_context)
        probes = self._entries.get(scope)
        entry = None if probes is None else probes.get(key)
        if self.closed:
            return False if entry is None else entry.verdict
        if mine is NOTHING_HELD:
            mine = self.held[req_id] = {}
            self.reporter.greet(req_context)
        if entry is not None:
            mine[key] = entry
            entry.waiters += 1
            if (
                entry.marks is UNMARKED
                and self._shares[entry.phase]
                and not (entry.wanted or self._wanted)
            ):
                self._joined += 1
                return entry.verdict
            return self._join(entry, req_context, True, now)
        row = self._at_once.birth or self._row(ABSENTEE, _JOIN, NO_EVENT)
        self._generation = generation = self._generation + 1
        entry = new_entry(scope, key, generation, req_context, now, row.target, 1)
        mine[key] = self._batch[generation] = entry
        if probes is None:
            self._entries[scope] = {key: entry}
        else:
            probes[key] = entry
        if req_id in self._wanted:
            entry.wanted = True
            self._report(entry, _ABSENT, _JOIN, row.outcome, now, req_id)
        return None

    def _join(self, entry: Entry, req_context: ReqContext, new: bool, now: float) -> bool | None:
        req_id = req_context.req_id
        event = self._asking
        event.now, event.req_id, event.new = now, req_id, new
        source = entry.phase
        _, target, outcome = self._row(entry, _JOIN, event)
        if target is not source:
            entry.marks = UNMARKED
            if outcome is _ASKED_AGAIN:
                entry.marks = Marks(excused=frozenset(self._waiters(entry)) - {req_id})
            self._generation += 1
            entry.generation = self._generation
            entry.phase = target
            entry.verdict = entry.resolved_at = None
            entry.born = now
            entry.req_context = req_context
            self._batch[entry.generation] = entry
        elif new:
            self._joined += 1
        if new and req_id in self._wanted:
            entry.wanted = True
        if entry.wanted and (new or outcome is not _JOINED):
            self._report(entry, source, _JOIN, outcome, now, req_id)
        if outcome is _EXCUSED or outcome is _DEADLINE:
            return False
        return entry.verdict

    def take_batch(self, now: float) -> list[Question]:
        """The questions to send now: the whole batch, one `Question` per scope.

        Empty if there is nothing to ask, or while `max_batches_out` batches are
        out: what is pending then goes later, as one larger batch.
        """
        counts = self._counts
        counts.peak_entries = max(counts.peak_entries, sum(map(len, self._entries.values())))
        if not self._batch or self._batches_out >= self.limits.max_batches_out or self.closed:
            return []
        batch = Batch(len(self._batch))
        questions: dict[Hashable, Question] = {}
        rows = self._at_once.send
        for generation, entry in self._batch.items():
            source = entry.phase
            _, entry.phase, outcome = rows[source] or self._row(entry, _SEND, NO_EVENT)
            entry.batch = batch
            question = questions.get(entry.scope)
            if question is None:
                question = Question(entry.scope, entry.req_context, [], [])
                questions[entry.scope] = question
            question.keys.append(entry.key)
            question.generations.append(generation)
            if entry.wanted:
                self._report(entry, source, _SEND, outcome, now, None)
        self._batch.clear()
        self._batches_out += 1
        self._out += batch.left
        counts.peak_out = max(counts.peak_out, self._out)
        counts.backend_calls += len(questions)
        return list(questions.values())

    def answer(
        self, question: Question, verdicts: Iterable[bool | None], now: float
    ) -> list[IllegalTransition]:
        """The worker's answers to `question`, one per key (`None`: the question failed).

        Answers come from outside and are not trusted: one whose question is not out
        changes nothing, and is counted and returned as the error it would be.
        """
        refused: list[IllegalTransition] = []
        probes = self._entries.get(question.scope, {})
        event, rows = self._answering, self._at_once.answer
        event.now = now
        batch, answered = NO_BATCH, 0
        for key, generation, answer in zip(
            question.keys, question.generations, verdicts, strict=True
        ):
            entry = probes.get(key, ABSENTEE)
            source = entry.phase
            row = None
            if entry.generation == generation and entry.marks is UNMARKED:
                row = rows[answer][source]
            if row is None:
                event.generation, event.answer = generation, answer
                try:
                    row = self._row(entry, _ANSWER, event)
                except IllegalTransition as error:
                    refused.append(error)
                    row = Row(None, source, _ILLEGAL)
            _, target, outcome = row
            if target is not source:
                batch = entry.batch
                answered += 1
                entry.phase = target
                entry.verdict = outcome is _HIT or outcome is _FORCED_HIT
                entry.resolved_at = now
                entry.marks = UNMARKED
                if outcome is _LOOKUP_ERROR:
                    entry.marks = Marks(error=True)
                    self._counts.lookup_errors += 1
                if not entry.waiters:
                    self._unclaimed.append(entry)
            if entry.wanted:
                self._report(entry, source, _ANSWER, outcome, now, None)
        self._leave(batch, answered)
        self._counts.resolved += answered
        self._counts.discarded += len(question.keys) - answered
        self._counts.illegal += len(refused)
        return refused

    def sweep(self, now: float) -> None:
        """Drop the verdicts that nobody took since they arrived."""
        for entry in self._unclaimed:
            if entry.phase is not _RESOLVED:
                continue
            _, target, outcome = self._row(entry, _SWEEP, NO_EVENT)
            if target is _ABSENT:
                self._counts.unclaimed += 1
                self._delete(entry, outcome)
                if entry.wanted:
                    self._report(entry, _RESOLVED, _SWEEP, outcome, now, None)
        self._unclaimed.clear()

    def mark_miss(
        self, keys: Iterable[OffloadKey], scope: Hashable, every: bool, now: float
    ) -> None:
        """A load of `keys` failed: held verdicts read `False`, in `scope` or in `every` scope."""
        for key in keys:
            for entry in self._marked(key, scope, every):
                row = self._row(entry, _MARK_MISS, NO_EVENT)
                if row.outcome is _FORCED_MISS:
                    self._force(entry, _MARK_MISS, row, False, None, now)

    def mark_hit(self, keys: Iterable[OffloadKey], scope: Hashable, now: float) -> None:
        """A store of `keys` in `scope` completed: held and coming verdicts read `True`."""
        for key in keys:
            for entry in self._marked(key, scope, False):
                row = self._row(entry, _MARK_HIT, NO_EVENT)
                if row.outcome is _FORCED_HIT:
                    self._force(entry, _MARK_HIT, row, True, now, now)
                elif row.outcome is _NOTED:
                    entry.marks = entry.marks._replace(stored=True)
                    if entry.wanted:
                        self._report(entry, entry.phase, _MARK_HIT, row.outcome, now, None)

    def release(self, req_id: str, now: float) -> None:
        """A request lets go of everything it asked for. An unknown id: nothing."""
        rows = self._at_once.release
        for entry in self.held.pop(req_id, NOTHING_HELD).values():
            source = entry.phase
            row = rows[entry.waiters > 1][source]
            _, target, outcome = row or self._row(entry, _RELEASE, NO_EVENT)
            entry.waiters -= 1
            if entry.marks is not UNMARKED:
                entry.marks = entry.marks._replace(excused=entry.marks.excused - {req_id})
            if target is not source:
                self._delete(entry, outcome)
            if entry.wanted:
                self._report(entry, source, _RELEASE, outcome, now, req_id)
        self._wanted.discard(req_id)

    def close(self, now: float) -> None:
        """Shutdown: every question without an answer ends, and nothing is asked any more."""
        self.closed = True
        for entries in list(self._entries.values()):
            for entry in list(entries.values()):
                source = entry.phase
                _, target, outcome = self._row(entry, _CLOSE, NO_EVENT)
                if target is not source:
                    entry.waiters = 0
                    self._delete(entry, outcome)
                    if entry.wanted:
                        self._report(entry, source, _CLOSE, outcome, now, None)
        for mine in self.held.values():
            for key in [key for key, entry in mine.items() if entry.phase is _ABSENT]:
                del mine[key]

    # -- reading --------------------------------------------------------------------------

    def shares(self, phase: LookupPhase) -> bool:
        """Whether a lookup of an unmarked probe in this phase reads its verdict and no more."""
        return self._shares[phase]

    @property
    def counts(self) -> LookupCounts:
        """The counters, brought up to date. One that is kept lags behind."""
        self._counts.issued = self._generation
        self._counts.joined = self._joined
        return self._counts

    @property
    def has_pending_work(self) -> bool:
        """Whether a flush or an answer is still to come for some probe."""
        return bool(self._batch or self._out or self._unclaimed)

    def peek(
        self,
        key: OffloadKey,
        req_context: ReqContext,
        scope_of: Callable[[ReqContext], Hashable] | None,
    ) -> Entry | None:
        """The probe that this request reads: the one it joined or, once closed, any. Read only."""
        entry = self.held.get(req_context.req_id, NOTHING_HELD).get(key)
        if entry is None and self.closed:
            entry = self._find(None if scope_of is None else scope_of(req_context), key)
        return entry

    def snapshot(self) -> Snapshot:
        """A copy of everything."""
        return Snapshot(
            entries={
                (scope, key): EntryView.of(entry, self._waiters(entry))
                for scope, entries in self._entries.items()
                for key, entry in entries.items()
            },
            held={
                req_id: frozenset(map(_place, mine.values())) for req_id, mine in self.held.items()
            },
            batch=tuple(map(_place, self._batch.values())),
            batches_out=self._batches_out,
            unclaimed=frozenset(
                _place(entry)
                for entry in self._unclaimed
                if entry.phase is _RESOLVED and not entry.waiters
            ),
            closed=self.closed,
        )

    # -- parts ----------------------------------------------------------------------------

    def _find(self, scope: Hashable, key: OffloadKey) -> Entry | None:
        entries = self._entries.get(scope)
        return None if entries is None else entries.get(key)

    def _marked(self, key: OffloadKey, scope: Hashable, every: bool) -> list[Entry]:
        scopes = list(self._entries) if every else [scope]
        return [entry for s in scopes if (entry := self._find(s, key)) is not None]

    def _row(self, entry: Entry, trigger: Trigger, event: Event) -> Row:
        for guard, row in self._cells[trigger][entry.phase]:
            if guard is None or guard(self.limits, entry, event):
                if row.outcome is _ILLEGAL:
                    break
                return row
        raise IllegalTransition(
            f"{trigger.name} of {entry.key.hex()} in scope {entry.scope!r}: "
            f"not possible while {entry.phase.name}"
        )

    def _force(
        self,
        entry: Entry,
        trigger: Trigger,
        row: Row,
        verdict: bool,
        resolved_at: float | None,
        now: float,
    ) -> None:
        entry.phase = row.target
        entry.verdict = verdict
        entry.marks = UNMARKED
        entry.resolved_at = resolved_at
        if entry.wanted:
            self._report(entry, _RESOLVED, trigger, row.outcome, now, None)

    def _leave(self, batch: Batch, probes: int) -> None:
        if probes:
            self._out -= probes
            batch.left -= probes
            if batch.left == 0:
                self._batches_out -= 1

    def _delete(self, entry: Entry, outcome: Outcome) -> None:
        if entry.phase is not _RESOLVED:
            if entry.phase is _PENDING:
                del self._batch[entry.generation]
            else:
                self._leave(entry.batch, 1)
            if outcome is _ABANDONED:
                self._counts.abandoned += 1
            elif outcome is _CLOSED:
                self._counts.closed += 1
        entry.phase = _ABSENT
        probes = self._entries[entry.scope]
        del probes[entry.key]
        if not probes:
            del self._entries[entry.scope]

    def _waiters(self, entry: Entry) -> list[str]:
        return [req_id for req_id, mine in self.held.items() if mine.get(entry.key) is entry]


def _place(entry: Entry) -> tuple[Hashable, OffloadKey]:
    return entry.scope, entry.key
