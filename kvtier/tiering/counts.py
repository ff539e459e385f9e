"""What the tiering manager counts: plain integers, always on, read by whoever wants them.

Of jobs this holds at any moment, for promotions and for stores:
submitted = ok + partial + failed + raised + those still open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

__all__ = ["DeferReason", "JobCounts", "PromotionCounts", "StoreCounts", "TieringCounts"]


class DeferReason(Enum):
    """What a request is waiting for. A pass has one; the first of these that applies."""

    PROBE = "probe"
    """A tier has not answered yet."""
    PROMOTION = "promotion"
    """A block is being loaded from a secondary tier, or is about to be."""
    STORE = "store"
    """A block is being stored by a request, or the request's own transfers are under way."""


@dataclass(slots=True)
class JobCounts:
    """Jobs of one direction since the start."""

    submitted: int = 0
    """Handed to a tier, those that it refused by raising included."""
    ok: int = 0
    """Every block made it."""
    partial: int = 0
    """Some blocks made it."""
    failed: int = 0
    """No block made it."""
    raised: int = 0
    """`submit_load` or `submit_store` raised: failed at once."""


@dataclass(slots=True)
class PromotionCounts(JobCounts):
    """Loads from secondary tiers into the primary."""

    no_room: int = 0
    """Refusals for lack of room, one for each block and pass."""


@dataclass(slots=True)
class StoreCounts(JobCounts):
    """Stores of new blocks from the primary into secondary tiers."""

    skipped: int = 0
    """Blocks that found no slot of the primary in `prepare_store`, and so no tier."""


@dataclass(slots=True)
class TieringCounts:
    """All counts of one `TieringOffloadingManager`."""

    promotions: PromotionCounts = field(default_factory=PromotionCounts)
    stores: StoreCounts = field(default_factory=StoreCounts)
    deferrals: dict[DeferReason, int] = field(default_factory=lambda: dict.fromkeys(DeferReason, 0))
    """Deferred passes, by reason."""
    protocol_errors: int = 0
    """Claims in reports that were ignored: a job unknown, reported before or another tier's; a key
    that was not in the job; a report that contradicts itself or is none."""
    tier_errors: int = 0
    """Calls into a tier that raised."""
