"""What ended becomes spans, each started and ended at once, with the times of the manager.

`SpanWriter` is the only part of the span observer that calls OpenTelemetry's tracer.
The shape of a trace, which is all that this file decides:

* `probe {tier}` from birth to verdict, in the trace of the request that asked, or a
  trace of its own; a link to every further waiter. Its stays are its children: one
  span each for `probe.pending`, `probe.in_flight`, and `probe.resolved` for as long
  as a verdict was held.
* A span describes the transition that ended it; `probe` also describes its birth.
* `lookup_batch {tier}` links to the requests it asked for; `promotion {tier}`,
  `cascade {tier}` and `scheduler.lookup` are in the trace of their request.

A request without trace headers is linked to by its id alone: the link's context is
all zeros. If the sampler does not record a `probe`, its children are not made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from kvtier.lifecycle import BatchReport, LookupPhase, Outcome, Transition
from kvtier.log import shown
from kvtier.telemetry import names
from kvtier.telemetry.histories import BatchView
from kvtier.telemetry.probes import Probe, Stay, Waiter
from kvtier.tiering.reports import JobOutcome, JobReport, PassReport

__all__ = ["MAX_LINKS", "ManagerWriter", "SpanWriter", "batch_error"]

MAX_LINKS = 128
"""Of a batch or a job. The SDK's own default bound, which keeps the newest ones."""

_LOCAL_TYPES = frozenset({"cpu", "fs", "memory", "primary"})
_STAY_NAMES = {
    LookupPhase.PENDING: names.PENDING,
    LookupPhase.IN_FLIGHT: names.IN_FLIGHT,
    LookupPhase.RESOLVED: names.RESOLVED,
}

Value = str | bool | int | float


class SpanWriter:
    """Spans of batches, jobs and passes. `epoch_ns`: wall-clock nanoseconds at manager time 0."""

    def __init__(self, tracer: Tracer, epoch_ns: int) -> None:
        self._tracer = tracer
        self._epoch_ns = epoch_ns

    def wall(self, time: float) -> int:
        """A manager's time as nanoseconds since 1970."""
        return self._epoch_ns + round(time * 1e9)

    def batch(self, manager_id: str, report: BatchReport, view: BatchView) -> None:
        """One call of the back end."""
        verdicts = report.verdicts or ()
        taken = report.ended if report.began is None else report.began
        attributes: dict[str, Value] = {
            names.MANAGER_ID: manager_id,
            names.TIER: report.tier,
            names.BATCH_KEYS: len(report.keys),
            names.BATCH_ANSWERS: len(verdicts),
            names.BATCH_HITS: sum(verdicts),
            names.BATCH_UNTRACED: view.untraced,
            names.BATCH_QUEUE_TIME: taken - report.posted,
        }
        self.write(
            f"{names.LOOKUP_BATCH} {report.tier}",
            None,
            attributes,
            (report.since, report.ended),
            kind=_kind(report.tier),
            links=[
                Link(origin, {names.REQUEST_ID: req_id})
                for req_id, origin in islice(view.requests.items(), MAX_LINKS)
            ],
            error=batch_error(report),
            description=report.failure,
        )

    def job(self, report: JobReport, origin: SpanContext, probes: Iterable[SpanContext]) -> None:
        """One load or store."""
        job = report.job
        name = names.PROMOTION if job.is_promotion else names.CASCADE
        fine = report.outcome in (JobOutcome.OK, JobOutcome.OPEN)
        self.write(
            f"{name} {report.tier}",
            origin,
            {
                names.TIER: report.tier,
                names.REQUEST_ID: job.req_context.req_id,
                names.JOB_ID: job.job_id,
                names.JOB_BLOCKS: len(job.keys),
                names.JOB_MOVED: report.moved,
                names.JOB_OUTCOME: report.outcome.value,
            },
            (report.submitted, report.ended),
            kind=_kind(report.tier),
            links=[Link(probe) for probe in islice(probes, MAX_LINKS)],
            error=None if fine else report.outcome.value,
        )

    def scheduler_pass(self, report: PassReport, origin: SpanContext) -> None:
        """One look of the scheduler at a request."""
        attributes: dict[str, Value] = {
            names.REQUEST_ID: report.req_context.req_id,
            names.LOOKUP_BLOCKS: report.blocks,
            names.LOOKUP_HIT_BLOCKS: report.hit_blocks,
        }
        if report.deferred is None:
            attributes[names.LOOKUP_RESULT] = "admitted"
        else:
            behind = report.deferred.value
            attributes[names.LOOKUP_RESULT] = "retry" if behind == "probe" else "hit_pending"
            attributes[names.LOOKUP_BEHIND] = behind
        times = (report.began, report.ended)
        self.write(names.SCHEDULER_LOOKUP, origin, attributes, times)

    def write(
        self,
        name: str,
        parent: SpanContext | None,
        attributes: Mapping[str, Value],
        times: tuple[float, float],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: list[Link] | None = None,
        error: str | None = None,
        description: str | None = None,
    ) -> SpanContext | None:
        """One span, started and ended. Its context, or `None` if it is not recorded."""
        context = Context()
        if parent is not None and parent.is_valid:
            context = set_span_in_context(NonRecordingSpan(parent), context)
        if error is not None:
            attributes = {**attributes, names.ERROR_TYPE: error}
        span = self._tracer.start_span(
            name,
            context=context,
            kind=kind,
            attributes=attributes,
            links=links,
            start_time=self.wall(times[0]),
        )
        if not span.is_recording():
            return None
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, description))
        span.end(end_time=self.wall(times[1]))
        return span.get_span_context()


