"""The step loop: which waiting request can start, from how much cached prefix.

One step, in this order: *admit* requests into the set in flight together, look
each waiting one up once (*a pass*) and decide what to do about what was found
(*end of pass*); then, for those that got an answer, load, compute, store,
finish; then close the step (`on_schedule_end`), which sends the questions and
starts the loads that the passes asked for.

The end of a pass finds out first how far the hit reaches, and only then moves
what that needs (vllm 51439). Every needed block is readable: the request starts.
A needed block has an open probe: nothing is reserved, ask again next step. Else
the needed blocks that a slower tier has are promoted, from the front as far as
there is room; what there is no room for counts as a miss *in this pass* and
shortens the hit. Nobody ever waits for room, which is what keeps waiting
requests from flooding the primary and blocking each other (vllm 49902).

What does not live here: which tiers exist, where a block is, what may be evicted
(all `tiering.py`), and bytes (the `Engine`). Calls come from one caller at a
time, and the engine does not call back into the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey, make_offload_key
from kvtier.request import ReqContext
from kvtier.results import LookupResult, MissReason
from kvtier.runtime import Runtime
from kvtier.scans import KVGroup, longest_hit
from kvtier.tiering import (
    DeferReason,
    PassReport,
    Reports,
    TieringObserver,
    TieringOffloadingManager,
)
from kvtier.tiers.base import LoadStoreSpec

__all__ = ["Engine", "Request", "Scheduler", "SchedulerCounts"]

_Place = tuple[int, int]
"""(chunk, group index): sorts in prefix order."""

_PRECEDENCE = (DeferReason.PROBE, DeferReason.PROMOTION, DeferReason.STORE)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt: who asks, and the chained hashes of its full blocks from the start."""

    ctx: ReqContext
    block_hashes: Sequence[bytes]


class Engine(Protocol):
    """What runs the model and moves bytes between its own memory and the primary's slots."""

    def load(self, request: Request, spec: LoadStoreSpec) -> None:
        """Read the reused blocks out of their slots, all of them before returning."""

    def compute(self, request: Request) -> bool | None:
        """Compute the rest of the prompt; `False`: not finished, call again next step."""

    def store(self, request: Request, spec: LoadStoreSpec) -> bool:
        """Write computed blocks into their slots; whether all of them were written."""


