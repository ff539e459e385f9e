"""A manager moved by hand whose spans are kept, and spans written as lines.

A line is written by hand from the contract. `#` is a number of a transition, and times
are seconds on the manager's clock:

    probe g1 1-4 r1 #1 absent join pending: hit #3 w1 <r2@2
        generation 1, from 1 s to 4 s, asked by r1; born by #1; ended by #3 with one
        waiter; r2 joined at 2 s
    probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1
        began by #1; ended by #2, which is described
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvtier.lifecycle import BatchReport, LookupPhase, Outcome, Transition, Trigger
from kvtier.request import ReqContext
from kvtier.telemetry import names
from kvtier.telemetry.spans import SpanObserver
from kvtier.tiering.reports import JobOutcome, JobReport
from kvtier.tiers.base import TransferJob
from tests.support.lookups import HandRuntime, ScriptedLookups, ctx, key

__all__ = [
    "EPOCH",
    "STAYS",
    "World",
    "attributes",
    "batch_report",
    "birth",
    "check_parents",
    "hit",
    "ids",
    "job_report",
    "line",
    "seconds",
]

EPOCH = 1_700_000_000_000_000_000
STAYS = {names.PENDING, names.IN_FLIGHT, names.RESOLVED}


class World:
    """A manager whose clock and worker move by hand, observed by spans kept in memory."""

    def __init__(self, *, sampler: Any = None, observed: Any = None, **settings: Any) -> None:
        own = {"observer_id": "o", "epoch_ns": EPOCH, "thread": False} | settings.pop("own", {})
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = SpanObserver(self.provider, **own)
        self.runtime = HandRuntime()
        observer = self.observer if observed is None else observed(self.observer)
        self.lookups = ScriptedLookups(self.runtime, observer=observer, **settings)

    def at(self, time: float) -> ScriptedLookups:
        assert time >= self.runtime.time
        self.runtime.time = time
        return self.lookups

    def ask(self, time: float, *req_ids: str, number: int = 1) -> list[bool | None]:
        return [self.at(time).lookup(key(number), ctx(req_id)) for req_id in req_ids]

    def flush(self, time: float, *, work: bool = True) -> None:
        self.at(time).flush()
        if work:
            self.lookups.step_worker()

    def release(self, time: float, *req_ids: str) -> None:
        for req_id in req_ids:
            self.at(time).cleanup(req_id)

    @property
    def all(self) -> Sequence[ReadableSpan]:
        self.observer.pump()
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name.split(" ")[0] == name]

    @property
    def lines(self) -> list[str]:
        """Probes with their stays, in the order in which they were made."""
        spans = [span for span in self.all if span.name == "probe 1:test" or span.name in STAYS]
        check_parents(spans)
        return [line(span) for span in spans]

    def forgets_everything(self) -> bool:
        self.observer.pump()
        return not self.observer._queue and not any(
            len(histories) for histories in self.observer._managers.values()
        )


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def seconds(ns: int | None) -> str:
    assert ns is not None
    return f"{(ns - EPOCH) / 1e9:g}"


def line(span: ReadableSpan) -> str:
    has = attributes(span)
    is_probe = span.name not in STAYS
    words = [
        span.name.split(" ")[0],
        f"g{has[names.GENERATION]}",
        f"{seconds(span.start_time)}-{seconds(span.end_time)}",
    ]
    if is_probe:
        numbers = [has[names.SEQ]]
        words.append(has[names.REQUEST_ID])
    else:
        numbers = [has.get(names.OPENED_SEQ), has.get(names.SEQ)]
    words += ["-" if number is None else f"#{number}" for number in numbers]
    words += [has.get(n, "-") for n in (names.PHASE_FROM, names.TRIGGER, names.PHASE_TO)]
    words[-1] += ":"
    words.append(has.get(names.OUTCOME, "-"))
    if is_probe:
        words.append(f"#{has[names.ENDED_SEQ]}" if names.ENDED_SEQ in has else "-")
    words.append(f"w{has.get(names.WAITERS, '-')}")
    if names.VERDICT in has:
        words.append("yes" if has[names.VERDICT] else "no")
    for name in (names.DEADLINE_READS, names.EXCUSED_READS, names.DISCARDED_ANSWERS):
        if name in has:
            words.append(f"{name.rpartition('.')[2]}={has[name]}")
    for flag in (names.STORED, names.TRUNCATED, names.OPEN, names.ERROR_TYPE):
        if flag in has:
            words.append(flag.rpartition(".")[2])
    for link in span.links:
        told: dict[str, Any] = dict(link.attributes or {})
        words.append(f"<{told[names.REQUEST_ID]}@{seconds(told[names.JOINED_AT])}")
    return " ".join(words)


def check_parents(spans: Sequence[ReadableSpan]) -> None:
    """Stays are children of the probe of their generation, and each begins where one ended."""
    probes = {
        (attributes(span)[names.KEY], attributes(span)[names.GENERATION]): span
        for span in spans
        if span.name not in STAYS
    }
    ends: dict[str, set[int | None]] = {}
    for span in spans:
        ends.setdefault(attributes(span)[names.KEY], set()).add(span.end_time)
    for span in spans:
        if span.name in STAYS:
            has = attributes(span)
            probe = probes[has[names.KEY], has[names.GENERATION]]
            assert span.parent is not None
            assert (span.parent.trace_id, span.parent.span_id) == ids(probe)
            assert span.get_span_context().trace_id == ids(probe)[0]  # type: ignore[union-attr]
            begins = ends[has[names.KEY]] | {probe.start_time}
            assert span.start_time in begins


def hit(world: World) -> None:
    world.ask(1, "r1")
    world.flush(2)
    assert world.ask(4, "r1") == [True]


def birth(tier: str = "1:test", seq: int = 1, **changes: Any) -> Transition:
    fields: dict[str, Any] = {
        "seq": seq,
        "time": 1.0,
        "tier": tier,
        "scope": None,
        "key": key(1),
        "generation": 1,
        "source": LookupPhase.ABSENT,
        "target": LookupPhase.PENDING,
        "trigger": Trigger.JOIN,
        "outcome": Outcome.ASKED,
        "waiters": 1,
        "req_id": "r1",
    }
    return Transition(**(fields | changes))


def batch_report(tier: str, **changes: Any) -> BatchReport:
    fields: dict[str, Any] = {
        "tier": tier,
        "scope": None,
        "req_context": ctx("r1"),
        "keys": [key(1)],
        "generations": [1],
        "verdicts": [True],
        "failure": None,
        "posted": 1.0,
        "began": 2.0,
        "ended": 3.0,
    }
    return BatchReport(**(fields | changes))


def job_report(
    req_context: ReqContext,
    outcome: JobOutcome = JobOutcome.OK,
    *,
    load: bool = True,
    tier: str = "1:test",
) -> JobReport:
    job = TransferJob(7, (key(1), key(2)), (0, 1), load, req_context)
    return JobReport(tier, job, 1, outcome, 10.0, 12.0)
