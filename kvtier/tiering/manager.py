"""`TieringOffloadingManager`: who waits for what, and what is told to whom.

A step: the first `locate` or `prepare_store` takes in what the tiers have
finished. Requests are looked up (`locate`, which starts nothing), and what they
need is promoted (`promote`, which reserves the slots at once). Admitted requests
read and fill slots (`prepare_load` to `complete_store`). `on_schedule_end` hands
the promotions to the tiers, one job for each tier and request.

So within a step nothing that was found is lost: reports come before the first
answer, an answer `HIT` pins the block until the step is over, and a reserved
slot belongs to its write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.results import LookupResult, MissReason
from kvtier.runtime import Runtime
from kvtier.tiering.counts import DeferReason, TieringCounts
from kvtier.tiering.jobs import JobLedger, OpenJob, outcome_of
from kvtier.tiering.promotions import Promotions
from kvtier.tiering.reports import JobOutcome, JobReport, Reports, TieringObserver
from kvtier.tiering.requests import RequestState
from kvtier.tiering.secondaries import Secondaries
from kvtier.tiers.base import (
    LoadStoreSpec,
    OffloadingManager,
    PrepareStoreOutput,
    SecondaryTierManager,
)
from kvtier.tiers.host import BlockStatus, CPUOffloadingManager

__all__ = ["TieringOffloadingManager"]


class TieringOffloadingManager(OffloadingManager):
    """The tiers together, as one `OffloadingManager`.

    `primary` belongs to this manager from now on. `secondary_tiers` are asked in
    this order.

    `headroom`: so many slots are never taken up by blocks that requests wait for,
    or requests that wait could fill the primary and keep each other waiting (vllm
    49902). A promotion is refused while `primary.awaited >= num_blocks -
    headroom`. At least 0 and less than the number of slots; by default 1, or 0 if
    there is one slot.
    `deferral_bound`: after so many deferred passes in its life a request reads
    `MISS` for everything that is not readable at once, and a write that is older
    than so many steps gets no new waiters (vllm 49829). `None`: no bound.
    `lookup_reports_pending`: `lookup` answers `HIT_PENDING`, as vLLM 0.33 does,
    instead of `RETRY` when it has started a promotion.
    `hold_limit`: seconds for which a reset may keep promotions on hold.
    `observer` is told of every job that ended.

    Every method raises `UsageError`, and changes nothing, for a request that
    `on_new_request` has not announced or that has finished. To be read, not
    written: `labels` of the tiers, the primary's first, and `counts`.
    """

    def __init__(
        self,
        primary: CPUOffloadingManager,
        secondary_tiers: Sequence[SecondaryTierManager],
        *,
        runtime: Runtime,
        headroom: int | None = None,
        deferral_bound: int | None = None,
        lookup_reports_pending: bool = False,
        hold_limit: float = 60.0,
        observer: TieringObserver | None = None,
    ) -> None:
        slots = primary.num_blocks
        if headroom is None:
            headroom = min(1, slots - 1)
        if not 0 <= headroom < slots:
            raise UsageError(f"headroom is at least 0 and below the {slots} slots, not {headroom}")
        if deferral_bound is not None and deferral_bound < 0:
            raise UsageError(f"deferral_bound is at least 0 (or None), not {deferral_bound}")
        self.counts = TieringCounts()
        self._primary = primary
        self._secondaries = Secondaries(secondary_tiers, runtime, self.counts)
        self.labels = ("0:primary", *self._secondaries.labels)
        self._runtime = runtime
        self._budget = slots - headroom
        self._bound = deferral_bound
        self._reports_pending = lookup_reports_pending
        self._hold_limit = hold_limit
        self._held_until = 0.0
        self._requests: dict[str, RequestState] = {}
        self._promotions = Promotions(primary, self._requests)
        self._jobs = JobLedger(self.counts)
        self._reports = Reports(observer)
        self._polled = False
        self._closed = False

    # Requests

    def on_new_request(self, req_context: ReqContext) -> None:
        """The first call for a request. `UsageError` if one of this id is live.

        An id may come back while the engine still moves blocks of its
        predecessor. If stores are among them, the tiers have not heard that the
        predecessor finished, and see one request.
        """
        state = self._requests.get(req_context.req_id)
        if state is None:
            state = self._requests[req_context.req_id] = RequestState(req_context, parted=True)
        elif not state.finished:
            raise UsageError(f"request {req_context.req_id!r} is live already")
        state.ctx, state.finished, state.deferrals = req_context, False, 0
        if state.parted:
            state.parted = False
            self._secondaries.tell("on_new_request", lambda tier: tier.on_new_request(req_context))

    def on_request_finished(self, req_context: ReqContext) -> None:
        """The request asks and waits no more. Does nothing if it is not live.

        Its questions are let go at once. The tiers hear that it finished when
        nothing of it can be submitted any more: slots that the engine is still
        filling are cascaded first (vllm 46284).
        """
        state = self._requests.get(req_context.req_id)
        if state is None or state.finished:
            return
        self._promotions.stop_waiting(state)
        state.forget()
        state.finished = True
        ctx = state.ctx
        self._secondaries.tell("release_lookups", lambda tier: tier.release_lookups(ctx))
        self._part(state)

    def defer(self, req_context: ReqContext, reason: DeferReason) -> None:
        """Count one deferred pass, against the bound as well."""
        self._live(req_context).deferrals += 1
        self.counts.deferrals[reason] += 1

    def forget(self, req_context: ReqContext) -> None:
        """The request was preempted: it starts over, but for its deferrals."""
        state = self._live(req_context)
        self._promotions.stop_waiting(state)
        state.forget()

    def is_busy(self, req_context: ReqContext) -> bool:
        """Whether the engine still reads or fills slots for this request.

        If so, do not look it up: it would wait for itself.
        """
        return self._live(req_context).busy

    # Where is a block?

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """`locate`, and if a secondary tier has the block, promote it at once.

        `MISS` if there is no room for it (vllm 40020).
        """
        result = self.locate(key, req_context)
        if result is not LookupResult.RETRY or not self.noted(key, req_context):
            return result
        if not self.promote([key], req_context):
            return LookupResult.MISS
        return LookupResult.HIT_PENDING if self._reports_pending else LookupResult.RETRY

    def locate(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Where the block is for this request, now. Starts nothing.

        Raises `UsageError` if a tier answers with anything but a `LookupResult`.
        """
        state = self._live(req_context)
        self._poll()
        state.misses.pop(key, None)
        block = self._primary.block(key)
        if block is not None and block.ready:
            self._primary.pin(key)
            return LookupResult.HIT
        if self._denied(state, key, block):
            return LookupResult.MISS
        if block is not None:
            if key not in state.waits and self._overdue(block):
                return self._miss(state, key, MissReason.BOUND)
            self._promotions.wait(state, key, block)
            return LookupResult.HIT_PENDING
        if key in state.notes:
            return LookupResult.RETRY
        if self._closed:
            return self._settle(state, key, MissReason.CLOSED)
        answer = self._secondaries.ask(key, state.ctx)
        if answer.tier is not None:
            state.notes[key] = answer.tier
            return LookupResult.RETRY
        if answer.open:
            return LookupResult.RETRY
        return self._settle(state, key, answer.reason)

    def noted(self, key: OffloadKey, req_context: ReqContext) -> bool:
        """After `RETRY`: a secondary tier has it. Else a question about it is open."""
        return key in self._live(req_context).notes

    def pending_reason(self, key: OffloadKey, req_context: ReqContext) -> DeferReason:
        """After `RETRY` or `HIT_PENDING`: what the request would wait for."""
        noted = self.noted(key, req_context)
        block = self._primary.block(key)
        if block is None:
            return DeferReason.PROMOTION if noted else DeferReason.PROBE
        return DeferReason.PROMOTION if self._promotions.is_load(block) else DeferReason.STORE

    def source(self, key: OffloadKey, req_context: ReqContext) -> str:
        """After `HIT`: label of the tier whose write this request waited for, else the primary's.

        To be asked in the step of the answer.
        """
        wait = self._live(req_context).waits.get(key)
        block = self._primary.block(key)
        if wait is None or block is None or wait.write_id != block.write_id:
            return self.labels[0]
        return self.labels[wait.tier]

    def miss_reason(self, key: OffloadKey, req_context: ReqContext) -> MissReason:
        """After `MISS`, `refuse` or a refused `promote`: why. Else `BEYOND`."""
        return self._live(req_context).misses.get(key, MissReason.BEYOND)

    # Promotion

    def room(self) -> int:
        """How many promotions could be started now."""
        if self._closed or self.held:
            return 0
        return max(0, min(self._budget - self._primary.awaited, self._primary.available))

    def promote(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> list[OffloadKey]:
        """Bring blocks into the primary for this request; which of them will come.

        A slot is reserved now, and the tier gets its job at the end of the step.
        A write of the block that is under way is joined, whatever the room. The
        others read `MISS` in this pass. Raises `UsageError` for a block that no
        tier is known to have.
        """
        state = self._live(req_context)
        for key in keys:
            known = key in state.notes or key in state.waits or key in state.settled
            if not known and self._primary.block(key) is None:
                raise UsageError(f"block {key.hex()} was not found in any tier: nothing to promote")
        return [key for key in keys if self._bring(state, key)]

    def refuse(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        """Note that these blocks read `MISS` in this pass, because there was no room."""
        state = self._live(req_context)
        for key in keys:
            self._refuse(state, key)

    # The engine's transfers

    def prepare_load(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """The request is admitted, with these blocks (or none). It stops waiting for any."""
        state = self._live(req_context)
        spec = self._primary.prepare_load(keys, req_context)
        state.reading.update(spec.write_ids)
        self._promotions.stop_waiting(state)
        return spec

    def complete_load(self, spec: LoadStoreSpec, req_context: ReqContext) -> None:
        """Give back references that `prepare_load` gave to this request.

        Also after it finished. `UsageError` if it has not all of them.
        """
        state = self._requests.get(req_context.req_id)
        returned = Counter(spec.write_ids)
        if state is None or not returned <= state.reading:
            raise UsageError(f"request {req_context.req_id!r} is not reading {spec}")
        self._primary.complete_load(spec, req_context)
        state.reading -= returned
        self._part(state)

    def prepare_store(
        self, keys: Sequence[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput:
        """Take slots for new blocks of this request, as far as there is room."""
        state = self._live(req_context)
        self._poll()
        output = self._primary.prepare_store(keys, req_context)
        state.filling.update(output.store_spec.write_ids)
        self.counts.stores.skipped += len(output.no_room)
        return output

    def complete_store(
        self, spec: LoadStoreSpec, req_context: ReqContext, success: bool = True
    ) -> None:
        """The engine has filled these slots, or failed to; filled ones go to every tier.

        Also after the request finished. `UsageError` if `prepare_store` did not
        give it these slots.
        """
        state = self._requests.get(req_context.req_id)
        if state is None or not state.filling.issuperset(spec.write_ids):
            raise UsageError(f"request {req_context.req_id!r} is not filling {spec}")
        self._primary.complete_store(spec, req_context, success)
        state.filling.difference_update(spec.write_ids)
        if success and not self._closed:
            self._cascade(spec, req_context)
        self._part(state)

    def touch(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        """These blocks were used; `keys` in prefix order."""
        self._live(req_context)
        self._primary.touch(keys, req_context)
        self._secondaries.tell("touch", lambda tier: tier.touch(keys, req_context))

    # Steps

    def on_schedule_end(self) -> None:
        """Submit the promotions of this step; then the tiers' and the primary's step ends."""
        self._poll()
        for tier, spec, ctx in self._promotions.take():
            self._submit(tier, spec, is_promotion=True, ctx=ctx)
        self._secondaries.tell("on_schedule_end", lambda tier: tier.on_schedule_end())
        self._primary.on_schedule_end()
        self._polled = False

    @property
    def open_promotions(self) -> int:
        """Loads that no tier has reported yet."""
        return self._jobs.open_jobs(promotions=True)

    @property
    def open_stores(self) -> int:
        """Stores into secondary tiers that these have not reported yet."""
        return self._jobs.open_jobs(promotions=False)

    def has_pending_work(self) -> bool:
        """Whether anything is under way that another step would take in. Never after shutdown."""
        if self._closed:
            return False
        return (
            bool(self._promotions.queued or len(self._jobs))
            or any(state.finished for state in self._requests.values())
            or self._secondaries.has_pending_work()
        )

    def table_sizes(self) -> dict[str, int]:
        """Entries per table; all 0 when every request is finished and every job reported."""
        states = self._requests.values()
        return {
            "requests": len(states),
            "lookups": sum(len(s.notes) + len(s.waits) + len(s.settled) for s in states),
            "jobs": len(self._jobs) + len(self._promotions),
            "pins": self._primary.references + self._primary.awaited,
        }

    # Reset and shutdown

    @property
    def held(self) -> bool:
        """Whether promotions are on hold: a reset has slots that are still written or read.

        No longer than `hold_limit` seconds after the reset. The slots stay with
        their writers and readers however long these take.
        """
        return self._primary.holding > 0 and self._runtime.now() < self._held_until

    def reset_cache(self, timeout: float | None = 5.0) -> bool:
        """Forget every block of the primary; whether no slot had to be kept back.

        Called between steps, else `UsageError`. Waits up to `timeout` seconds
        for the tiers to finish their jobs. A slot that is written or read after
        that is free when its writer or readers are done (vllm 45268).
        """
        if self._polled or self._promotions.queued:
            raise UsageError("reset_cache between steps: call on_schedule_end first")
        self._secondaries.drain(timeout)
        self._poll()
        self._polled = False
        self._primary.reset_cache()
        self._held_until = self._runtime.now() + self._hold_limit
        return not self._primary.holding

    def shutdown(self, timeout: float | None = 5.0) -> None:
        """Shut every tier down, then raise the first error there was. Idempotent.

        `timeout` seconds bound them all: each gets an equal share of what its
        predecessors left. Afterwards the primary goes on serving what it has.
        """
        if self._closed:
            return
        self._closed = True
        self._promotions.drop()
        try:
            self._secondaries.shutdown(timeout)
        finally:
            self._polled = False
            self._poll()
            for job in self._jobs:
                self._report(job, 0, JobOutcome.OPEN)

    # Rules

    def _live(self, ctx: ReqContext) -> RequestState:
        state = self._requests.get(ctx.req_id)
        if state is None or state.finished:
            raise UsageError(f"request {ctx.req_id!r} is not live: call on_new_request first")
        return state

    def _denied(self, state: RequestState, key: OffloadKey, block: BlockStatus | None) -> bool:
        """Whether the request may not wait for this block any more; if so, it is noted why."""
        if (reason := state.settled.get(key)) is not None:
            self._miss(state, key, reason)
            return True
        if self._bound is not None and state.deferrals >= self._bound:
            self._promotions.stop_waiting(state)
            self._miss(state, key, MissReason.BOUND)
            return True
        wait = state.waits.get(key)
        if wait is not None and (block is None or block.write_id != wait.write_id):
            self._settle(state, key, MissReason.LOST)
            return True
        return False

    def _overdue(self, block: BlockStatus) -> bool:
        if self._bound is None:
            return False
        return self._primary.step - block.written_since_step > self._bound

    def _miss(self, state: RequestState, key: OffloadKey, reason: MissReason) -> LookupResult:
        state.misses[key] = reason
        return LookupResult.MISS

    def _settle(self, state: RequestState, key: OffloadKey, reason: MissReason) -> LookupResult:
        state.settled[key] = reason
        return self._miss(state, key, reason)

    def _refuse(self, state: RequestState, key: OffloadKey) -> None:
        if self._closed:
            state.misses[key] = MissReason.CLOSED
        elif self.held:
            state.misses[key] = MissReason.HELD
        else:
            state.misses[key] = MissReason.NO_ROOM
            self.counts.promotions.no_room += 1

    def _bring(self, state: RequestState, key: OffloadKey) -> bool:
        """Reserve a slot for `key`, or join the write that there is."""
        block = self._primary.block(key)
        if self._denied(state, key, block):
            return False
        if block is None and self.room() > 0:
            block = self._promotions.reserve(state, key)
        if block is None:
            self._refuse(state, key)
            return False
        self._promotions.wait(state, key, block)
        return True

    def _cascade(self, spec: LoadStoreSpec, ctx: ReqContext) -> None:
        """Store into every tier what is readable, and still is what the engine filled.

        A reset may have come between; what it dropped is not stored.
        """
        filled = []
        for key, write_id in zip(spec.keys, spec.write_ids, strict=True):
            block = self._primary.block(key)
            if block is not None and block.write_id == write_id:
                filled.append(key)
        if filled:
            for tier in self._secondaries.numbers:
                held = self._primary.prepare_load(filled, ctx)
                self._submit(tier, held, is_promotion=False, ctx=ctx)

    def _submit(
        self, tier: int, spec: LoadStoreSpec, *, is_promotion: bool, ctx: ReqContext
    ) -> None:
        job = self._jobs.open(tier, spec, is_promotion, ctx, self._runtime.now())
        if not self._secondaries.submit(tier, job.transfer):
            self._jobs.refused(job)
            self._report(job, 0, JobOutcome.RAISED)
            self._end(job, frozenset())

    def _poll(self) -> None:
        """Take in what the tiers have finished, once a step."""
        if self._polled:
            return
        self._polled = True
        for tier, report in self._secondaries.reports():
            ended = self._jobs.close(tier, report)
            if ended is not None:
                job, moved = ended
                self._report(job, len(moved), outcome_of(job, moved))
                self._end(job, moved)

    def _report(self, job: OpenJob, moved: int, outcome: JobOutcome) -> None:
        if self._reports.observer is not None:
            now = self._runtime.now()
            report = JobReport(
                self.labels[job.tier], job.transfer, moved, outcome, job.submitted, now
            )
            self._reports.tell(lambda observer: observer.on_job(report))

    def _end(self, job: OpenJob, moved: frozenset[OffloadKey]) -> None:
        """Give back what `job` held. Its blocks in `moved` made it, the others did not."""
        if job.transfer.is_promotion:
            self._promotions.end(job.spec, job.transfer.req_context, moved)
        else:
            self._primary.complete_load(job.spec, job.transfer.req_context)

    def _part(self, state: RequestState) -> None:
        """Tell the tiers that the request finished, and drop it, when the time has come."""
        if not state.finished:
            return
        if not state.filling and not state.parted:
            state.parted = True
            ctx = state.ctx
            self._secondaries.tell("on_request_finished", lambda t: t.on_request_finished(ctx))
        if not state.busy:
            del self._requests[state.ctx.req_id]