@dataclass(slots=True)
class SchedulerCounts:
    """Plain counts, always on.

    Every block of every prompt added is counted once in `blocks` at once, and
    once in either `hits` (by tier label) or `misses` when its request is first
    admitted or ends. So with no requests left
    `blocks == sum(hits.values()) + sum(misses.values())`.
    """

    hits: dict[str, int]
    misses: dict[MissReason, int] = field(default_factory=lambda: dict.fromkeys(MissReason, 0))
    deferrals: dict[DeferReason, int] = field(default_factory=lambda: dict.fromkeys(DeferReason, 0))
    """Passes that ended without an answer, each with one reason."""
    requests: int = 0
    blocks: int = 0
    steps: int = 0


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request on its way. `end` is its E* while it runs, `None` while it waits."""

    request: Request
    keys: dict[int, list[OffloadKey]]
    end: int | None = None
    loading: LoadStoreSpec | None = None
    counted: bool = False

    @property
    def ctx(self) -> ReqContext:
        return self.request.ctx

    def key(self, place: _Place) -> OffloadKey:
        chunk, group_idx = place
        return self.keys[group_idx][chunk]


class Scheduler:
    """First come, first served, over one tiering manager.

    `groups` are the model's KV cache groups, in the order in which a miss is
    explained. At most `max_num_seqs` requests are in flight together, waiting
    ones included: each of those may ask questions and promote. Raises
    `UsageError` if it is below 1, or `groups` is empty or repeats an index.
    `observer` is told of every pass.
    """

    def __init__(
        self,
        manager: TieringOffloadingManager,
        groups: Sequence[KVGroup],
        engine: Engine,
        *,
        max_num_seqs: int,
        runtime: Runtime,
        observer: TieringObserver | None = None,
    ) -> None:
        indices = [group.group_idx for group in groups]
        if not indices or len(set(indices)) < len(indices):
            raise UsageError(f"groups need distinct indices, at least one group; got {indices}")
        if max_num_seqs < 1:
            raise UsageError(f"max_num_seqs is {max_num_seqs}: nothing would ever run, give >= 1")
        self._manager = manager
        self._groups = tuple(groups)
        self._prefixes = tuple(group for group in groups if group.window is None)
        self._windows = tuple(group for group in groups if group.window is not None)
        self._engine = engine
        self._max_num_seqs = max_num_seqs
        self._runtime = runtime
        self._reports = Reports(observer)
        self._queue: dict[str, _Sequence] = {}
        self._in_flight: dict[str, _Sequence] = {}
        self.counts = SchedulerCounts(hits=dict.fromkeys(manager.labels, 0))

    @property
    def idle(self) -> bool:
        """No request is left, and no tier has work under way."""
        return not (self._queue or self._in_flight or self._manager.has_pending_work())

    def add(self, request: Request) -> None:
        """Queue `request`.

        Raises `UsageError` if its id is that of a live request, or if a block
        hash comes twice, which chained hashes never do.
        """
        req_id = request.ctx.req_id
        if req_id in self._queue or req_id in self._in_flight:
            raise UsageError(f"request {req_id!r} is live: ids of live requests are unique")
        if len(set(request.block_hashes)) < len(request.block_hashes):
            raise UsageError(f"request {req_id!r} has a block hash twice: chain them (hash_block)")
        keys = {
            group.group_idx: [make_offload_key(h, group.group_idx) for h in request.block_hashes]
            for group in self._groups
        }
        self._queue[req_id] = _Sequence(request, keys)
        self.counts.requests += 1
        self.counts.blocks += len(request.block_hashes)

    def step(self) -> bool:
        """One scheduler step; whether some request ran.

        If none did, only a report from a tier or the passing of time can change
        that: wait (`Runtime.wait`) before the next step. If the engine raises,
        the request stays as it is: it is tried again by the next step, unless
        it is aborted.
        """
        self.counts.steps += 1
        while self._queue and len(self._in_flight) < self._max_num_seqs:
            req_id = next(iter(self._queue))
            self._in_flight[req_id] = self._queue.pop(req_id)
            self._manager.on_new_request(self._in_flight[req_id].ctx)
        for seq in self._in_flight.values():
            if seq.end is None:
                self._look_up(seq)
        running = [(seq, seq.end) for seq in self._in_flight.values() if seq.end is not None]
        for seq, end in running:
            self._run(seq, end)
        self._manager.on_schedule_end()
        return bool(running)

    def run_until_idle(self, *, poll: float = 0.01, timeout: float | None = None) -> bool:
        """Step until idle, waiting for a report whenever a step ran nothing.

        A wait ends after `poll` seconds even without a report, because deadlines
        pass silently. Gives up after `timeout` seconds; returns whether idle.
        """
        started = self._runtime.now()
        while not self.idle:
            if timeout is not None and self._runtime.now() - started >= timeout:
                return False
            if not self.step():
                self._runtime.wait(poll)
        return True

    def abort(self, req_id: str) -> bool:
        """End a request where it stands; `False` if there is no such request (any more).

        Between steps. Blocks not yet counted are counted as `ABORTED`.
        """
        seq = self._queue.pop(req_id, None)
        if seq is None:
            seq = self._in_flight.pop(req_id, None)
            if seq is None:
                return False
            self._stop_loading(seq)
            self._manager.on_request_finished(seq.ctx)
        if not seq.counted:
            self.counts.misses[MissReason.ABORTED] += len(seq.request.block_hashes)
        return True

    def preempt(self, req_id: str) -> bool:
        """Send a request in flight back to waiting, in its old place; `False` if it is not.

        Between steps. It starts over: what it knew about its blocks is
        forgotten, but they are not counted again, and its deferrals stay counted.
        """
        seq = self._in_flight.get(req_id)
        if seq is None:
            return False
        self._stop_loading(seq)
        seq.end = None
        self._manager.forget(seq.ctx)
        return True

    def _look_up(self, seq: _Sequence) -> None:
        """One pass of a waiting request and its end: admitted, or deferred for a reason."""
        manager, ctx, began = self._manager, seq.ctx, self._runtime.now()
        if manager.is_busy(ctx):
            self._defer(seq, {DeferReason.STORE}, 0, began)
            return
        read: dict[_Place, LookupResult] = {}
        open_probes: list[tuple[KVGroup, int]] = []

        def result(group: KVGroup, chunk: int) -> LookupResult:
            place = chunk, group.group_idx
            if place not in read:
                read[place] = manager.locate(seq.key(place), ctx)
                if read[place] is LookupResult.RETRY and not manager.noted(seq.key(place), ctx):
                    open_probes.append((group, chunk))
            return read[place]

        def elsewhere(groups: Sequence[KVGroup], end: int) -> list[_Place]:
            places = self._needed(groups, end)
            return [place for place in places if read[place] is LookupResult.RETRY]

        end = longest_hit(self._groups, len(seq.request.block_hashes), result)
        # As the hit gets shorter, prefix groups need less, and window groups other chunks.
        by_prefixes = elsewhere(self._prefixes, end)
        while True:
            if any(chunk in group.need(end) for group, chunk in open_probes):
                self._defer(seq, {DeferReason.PROBE}, end, began)
                return
            while by_prefixes and by_prefixes[-1][0] >= end:
                by_prefixes.pop()
            by_windows = elsewhere(self._windows, end)
            if len(by_prefixes) + len(by_windows) <= manager.room():
                break
            refused = max(by_prefixes[-1:] + by_windows)
            manager.refuse([seq.key(refused)], ctx)
            # It reads as a miss, so the hit ends there or before; prefix groups can live with that.
            end = longest_hit(self._windows, refused[0], result)
        if by_prefixes or by_windows:
            manager.promote([seq.key(place) for place in sorted(by_prefixes + by_windows)], ctx)
        needed = self._needed(self._groups, end)
        pending = [place for place in needed if read[place] is not LookupResult.HIT]
        if pending:
            reasons = {manager.pending_reason(seq.key(place), ctx) for place in pending}
            self._defer(seq, reasons, end, began)
        else:
            self._admit(seq, end, [seq.key(place) for place in needed])
            self._report(seq, end, None, began)

    @staticmethod
    def _needed(groups: Sequence[KVGroup], end: int) -> list[_Place]:
        return sorted((chunk, group.group_idx) for group in groups for chunk in group.need(end))

    def _defer(self, seq: _Sequence, reasons: set[DeferReason], end: int, began: float) -> None:
        reason = min(reasons, key=_PRECEDENCE.index)
        self.counts.deferrals[reason] += 1
        self._manager.defer(seq.ctx, reason)
        self._report(seq, end, reason, began)

    def _report(self, seq: _Sequence, end: int, deferred: DeferReason | None, began: float) -> None:
        if self._reports.observer is not None:
            blocks, now = len(seq.request.block_hashes), self._runtime.now()
            report = PassReport(seq.ctx, blocks, end, deferred, began, now)
            self._reports.tell(lambda observer: observer.on_pass(report))

    def _admit(self, seq: _Sequence, end: int, reused: list[OffloadKey]) -> None:
        seq.end = end
        if not seq.counted:
            seq.counted = True
            self._count(seq, end)
        self._manager.touch(reused, seq.ctx)
        # Also with no keys: from here on the request waits for nothing.
        seq.loading = self._manager.prepare_load(reused, seq.ctx)

    def _count(self, seq: _Sequence, end: int) -> None:
        """Each block of the prompt is one hit or one miss, whatever its groups say."""
        manager, labels = self._manager, self._manager.labels
        for chunk in range(len(seq.request.block_hashes)):
            keys = [(group, seq.key((chunk, group.group_idx))) for group in self._groups]
            if chunk < end:
                used = [manager.source(key, seq.ctx) for g, key in keys if chunk in g.need(end)]
                slowest = max(used, key=labels.index, default=labels[0])
                self.counts.hits[slowest] += 1
            else:
                reasons = (manager.miss_reason(key, seq.ctx) for _, key in keys)
                read = (reason for reason in reasons if reason is not MissReason.BEYOND)
                self.counts.misses[next(read, MissReason.BEYOND)] += 1

    def _run(self, seq: _Sequence, end: int) -> None:
        if seq.loading is not None:
            try:
                if len(seq.loading):
                    self._engine.load(seq.request, seq.loading)
            finally:
                self._stop_loading(seq)
        if self._engine.compute(seq.request) is False:
            return
        computed = [
            seq.key((chunk, group.group_idx))
            for chunk in range(end, len(seq.request.block_hashes))
            for group in self._groups
        ]
        spec = self._manager.prepare_store(computed, seq.ctx).store_spec
        if len(spec):
            stored = False
            try:
                stored = self._engine.store(seq.request, spec)
            finally:
                self._manager.complete_store(spec, seq.ctx, stored)
        del self._in_flight[seq.ctx.req_id]
        self._manager.on_request_finished(seq.ctx)

    def _stop_loading(self, seq: _Sequence) -> None:
        spec, seq.loading = seq.loading, None
        if spec is not None:
            self._manager.complete_load(spec, seq.ctx)
