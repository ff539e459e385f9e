"""What the guards of the lifecycle table look at, and how each is decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kvtier.errors import UsageError
from kvtier.lifecycle import Guard, LookupPhase, Outcome, Row, Trigger
from kvtier.lookup.entry import Entry

__all__ = [
    "GUARDS",
    "NO_EVENT",
    "Event",
    "LookupLimits",
    "Shortcuts",
    "Table",
    "compile_rows",
    "decide",
]

Table = Mapping[tuple[LookupPhase, Trigger], tuple[Row, ...]]


@dataclass(frozen=True, slots=True)
class LookupLimits:
    """Limits of one tier's lookups. Raises `UsageError` for values that make no sense."""

    deadline: float | None = None
    """Seconds from the birth of a probe after which lookups read `False`; `None`: off."""
    verdict_lifetime: float | None = None
    """Seconds for which a verdict is good; must exceed `deadline`; `None`: for ever."""
    max_batches_out: int = 2
    """Batches that may be with the worker at once, at least 1."""

    def __post_init__(self) -> None:
        for name in ("deadline", "verdict_lifetime"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} is a positive number of seconds or None, not {value!r}")
        if (
            self.deadline is not None
            and self.verdict_lifetime is not None
            and self.verdict_lifetime <= self.deadline
        ):
            raise UsageError(
                f"verdict_lifetime ({self.verdict_lifetime} s) must exceed "
                f"deadline ({self.deadline} s)"
            )
        if self.max_batches_out < 1:
            raise UsageError(f"max_batches_out is at least 1, not {self.max_batches_out}")

    @property
    def never(self) -> dict[Guard, bool]:
        """The guards that cannot hold because a limit is off, each with `False`."""
        never = {}
        if self.deadline is None:
            never[Guard.OVERDUE] = False
        if self.verdict_lifetime is None:
            never[Guard.AGED] = False
        return never

    def overdue(self, born: float, now: float) -> bool:
        """Whether a probe born then has reached its deadline."""
        return self.deadline is not None and now - born >= self.deadline

    def aged(self, since: float | None, now: float) -> bool:
        """Whether a verdict held since then (`None`: without a lifetime) must be asked again."""
        lifetime = self.verdict_lifetime
        return lifetime is not None and since is not None and now - since > lifetime


@dataclass(slots=True)
class Event:
    """What arrived, as far as guards look at it."""

    now: float = 0.0
    req_id: str = ""
    new: bool = False
    """The asker was not a waiter before this call."""
    generation: int = 0
    answer: bool | None = None
    """`None`: the question failed."""


NO_EVENT: Final = Event()

GuardTest = Callable[[LookupLimits, Entry, Event], bool]

GUARDS: dict[Guard, GuardTest] = {
    Guard.FAILED_AND_NEW: lambda limits, entry, event: entry.marks.error and event.new,
    Guard.AGED: lambda limits, entry, event: limits.aged(entry.resolved_at, event.now),
    Guard.EXCUSED: lambda limits, entry, event: event.req_id in entry.marks.excused,
    Guard.OVERDUE: lambda limits, entry, event: limits.overdue(entry.born, event.now),
    Guard.OTHER_GENERATION: lambda limits, entry, event: event.generation != entry.generation,
    Guard.YES: lambda limits, entry, event: event.answer is True,
    Guard.STORED: lambda limits, entry, event: entry.marks.stored,
    Guard.FAILED: lambda limits, entry, event: event.answer is None,
    Guard.OTHERS_WAIT: lambda limits, entry, event: entry.waiters > 1,
    Guard.CLAIMED: lambda limits, entry, event: entry.waiters > 0,
}


def compile_rows(rows: tuple[Row, ...]) -> tuple[tuple[GuardTest | None, Row], ...]:
    """The rows of one cell with their guards looked up."""
    return tuple((None if row.guard is None else GUARDS[row.guard], row) for row in rows)


class Shortcuts:
    """The rows that are certain before any guard is asked.

    Most events meet a probe without marks, and say themselves what most guards look
    at. So each row list is evaluated here once for what such an event knows: either
    one row is left, or `None`, and then the guards decide.
    """

    def __init__(self, table: Table, limits: LookupLimits) -> None:
        def certain(trigger: Trigger, known: dict[Guard, bool]) -> list[Row | None]:
            known = known | limits.never
            return [decide(table[phase, trigger], known) for phase in LookupPhase]

        unmarked = {Guard.FAILED_AND_NEW: False, Guard.EXCUSED: False, Guard.STORED: False}
        join = certain(Trigger.JOIN, unmarked)
        self.birth = join[LookupPhase.ABSENT]
        self.shares = [
            row is not None and row.target is phase and row.outcome is Outcome.JOINED
            for phase, row in zip(LookupPhase, join, strict=True)
        ]
        """By phase: whether a lookup of a probe without marks reads its verdict and no more."""
        self.send = certain(Trigger.SEND, {})
        """By phase."""
        self.answer = {
            answer: certain(
                Trigger.ANSWER,
                unmarked
                | {
                    Guard.OTHER_GENERATION: False,
                    Guard.YES: answer is True,
                    Guard.FAILED: answer is None,
                },
            )
            for answer in (True, False, None)
        }
        """By answer and phase, for the generation that asked and a probe without marks."""
        self.release = [
            certain(Trigger.RELEASE, {Guard.OTHERS_WAIT: others, Guard.CLAIMED: True})
            for others in (False, True)
        ]
        """By whether others wait too, and by phase."""


def decide(rows: tuple[Row, ...], known: Mapping[Guard, bool]) -> Row | None:
    """The row of a cell that fits whatever the guards are that are not `known`.

    `None` if it depends on those, or if the row is illegal.
    """
    for row in rows:
        fits = row.guard is None or known.get(row.guard)
        if fits is None:
            return None
        if fits:
            return None if row.outcome is Outcome.ILLEGAL else row
    return None
