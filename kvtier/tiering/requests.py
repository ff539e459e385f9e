"""What is remembered about one request, from its first call to its last transfer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.results import MissReason

__all__ = ["RequestState", "Wait"]


class Wait(NamedTuple):
    """The one write of a key that a request waits for, or waited for."""

    write_id: int
    tier: int
    """Number of the tier that the block is loaded from; 0 if the GPU stores it."""


@dataclass(slots=True)
class RequestState:
    """One request.

    `notes`, `waits`, `settled` and `misses` are about single blocks. Preemption
    forgets them, because the request starts over; `deferrals` stays, because it
    bounds the whole life of the request (vllm 53087).
    """

    ctx: ReqContext
    notes: dict[OffloadKey, int] = field(default_factory=dict)
    """Number of the tier that is known to have the block. It is not asked again."""
    waits: dict[OffloadKey, Wait] = field(default_factory=dict)
    """Kept when the waiting is over: no second write, and where a hit came from."""
    settled: dict[OffloadKey, MissReason] = field(default_factory=dict)
    """Blocks that read `MISS` from now on, unless they turn up in the primary."""
    misses: dict[OffloadKey, MissReason] = field(default_factory=dict)
    """Why the last answer about a block was `MISS`; no entry if it was not."""
    deferrals: int = 0
    waiting: bool = False
    """Some slot of the primary is kept for it."""
    reading: Counter[int] = field(default_factory=Counter)
    """References that the engine was given and has not returned, by write id."""
    filling: set[int] = field(default_factory=set)
    """Write ids of the slots that the engine is filling."""
    finished: bool = False
    parted: bool = False
    """The tiers have heard that it finished."""

    @property
    def busy(self) -> bool:
        """Whether the engine is moving blocks of this request."""
        return bool(self.reading or self.filling)

    def forget(self) -> None:
        """Drop everything about single blocks."""
        for table in (self.notes, self.waits, self.settled, self.misses):
            table.clear()
