"""What the actions of the tiers' model are made of: single decisions, and slots.

The operators of `tla/Tiering.tla` that change nothing, under nearly the same names.
A known bug is a subclass that decides one thing otherwise (`tiering_mutants.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from kvtier.model.tiering_state import (
    BLANK,
    FREE,
    Block,
    Claim,
    Known,
    TieringConfig,
    TieringState,
)

__all__ = ["Slots", "TieringRules", "being_read", "joined", "names", "put"]

Slots = tuple[Block, ...]
"""Slot 1, 2, ..."""


class TieringRules:
    """The rules at the size of `config`. All methods are pure."""

    def __init__(self, config: TieringConfig) -> None:
        self.config = config

    # Single decisions

    def evictable(self, block: Block) -> bool:
        """Whether the block may have to go for another."""
        return block.ready and not (block.refs or block.pinned or block.waiters)

    def room(self, slots: Slots) -> int:
        """How many promotions could be started."""
        awaited = sum(bool(block.waiters) for block in slots)
        return max(0, min(self.config.budget - awaited, self.available(slots)))

    def pins(self) -> bool:
        """Whether an answer HIT keeps the block to the end of the step."""
        return True

    def spent(self, me: Known, key: str, write: int) -> bool:
        """Whether the request waited for a write of the key that is not this one (0: none)."""
        return any(k == key and w != write for k, w in me.waits)

    def answers(self, seen: Sequence[str], end: int) -> bool:
        """Whether a pass that has seen this answers that the hit reaches to `end`."""
        return all(answer == "HIT" for answer in seen[:end])

    def left(self, s: TieringState, r: str) -> Slots:
        """The slots when `r` stands in no line any more."""
        return tuple(_without(block, r) for block in s.slot)

    def vacated(self, s: TieringState, slots: Slots) -> frozenset[int]:
        """The slots that are free when nobody waits for them any more."""
        return frozenset(claim.slot for claim in _unwanted(s, slots))

    def kept(self, block: Block) -> Block:
        """A block that was dropped leaves its slot when nobody writes or reads it."""
        return FREE if block.dropped and block.ready and not block.refs else block

    def after_write(self, block: Block, ok: bool) -> Block:
        """What is in the slot when its write has ended."""
        return self.kept(block._replace(ready=True, old=False)) if ok else FREE

    def hears(self, me: Known) -> bool:
        """Whether the tier is told that a request which has finished did so."""
        return me.phase == "leaving" and not me.filling

    # Parts

    def known(self, s: TieringState, r: str) -> Known:
        """What is known of a request."""
        return s.req[self.number(r)]

    def holder(self, slots: Slots, key: str) -> int | None:
        """The slot that has the block."""
        for number, block in enumerate(slots, 1):
            if block.key == key and not block.dropped:
                return number
        return None

    def owner(self, s: TieringState, claim: Claim) -> str:
        """In whose name a queued promotion goes to the tier."""
        return s.slot[claim.slot - 1].waiters[0]

    def available(self, slots: Slots) -> int:
        """How many slots could be taken."""
        return sum(not block.used or self.evictable(block) for block in slots)

    def taken(self, s: TieringState, slots: Slots, key: str) -> Iterator[tuple[int, Slots, int]]:
        """Every way to take a slot for a write of the key: slot, all slots, number of the write."""
        write = self.next_write(s, key)
        free = [n for n, block in enumerate(slots, 1) if not block.used]
        evictable = [n for n, block in enumerate(slots, 1) if self.evictable(block)]
        for number in free[:1] or evictable:
            yield number, put(slots, number, Block(key, write)), write

    def next_write(self, s: TieringState, key: str) -> int:
        """The least number of a write of the key that nothing refers to."""
        used = {block.write for block in s.slot if block.key == key}
        claims = chain(s.queue, *(job.claims for job in s.jobs))
        claims = chain(claims, *(me.reading | me.filling for me in s.req))
        used.update(claim.write for claim in claims if claim.key == key)
        used.update(write for me in s.req for k, write in me.waits if k == key)
        return next(n for n in range(1, len(used) + 2) if n not in used)

    def rooms(self, slots: Slots) -> Iterable[int]:
        """Room for promotions; after a reset they may also be on hold."""
        if any(block.dropped for block in slots):
            return sorted({0, self.room(slots)})
        return (self.room(slots),)

    def reach(self, slots: Slots, prompt: Sequence[str], length: int, room: int) -> int:
        """How far the hit reaches, if so many blocks can be promoted for it."""
        for end in range(length):
            room -= self.holder(slots, prompt[end]) is None
            if room < 0:
                return end
        return length

    def stops_waiting(self, s: TieringState, r: str) -> TieringState:
        """A queued promotion is handed over, or dropped; what the tier has runs on."""
        left = self.left(s, r)
        free = self.vacated(s, left)
        return s._replace(
            slot=tuple(FREE if n in free else block for n, block in enumerate(left, 1)),
            queue=s.queue - _unwanted(s, left),
        )

    def written(self, slots: Slots, claims: Collection[Claim], good: Collection[str]) -> Slots:
        """Writers end: each has put its bytes into its slot, whatever is in there by now."""
        for claim in claims:
            before = slots[claim.slot - 1]
            ok = claim.key in good
            after = before
            if before.used:
                after = before._replace(bytes=claim.key if ok else "junk")
            if names(slots, claim) and before.writing:
                after = self.after_write(after, ok)
            slots = put(slots, claim.slot, after)
        return slots

    def unread(self, slots: Slots, claims: Collection[Claim]) -> Slots:
        """Readers end."""
        for claim in claims:
            if names(slots, claim):
                block = slots[claim.slot - 1]
                slots = put(slots, claim.slot, self.kept(block._replace(refs=block.refs - 1)))
        return slots

    def forgets(self, me: Known) -> Known:
        """Without what it knew of single keys."""
        return me._replace(
            asked=BLANK.asked,
            answered=BLANK.answered,
            notes=BLANK.notes,
            waits=BLANK.waits,
            settled=BLANK.settled,
        )

    def gone(self, me: Known) -> Known:
        """A request that finished is gone with its last transfer."""
        if me.phase != "leaving" or me.busy:
            return me
        return BLANK if "again" in self.config.features else BLANK._replace(phase="gone")

    def number(self, r: str) -> int:
        return self.config.requests.index(r)

    def replaced(self, s: TieringState, r: str, me: Known) -> TieringState:
        number = self.number(r)
        return s._replace(req=(*s.req[:number], me, *s.req[number + 1 :]))


def put(slots: Slots, number: int, block: Block) -> Slots:
    return (*slots[: number - 1], block, *slots[number:])


def joined(block: Block, r: str) -> Block:
    return block if r in block.waiters else block._replace(waiters=(*block.waiters, r))


def _without(block: Block, r: str) -> Block:
    return block._replace(waiters=tuple(other for other in block.waiters if other != r))


def names(slots: Slots, claim: Claim) -> bool:
    return slots[claim.slot - 1][:2] == (claim.key, claim.write)


def being_read(slots: Slots, claims: Collection[Claim]) -> Slots:
    for claim in claims:
        block = slots[claim.slot - 1]
        slots = put(slots, claim.slot, block._replace(refs=block.refs + 1))
    return slots


def _unwanted(s: TieringState, slots: Slots) -> frozenset[Claim]:
    return frozenset(claim for claim in s.queue if not slots[claim.slot - 1].waiters)
