"""What a lookup can answer, and the one way an asynchronous verdict becomes an answer."""

from __future__ import annotations

from enum import Enum, auto
from typing import NoReturn

from kvtier.errors import UsageError

__all__ = ["LookupResult", "MissReason", "from_verdict", "require_result"]


class LookupResult(Enum):
    """Answer of a tier, or of all tiers together, about one block.

    Four answers cannot be told apart by truth, so `bool()` of one raises:
    every reader must say which of the four it means.
    """

    MISS = auto()
    """Nowhere, or no room for it, or not for this request any more."""
    HIT = auto()
    """Readable now."""
    HIT_PENDING = auto()
    """A slot of the primary is being written with it."""
    RETRY = auto()
    """Not known yet, or in a slower tier and not here yet: ask again next step."""

    def __bool__(self) -> NoReturn:
        raise UsageError(
            f"{self} has no truth value: compare it with LookupResult.HIT, HIT_PENDING, "
            "RETRY or MISS"
        )


class MissReason(Enum):
    """Why a block was not reused. Each missed block has exactly one (see `kvtier.scheduler`)."""

    ABSENT = "absent"
    """Every tier said no."""
    LOOKUP_ERROR = "lookup_error"
    """No tier had it, and a tier's question about it failed."""
    DEADLINE = "deadline"
    """A tier's answer did not come before the probe deadline."""
    CLOSED = "closed"
    """The tier was shut down before it answered."""
    NO_ROOM = "no_room"
    """A tier has it, and the primary had no room to bring it to."""
    LOAD_FAILED = "load_failed"
    """A tier said yes, and the load of this block failed."""
    LOST = "lost"
    """It was being written for this request and went away before it could be read."""
    BOUND = "bound"
    """The request had used up its deferral bound."""
    HELD = "held"
    """Promotions were on hold after a cache reset."""
    ABORTED = "aborted"
    """The request ended before it was admitted."""
    BEYOND = "beyond"
    """Behind the end of the reused prefix, and never read."""


def from_verdict(verdict: bool | None) -> LookupResult:
    """The answer that an asynchronous verdict stands for (`None`: not known yet).

    Raises `UsageError` for anything that is not exactly `True`, `False` or `None`.
    """
    if verdict is True:
        return LookupResult.HIT
    if verdict is False:
        return LookupResult.MISS
    if verdict is None:
        return LookupResult.RETRY
    raise UsageError(f"a verdict is True, False or None, not {verdict!r}")


def require_result(value: object, tier: str) -> LookupResult:
    """`value` if it is a `LookupResult`; else `UsageError` naming `tier`.

    Tiers written against the old `bool | None` interface are refused here
    rather than misread.
    """
    if isinstance(value, LookupResult):
        return value
    raise UsageError(f"tier {tier!r} answered {value!r} to lookup(): return a LookupResult")
