"""Writes that requests wait for, and loads from their reservation to their report.

A request *waits* for a write from `HIT_PENDING` or `promote` on. The block is
kept for it, also once it is readable, until the request is admitted, is
preempted, finishes, or has used up its deferral bound.

A promotion has its slot from the moment it is asked for and goes to its tier at
the end of the step. If its request stops waiting before that, the promotion
passes to whoever has waited longest among the others, or is dropped and its slot
freed: no job is submitted for a request that finished (vllm 49022). A load that a
tier already has runs on, and its slot stays with it (SGLang 31296).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.results import MissReason
from kvtier.tiering.requests import RequestState, Wait
from kvtier.tiers.base import LoadStoreSpec
from kvtier.tiers.host import BlockStatus, CPUOffloadingManager

__all__ = ["Promotions"]


@dataclass(slots=True)
class _Queued:
    """One block that its tier is asked for at the end of the step."""

    tier: int
    spec: LoadStoreSpec
    owner: RequestState


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
            queued = self._queue.get(key)
            if queued is not None and queued.owner is state:
                self._pass_on(key, queued)

    def reserve(self, state: RequestState, key: OffloadKey) -> BlockStatus | None:
        """Take a slot for a block that a tier is noted to have, if there is one."""
        spec = self._primary.prepare_store([key], state.ctx).store_spec
        if not spec:
            return None
        tier = state.notes[key]
        self._loads[spec.write_ids[0]] = tier
        self._queue[key] = _Queued(tier, spec, state)
        return self._primary.block(key)

    def take(self) -> Iterator[tuple[int, LoadStoreSpec, ReqContext]]:
        """Empty the queue: one load for each tier and request."""
        loads: dict[tuple[int, str], list[_Queued]] = {}
        for queued in self._queue.values():
            loads.setdefault((queued.tier, queued.owner.ctx.req_id), []).append(queued)
        self._queue.clear()
        for (tier, _), blocks in loads.items():
            yield tier, _joined([block.spec for block in blocks]), blocks[0].owner.ctx

    def drop(self) -> None:
        """Empty the queue: these blocks do not come."""
        for queued in self._queue.values():
            self._free(queued)
        self._queue.clear()

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

    def _pass_on(self, key: OffloadKey, queued: _Queued) -> None:
        block = self._primary.block(key)
        heir = None if block is None else next(iter(block.waiters), None)
        if heir is None:
            self._free(queued)
            del self._queue[key]
        else:
            queued.owner = self._requests[heir]

    def _free(self, queued: _Queued) -> None:
        self._primary.complete_store(queued.spec, queued.owner.ctx, success=False)
        del self._loads[queued.spec.write_ids[0]]


def _joined(specs: list[LoadStoreSpec]) -> LoadStoreSpec:
    return LoadStoreSpec(
        tuple(key for spec in specs for key in spec.keys),
        tuple(slot for spec in specs for slot in spec.slots),
        tuple(write_id for spec in specs for write_id in spec.write_ids),
    )
