"""A full secondary tier from a back end that can only block.

A `BlockStore` is five blocking calls: is it there, read, write, remove, close.
`StoreTier` makes a `SecondaryTierManager` of one: questions go through an
`AsyncLookupManager`, transfers run on a few lanes of the runtime, and the
caller's thread never waits for the back end.

What is decided here, once for every back end:

* A block is verified on load (`kvtier.tiers.frame`) before its first byte goes
  into a slot. Damage removes what is stored under the key; any other error
  leaves it, because a disk that cannot be read now may be read later.
* A block fails alone: the job's other blocks are moved all the same, and the
  result names those that made it (vllm 50321).
* A failed load is a miss in every scope, so that nobody is promised the block
  again (vllm 49176); a completed store is a hit in the scope of its request.
* A store always writes, also over a block that is there. Skipping would need
  proof that the one present is whole, and only reading all of it is proof; a
  truncated file that is skipped stays truncated for ever.
* Shutdown is bounded whatever the back end does. A call that comes back after
  it finds the gate to the slots closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from errno import errorcode
from threading import Lock

from kvtier.errors import DamagedBlock, TierError, UsageError
from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupObserver
from kvtier.log import Log, shown
from kvtier.lookup.manager import AsyncLookupManager
from kvtier.request import ReqContext
from kvtier.results import LookupResult, MissReason, from_verdict
from kvtier.runtime import Lane, Runtime
from kvtier.tiers.base import JobResult, PrimaryView, SecondaryTierManager, TransferJob
from kvtier.tiers.frame import Frame, Raw, decode, encode

__all__ = ["BlockStore", "StoreTier"]

_log = Log("kvtier.tiers")


class BlockStore(ABC):
    """A back end that stores frames under keys, by calls that may block and may raise.

    Calls come from several background lanes at once, never from the scheduler.
    Whatever one raises becomes the result of the lookup or transfer it was for.
    """

    @abstractmethod
    def contains(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        """One bool per key, in order; whether the block is whole is for `get` to find out."""

    @abstractmethod
    def get(self, key: OffloadKey, req_context: ReqContext) -> Raw:
        """All that is stored under `key`. Raises `BlockMissing` if nothing is."""

    @abstractmethod
    def put(self, key: OffloadKey, frame: Frame, req_context: ReqContext) -> None:
        """Store `frame`, all of it or nothing, in place of what was there."""

    @abstractmethod
    def delete(self, key: OffloadKey, req_context: ReqContext) -> None:
        """Remove what is stored under `key`, if anything is."""

    def scope(self, req_context: ReqContext) -> Hashable:
        """What answers depend on besides the key, a tenant for example.

        Requests of one scope share questions and answers. This one runs on the
        scheduler's thread and must not block.
        """
        return None

    def close(self) -> None:
        """Release connections and files. Called once; a call that hangs may still be out."""
        return


@dataclass(frozen=True, slots=True)
class _Ended:
    """What a lane has to say about a job: the blocks moved, and what the others died of."""

    job: TransferJob
    lane: int
    moved: tuple[OffloadKey, ...]
    failures: tuple[BaseException, ...]
    seconds: float


class StoreTier(SecondaryTierManager):
    """Secondary tier over `store`.

    `label` names the tier in traces and threads (`1:fs`). `deadline`,
    `verdict_lifetime` (seconds), `max_batches_out` and `observer` are those of
    `AsyncLookupManager`. `lanes` is how many jobs move at once; a job goes to
    the lane with the fewest blocks before it, so one that hangs is avoided.
    """

    def __init__(
        self,
        store: BlockStore,
        view: PrimaryView,
        *,
        tier_type: str,
        label: str,
        runtime: Runtime,
        deadline: float | None = None,
        verdict_lifetime: float | None = None,
        max_batches_out: int = 2,
        observer: LookupObserver | None = None,
        lanes: int = 2,
    ) -> None:
        if lanes < 1:
            raise UsageError(f"tier {label}: lanes must be at least 1, not {lanes}")
        self.tier_type = tier_type
        self.label = label
        self.store = store
        self.lookups: AsyncLookupManager = _StoreLookups(
            store,
            label,
            runtime=runtime,
            max_batches_out=max_batches_out,
            deadline=deadline,
            verdict_lifetime=verdict_lifetime,
            observer=observer,
        )
        self.errors: Counter[str] = Counter()
        """Failed blocks so far, by class of error and errno: `OSError ENOSPC`, `TierError`."""
        self._view = view
        self._runtime = runtime
        self._lanes = [runtime.lane(f"kvtier {label} transfer {n}") for n in range(lanes)]
        self._queued = [0] * lanes
        self._running: dict[int, TransferJob] = {}
        self._ended: deque[_Ended] = deque()
        self._reports: list[JobResult] = []
        self._shut = False
        self._gate = Lock()
        self._gate_closed = False

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return from_verdict(self.lookups.lookup(key, req_context))

    def miss_reason(self, key: OffloadKey, req_context: ReqContext) -> MissReason:
        return self.lookups.why_false(key, req_context)

    def submit_load(self, job: TransferJob) -> None:
        """Raises `UsageError` if the job makes no sense or the tier is shut down."""
        self._submit(job, is_promotion=True)

    def submit_store(self, job: TransferJob) -> None:
        """Raises `UsageError` if the job makes no sense or the tier is shut down."""
        self._submit(job, is_promotion=False)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._collect()
        reports, self._reports = self._reports, []
        return reports

    def release_lookups(self, req_context: ReqContext) -> None:
        self.lookups.cleanup(req_context.req_id)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.lookups.cleanup(req_context.req_id)

    def on_schedule_end(self) -> None:
        self.lookups.flush()

    def has_pending_work(self) -> bool:
        return bool(self._running or self._reports or self.lookups.has_pending_work())

    def drain_jobs(self, timeout: float | None) -> bool:
        until = self._until(timeout)
        while True:
            self._collect()
            if not self._running:
                return True
            left = self._left(until)
            if left is not None and left <= 0:
                return False
            self._runtime.wait(1.0 if left is None else left)

    def shutdown(self, timeout: float | None = 5.0) -> None:
        """Stop within `timeout` seconds whatever the back end does. Idempotent.

        Jobs submitted before are finished if there is time. The others are
        reported as failed, and what their lanes do later reaches no slot.
        Raises `TierError` if the back end could not be closed.
        """
        if self._shut:
            return
        self._shut = True
        until = self._until(timeout)
        self.lookups.shutdown(self._left(until))
        for lane in self._lanes:
            lane.stop(self._left(until))
        with self._gate:
            self._gate_closed = True
        self._collect()
        self._reports.extend(JobResult(job_id, success=False) for job_id in self._running)
        self._running.clear()
        trouble: list[BaseException] = []
        closer = self._runtime.lane(f"kvtier {self.label} close")
        closer.post(lambda: self._close(trouble))
        closer.stop(self._left(until))
        if trouble:
            raise TierError(f"tier {self.label} could not be closed: {trouble[0]}") from trouble[0]

    def _until(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._runtime.now() + timeout

    def _left(self, until: float | None) -> float | None:
        return None if until is None else max(0.0, until - self._runtime.now())

    def _submit(self, job: TransferJob, *, is_promotion: bool) -> None:
        if self._shut:
            raise UsageError(f"tier {self.label} is shut down")
        if job.is_promotion is not is_promotion:
            raise UsageError(f"job {job.job_id} goes the other way: {job.is_promotion=}")
        if job.job_id in self._running:
            raise UsageError(f"tier {self.label}: job {job.job_id} was submitted before")
        if len(job.keys) != len(job.slots):
            raise UsageError(f"job {job.job_id} has {len(job.keys)} keys, {len(job.slots)} slots")
        if job.slots and not 0 <= min(job.slots) <= max(job.slots) < self._view.num_blocks:
            raise UsageError(f"job {job.job_id}: slots {job.slots} of {self._view.num_blocks}")
        n = min(range(len(self._lanes)), key=self._queued.__getitem__)
        lane = self._lanes[n]
        self._queued[n] += len(job.keys)
        self._running[job.job_id] = job
        lane.post(lambda: self._ended.append(self._run(job, n, lane)))

    def _collect(self) -> None:
        """Turn what the lanes said into reports and marks, on the caller's thread."""
        while self._ended:
            end = self._ended.popleft()
            job = end.job
            if self._running.pop(job.job_id, None) is None:
                continue  # reported by shutdown
            self._queued[end.lane] -= len(job.keys)
            if end.failures:
                self.errors.update(map(_kind, end.failures))
                _log.warning(
                    "promotion_failed" if job.is_promotion else "cascade_failed",
                    tier=self.label,
                    job=job.job_id,
                    blocks=len(end.failures),
                    error=shown(end.failures[-1]),
                )
            if job.is_promotion:
                self.lookups.mark_miss([key for key in job.keys if key not in end.moved])
            else:
                self.lookups.mark_hit(end.moved, job.req_context)
            self._reports.append(
                JobResult(
                    job.job_id,
                    success=not end.failures,
                    successful_keys=end.moved if end.failures else None,
                    transfer_time=end.seconds,
                    transfer_bytes=len(end.moved) * self._view.block_bytes,
                )
            )

    # The rest runs on lanes.

    def _run(self, job: TransferJob, n: int, lane: Lane) -> _Ended:
        move = self._load if job.is_promotion else self._store
        began = self._runtime.now()
        moved: list[OffloadKey] = []
        failures: list[BaseException] = []
        for key, slot in zip(job.keys, job.slots, strict=True):
            try:
                if lane.stopping:
                    raise TierError("shut down before it was this block's turn")
                move(key, slot, job.req_context)
            except BaseException as error:
                failures.append(error)
            else:
                moved.append(key)
        seconds = self._runtime.now() - began
        return _Ended(job, n, tuple(moved), tuple(failures), seconds)

    def _load(self, key: OffloadKey, slot: int, req_context: ReqContext) -> None:
        try:
            payload = decode(key, self.store.get(key, req_context), self._view.block_bytes)
        except DamagedBlock as damage:
            try:
                self.store.delete(key, req_context)
            except Exception as error:
                raise DamagedBlock(f"{damage}; removing it failed: {error!r}") from error
            raise
        with self._gate:
            if self._gate_closed:
                raise TierError("the block came after shutdown")
            self._view.slot(slot)[:] = payload

    def _store(self, key: OffloadKey, slot: int, req_context: ReqContext) -> None:
        self.store.put(key, encode(key, self._view.slot(slot)), req_context)

    def _close(self, trouble: list[BaseException]) -> None:
        try:
            self.store.close()
        except BaseException as error:
            trouble.append(error)


def _kind(error: BaseException) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return " ".join(filter(None, (type(error).__name__, errorcode.get(number or 0))))


class _StoreLookups(AsyncLookupManager):
    """The questions of a `StoreTier`."""

    def __init__(
        self,
        store: BlockStore,
        tier: str,
        *,
        runtime: Runtime,
        max_batches_out: int,
        deadline: float | None,
        verdict_lifetime: float | None,
        observer: LookupObserver | None,
    ) -> None:
        self._store = store
        super().__init__(
            tier,
            runtime=runtime,
            max_batches_out=max_batches_out,
            deadline=deadline,
            verdict_lifetime=verdict_lifetime,
            observer=observer,
        )

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._store.contains(keys, req_context)

    def probe_scope(self, req_context: ReqContext) -> Hashable:
        return self._store.scope(req_context)
