"""A secondary tier that does what a test tells it, and a rig around one tiering manager.

Nothing happens in a `FakeTier` by itself. What it answers to `lookup` is
scripted per block; a job stays open until the test reports it; any method can be
made to raise. It keeps a journal of its calls, in which a test can see their
order, and itself checks what a tier is promised: no job of a request that it was
told has finished, and none twice.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kvtier.keys import OffloadKey, make_offload_key
from kvtier.request import ReqContext
from kvtier.results import LookupResult, MissReason
from kvtier.runtime import VirtualRuntime
from kvtier.tiering import DeferReason, TieringOffloadingManager
from kvtier.tiers.base import JobResult, SecondaryTierManager, TransferJob
from kvtier.tiers.host import CPUOffloadingManager

__all__ = ["BLOCK_BYTES", "Boom", "FakeTier", "Rig", "ctx", "key", "one_pass", "payload"]

BLOCK_BYTES = 16

HIT, HIT_PENDING = LookupResult.HIT, LookupResult.HIT_PENDING
RETRY, MISS = LookupResult.RETRY, LookupResult.MISS


class Boom(Exception):
    """What a fake tier raises."""


def key(n: int) -> OffloadKey:
    """Block number `n`."""
    return make_offload_key(hashlib.sha256(b"block %d" % n).digest(), 0)


def payload(block: OffloadKey) -> bytes:
    """The bytes of a block."""
    return hashlib.shake_128(block).digest(BLOCK_BYTES)


def ctx(req_id: str) -> ReqContext:
    return ReqContext(req_id)


class FakeTier(SecondaryTierManager):
    """`answers[key]` is what `lookup` says: in turn, the last one for ever; else `MISS`.

    An exception among the answers is raised, anything else is returned as it is.
    `raises` holds the names of methods that raise, `refuses` the requests whose
    jobs it refuses by raising. `reports` is what the next
    `get_finished_jobs` yields; an exception among them is raised at its place, and
    what follows it is kept for the next call.
    """

    def __init__(self, tier_type: str = "fake", runtime: VirtualRuntime | None = None) -> None:
        self.tier_type = tier_type
        self.runtime = runtime
        self.answers: dict[OffloadKey, list[object]] = {}
        self.reasons: dict[OffloadKey, MissReason] = {}
        self.raises: set[str] = set()
        self.refuses: set[str] = set()
        self.hangs: set[str] = set()
        self.reports: list[object] = []
        self.jobs: dict[int, TransferJob] = {}
        self.journal: list[tuple[Any, ...]] = []
        self.loaded: list[OffloadKey] = []
        self.broken: list[str] = []
        self.busy = False
        self._submitted: set[int] = set()
        self._gone: set[str] = set()

    # What a test does with it

    def has(self, *blocks: int) -> FakeTier:
        """From now on it has these blocks."""
        self.answers.update({key(n): [HIT] for n in blocks})
        return self

    @property
    def names(self) -> list[str]:
        """Names of the calls so far."""
        return [call[0] for call in self.journal]

    def calls(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of the calls of this name so far."""
        return [call[1:] for call in self.journal if call[0] == name]

    def asked(self, n: int) -> int:
        """How often it was asked for block `n`."""
        return sum(args[0] == key(n) for args in self.calls("lookup"))

    @property
    def loads(self) -> list[TransferJob]:
        """Open loads, oldest first."""
        return [job for job in self.jobs.values() if job.is_promotion]

    @property
    def stores(self) -> list[TransferJob]:
        """Open stores, oldest first."""
        return [job for job in self.jobs.values() if not job.is_promotion]

    def report(self, job: TransferJob, made: Collection[OffloadKey] | None = None) -> None:
        """The job ends: all of it made it, or the blocks in `made`."""
        del self.jobs[job.job_id]
        if made is None:
            self.reports.append(JobResult(job.job_id, success=True))
        else:
            self.reports.append(JobResult(job.job_id, success=False, successful_keys=made))

    def report_all(self, *, success: bool = True) -> None:
        for job in list(self.jobs.values()):
            self.report(job, None if success else ())

    # What the manager does with it

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        self._note("lookup", key, req_context.req_id)
        script = self.answers.get(key, [MISS])
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]

    def miss_reason(self, key: OffloadKey, req_context: ReqContext) -> MissReason:
        self._note("miss_reason", key, req_context.req_id)
        return self.reasons.get(key, MissReason.ABSENT)

    def submit_load(self, job: TransferJob) -> None:
        self._submit("submit_load", job)

    def submit_store(self, job: TransferJob) -> None:
        self._submit("submit_store", job)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._note("get_finished_jobs")
        while self.reports:
            report = self.reports.pop(0)
            if isinstance(report, BaseException):
                raise report
            yield report  # type: ignore[misc]

    def touch(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        self._note("touch", tuple(keys), req_context.req_id)

    def on_new_request(self, req_context: ReqContext) -> None:
        self._gone.discard(req_context.req_id)
        self._note("on_new_request", req_context.req_id)

    def on_request_finished(self, req_context: ReqContext) -> None:
        if req_context.req_id in self._gone:
            self.broken.append(f"{req_context.req_id} finished twice")
        self._gone.add(req_context.req_id)
        self._note("on_request_finished", req_context.req_id)

    def release_lookups(self, req_context: ReqContext) -> None:
        self._note("release_lookups", req_context.req_id)

    def on_schedule_end(self) -> None:
        self._note("on_schedule_end")

    def has_pending_work(self) -> bool:
        self._note("has_pending_work")
        return self.busy

    def drain_jobs(self, timeout: float | None) -> bool:
        self._note("drain_jobs", timeout)
        if "drain_jobs" not in self.hangs:
            self.report_all()
        return not self.jobs

    def shutdown(self, timeout: float | None = 5.0) -> None:
        self._note("shutdown", timeout)

    def _submit(self, name: str, job: TransferJob) -> None:
        if job.req_context.req_id in self._gone:
            self.broken.append(f"{name} for {job.req_context.req_id}, which has finished")
        if job.job_id in self._submitted or not job.keys or len(job.keys) != len(job.slots):
            self.broken.append(f"{name} of {job}")
        self._submitted.add(job.job_id)
        self._note(name, job.req_context.req_id, job.keys)
        if job.req_context.req_id in self.refuses:
            raise Boom(f"{self.tier_type}: {name}")
        self.jobs[job.job_id] = job
        if job.is_promotion:
            self.loaded.extend(job.keys)

    def _note(self, name: str, *args: object) -> None:
        self.journal.append((name, *args))
        if name in self.hangs and self.runtime is not None and isinstance(args[0], float):
            self.runtime.sleep(args[0])  # to the very end of what it was given
        if name in self.raises:
            raise Boom(f"{self.tier_type}: {name}")


class Rig:
    """A manager over a primary of `cap` slots and some fake tiers; blocks are numbers."""

    def __init__(
        self,
        cap: int = 4,
        tiers: int = 1,
        *,
        headroom: int | None = None,
        deferral_bound: int | None = None,
        lookup_reports_pending: bool = False,
        hold_limit: float = 60.0,
    ) -> None:
        self.runtime = VirtualRuntime()
        self.primary = CPUOffloadingManager(cap, BLOCK_BYTES)
        self.tiers = [FakeTier(f"t{n}", self.runtime) for n in range(1, tiers + 1)]
        self.manager = TieringOffloadingManager(
            self.primary,
            self.tiers,
            runtime=self.runtime,
            headroom=headroom,
            deferral_bound=deferral_bound,
            lookup_reports_pending=lookup_reports_pending,
            hold_limit=hold_limit,
        )

    @property
    def tier(self) -> FakeTier:
        return self.tiers[0]

    def start(self, *req_ids: str) -> None:
        for req_id in req_ids:
            self.manager.on_new_request(ctx(req_id))

    def finish(self, *req_ids: str) -> None:
        for req_id in req_ids:
            self.manager.on_request_finished(ctx(req_id))

    def locate(self, req_id: str, n: int) -> LookupResult:
        return self.manager.locate(key(n), ctx(req_id))

    def lookup(self, req_id: str, n: int) -> LookupResult:
        return self.manager.lookup(key(n), ctx(req_id))

    def promote(self, req_id: str, *blocks: int) -> list[OffloadKey]:
        return self.manager.promote([key(n) for n in blocks], ctx(req_id))

    def reason(self, req_id: str, n: int) -> MissReason:
        return self.manager.miss_reason(key(n), ctx(req_id))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.manager.on_schedule_end()

    def settle(self, *, success: bool = True) -> None:
        """Every open job ends, and the manager takes that in."""
        for tier in self.tiers:
            tier.report_all(success=success)
        self.step(2)  # this step may have polled before

    def fill(self, req_id: str, *blocks: int, success: bool = True) -> None:
        """The engine stores these blocks into the primary, all at once."""
        keys = [key(n) for n in blocks]
        spec = self.manager.prepare_store(keys, ctx(req_id)).store_spec
        self.manager.complete_store(spec, ctx(req_id), success)

    def one_pass(self, req_id: str, *blocks: int) -> int | None:
        return one_pass(self.manager, ctx(req_id), [key(n) for n in blocks])

    def holders(self, n: int) -> set[str]:
        """Who waits for the write of block `n`."""
        block = self.primary.block(key(n))
        return set() if block is None else set(block.waiters)

    def expect_idle(self) -> None:
        """Everything is let go: every table empty, every pin 0, every count adds up."""
        manager = self.manager
        assert not any(manager.table_sizes().values()), manager.table_sizes()
        assert not manager.has_pending_work()
        assert self.primary.references == self.primary.awaited == self.primary.holding == 0
        assert self.primary.available == self.primary.num_blocks
        self.expect_sums()
        assert [tier.broken for tier in self.tiers] == [[] for _ in self.tiers]

    def expect_sums(self) -> None:
        """submitted = ok + partial + failed + raised + open."""
        manager = self.manager
        for counts, still_open in (
            (manager.counts.promotions, manager.open_promotions),
            (manager.counts.stores, manager.open_stores),
        ):
            ended = counts.ok + counts.partial + counts.failed + counts.raised
            assert counts.submitted == ended + still_open


def one_pass(
    manager: TieringOffloadingManager,
    req: ReqContext,
    keys: Sequence[OffloadKey],
    window: int | None = None,
    answers: Counter[LookupResult] | None = None,
) -> int | None:
    """One pass of a request with one group, from the definition of E*; `None`: deferred.

    `window` blocks before the end are needed, or all of them. `answers` collects
    what `locate` said.
    """
    read: dict[OffloadKey, LookupResult] = {}

    def result(block: OffloadKey) -> LookupResult:
        if block not in read:
            read[block] = manager.locate(block, req)
            if answers is not None:
                answers[read[block]] += 1
        return read[block]

    def needed(end: int) -> Sequence[OffloadKey]:
        return keys[0 if window is None else max(0, end - window) : end]

    def longest() -> int:
        return next(
            end
            for end in range(len(keys), -1, -1)
            if all(result(block) is not MISS for block in needed(end))
        )

    while True:
        need = needed(longest())
        if all(read[block] is HIT for block in need):
            return longest()
        elsewhere = [block for block in need if read[block] is RETRY]
        unknown = [block for block in elsewhere if not manager.noted(block, req)]
        if unknown or len(elsewhere) <= manager.room():
            break
        read[elsewhere[-1]] = MISS
        manager.refuse(elsewhere[-1:], req)
    if not unknown and elsewhere:
        assert manager.promote(elsewhere, req) == elsewhere
    reasons = {manager.pending_reason(block, req) for block in need if read[block] is not HIT}
    manager.defer(req, next(reason for reason in DeferReason if reason in reasons))
    return None
