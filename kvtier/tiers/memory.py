"""A secondary tier in this process's memory: for tests, and the back end to copy.

A new back end is a `BlockStore` and a `from_spec`; lookups, jobs, verification
and shutdown are `StoreTier`'s. Nothing here limits how much is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtier.errors import BadInput, BlockMissing
from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.tiers.base import SecondaryTierManager
from kvtier.tiers.frame import Frame
from kvtier.tiers.registry import TierSetup
from kvtier.tiers.store import BlockStore

__all__ = ["MemoryStore", "from_spec"]


class MemoryStore(BlockStore):
    """Frames in a dictionary."""

    def __init__(self) -> None:
        self.frames: dict[OffloadKey, bytes] = {}

    def contains(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return [key in self.frames for key in keys]

    def get(self, key: OffloadKey, req_context: ReqContext) -> bytes:
        try:
            return self.frames[key]
        except KeyError:
            raise BlockMissing(key.hex()) from None

    def put(self, key: OffloadKey, frame: Frame, req_context: ReqContext) -> None:
        self.frames[key] = b"".join(frame)

    def delete(self, key: OffloadKey, req_context: ReqContext) -> None:
        self.frames.pop(key, None)


def from_spec(arg: str | None, setup: TierSetup) -> SecondaryTierManager:
    """`memory`."""
    if arg is not None:
        raise BadInput(f"tier 'memory:{arg}'", "memory takes no argument", "memory")
    return setup.tier(MemoryStore(), "memory")
