"""The life of lookups as their contract tells it: plain dictionaries, sets, one `if` after another.

It was written from the prose alone and shares nothing with the library but the
names of phases, triggers and outcomes. There is no index, no counter of waiters and
no list of the batch: who waits is a set in the probe, and everything else is counted
when somebody asks. Where the prose says "join, then drain, then answer", so does
this.

Every event also notes what it did to which probe in `trail`, told or not: a `Step`
is `told` if an observer must see it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupPhase, Outcome, Trigger
from kvtier.results import MissReason

__all__ = ["Asked", "Oracle", "Place", "Probe", "Step"]

ABSENT, PENDING, IN_FLIGHT, RESOLVED = LookupPhase
JOIN, SEND, ANSWER, MARK_MISS, MARK_HIT, RELEASE, SWEEP, CLOSE = Trigger

Place = tuple[Hashable, OffloadKey]
"""Scope and key."""


@dataclass
class Probe:
    generation: int
    born: float
    asker: str
    """Whose context the back end gets: the request that created this generation."""
    phase: LookupPhase = PENDING
    verdict: bool | None = None
    since: float | None = None
    waiters: set[str] = field(default_factory=set)
    error: bool = False
    stored: bool = False
    excused: set[str] = field(default_factory=set)
    batch: int = 0
    """Which flush sent it."""


class Asked(NamedTuple):
    """One call of the back end: generation by key."""

    scope: Hashable
    asker: str
    keys: dict[OffloadKey, int]


class Step(NamedTuple):
    """One row that fired."""

    place: Place
    generation: int
    source: LookupPhase
    trigger: Trigger
    outcome: Outcome
    target: LookupPhase
    waiters: int
    told: bool


class Oracle:
    def __init__(
        self,
        scope_of: Callable[[str], Hashable],
        max_batches_out: int = 2,
        deadline: float | None = None,
        verdict_lifetime: float | None = None,
    ) -> None:
        self.scope_of = scope_of
        self.max_batches_out = max_batches_out
        self.deadline = deadline
        self.lifetime = verdict_lifetime
        self.probes: dict[Place, Probe] = {}
        self.sent: list[Asked] = []
        """All that was ever sent."""
        self.queue: deque[Asked] = deque()
        self.replies: deque[tuple[Asked, list[bool] | None]] = deque()
        self.orphans: set[Place] = set()
        """Where an answer arrived since the last sweep and nobody waited."""
        self.closed = False
        self.counts: Counter[str] = Counter()
        self.trail: list[Step] = []
        self._undrained = False
        self._flushes = 0

    # -- calls -----------------------------------------------------------------------------

    def lookup(self, req_id: str, key: OffloadKey, now: float) -> bool | None:
        place = (self.scope_of(req_id), key)
        probe = self.probes.get(place)
        if self.closed:
            return False if probe is None else probe.verdict
        born = probe is None
        if probe is None:
            probe = self.probes[place] = Probe(self._issue(), now, req_id)
        waited = req_id in probe.waiters
        probe.waiters.add(req_id)
        if self._undrained:
            self.drain(now)
        source, outcome = probe.phase, Outcome.JOINED
        if born:
            source, outcome = ABSENT, Outcome.ASKED
        elif probe.phase is RESOLVED:
            if probe.error and not waited:
                outcome = Outcome.ASKED_AGAIN
                self._ask_again(probe, req_id, now, excused=probe.waiters - {req_id})
            elif self._aged(probe, now):
                outcome = Outcome.EXPIRED
                self._ask_again(probe, req_id, now, excused=set())
        elif req_id in probe.excused:
            outcome = Outcome.EXCUSED
        elif self._overdue(probe, now):
            outcome = Outcome.DEADLINE
        if not waited and source is probe.phase:
            self.counts["joined"] += 1
        told = not waited or outcome is not Outcome.JOINED
        self._note(place, probe, source, JOIN, outcome, told=told)
        if outcome in (Outcome.EXCUSED, Outcome.DEADLINE):
            return False
        return probe.verdict

    def flush(self, now: float) -> None:
        self.drain(now)
        self._sweep()
        pending = [place for place, _ in self.batch]
        if self.closed:
            return
        self._undrained = True
        if not pending or self.batches_out >= self.max_batches_out:
            return
        self._flushes += 1
        groups: dict[Hashable, Asked] = {}
        for scope, key in pending:
            probe = self.probes[scope, key]
            probe.phase, probe.batch = IN_FLIGHT, self._flushes
            group = groups.setdefault(scope, Asked(scope, probe.asker, {}))
            group.keys[key] = probe.generation
            self._note((scope, key), probe, PENDING, SEND, Outcome.SENT)
        self.sent.extend(groups.values())
        self.queue.extend(groups.values())
        self.counts["backend_calls"] += len(groups)

    def drain(self, now: float) -> None:
        self._undrained = False
        while self.replies:
            asked, verdicts = self.replies.popleft()
            for number, (key, generation) in enumerate(asked.keys.items()):
                answer = None if verdicts is None else verdicts[number]
                self._answer((asked.scope, key), generation, answer, now)

    def mark_miss(self, keys: Iterable[OffloadKey], scopes: Iterable[Hashable]) -> None:
        for place in [(scope, key) for key in keys for scope in scopes]:
            probe = self.probes.get(place)
            outcome = Outcome.UNTOUCHED
            if probe is not None and probe.phase is RESOLVED:
                probe.verdict, probe.error, probe.since = False, False, None
                outcome = Outcome.FORCED_MISS
            self._note_mark(place, probe, MARK_MISS, outcome)

    def mark_hit(self, keys: Iterable[OffloadKey], scope: Hashable, now: float) -> None:
        for place in [(scope, key) for key in keys]:
            probe = self.probes.get(place)
            outcome = Outcome.UNTOUCHED
            if probe is not None and probe.phase is RESOLVED:
                probe.verdict, probe.error, probe.since = True, False, now
                outcome = Outcome.FORCED_HIT
            elif probe is not None and probe.phase is IN_FLIGHT:
                probe.stored = True
                outcome = Outcome.NOTED
            self._note_mark(place, probe, MARK_HIT, outcome)

    def cleanup(self, req_id: str) -> None:
        for place, probe in list(self.probes.items()):
            if req_id not in probe.waiters:
                continue
            source, outcome = probe.phase, Outcome.RELEASED
            probe.waiters.discard(req_id)
            probe.excused.discard(req_id)
            if not probe.waiters and probe.phase is not IN_FLIGHT:
                if probe.phase is PENDING:
                    self.counts["abandoned"] += 1
                    outcome = Outcome.ABANDONED
                self._delete(place)
            self._note(place, probe, source, RELEASE, outcome)

    def shutdown(self, now: float) -> None:
        """What the worker answered within the timeout has been put in `replies`."""
        if self.closed:
            return
        self.drain(now)
        self._sweep()
        self.closed = True
        for place, probe in list(self.probes.items()):
            source, outcome = probe.phase, Outcome.UNTOUCHED
            if probe.phase is not RESOLVED:
                outcome = Outcome.CLOSED
                self.counts["closed"] += 1
                probe.waiters = set()
                self._delete(place)
            self._note(place, probe, source, CLOSE, outcome, told=source is not RESOLVED)

    # -- the worker ------------------------------------------------------------------------

    def work(self, verdicts: Callable[[Asked], list[bool] | None]) -> None:
        """The oldest question is answered (`None`: its call failed)."""
        asked = self.queue.popleft()
        self.replies.append((asked, verdicts(asked)))

    # -- reading ---------------------------------------------------------------------------

    @property
    def batch(self) -> list[tuple[Place, Probe]]:
        """What a flush would send, in the order in which it was asked."""
        pending = [(p, probe) for p, probe in self.probes.items() if probe.phase is PENDING]
        return sorted(pending, key=lambda item: item[1].generation)

    @property
    def batches_out(self) -> int:
        return len({probe.batch for probe in self.probes.values() if probe.phase is IN_FLIGHT})

    @property
    def held(self) -> dict[str, frozenset[Place]]:
        """Who waits, or holds a verdict, and where."""
        held: dict[str, set[Place]] = {}
        for place, probe in self.probes.items():
            for req_id in probe.waiters:
                held.setdefault(req_id, set()).add(place)
        return {req_id: frozenset(places) for req_id, places in held.items()}

    @property
    def unclaimed(self) -> frozenset[Place]:
        return frozenset(
            place
            for place, probe in self.probes.items()
            if probe.phase is RESOLVED and not probe.waiters
        )

    @property
    def open(self) -> int:
        return sum(probe.phase is not RESOLVED for probe in self.probes.values())

    @property
    def has_pending_work(self) -> bool:
        return bool(self.open or self.unclaimed)

    def why_false(self, req_id: str, key: OffloadKey, now: float) -> MissReason:
        """What stands behind a `False` that this request has just read."""
        probe = self.probes.get((self.scope_of(req_id), key))
        if probe is None:
            return MissReason.CLOSED
        if probe.error or req_id in probe.excused:
            return MissReason.LOOKUP_ERROR
        if probe.phase is not RESOLVED and self._overdue(probe, now):
            return MissReason.DEADLINE
        return MissReason.ABSENT

    # -- parts -----------------------------------------------------------------------------

    def _issue(self) -> int:
        self.counts["issued"] += 1
        return self.counts["issued"]

    def _overdue(self, probe: Probe, now: float) -> bool:
        return self.deadline is not None and now - probe.born >= self.deadline

    def _aged(self, probe: Probe, now: float) -> bool:
        if self.lifetime is None or probe.since is None:
            return False
        return now - probe.since > self.lifetime

    def _ask_again(self, probe: Probe, req_id: str, now: float, excused: set[str]) -> None:
        probe.generation, probe.born, probe.asker = self._issue(), now, req_id
        probe.phase, probe.verdict, probe.since, probe.error = PENDING, None, None, False
        probe.excused = excused

    def _answer(self, place: Place, generation: int, answer: bool | None, now: float) -> None:
        probe = self.probes.get(place)
        if probe is None:
            self.counts["discarded"] += 1
            step = (place, 0, ABSENT, ANSWER, Outcome.DISCARDED, ABSENT, 0, False)
            self.trail.append(Step(*step))
            return
        source = probe.phase
        if generation != probe.generation or source is not IN_FLIGHT:
            outcome = Outcome.DISCARDED if generation != probe.generation else Outcome.ILLEGAL
            self.counts["discarded"] += 1
            self.counts["illegal"] += outcome is Outcome.ILLEGAL
            self._note(place, probe, source, ANSWER, outcome)
            return
        self.counts["resolved"] += 1
        if answer:
            outcome = Outcome.HIT
        elif probe.stored:
            outcome = Outcome.FORCED_HIT
        elif answer is None:
            outcome = Outcome.LOOKUP_ERROR
            self.counts["lookup_errors"] += 1
        else:
            outcome = Outcome.MISS
        probe.phase, probe.since = RESOLVED, now
        probe.verdict = outcome in (Outcome.HIT, Outcome.FORCED_HIT)
        probe.error = outcome is Outcome.LOOKUP_ERROR
        probe.stored, probe.excused = False, set()
        if not probe.waiters:
            self.orphans.add(place)
        self._note(place, probe, source, ANSWER, outcome)

    def _sweep(self) -> None:
        for place in self.orphans:
            probe = self.probes.get(place)
            if probe is None or probe.phase is not RESOLVED:
                continue
            if probe.waiters:
                self._note(place, probe, RESOLVED, SWEEP, Outcome.UNTOUCHED, told=False)
            else:
                self.counts["unclaimed"] += 1
                self._delete(place)
                self._note(place, probe, RESOLVED, SWEEP, Outcome.UNCLAIMED)
        self.orphans.clear()

    def _delete(self, place: Place) -> None:
        self.probes.pop(place).phase = ABSENT

    def _note(
        self,
        place: Place,
        probe: Probe,
        source: LookupPhase,
        trigger: Trigger,
        outcome: Outcome,
        told: bool = True,
    ) -> None:
        waiters = len(probe.waiters)
        self.trail.append(
            Step(place, probe.generation, source, trigger, outcome, probe.phase, waiters, told)
        )

    def _note_mark(
        self, place: Place, probe: Probe | None, trigger: Trigger, outcome: Outcome
    ) -> None:
        if probe is None:
            self.trail.append(Step(place, 0, ABSENT, trigger, outcome, ABSENT, 0, False))
        else:
            told = outcome is not Outcome.UNTOUCHED
            self._note(place, probe, probe.phase, trigger, outcome, told)
