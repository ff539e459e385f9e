"""What the guards of the lifecycle table look at, and how each is decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvtier.errors import UsageError
from kvtier.lifecycle import Guard, Row
from kvtier.lookup.entry import Entry

__all__ = ["GUARDS", "NO_EVENT", "Event", "LookupLimits", "compile_rows"]


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

    def overdue(self, born: float, now: float) -> bool:
        """Whether a probe born then is past the deadline."""
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
    Guard.FAILED_AND_NEW: lambda limits, entry, event: entry.error and event.new,
    Guard.AGED: lambda limits, entry, event: limits.aged(entry.resolved_at, event.now),
    Guard.EXCUSED: lambda limits, entry, event: event.req_id in entry.excused,
    Guard.OVERDUE: lambda limits, entry, event: limits.overdue(entry.born, event.now),
    Guard.OTHER_GENERATION: lambda limits, entry, event: event.generation != entry.generation,
    Guard.YES: lambda limits, entry, event: event.answer is True,
    Guard.STORED: lambda limits, entry, event: entry.stored,
    Guard.FAILED: lambda limits, entry, event: event.answer is None,
    Guard.OTHERS_WAIT: lambda limits, entry, event: entry.waiters > 1,
    Guard.CLAIMED: lambda limits, entry, event: entry.waiters > 0,
}


def compile_rows(rows: tuple[Row, ...]) -> tuple[tuple[GuardTest | None, Row], ...]:
    """The rows of one cell with their guards looked up."""
    return tuple((None if row.guard is None else GUARDS[row.guard], row) for row in rows)
