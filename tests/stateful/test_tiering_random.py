"""Random hostile runs of the tiering manager: short, many, each drawn from its seed.

In a run up to three requests of up to four blocks meet a primary of up to five
slots and one or two tiers that are slow, lie, raise and talk nonsense; requests
are aborted and preempted at any moment, ids come back, the cache is reset. The
engine is slow as well: it reads and fills slots over some steps, also when the
request is gone.

The bytes are real. Whoever writes a slot scribbles over it until the end, and
whoever reads checks at the end what is there. So a slot that is given away under
its writer or its reader is seen, and so is a block that is readable and not whole.

No timeout helps a run along, but for the runs in which a tier never reports a job:
those set the deferral bound. A failing run names its seed: `Run(seed).play()` is
that run again.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.results import LookupResult, MissReason
from kvtier.runtime import VirtualRuntime
from kvtier.tiering import DeferReason, JobCounts, TieringOffloadingManager
from kvtier.tiers.base import JobResult, LoadStoreSpec, TransferJob
from kvtier.tiers.host import CPUOffloadingManager
from tests.support.fake_tier import BLOCK_BYTES, Boom, FakeTier, ctx, key, one_pass, payload

HIT, HIT_PENDING = LookupResult.HIT, LookupResult.HIT_PENDING
RETRY, MISS = LookupResult.RETRY, LookupResult.MISS

MOST_DEFERRALS = 22
"""How often a request of four blocks was deferred at most in 20,000 runs of the design's model.
What is to be seen is that there is a small number at all."""

FOR_LIFE = {MissReason.ABSENT, MissReason.LOOKUP_ERROR, MissReason.LOAD_FAILED, MissReason.LOST}
"""A block that was missed for one of these reasons is settled for its request."""


@dataclass
class Slots:
    """Who uses which slot of the primary, and what is in it."""

    primary: CPUOffloadingManager
    writers: set[int] = field(default_factory=set)
    readers: Counter[int] = field(default_factory=Counter)

    def content(self, slot: int) -> bytes:
        return bytes(self.primary.view.slot(slot))

    def scribble(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.primary.view.slot(slot)[:] = b"?" * BLOCK_BYTES

    def begin_write(self, slots: Sequence[int]) -> None:
        for slot in slots:
            assert slot not in self.writers, f"slot {slot} has two writers"
            assert not self.readers[slot], f"slot {slot} is written under its reader"
            self.writers.add(slot)
        self.scribble(slots)

    def end_write(
        self, keys: Sequence[OffloadKey], slots: Sequence[int], good: Collection[OffloadKey]
    ) -> None:
        for block, slot in zip(keys, slots, strict=True):
            self.writers.remove(slot)
            if block in good:
                self.primary.view.slot(slot)[:] = payload(block)

    def begin_read(self, slots: Sequence[int]) -> None:
        assert not self.writers.intersection(slots), "a slot is read under its writer"
        self.readers.update(slots)

    def end_read(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        for block, slot in zip(keys, slots, strict=True):
            assert self.content(slot) == payload(block), f"slot {slot} was reused under its reader"
        self.readers.subtract(slots)


class HostileTier(FakeTier):
    """Slow, lying, raising. In the end it says the truth about each of its jobs, once."""

    def __init__(self, name: str, rng: random.Random, slots: Slots, seen: Counter[str]) -> None:
        super().__init__(name)
        self.rng, self.slots, self.seen = rng, slots, seen
        self.tally: Counter[tuple[bool, str]] = Counter()
        self.nonsense = 0
        self.may_hang = False
        self.others: list[HostileTier] = []
        self._hung: set[int] = set()
        self._age: Counter[int] = Counter()
        self._retries: Counter[tuple[str, OffloadKey]] = Counter()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        question = req_context.req_id, key
        if self._retries[question] < 2 and self.chance(0.4):
            self._retries[question] += 1
            return HIT_PENDING if self.chance(0.1) else RETRY
        self._retries[question] = 0
        self._maybe_raise("lookup")
        return HIT if self.chance(0.7) else MISS

    def miss_reason(self, key: OffloadKey, req_context: ReqContext) -> MissReason:
        self._maybe_raise("miss_reason")
        return MissReason.LOOKUP_ERROR if self.chance(0.2) else MissReason.ABSENT

    def on_new_request(self, req_context: ReqContext) -> None:
        super().on_new_request(req_context)
        self._maybe_raise("on_new_request")

    def on_request_finished(self, req_context: ReqContext) -> None:
        super().on_request_finished(req_context)
        self._maybe_raise("on_request_finished")

    def on_schedule_end(self) -> None:
        self._maybe_raise("on_schedule_end")

    def drain_jobs(self, timeout: float | None) -> bool:
        for job in list(self.jobs.values()):
            if job.job_id not in self._hung and self.chance(0.5):
                self._end(job)
        self._maybe_raise("drain_jobs")
        return not self.jobs

    def work(self) -> None:
        """Between two steps: each job ends within four of these; and some nonsense."""
        for job in list(self.jobs.values()):
            self._age[job.job_id] += 1
            if job.job_id not in self._hung and (self.chance(0.4) or self._age[job.job_id] == 4):
                self._end(job)
            elif job.is_promotion:
                self.slots.scribble(job.slots)
        foreign = [job_id for other in self.others for job_id in other.jobs]
        for what, report in (
            ("unknown job", JobResult(10**9, success=True)),
            ("no report", None),
            *(("another tier's job", JobResult(job_id, success=True)) for job_id in foreign),
        ):
            if self.chance(0.05):
                self._nonsense(what)
                self.reports.insert(self.rng.randint(0, len(self.reports)), report)
        if self.chance(0.05):
            self.seen["get_finished_jobs raised"] += 1
            self.reports.insert(self.rng.randint(0, len(self.reports)), Boom())

    def end_everything(self) -> None:
        for job in list(self.jobs.values()):
            self._end(job)

    def _submit(self, name: str, job: TransferJob) -> None:
        if self.chance(0.1):
            self.tally[job.is_promotion, "raised"] += 1
            self.refuses = {job.req_context.req_id}
            self.seen[f"{name} raised"] += 1
        try:
            super()._submit(name, job)
        finally:
            self.refuses = set()
        if job.is_promotion:
            self.slots.begin_write(job.slots)
        else:
            self.slots.begin_read(job.slots)
        if self.may_hang and self.chance(0.2):
            self.seen["hung"] += 1
            self._hung.add(job.job_id)

    def _end(self, job: TransferJob) -> None:
        del self.jobs[job.job_id]
        quality = self.rng.choice((0.0, 0.6, 1.0, 1.0))
        good = {block for block in job.keys if self.chance(quality)}
        if job.is_promotion:
            self.slots.end_write(job.keys, job.slots, good)
        else:
            self.slots.end_read(job.keys, job.slots)
        everything = len(good) == len(job.keys)
        outcome = "ok" if everything else "partial" if good else "failed"
        self.tally[job.is_promotion, outcome] += 1
        self.seen[f"{'load' if job.is_promotion else 'store'} {outcome}"] += 1

        success, named = everything, set(good)
        if self.chance(0.1):
            success = not success
            if success:
                self._nonsense("success of fewer blocks than there were")
        if self.chance(0.1):
            named.add(key(77))
            self._nonsense("foreign key")
        unsaid = (success and named == set(job.keys)) or (not success and not named)
        self.reports.append(
            JobResult(job.job_id, success, None if unsaid and self.chance(0.7) else named)
        )
        if self.chance(0.1):
            self._nonsense("repeated report")
            self.reports.append(JobResult(job.job_id, self.chance(0.5)))

    def _maybe_raise(self, name: str) -> None:
        if self.chance(0.05):
            self.seen[f"{name} raised"] += 1
            raise Boom(name)

    def _nonsense(self, what: str) -> None:
        self.nonsense += 1
        self.seen[what] += 1


class WatchedManager(TieringOffloadingManager):
    """Holds each answer against the earlier ones to the same request, and against the bytes."""

    slots: Slots

    def watch(self, slots: Slots) -> None:
        self.slots = slots
        self.writes: defaultdict[tuple[str, OffloadKey], set[int]] = defaultdict(set)
        self.final: set[tuple[str, OffloadKey]] = set()

    def locate(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        result = super().locate(key, req_context)
        about = req_context.req_id, key
        if about in self.final:
            assert result in (HIT, MISS), "a settled block is pending again"
        if result is HIT:
            block = self.slots.primary.block(key)
            assert block is not None
            assert block.step_pinned
            assert self.slots.content(block.slot) == payload(key), "a HIT that is not whole"
        elif result is HIT_PENDING:
            self._waits(about)
        elif result is MISS and self.miss_reason(key, req_context) in FOR_LIFE:
            self.final.add(about)
        return result

    def promote(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> list[OffloadKey]:
        started = super().promote(keys, req_context)
        for block in started:
            self._waits((req_context.req_id, block))
        return started

    def forget(self, req_context: ReqContext) -> None:
        super().forget(req_context)
        self._start_over(req_context)

    def on_request_finished(self, req_context: ReqContext) -> None:
        super().on_request_finished(req_context)
        self._start_over(req_context)

    def _waits(self, about: tuple[str, OffloadKey]) -> None:
        block = self.slots.primary.block(about[1])
        assert block is not None
        assert about[0] in block.waiters
        self.writes[about].add(block.write_id)
        assert len(self.writes[about]) == 1, "a second write for one request and block"

    def _start_over(self, req: ReqContext) -> None:
        for about in [about for about in self.writes if about[0] == req.req_id]:
            del self.writes[about]
        self.final = {about for about in self.final if about[0] != req.req_id}


@dataclass
class Live:
    """A request between its beginning and its end."""

    ctx: ReqContext
    keys: list[OffloadKey]
    window: int | None
    end: int | None = None
    filled: bool = False
    preempted: int = 0
    deferred: int = 0
    """Passes without an answer since it was last told to start over."""


@dataclass
class Transfer:
    """What the engine does: read slots or fill them."""

    ctx: ReqContext
    spec: LoadStoreSpec
    is_fill: bool
    age: int = 0


class Run:
    """One run. `seen` counts what happened, `worst` is the most deferrals of a request."""

    def __init__(self, seed: int, seen: Counter[str] | None = None) -> None:
        rng = self.rng = random.Random(seed)
        self.seen: Counter[str] = Counter() if seen is None else seen
        self.worst = 0
        cap = rng.randint(1, 5)
        self.runtime = VirtualRuntime(seed)
        self.primary = CPUOffloadingManager(cap, BLOCK_BYTES, rng.choice(("lru", "arc")))
        self.slots = Slots(self.primary)
        self.tiers = [
            HostileTier(f"t{n}", rng, self.slots, self.seen) for n in range(rng.randint(1, 2))
        ]
        bound = rng.choice((None, None, None, 1, 4))
        for tier in self.tiers:
            tier.others = [other for other in self.tiers if other is not tier]
            tier.may_hang = bound is not None
        self.manager = WatchedManager(
            self.primary,
            self.tiers,
            runtime=self.runtime,
            headroom=rng.choice((None, rng.randrange(cap))),
            deferral_bound=bound,
            hold_limit=rng.choice((0.0, 5.0)),
        )
        self.manager.watch(self.slots)
        self.bound = bound
        self.waiting_to_start = rng.randint(1, 6)
        self.live: dict[str, Live] = {}
        self.transfers: list[Transfer] = []

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def play(self) -> int:
        """The whole run; the most deferrals that a request had."""
        steps = 0
        while self.live or self.waiting_to_start:
            steps += 1
            assert steps < 200, f"{set(self.live)} are not done after 200 steps"
            self._step()
        for transfer in list(self.transfers):
            self._end_transfer(transfer)
        for tier in self.tiers:
            tier.end_everything()
        while any(tier.reports for tier in self.tiers):
            self.manager.on_schedule_end()
        self.manager.on_schedule_end()
        self._expect_nothing_left()
        return self.worst

    def _step(self) -> None:
        rng = self.rng
        if self.waiting_to_start and len(self.live) < 3 and self.chance(0.5):
            self._begin()
        order = list(self.live.values())
        rng.shuffle(order)
        for request in order:
            self._mishap(request)
            if request.ctx.req_id in self.live:
                if request.end is None:
                    self._pass(request)
                else:
                    self._run(request)
        for transfer in list(self.transfers):
            transfer.age += 1
            if self.chance(0.5) or transfer.age == 3:
                self._end_transfer(transfer)
            elif transfer.is_fill:
                self.slots.scribble(transfer.spec.slots)
        self.manager.on_schedule_end()
        self._expect_sums()
        self.runtime.sleep(1.0)
        for tier in self.tiers:
            tier.work()
        if self.chance(0.02):
            self.seen["reset"] += 1
            self.manager.reset_cache()
            self.seen["hold"] += self.manager.held
        for request in list(self.live.values()):
            self._mishap(request)

    def _begin(self) -> None:
        self.waiting_to_start -= 1
        req_id = self.rng.choice([name for name in "abc" if name not in self.live])
        self.seen["id came back"] += any(t.ctx.req_id == req_id for t in self.transfers)
        blocks = self.rng.sample(range(6), self.rng.randint(1, 4))
        window = self.rng.choice((None, None, 1, 2))
        self.live[req_id] = Live(ctx(req_id), [key(n) for n in sorted(blocks)], window)
        self.manager.on_new_request(ctx(req_id))

    def _mishap(self, request: Live) -> None:
        if self.chance(0.03):
            phase = "deferred" if request.end is None and request.deferred else "other"
            self.seen[f"abort, {phase}"] += 1
            self._finish(request)
        elif request.preempted < 3 and self.chance(0.05):
            self.seen["preemption"] += 1
            request.preempted += 1
            request.end, request.filled, request.deferred = None, False, 0
            self.manager.forget(request.ctx)

    def _pass(self, request: Live) -> None:
        manager, req = self.manager, request.ctx
        end = None
        if manager.is_busy(req):
            self.seen["busy"] += 1
            manager.defer(req, DeferReason.STORE)
        else:
            end = one_pass(manager, req, request.keys, request.window)
        if end is None:
            request.deferred += 1
            self.worst = max(self.worst, request.deferred)
            assert request.deferred <= MOST_DEFERRALS
            # Over the bound only its own transfers, which end, can defer a request.
            assert self.bound is None or request.deferred <= self.bound + 4
            return
        request.end = end
        self.seen["hit" if end else "no hit"] += 1
        for block in request.keys:
            self.seen[manager.miss_reason(block, req).value] += 1
        window = request.window
        needed = request.keys[0 if window is None else max(0, end - window) : end]
        for block in needed:
            status = self.primary.block(block)
            assert status is not None
            assert status.ready
            assert status.step_pinned, "to be loaded, and not pinned in this step"
            assert manager.source(block, req) in manager.labels
        spec = manager.prepare_load(needed, req)
        if len(spec):
            self.slots.begin_read(spec.slots)
            self.transfers.append(Transfer(req, spec, is_fill=False))

    def _run(self, request: Live) -> None:
        if self.manager.is_busy(request.ctx) and not self.chance(0.1):
            return
        if request.filled:
            self._finish(request)
            return
        request.filled = True
        new = request.keys[request.end :]
        spec = self.manager.prepare_store(new, request.ctx).store_spec
        self.seen["store without room"] += len(spec) < len(new)
        if len(spec):
            self.slots.begin_write(spec.slots)
            self.transfers.append(Transfer(request.ctx, spec, is_fill=True))

    def _finish(self, request: Live) -> None:
        del self.live[request.ctx.req_id]
        filling = any(t.is_fill and t.ctx == request.ctx for t in self.transfers)
        self.seen["finished while filling"] += filling
        self.manager.on_request_finished(request.ctx)

    def _end_transfer(self, transfer: Transfer) -> None:
        self.transfers.remove(transfer)
        spec = transfer.spec
        if not transfer.is_fill:
            self.slots.end_read(spec.keys, spec.slots)
            self.manager.complete_load(spec, transfer.ctx)
            return
        success = self.chance(0.8)
        self.slots.end_write(spec.keys, spec.slots, spec.keys if success else ())
        self.manager.complete_store(spec, transfer.ctx, success)

    def _expect_sums(self) -> None:
        manager = self.manager
        for promotions, counts, still_open in (
            (True, manager.counts.promotions, manager.open_promotions),
            (False, manager.counts.stores, manager.open_stores),
        ):
            ended = counts.ok + counts.partial + counts.failed + counts.raised
            assert counts.submitted == ended + still_open
            # Nothing is open but what a tier has, or has reported and the manager not yet taken in.
            reported = sum(
                tier.tally[promotions, outcome]
                for tier in self.tiers
                for outcome in ("ok", "partial", "failed", "raised")
            )
            here = sum(
                job.is_promotion is promotions for t in self.tiers for job in t.jobs.values()
            )
            assert counts.submitted == reported + here

    def _expect_nothing_left(self) -> None:
        manager, primary = self.manager, self.primary
        assert not any(manager.table_sizes().values()), manager.table_sizes()
        assert not manager.has_pending_work()
        assert not manager.held
        assert primary.references == primary.awaited == primary.holding == 0
        assert primary.available == primary.num_blocks
        for tier in self.tiers:
            assert tier.broken == []
            assert not tier.jobs
        tally = sum((tier.tally for tier in self.tiers), Counter[tuple[bool, str]]())
        counted: Counter[tuple[bool, str]] = Counter()
        for promotion, counts in (
            (True, manager.counts.promotions),
            (False, manager.counts.stores),
        ):
            assert isinstance(counts, JobCounts)
            for outcome in ("ok", "partial", "failed", "raised"):
                counted[promotion, outcome] = getattr(counts, outcome)
        assert +counted == +tally
        assert manager.counts.protocol_errors == sum(tier.nonsense for tier in self.tiers)


EVENTS = [
    "abort, deferred",
    "abort, other",
    "another tier's job",
    "absent",
    "bound",
    "busy",
    "drain_jobs raised",
    "finished while filling",
    "foreign key",
    "get_finished_jobs raised",
    "held",
    "hit",
    "hold",
    "hung",
    "id came back",
    "load failed",
    "load ok",
    "load partial",
    "load_failed",
    "lookup raised",
    "lookup_error",
    "lost",
    "miss_reason raised",
    "no hit",
    "no report",
    "no_room",
    "on_new_request raised",
    "on_request_finished raised",
    "on_schedule_end raised",
    "preemption",
    "repeated report",
    "reset",
    "store failed",
    "store ok",
    "store partial",
    "store without room",
    "submit_load raised",
    "submit_store raised",
    "success of fewer blocks than there were",
    "unknown job",
]


def play_all(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        with capture_logs():
            try:
                Run(seed, seen).play()
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
    rare = {event: seen[event] for event in EVENTS if seen[event] < len(seeds) // 200}
    assert not rare, f"hardly ever happened: {rare}"


def test_hostile_runs() -> None:
    play_all(range(2_000))


@pytest.mark.slow
def test_many_hostile_runs() -> None:
    play_all(range(100_000, 140_000))


def test_a_run_is_the_same_again() -> None:
    seen: list[Counter[str]] = []
    for _ in range(2):
        seen.append(Counter())
        with capture_logs():
            Run(17, seen[-1]).play()
    assert seen[0] == seen[1]
