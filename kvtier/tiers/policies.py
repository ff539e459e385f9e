"""Which block leaves when a new one needs its place: LRU and ARC, with blocks that may not leave.

A policy keeps the *order* of the blocks that are present, those being written
included, and nothing else about them. Whether a block may leave (it is being
read, written, waited for) is its owner's business: `admit` is given a predicate
and picks the block that comes first in the policy's order among those for which
it holds. The others keep their place. If none may leave, `admit` answers `None`
and nothing has changed: not the order, not a ghost, not ARC's target.

In terms of a page cache, a request for a page that is present is `touch`, for a
page that is not is `admit`.

Cost. Blocks that may not leave gather at the old end of the order: a long prefix
that a waiting request has found but not begun to read, say. Walking past them at
each eviction would cost their number each time. `RecencyList` walks past a block
once and sets it aside, until the owner says with `released` that it may leave
again. So each hold on a block costs evictions at most one look and one heap
operation, O(log n), whenever it is placed and however long it lasts; everything
else is O(1).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey

__all__ = [
    "ARCPolicy",
    "Admission",
    "CachePolicy",
    "LRUPolicy",
    "RecencyList",
    "make_policy",
]

Evictable = Callable[[OffloadKey], bool]


@dataclass(frozen=True, slots=True)
class Admission:
    """A block got a place; `victim` is the block that lost its own for it, if one had to."""

    victim: OffloadKey | None


class RecencyList:
    """Keys from least to most recently used. Iterates in that order.

    Each key has a stamp, its place in the order, and is in one of three parts:
    *fresh* (no search has met it since it was last used), *aside* (a search met
    it and it could not leave), *back* (it was aside and has been released). A
    search takes a fresh key only when nothing is back, and from the old end, so
    whatever is aside or back is older than whatever is fresh.
    """

    def __init__(self) -> None:
        self._next_stamp = 0
        self._fresh: OrderedDict[OffloadKey, int] = OrderedDict()
        self._aside: dict[OffloadKey, int] = {}
        self._back: dict[OffloadKey, int] = {}
        self._back_heap: list[tuple[int, OffloadKey]] = []

    def __contains__(self, key: OffloadKey) -> bool:
        return key in self._fresh or key in self._aside or key in self._back

    def __len__(self) -> int:
        return len(self._fresh) + len(self._aside) + len(self._back)

    def __iter__(self) -> Iterator[OffloadKey]:
        old = self._aside | self._back
        yield from sorted(old, key=old.__getitem__)
        yield from self._fresh

    def append(self, key: OffloadKey) -> None:
        """Put a new key at the most recent end."""
        self._fresh[key] = self._next_stamp
        self._next_stamp += 1

    def discard(self, key: OffloadKey) -> bool:
        """Take `key` out; whether it was there."""
        for part in (self._fresh, self._aside, self._back):
            if part.pop(key, None) is not None:
                return True
        return False

    def released(self, key: OffloadKey) -> None:
        """If `key` was set aside, searches look at it again, in its old place."""
        stamp = self._aside.pop(key, None)
        if stamp is not None:
            self._back[key] = stamp
            heapq.heappush(self._back_heap, (stamp, key))

    def first(self, evictable: Evictable) -> OffloadKey | None:
        """The least recent key for which `evictable` holds; it stays in the list."""
        while self._back_heap:
            stamp, key = self._back_heap[0]
            if self._back.get(key) == stamp:
                if evictable(key):
                    return key
                self._aside[key] = self._back.pop(key)
            heapq.heappop(self._back_heap)
        while self._fresh:
            key = next(iter(self._fresh))
            if evictable(key):
                return key
            self._aside[key] = self._fresh.pop(key)
        return None


class CachePolicy(ABC):
    """The order in which up to `capacity` blocks leave.

    `capacity` may grow (an owner that gets slots back raises it). A call that
    the owner's own bookkeeping rules out, `admit` of a block that is present,
    raises `UsageError`.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise UsageError(f"a policy's capacity is at least 0, not {capacity}")
        self.capacity = capacity

    @abstractmethod
    def __contains__(self, key: OffloadKey) -> bool:
        """Whether the block is present (a ghost is not)."""

    @abstractmethod
    def __len__(self) -> int:
        """Blocks present."""

    def admit(self, key: OffloadKey, evictable: Evictable) -> Admission | None:
        """Give a place to a block that is not present, evicting one if all are taken.

        `None`: no room, as no block of `capacity` is evictable; nothing changed.
        A block for which `evictable` has once been false is not looked at again
        before `released` or `touch`.
        """
        if key in self:
            raise UsageError(f"block {key.hex()} is present: touch it instead")
        return self._admit(key, evictable)

    @abstractmethod
    def _admit(self, key: OffloadKey, evictable: Evictable) -> Admission | None:
        """`admit`, for a block known not to be present."""

    @abstractmethod
    def touch(self, key: OffloadKey) -> None:
        """The block was used. Does nothing if it is not present."""

    @abstractmethod
    def remove(self, key: OffloadKey) -> None:
        """The block is gone, and not by eviction (its write failed): no trace of it stays."""

    @abstractmethod
    def released(self, key: OffloadKey) -> None:
        """`evictable(key)` was false and may hold again."""