class ManagerWriter:
    """Spans of the probes of one manager; a `Sink` of its `Histories`."""

    def __init__(self, writer: SpanWriter, manager_id: str, tier: str) -> None:
        self._writer = writer
        self._name = f"{names.PROBE} {tier}"
        self._common: dict[str, Value] = {names.MANAGER_ID: manager_id, names.TIER: tier}

    def ended(self, probe: Probe) -> None:
        """Write the probe and its stays before the verdict."""
        common, last = self._identity(probe), probe.last
        attributes = common | {
            names.REQUEST_ID: probe.creator.req_id,
            names.SEQ: probe.first.seq,
            **_flags(truncated=probe.truncated, cut=probe.cut),
        }
        if not probe.truncated:
            attributes |= _move(probe.first) | {names.BIRTH: probe.first.outcome.value}
        if last is not None:
            attributes |= {
                names.OUTCOME: last.outcome.value,
                names.ENDED_SEQ: last.seq,
                names.WAITERS: last.waiters,
            }
        failed = last is not None and last.outcome is Outcome.LOOKUP_ERROR
        probe.span = self._writer.write(
            self._name,
            probe.creator.origin,
            attributes,
            (probe.first.time, probe.ended),
            links=self._links(probe.waiters),
            error=Outcome.LOOKUP_ERROR.value if failed else None,
        )
        for stay in probe.stays:
            self._stay(probe, stay, common)

    def left(self, probe: Probe, stay: Stay) -> None:
        """Write the holding of a verdict."""
        self._stay(probe, stay, self._identity(probe))

    def _stay(self, probe: Probe, stay: Stay, common: dict[str, Value]) -> None:
        if probe.span is None:
            return
        attributes = common | _flags(truncated=stay.opened is None, cut=stay.closed is None)
        attributes[names.PHASE_FROM] = stay.phase.name.lower()
        if stay.opened is not None:
            attributes[names.OPENED_SEQ] = stay.opened
        if stay.verdict is not None:
            attributes[names.VERDICT] = stay.verdict
        attributes |= {name: count for name, count in _counts(stay) if count}
        if stay.closed is not None:
            attributes |= {
                names.SEQ: stay.closed.seq,
                names.OUTCOME: stay.closed.outcome.value,
                names.WAITERS: stay.closed.waiters,
                **_move(stay.closed),
            }
        self._writer.write(
            _STAY_NAMES[stay.phase],
            probe.span,
            attributes,
            (stay.began, stay.ended),
            links=self._links(stay.joiners),
        )

    def _identity(self, probe: Probe) -> dict[str, Value]:
        first = probe.first
        place: dict[str, Value] = {names.KEY: first.key.hex(), names.GENERATION: first.generation}
        if first.scope is not None:
            place[names.SCOPE_OF] = shown(first.scope)
        return self._common | place

    def _links(self, waiters: list[Waiter]) -> list[Link]:
        return [
            Link(
                waiter.origin,
                {names.REQUEST_ID: waiter.req_id, names.JOINED_AT: self._writer.wall(waiter.time)},
            )
            for waiter in waiters
        ]


def _move(t: Transition) -> dict[str, Value]:
    return {
        names.PHASE_FROM: t.source.name.lower(),
        names.PHASE_TO: t.target.name.lower(),
        names.TRIGGER: t.trigger.name.lower(),
    }


def _flags(*, truncated: bool, cut: bool) -> dict[str, Value]:
    flags: dict[str, Value] = {}
    if truncated:
        flags[names.TRUNCATED] = True
    if cut:
        flags[names.OPEN] = True
    return flags


def _counts(stay: Stay) -> Iterator[tuple[str, Value]]:
    yield names.DEADLINE_READS, stay.deadline_reads
    yield names.EXCUSED_READS, stay.excused_reads
    yield names.DISCARDED_ANSWERS, stay.discarded_answers
    yield names.STORED, stay.stored


def _kind(tier: str) -> SpanKind:
    return SpanKind.INTERNAL if tier.rpartition(":")[2] in _LOCAL_TYPES else SpanKind.CLIENT


def batch_error(report: BatchReport) -> str | None:
    """The `error.type` of a call of the back end; `None`: it did not fail."""
    if report.failure is None:
        return None
    if report.failure.startswith("worker_died"):
        return "worker_died"
    return "shutdown" if report.began is None else "lookup_error"
