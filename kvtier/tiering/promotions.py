"""Writes that requests wait for, and loads from their reservation to their report.

A request *waits* for a write from `HIT_PENDING` or `promote` on. The block is
kept for it, also once it is readable, until the request is admitted, is
preempted, finishes, or has used up its deferral bound.

A promotion has its slot from the moment it is asked for and goes to its tier at
the end of the step, in the name of whoever has waited longest. If nobody waits
any more by then, it has been dropped and its slot freed: no job is submitted for
a request that finished (vllm 49022). A load that a tier already has runs on, and
its slot stays with it (SGLang 31296).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from typing import NamedTuple

from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.results import MissReason
from kvtier.tiering.requests import RequestState, Wait
from kvtier.tiers.base import LoadStoreSpec
from kvtier.tiers.host import BlockStatus, CPUOffloadingManager

__all__ = ["Promotions"]


class _Queued(NamedTuple):
    """One block that its tier is asked for at the end of the step."""

    tier: int
    spec: LoadStoreSpec


class Promotions:
    """Who waits for which write of `primary`, and which of these writes are loads.

    `requests` are all requests by id, as the manager knows them.
    """

    def __init__(self, primary: CPUOffloadingManager, requests: Mapping[str, RequestState]) -> None:
        self._primary = primary
        self._requests = requests
        self._queue: dict[OffloadKey, _Queued] = {}
        self._loads: dict[int, int] = {}  # write id: number of the tier

    def __len__(self) -> int:
        """Blocks on their way, with their tier or about to be."""
        return len(self._loads)

    @property
    def queued(self) -> int:
        """Blocks that no tier has been asked for yet."""
        return len(self._queue)

    def is_load(self, block: BlockStatus) -> bool:
        """Whether the block is being loaded; else it is being stored, or readable."""
        return block.write_id in self._loads

    def wait(self, state: RequestState, key: OffloadKey, block: BlockStatus) -> None:
        """From now on the request waits for this write."""
        self._primary.wait(key, state.ctx.req_id)
        state.waits[key] = Wait(block.write_id, self._loads.get(block.write_id, 0))
        state.waiting = True

    def stop_waiting(self, state: RequestState) -> None:
        """From now on no slot is kept for the request."""
        if not state.waiting:
            return
        state.waiting = False
        for key in state.waits:
            self._primary.unwait(key, state.ctx.req_id)
            if key in self._queue and not self._waiters(key):
                self._drop(key, state.ctx)

    def reserve(self, state: RequestState, key: OffloadKey) -> BlockStatus | None:
        """Take a slot for a block that a tier is noted to have, if there is one."""
        spec = self._primary.prepare_store([key], state.ctx).store_spec
        if not spec:
            return None
        tier = state.notes[key]
        self._loads[spec.write_ids[0]] = tier
        self._queue[key] = _Queued(tier, spec)
        return self._primary.block(key)

    def take(self) -> Iterator[tuple[int, LoadStoreSpec, ReqContext]]:
        """Empty the queue: one load for each tier and request."""
        loads: dict[tuple[int, str], list[LoadStoreSpec]] = {}
        for key, queued in self._queue.items():
            owner = next(iter(self._waiters(key)))
            loads.setdefault((queued.tier, owner), []).append(queued.spec)
        self._queue.clear()
        for (tier, owner), specs in loads.items():
            yield tier, _joined(specs), self._requests[owner].ctx

    def drop(self) -> None:
        """Empty the queue: these blocks do not come."""
        for key in list(self._queue):
            self._drop(key, self._requests[next(iter(self._waiters(key)))].ctx)

    def end(self, spec: LoadStoreSpec, ctx: ReqContext, moved: Set[OffloadKey]) -> None:
        """A load ended. Blocks in `moved` are readable; the others are settled for who waits."""
        for key, write_id in zip(spec.keys, spec.write_ids, strict=True):
            del self._loads[write_id]
            block = self._primary.block(key)
            if key not in moved and block is not None and block.write_id == write_id:
                for req_id in block.waiters:
                    self._requests[req_id].settled[key] = MissReason.LOAD_FAILED
        self._primary.complete_store(spec.only(moved), ctx)
        self._primary.complete_store(spec.only(set(spec.keys) - moved), ctx, success=False)

    def _waiters(self, key: OffloadKey) -> Collection[str]:
        """Who waits for the block, the one that began first in front."""
        block = self._primary.block(key)
        return () if block is None else block.waiters

    def _drop(self, key: OffloadKey, ctx: ReqContext) -> None:
        spec = self._queue.pop(key).spec
        del self._loads[spec.write_ids[0]]
        self._primary.complete_store(spec, ctx, success=False)


def _joined(specs: list[LoadStoreSpec]) -> LoadStoreSpec:
    return LoadStoreSpec(
        tuple(key for spec in specs for key in spec.keys),
        tuple(slot for spec in specs for slot in spec.slots),
        tuple(write_id for spec in specs for write_id in spec.write_ids),
    )