class LRUPolicy(CachePolicy):
    """The least recently used evictable block leaves."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.order = RecencyList()

    def __contains__(self, key: OffloadKey) -> bool:
        return key in self.order

    def __len__(self) -> int:
        return len(self.order)

    def _admit(self, key: OffloadKey, evictable: Evictable) -> Admission | None:
        victim = None
        if len(self) >= self.capacity:
            victim = self.order.first(evictable)
            if victim is None:
                return None
            self.order.discard(victim)
        self.order.append(key)
        return Admission(victim)

    def touch(self, key: OffloadKey) -> None:
        if self.order.discard(key):
            self.order.append(key)

    def remove(self, key: OffloadKey) -> None:
        self.order.discard(key)

    def released(self, key: OffloadKey) -> None:
        self.order.released(key)


class ARCPolicy(CachePolicy):
    """The adaptive replacement cache of Megiddo and Modha (FAST 2003, Figure 4).

    `t1` holds blocks used once since they came, `t2` those used again; `b1` and
    `b2` are their *ghosts*, keys evicted from each, least recent first. `p` is
    the size that `t1` aims at: a request for a ghost of `b1` says `t1` was too
    small, one for a ghost of `b2` that it was too large. `p` is a float, as the
    steps by which it moves are ratios.

    If no block is ever barred from leaving or removed, this is Figure 4 step for
    step. Otherwise:

    * Barred blocks count in `t1` and `t2`. If the list that REPLACE prefers has
      no evictable block, the other one gives its first.
    * Ghosts are trimmed after the fact, to |t1| + |b1| <= c and to 2c in all,
      which deletes what cases IV.A and IV.B delete, and still bounds the ghosts
      when a removal has left the lists in a shape the figure never meets.
    * While there is a free place, nothing is replaced, ghosts or not.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.p = 0.0
        self.t1, self.t2 = RecencyList(), RecencyList()
        self.b1: OrderedDict[OffloadKey, None] = OrderedDict()
        self.b2: OrderedDict[OffloadKey, None] = OrderedDict()

    def __contains__(self, key: OffloadKey) -> bool:
        return key in self.t1 or key in self.t2

    def __len__(self) -> int:
        return len(self.t1) + len(self.t2)

    def _admit(self, key: OffloadKey, evictable: Evictable) -> Admission | None:
        target = self._adapted(key)
        victim = None
        if len(self) >= self.capacity:
            excess = len(self.t1) - target
            prefer_t1 = excess > 0 or (excess == 0 and key in self.b2)
            sides = [(self.t1, self.b1), (self.t2, self.b2)]
            for cached, ghosts in sides if prefer_t1 else reversed(sides):
                victim = cached.first(evictable)
                if victim is not None:
                    cached.discard(victim)
                    ghosts[victim] = None
                    break
            else:
                return None
        self.p = target
        seen_before = key in self.b1 or key in self.b2
        self.b1.pop(key, None)
        self.b2.pop(key, None)
        (self.t2 if seen_before else self.t1).append(key)
        self._trim()
        return Admission(victim)

    def _adapted(self, key: OffloadKey) -> float:
        """The target `p` that a request for `key` asks for."""
        if key in self.b1:
            return min(self.p + max(1.0, len(self.b2) / len(self.b1)), self.capacity)
        if key in self.b2:
            return max(self.p - max(1.0, len(self.b1) / len(self.b2)), 0.0)
        return self.p

    def _trim(self) -> None:
        while len(self.t1) + len(self.b1) > self.capacity:
            self.b1.popitem(last=False)
        while len(self) + len(self.b1) + len(self.b2) > 2 * self.capacity:
            self.b2.popitem(last=False)

    def touch(self, key: OffloadKey) -> None:
        if self.t1.discard(key) or self.t2.discard(key):
            self.t2.append(key)

    def remove(self, key: OffloadKey) -> None:
        self.t1.discard(key)
        self.t2.discard(key)

    def released(self, key: OffloadKey) -> None:
        self.t1.released(key)
        self.t2.released(key)


_POLICIES: dict[str, type[CachePolicy]] = {"lru": LRUPolicy, "arc": ARCPolicy}


def make_policy(name: str, capacity: int) -> CachePolicy:
    """The policy called `name`, `"lru"` or `"arc"`, for `capacity` blocks (0 or more)."""
    if name not in _POLICIES:
        raise UsageError(f"no cache policy {name!r}: choose from {', '.join(_POLICIES)}")
    return _POLICIES[name](capacity)
