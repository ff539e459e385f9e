"""The primary tier: one buffer in host memory, cut into slots of one block each.

A slot is free, being written, or ready. A block keeps its slot as long as
anything *holds* it, and holds are what this module counts:

* the write that fills it, until `complete_store`;
* every reference, from `prepare_load` to `complete_load`;
* a step pin, from `pin` (a lookup answered `HIT`) to the end of the step;
* every request that waits for its write, from `wait` to `unwait`.

A block without holds is evictable, and nothing else is. Stores and promotions
take slots by the same call and under the same rule, and never wait for one.

Each filling of a slot has a *write id* that is never used again. Completions
name slot and write id, so one that comes late cannot be taken for a completion
of what the slot holds now. A failed write never becomes readable (Dynamo 15079),
and its slot is free only once its own writer says that it is done (SGLang 31296):
no cancelled request and no reset hands it to somebody else before.

One caller at a time. Every call costs O(1) per key it is given, an eviction
O(log n) at most (see `kvtier.tiers.policies`); `reset_cache` looks at all blocks.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.results import LookupResult
from kvtier.tiers.base import LoadStoreSpec, OffloadingManager, PrepareStoreOutput, PrimaryView
from kvtier.tiers.policies import make_policy

__all__ = ["BlockStatus", "CPUOffloadingManager"]


class BlockStatus(Protocol):
    """A block of the primary, to look at. It goes on changing: read it, do not keep it."""

    @property
    def slot(self) -> int:
        """Which slot it is in."""

    @property
    def write_id(self) -> int:
        """Names the write that filled or is filling the slot; grows, never used twice."""

    @property
    def written_since_step(self) -> int:
        """The primary's `step` when that write began."""

    @property
    def ready(self) -> bool:
        """Readable. Before, it is being written."""

    @property
    def ref_count(self) -> int:
        """Reads under way."""

    @property
    def step_pinned(self) -> bool:
        """Kept until the end of this step."""

    @property
    def waiters(self) -> Set[str]:
        """Requests waiting for the write, in the order in which they began to."""


@dataclass(slots=True, eq=False)
class _Block:
    key: OffloadKey
    slot: int
    write_id: int
    written_since_step: int
    holds: int = 1
    """The write, references, step pin and waiters, one each."""
    ready: bool = False
    ref_count: int = 0
    step_pinned: bool = False
    waiting: dict[str, None] = field(default_factory=dict)
    dropped: bool = False
    """A reset took its key away: the slot is free when the last hold ends."""

    @property
    def waiters(self) -> Set[str]:
        return self.waiting.keys()


