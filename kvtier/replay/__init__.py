"""A workload driven through scheduler, tiers and back ends, with real bytes.

A replay builds the whole machine (`machine.py`) as a `ReplayConfig` says, feeds
it the prompts of a workload, so many in flight together, waits until
everything that was started has ended, and reports (`report.py`). Blocks carry a
payload that no tier can know; what is reused is read back from the primary and
compared. Back ends can be made slow or faulty on purpose (`faults.py`).

With a `VirtualRuntime` a replay is deterministic: the same configuration,
workload and seed give the same report and the same transitions, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kvtier.replay.config import LONGEST, POLICIES, FaultRates, ReplayConfig
from kvtier.replay.machine import Machine, ReplayObservers, RequestObserver, assemble
from kvtier.replay.report import ReplayReport, broken_laws
from kvtier.request import ReqContext
from kvtier.runtime import Runtime, ThreadRuntime
from kvtier.scheduler import Request
from kvtier.tiering import JobCounts
from kvtier.tiers.store import StoreTier
from kvtier.workload import Prompt, Workload

__all__ = [
    "LONGEST",
    "POLICIES",
    "FaultRates",
    "ReplayConfig",
    "ReplayObservers",
    "ReplayReport",
    "RequestObserver",
    "broken_laws",
    "replay",
    "replaying",
]

NOBODY = ReplayObservers()
_POLL = 0.01
"""Seconds between two looks at what passes silently: a deadline, a wish to stop."""
_LAST_CALL = 2.0
"""Seconds that an interrupted replay waits for what is under way."""


def replay(
    config: ReplayConfig,
    workload: Workload,
    runtime: Runtime | None = None,
    *,
    observers: ReplayObservers = NOBODY,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    hurry: Callable[[], bool] | None = None,
) -> ReplayReport:
    """Run `workload` on the machine that `config` describes.

    `runtime`: time and threads (default: real ones). `observers`: who watches.
    `progress` is called with the number of requests that have run whenever some
    have. `stop` is asked in every step: once it says `True`, requests that have
    not ended are aborted, and the report is about what was done. What is under way
    then gets some seconds to end, until `hurry` says `True`.

    Raises `BadInput`, before anything has run, if a tier cannot be opened. What
    goes wrong with a back end during the run is counted, not raised.
    """
    run = replaying(
        config, workload, runtime, observers=observers, progress=progress, stop=stop, hurry=hurry
    )
    with run as report:
        return report


@contextmanager
def replaying(
    config: ReplayConfig,
    workload: Workload,
    runtime: Runtime | None = None,
    *,
    observers: ReplayObservers = NOBODY,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    hurry: Callable[[], bool] | None = None,
) -> Iterator[ReplayReport]:
    """`replay` for whom the report cannot wait: temporary files are there until the block ends.

    To remove them may take longer than the run, on a disk that discards what it frees.
    """
    runtime = ThreadRuntime() if runtime is None else runtime
    with assemble(config, workload.model, runtime, observers) as machine:
        began = runtime.now()
        interrupted = _drive(
            machine, iter(workload), config.concurrency, observers, progress, stop or _no
        )
        patience = _LAST_CALL
        if interrupted and not _ended(machine, hurry or _no):
            patience = 0.0
        wall = runtime.now() - began
        left = machine.left_over()
        with suppress(Exception):  # it has been logged and counted
            machine.manager.shutdown(patience)
        if interrupted:
            left = machine.left_over()
        yield _report(machine, workload.name, left, interrupted, wall)


def _no() -> bool:
    return False


def _ended(machine: Machine, hurry: Callable[[], bool]) -> bool:
    """Abort all requests and give what is under way time to end; whether it did."""
    scheduler, runtime = machine.scheduler, machine.runtime
    for req_id in list(machine.engine.waiting):
        scheduler.abort(req_id)
    until = runtime.now() + _LAST_CALL
    while not scheduler.idle:
        if hurry() or runtime.now() >= until:
            return False
        if not scheduler.step():
            runtime.wait(_POLL)
    return True


def _drive(
    machine: Machine,
    prompts: Iterator[Prompt],
    concurrency: int,
    observers: ReplayObservers,
    progress: Callable[[int], None] | None,
    stop: Callable[[], bool],
) -> bool:
    """Feed the scheduler until all is done; whether the run was stopped before that."""
    scheduler, waiting, runtime = machine.scheduler, machine.engine.waiting, machine.runtime
    requests, after_step = observers.requests, observers.step
    prompt = next(prompts, None)
    while prompt is not None or not scheduler.idle:
        if stop():
            return True
        while prompt is not None and machine.in_flight() < concurrency:
            waiting[prompt.req_id] = None
            headers = None if requests is None else requests.begin(prompt.req_id)
            ctx = ReqContext(prompt.req_id, trace_headers=headers)
            scheduler.add(Request(ctx, prompt.block_hashes))
            prompt = next(prompts, None)
        before = len(waiting)
        scheduler.step()
        if after_step is not None:
            after_step()
        if len(waiting) < before:
            if progress is not None:
                progress(scheduler.counts.requests - len(waiting))
        elif prompt is None or machine.in_flight() >= concurrency:
            runtime.wait(_POLL)
    return False


def _report(
    machine: Machine, workload: str, left: dict[str, int], interrupted: bool, wall: float
) -> ReplayReport:
    asked, moved = machine.scheduler.counts, machine.manager.counts
    engine, open_jobs = machine.engine, machine.manager
    probes = [lookups.counts for lookups in machine.lookups]
    failed_blocks = {
        label: dict(sorted(tier.errors.items()))
        for label, tier in zip(machine.manager.labels[1:], machine.tiers, strict=True)
        if isinstance(tier, StoreTier)
    }
    return ReplayReport(
        workload=workload,
        requests=asked.requests,
        blocks=asked.blocks,
        lookups=machine.manager.lookups,
        probes_issued=sum(counts.issued for counts in probes),
        probes_joined=sum(counts.joined for counts in probes),
        backend_calls=sum(counts.backend_calls for counts in probes),
        hits=asked.hits,
        misses={reason.value: number for reason, number in asked.misses.items()},
        deferrals={reason.value: number for reason, number in asked.deferrals.items()},
        promotions={
            **_jobs(moved.promotions),
            "open": open_jobs.open_promotions,
            "no_room": moved.promotions.no_room,
        },
        stores={
            **_jobs(moved.stores),
            "open": open_jobs.open_stores,
            "skipped": moved.stores.skipped,
        },
        probes_resolved=sum(counts.resolved for counts in probes),
        probes_abandoned=sum(counts.abandoned for counts in probes),
        probes_closed=sum(counts.closed for counts in probes),
        answers_discarded=sum(counts.discarded for counts in probes),
        unclaimed=sum(counts.unclaimed for counts in probes),
        lookup_errors=sum(counts.lookup_errors for counts in probes),
        failed_blocks=failed_blocks,
        tier_errors=moved.tier_errors,
        protocol_errors=moved.protocol_errors,
        bytes_verified=engine.verified * machine.primary.view.block_bytes,
        mismatches=engine.mismatches,
        first_mismatch=engine.first_mismatch,
        leaks=left,
        peak={
            "lookup_entries": sum(counts.peak_entries for counts in probes),
            "probes_out": sum(counts.peak_out for counts in probes),
        },
        steps=asked.steps,
        interrupted=interrupted,
        wall_s=round(wall, 6),
    )


def _jobs(counts: JobCounts) -> dict[str, int]:
    return {way: getattr(counts, way) for way in ("submitted", "ok", "partial", "failed", "raised")}