class CPUOffloadingManager(OffloadingManager):
    """Blocks in host memory.

    `num_blocks` slots of `block_bytes` bytes; `policy` is `"lru"` or `"arc"`.
    Raises `UsageError` for a size below 1 or a policy that does not exist. A
    method that raises `UsageError` has changed nothing; all those that take
    several keys raise it if one comes twice.

    To be read, not written: `view`, the buffer; `step`, how many steps have ended;
    `awaited`, how many slots some request waits for; `references`, how many reads
    are under way, those of dropped blocks included.
    """

    def __init__(self, num_blocks: int, block_bytes: int, policy: str = "lru") -> None:
        sizes: dict[str, object] = {"num_blocks": num_blocks, "block_bytes": block_bytes}
        for name, value in sizes.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name} is a whole number, 1 or more, not {value!r}")
        self._policy_name = policy
        self._policy = make_policy(policy, num_blocks)
        self.view = PrimaryView(num_blocks, block_bytes)
        self.num_blocks = num_blocks
        self.step = self.awaited = self.references = 0
        self._present: dict[OffloadKey, _Block] = {}
        self._slots: list[_Block | None] = [None] * num_blocks
        self._free = list(range(num_blocks))[::-1]
        self._pinned: list[_Block] = []
        self._writes = self._evictable = 0

    # What is here

    def __len__(self) -> int:
        """Blocks present: ready or being written, and not dropped by a reset."""
        return len(self._present)

    @property
    def available(self) -> int:
        """Slots that a store could take now: free or evictable."""
        return len(self._free) + self._evictable

    @property
    def holding(self) -> int:
        """Slots of blocks that a reset dropped while they were being written or read."""
        return self.num_blocks - len(self._free) - len(self._present)

    def block(self, key: OffloadKey) -> BlockStatus | None:
        """The block's state, or `None` if it is not here."""
        return self._present.get(key)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """`HIT` if readable, `HIT_PENDING` if being written, else `MISS`. Changes nothing."""
        block = self._present.get(key)
        if block is None:
            return LookupResult.MISS
        return LookupResult.HIT if block.ready else LookupResult.HIT_PENDING

    # Reading

    def prepare_load(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Take a reference on each block; the order of eviction stays as it is."""
        blocks = [self._readable(key) for key in _distinct(keys)]
        for block in blocks:
            block.ref_count += 1
            self._hold(block)
        self.references += len(blocks)
        return _spec(blocks)

    def complete_load(self, spec: LoadStoreSpec, req_context: ReqContext) -> None:
        """Give the references back.

        Raises `UsageError` if a slot does not hold that filling of that block,
        or if it is not being read.
        """
        blocks = self._named(spec)
        for block in blocks:
            if not block.ref_count:
                raise UsageError(f"block {block.key.hex()} is not being read")
        self.references -= len(blocks)
        for block in blocks:
            block.ref_count -= 1
            self._release(block)

    def touch(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        """The blocks were used: last first, so that the head of a prefix is the most recent."""
        for key in reversed(_distinct(keys)):
            self._policy.touch(key)

    # Writing

    def prepare_store(
        self, keys: Sequence[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput:
        """Take slots one key at a time, from the front as far as they fit.

        The front of `keys` is worth more than what follows, so a block that is
        skipped stays for the rest of the call, but may itself have had to go for
        a key before it: then it is in `evicted_keys`, and stored again if it fits.
        """
        begun: list[_Block] = []
        skipped: list[_Block] = []
        evicted: list[OffloadKey] = []
        no_room: list[OffloadKey] = []
        for key in _distinct(keys):
            present = self._present.get(key)
            if present is not None:
                self._hold(present)
                skipped.append(present)
                continue
            admission = self._policy.admit(key, self._is_evictable)
            if admission is None:
                no_room.append(key)
                continue
            if admission.victim is not None:
                evicted.append(admission.victim)
                self._evictable -= 1
                self._free_slot(self._present.pop(admission.victim))
            begun.append(self._begin_write(key))
        for block in skipped:
            self._release(block)
        return PrepareStoreOutput(_spec(begun), tuple(evicted), tuple(no_room))

    def complete_store(
        self, spec: LoadStoreSpec, req_context: ReqContext, success: bool = True
    ) -> None:
        """The writes ended. On failure their slots are free and nothing remembers them.

        Raises `UsageError` if a slot is not being filled by that write.
        """
        blocks = self._named(spec)
        for block in blocks:
            if block.ready:
                raise UsageError(f"block {block.key.hex()} is not being written")
        for block in blocks:
            if success or block.dropped:
                block.ready = True
                self._release(block)
            else:
                self._policy.remove(block.key)
                self.awaited -= bool(block.waiting)
                self._free_slot(self._present.pop(block.key))

    # Keeping

    def pin(self, key: OffloadKey) -> None:
        """Keep a readable block until the end of this step. `UsageError` if it is not readable."""
        block = self._readable(key)
        if not block.step_pinned:
            block.step_pinned = True
            self._pinned.append(block)
            self._hold(block)

    def on_schedule_end(self) -> None:
        """The step ends, and all step pins with it."""
        for block in self._pinned:
            block.step_pinned = False
            self._release(block)
        self._pinned.clear()
        self.step += 1

    def wait(self, key: OffloadKey, req_id: str) -> None:
        """`req_id` waits for the write in this block's slot. `UsageError` if there is no block.

        The block is kept until `unwait`, also after it became readable.
        """
        block = self._present.get(key)
        if block is None:
            raise UsageError(f"block {key.hex()} is not in the primary: nothing to wait for")
        if req_id not in block.waiting:
            self.awaited += not block.waiting
            block.waiting[req_id] = None
            self._hold(block)

    def unwait(self, key: OffloadKey, req_id: str) -> None:
        """`req_id` waits no longer. Does nothing if it did not wait, or the block is gone."""
        block = self._present.get(key)
        if block is not None and req_id in block.waiting:
            del block.waiting[req_id]
            self.awaited -= not block.waiting
            self._release(block)

    def reset_cache(self) -> None:
        """Forget every block, and the policy's memory of them. Called between steps.

        Slots of blocks that are being written or read stay with their writer or
        readers until these are done (`holding` counts them). Pins and waiters go.
        """
        for block in self._present.values():
            block.holds = block.ref_count + (not block.ready)
            block.dropped = True
            if not block.holds:
                self._free_slot(block)
        self._present.clear()
        self._pinned.clear()
        self._evictable = self.awaited = 0
        self._policy = make_policy(self._policy_name, self.num_blocks - self.holding)

    # Bookkeeping

    def _readable(self, key: OffloadKey) -> _Block:
        block = self._present.get(key)
        if block is None or not block.ready:
            why = "not in the primary" if block is None else "still being written"
            raise UsageError(f"block {key.hex()} is {why}: only a block that is a HIT is readable")
        return block

    def _named(self, spec: LoadStoreSpec) -> list[_Block]:
        """The blocks in the slots of `spec`, if each is the very filling that `spec` names."""
        _distinct(spec.keys)
        if not len(spec.keys) == len(spec.slots) == len(spec.write_ids):
            raise UsageError(f"keys, slots and write ids of {spec} differ in number")
        blocks = []
        for key, slot, write_id in zip(spec.keys, spec.slots, spec.write_ids, strict=True):
            block = self._slots[slot] if 0 <= slot < self.num_blocks else None
            if block is None or block.key != key or block.write_id != write_id:
                raise UsageError(f"slot {slot} does not hold write {write_id} of {key.hex()}")
            blocks.append(block)
        return blocks

    def _is_evictable(self, key: OffloadKey) -> bool:
        return not self._present[key].holds

    def _hold(self, block: _Block) -> None:
        self._evictable -= not block.holds
        block.holds += 1

    def _release(self, block: _Block) -> None:
        block.holds -= 1
        if block.holds:
            return
        if block.dropped:
            self._free_slot(block)
            self._policy.capacity += 1
        else:
            self._evictable += 1
            self._policy.released(block.key)

    def _begin_write(self, key: OffloadKey) -> _Block:
        self._writes += 1
        block = _Block(key, self._free.pop(), self._writes, self.step)
        self._present[key] = self._slots[block.slot] = block
        return block

    def _free_slot(self, block: _Block) -> None:
        self._slots[block.slot] = None
        self._free.append(block.slot)


def _distinct(keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
    if len(set(keys)) != len(keys):
        raise UsageError("a key comes twice in one call")
    return keys


def _spec(blocks: list[_Block]) -> LoadStoreSpec:
    return LoadStoreSpec(
        tuple(block.key for block in blocks),
        tuple(block.slot for block in blocks),
        tuple(block.write_id for block in blocks),
    )
