"""What `SpanObserver` makes of the calls of a real manager, span by span.

A span is compared as a line, written by hand from the contract. `#` is a number of a
transition, and times are seconds on the manager's clock:

    probe g1 1-4 r1 #1 absent join pending: hit #3 w1 <r2@2
        generation 1, from 1 s to 4 s, asked by r1; born by #1; ended by #3 with one
        waiter; r2 joined at 2 s
    probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1
        began by #1; ended by #2, which is described
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvtier.errors import UsageError
from kvtier.lifecycle import BatchReport, LookupPhase, Outcome, Transition, Trigger
from kvtier.lookup import AsyncLookupManager
from kvtier.request import ReqContext
from kvtier.runtime import VirtualRuntime
from kvtier.telemetry import names
from kvtier.telemetry.compose import CompositeObserver
from kvtier.telemetry.recording import RecordingObserver
from kvtier.telemetry.sampling import TokenBucket, unsampled
from kvtier.telemetry.spans import SpanObserver
from kvtier.tiering import DeferReason
from kvtier.tiering.reports import JobOutcome, JobReport, PassReport
from kvtier.tiers.base import TransferJob
from tests.support.lookups import PATIENCE, HandRuntime, ScriptedLookups, ctx, key, quiet
from tests.support.wandering import headers, traced, wander

EPOCH = 1_700_000_000_000_000_000
STAYS = {names.PENDING, names.IN_FLIGHT, names.RESOLVED}


def no(keys):
    return [False] * len(keys)


def fails(keys):
    raise OSError("unreachable")


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
    for span in spans:
        if span.name in STAYS:
            has = attributes(span)
            probe = probes[has[names.KEY], has[names.GENERATION]]
            assert span.parent is not None
            assert (span.parent.trace_id, span.parent.span_id) == ids(probe)
            assert span.get_span_context().trace_id == ids(probe)[0]  # type: ignore[union-attr]
            begins = {
                other.end_time
                for other in spans
                if attributes(other)[names.KEY] == has[names.KEY] and other is not span
            } | {probe.start_time}
            assert span.start_time in begins


def hit(world: World) -> None:
    world.ask(1, "r1")
    world.flush(2)
    assert world.ask(4, "r1") == [True]


# -- one probe -----------------------------------------------------------------------------


def test_a_found_block_has_a_probe_and_one_span_for_each_stay():
    world = World()
    hit(world)
    world.release(5, "r1")
    assert world.lines == [
        "probe g1 1-4 r1 #1 absent join pending: hit #3 w1",
        "probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1",
        "probe.in_flight g1 2-4 #2 #3 in_flight answer resolved: hit w1",
        "probe.resolved g1 4-5 #3 #4 resolved release absent: released w0 yes",
    ]
    assert {span.status.status_code for span in world.all} == {StatusCode.UNSET}
    assert world.forgets_everything()


def test_a_birth_alone_is_no_span_yet():
    world = World()
    world.ask(1, "r1")
    world.flush(2)
    assert world.lines == []


def test_every_attribute_of_a_probe_and_its_stays():
    world = World()
    asker = ctx("r1", ("tenant", 7))
    world.at(1).lookup(key(1), asker)
    world.flush(2)
    world.at(4).lookup(key(1), asker)
    world.release(5, "r1")
    common = {
        "kvtier.manager.id": "o/1:test",
        "kvtier.tier": "1:test",
        "kvtier.key": b"key 1".hex(),
        "kvtier.scope": "('tenant', 7)",
        "kvtier.probe.generation": 1,
    }
    probe, _, _, resolved = (
        attributes(span) for span in world.all if not span.name.startswith("lookup_batch")
    )
    assert probe == common | {
        "kvtier.request.id": "r1",
        "kvtier.probe.seq": 1,
        "kvtier.probe.phase.from": "absent",
        "kvtier.probe.phase.to": "pending",
        "kvtier.probe.trigger": "join",
        "kvtier.probe.outcome": "hit",
        "kvtier.probe.ended.seq": 3,
        "kvtier.probe.waiters": 1,
    }
    assert resolved == common | {
        "kvtier.probe.opened.seq": 3,
        "kvtier.probe.seq": 4,
        "kvtier.probe.phase.from": "resolved",
        "kvtier.probe.phase.to": "absent",
        "kvtier.probe.trigger": "release",
        "kvtier.probe.outcome": "released",
        "kvtier.probe.waiters": 0,
        "kvtier.probe.verdict": True,
    }


def test_scope_is_left_out_where_all_requests_share_one():
    world = World()
    hit(world)
    assert all(names.SCOPE_OF not in attributes(span) for span in world.all)


def test_the_instrumentation_scope_says_whose_names_these_are():
    world = World()
    hit(world)
    for span in world.all:
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.name == "kvtier"
        assert span.instrumentation_scope.version
        assert span.instrumentation_scope.schema_url == names.SCHEMA_URL


def test_a_miss_is_no_error():
    world = World(answer=no)
    world.ask(1, "r1")
    world.flush(2)
    world.ask(4, "r1")
    world.release(5, "r1")
    assert world.lines == [
        "probe g1 1-4 r1 #1 absent join pending: miss #3 w1",
        "probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1",
        "probe.in_flight g1 2-4 #2 #3 in_flight answer resolved: miss w1",
        "probe.resolved g1 4-5 #3 #4 resolved release absent: released w0 no",
    ]
    assert {span.status.status_code for span in world.all} == {StatusCode.UNSET}


def test_waiters_are_links_of_the_probe_and_later_ones_of_its_verdict():
    world = World()
    world.ask(1, "r1", "r2")
    world.flush(2)
    world.ask(3, "r3")
    assert world.ask(4, "r4") == [True]
    world.release(6, "r1", "r2", "r3", "r4")
    assert world.lines == [
        # r3 finds the answer: 1 birth, 2 joined, 3 sent, 4 answered, 5 and 6 joined
        "probe g1 1-3 r1 #1 absent join pending: hit #4 w2 <r2@1",
        "probe.pending g1 1-2 #1 #3 pending send in_flight: sent w2",
        "probe.in_flight g1 2-3 #3 #4 in_flight answer resolved: hit w2",
        "probe.resolved g1 3-6 #4 #10 resolved release absent: released w0 yes <r3@3 <r4@4",
    ]


def test_a_verdict_that_nobody_takes_is_unclaimed():
    world = World()
    world.ask(1, "r1")
    world.flush(2, work=False)
    world.release(3, "r1")
    world.lookups.step_worker()
    world.flush(5)
    assert world.lines == [
        "probe g1 1-5 r1 #1 absent join pending: hit #4 w0",
        "probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1",
        "probe.in_flight g1 2-5 #2 #4 in_flight answer resolved: hit w0",
        "probe.resolved g1 5-5 #4 #5 resolved sweep absent: unclaimed w0 yes",
    ]
    assert world.forgets_everything()


def test_an_orphan_is_taken_back_by_whoever_asks_next():
    world = World()
    world.ask(1, "r1")
    world.flush(2, work=False)
    world.release(3, "r1")
    world.ask(4, "r2")
    world.lookups.step_worker()
    world.flush(6)
    world.release(7, "r2")
    assert world.lines == [
        "probe g1 1-6 r1 #1 absent join pending: hit #5 w1 <r2@4",
        "probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1",
        "probe.in_flight g1 2-6 #2 #5 in_flight answer resolved: hit w1",
        "probe.resolved g1 6-7 #5 #6 resolved release absent: released w0 yes",
    ]


def test_a_probe_that_is_taken_back_before_it_is_sent_is_abandoned():
    world = World()
    world.ask(1, "r1", "r2")
    world.release(2, "r1")
    world.release(3, "r2")
    assert world.lines == [
        "probe g1 1-3 r1 #1 absent join pending: abandoned #4 w0 <r2@1",
        "probe.pending g1 1-3 #1 #4 pending release absent: abandoned w0",
    ]
    assert world.forgets_everything()


def test_a_failed_question_is_an_error_and_is_asked_again_for_somebody_new():
    with quiet():
        world = World(answer=fails)
        world.ask(1, "r1")
        world.flush(2)
        assert world.ask(3, "r1") == [False]
        world.lookups.answer = no
        assert world.ask(4, "r2") == [None]
        assert world.ask(5, "r1") == [False]
        world.flush(6)
        assert world.ask(7, "r2") == [False]
        world.release(8, "r1", "r2")
    assert world.lines == [
        "probe g1 1-3 r1 #1 absent join pending: lookup_error #3 w1 type",
        "probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1",
        "probe.in_flight g1 2-3 #2 #3 in_flight answer resolved: lookup_error w1",
        "probe.resolved g1 3-4 #3 #4 resolved join pending: asked_again w2 no",
        "probe g2 4-7 r2 #4 resolved join pending: miss #7 w2 <r1@4",
        "probe.pending g2 4-6 #4 #6 pending send in_flight: sent w2 excused_reads=1",
        "probe.in_flight g2 6-7 #6 #7 in_flight answer resolved: miss w2",
        "probe.resolved g2 7-8 #7 #9 resolved release absent: released w0 no",
    ]
    failed = [span for span in world.named("probe") if not span.status.is_ok]
    assert [attributes(span)[names.ERROR_TYPE] for span in failed] == ["lookup_error"]
    assert world.forgets_everything()


def test_reads_past_the_deadline_are_counted_where_they_happen():
    world = World(deadline=2.0)
    world.ask(1, "r1")
    assert world.ask(3.5, "r1", "r1") == [False, False]
    world.flush(4, work=False)
    assert world.ask(5, "r1", "r2") == [False, False]
    world.lookups.step_worker()
    world.flush(6)
    world.release(7, "r1", "r2")
    assert world.lines == [
        "probe g1 1-6 r1 #1 absent join pending: hit #7 w2 <r2@5",
        "probe.pending g1 1-4 #1 #4 pending send in_flight: sent w1 deadline_reads=2",
        "probe.in_flight g1 4-6 #4 #7 in_flight answer resolved: hit w2 deadline_reads=2",
        "probe.resolved g1 6-7 #7 #9 resolved release absent: released w0 yes",
    ]


def test_a_verdict_past_its_lifetime_is_asked_again_and_everybody_waits():
    world = World(verdict_lifetime=3.0)
    world.ask(1, "r1")
    world.flush(2)
    world.ask(3, "r1", "r2")
    world.ask(7, "r2")
    world.flush(8)
    world.flush(9)
    world.release(10, "r1", "r2")
    assert world.lines == [
        "probe g1 1-3 r1 #1 absent join pending: hit #3 w1",
        "probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1",
        "probe.in_flight g1 2-3 #2 #3 in_flight answer resolved: hit w1",
        "probe.resolved g1 3-7 #3 #5 resolved join pending: expired w2 yes <r2@3",
        "probe g2 7-9 r2 #5 resolved join pending: hit #7 w2 <r1@7",
        "probe.pending g2 7-8 #5 #6 pending send in_flight: sent w2",
        "probe.in_flight g2 8-9 #6 #7 in_flight answer resolved: hit w2",
        "probe.resolved g2 9-10 #7 #9 resolved release absent: released w0 yes",
    ]
    assert world.forgets_everything()


def test_a_mark_ends_the_holding_of_one_verdict_and_begins_the_next():
    world = World()
    hit(world)
    world.at(5).mark_miss([key(1)])
    world.at(6).mark_hit([key(1)], ctx("r1"))
    world.release(7, "r1")
    assert world.lines[3:] == [
        "probe.resolved g1 4-5 #3 #4 resolved mark_miss resolved: forced_miss w1 yes",
        "probe.resolved g1 5-6 #4 #5 resolved mark_hit resolved: forced_hit w1 no",
        "probe.resolved g1 6-7 #5 #6 resolved release absent: released w0 yes",
    ]
    assert len(world.named("probe")) == 1


def test_a_store_while_the_question_is_out_is_noted_and_overrides_a_no():
    world = World(answer=no)
    world.ask(1, "r1")
    world.flush(2, work=False)
    world.at(3).mark_hit([key(1)], ctx("r1"))
    world.lookups.step_worker()
    world.ask(4, "r1")
    world.release(5, "r1")
    assert world.lines == [
        "probe g1 1-4 r1 #1 absent join pending: forced_hit #4 w1",
        "probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1",
        "probe.in_flight g1 2-4 #2 #4 in_flight answer resolved: forced_hit w1 stored",
        "probe.resolved g1 4-5 #4 #5 resolved release absent: released w0 yes",
    ]


def test_shutdown_closes_what_is_pending_and_what_is_in_flight():
    world = World(max_batches_out=1)
    world.ask(1, "r1")
    world.flush(2, work=False)
    world.ask(3, "r1", number=2)
    world.lookups.hangs = lambda keys: True
    world.lookups.lane.in_time = 0
    world.at(5).shutdown(0.0)
    world.lookups.let_go.set()
    assert sorted(world.lines) == sorted(
        [
            "probe g1 1-5 r1 #1 absent join pending: closed #4 w0",
            "probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1",
            "probe.in_flight g1 2-5 #2 #4 in_flight close absent: closed w0",
            "probe g2 3-5 r1 #3 absent join pending: closed #5 w0",
            "probe.pending g2 3-5 #3 #5 pending close absent: closed w0",
        ]
    )
    assert world.forgets_everything()


def test_a_hung_worker_leaves_reads_past_the_deadline_and_a_probe_closed_in_flight():
    world = World(deadline=1.0)
    world.lookups.hangs = lambda keys: True
    world.ask(1, "r1")
    world.flush(2, work=False)
    world.lookups.lane.begin()
    assert world.ask(9, "r1") == [False]
    world.release(10, "r1")
    world.lookups.lane.in_time = 0
    world.at(12).shutdown(0.0)
    world.lookups.let_go.set()
    assert world.lines == [
        "probe g1 1-12 r1 #1 absent join pending: closed #5 w0",
        "probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1",
        "probe.in_flight g1 2-12 #2 #5 in_flight close absent: closed w0 deadline_reads=1",
    ]
    (batch,) = world.named("lookup_batch")
    assert attributes(batch)[names.ERROR_TYPE] == "shutdown"
    assert attributes(batch)[names.BATCH_QUEUE_TIME] == 10.0
    assert (seconds(batch.start_time), seconds(batch.end_time)) == ("2", "12")
    assert world.forgets_everything()


def test_an_answer_of_another_generation_is_counted_on_the_stay_that_it_met():
    world = World()
    world.ask(1, "r1")
    world.flush(2, work=False)
    question = world.lookups.worker.posted[0]
    old = type(question)(question.scope, question.req_context, question.keys, [99])
    world.lookups.worker.inject(old, [True])
    with quiet():
        world.flush(3, work=False)
    world.lookups.step_worker()
    world.ask(4, "r1")
    assert (
        "probe.in_flight g1 2-4 #2 #4 in_flight answer resolved: hit w1 discarded_answers=1"
        in world.lines
    )


# -- parents and links ---------------------------------------------------------------------


def test_a_probe_is_in_the_trace_of_the_request_that_asked():
    world = World()
    world.at(1).lookup(key(1), traced("r1", 5))
    world.flush(2)
    world.flush(3)
    world.release(4, "r1")
    (probe,) = world.named("probe")
    assert probe.parent is not None
    assert (probe.parent.trace_id, probe.parent.span_id) == (5, 105)
    assert probe.parent.is_remote
    stays = [span for span in world.all if span.name in STAYS]
    assert len(stays) == 3
    assert {ids(span)[0] for span in stays} == {5}


def test_a_request_without_headers_is_the_root_of_a_trace_of_its_own():
    world = World()
    hit(world)
    (probe,) = world.named("probe")
    assert probe.parent is None
    assert ids(probe)[0] != 0


def test_the_span_of_the_thread_that_pumps_is_not_the_parent():
    world = World()
    hit(world)
    with world.provider.get_tracer("other").start_as_current_span("other"):
        world.observer.pump()
    (probe,) = world.named("probe")
    assert probe.parent is None


def test_links_lead_to_the_waiters_by_their_headers():
    world = World()
    for number in (1, 2, 3):
        world.at(number).lookup(key(1), traced(f"r{number}", number))
    world.lookups.lookup(key(1), ctx("r4"))
    world.flush(4)
    world.flush(5)
    world.lookups.lookup(key(1), traced("r6", 6))
    world.release(7, "r1", "r2", "r3", "r4", "r6")
    (probe,) = world.named("probe")
    (resolved,) = world.named("probe.resolved")
    assert [(link.context.trace_id, link.context.span_id) for link in probe.links] == [
        (2, 102),
        (3, 103),
        (0, 0),
    ]
    assert [dict(link.attributes or {}) for link in probe.links] == [
        {"kvtier.request.id": "r2", "kvtier.waiter.time": EPOCH + 2_000_000_000},
        {"kvtier.request.id": "r3", "kvtier.waiter.time": EPOCH + 3_000_000_000},
        {"kvtier.request.id": "r4", "kvtier.waiter.time": EPOCH + 3_000_000_000},
    ]
    assert [link.context.span_id for link in resolved.links] == [106]


def test_trace_state_comes_along():
    world = World()
    asker = ReqContext("r1", None, headers(5, state="vendor=abc"))
    other = ReqContext("r2", None, headers(6, state="vendor=def"))
    world.at(1).lookup(key(1), asker)
    world.lookups.lookup(key(1), other)
    world.flush(2)
    world.flush(3)
    (probe,) = world.named("probe")
    assert probe.get_span_context().trace_state == {"vendor": "abc"}  # type: ignore[union-attr]
    assert probe.links[0].context.trace_state == {"vendor": "def"}


# -- which requests are traced ---------------------------------------------------------------


def test_nothing_is_made_for_a_request_whose_trace_is_not_recorded():
    world = World(sampler=ALWAYS_ON)  # which would record it all the same
    asker = traced("r1", 5, sampled=False)
    world.at(1).lookup(key(1), asker)
    world.flush(2)
    world.flush(3)
    world.release(4, "r1")
    world.observer.on_pass(PassReport(asker, 1, 0, None, 1.0, 2.0))
    world.observer.on_job(job_report(asker))
    assert not world.all
    assert world.forgets_everything()


VALID = headers(5)["traceparent"]
HEADERS = [
    None,
    {},
    {"other": "x"},
    {"traceparent": ""},
    {"traceparent": "nonsense"},
    {"traceparent": VALID},
    {"traceparent": f" {VALID}\t"},
    {"traceparent": VALID[:-2] + "00"},
    {"traceparent": f"\t{VALID[:-2]}00 "},
    {"traceparent": VALID[:-2] + "02"},
    {"traceparent": VALID[:-2] + "03"},
    {"traceparent": VALID[:-2] + "0G"},
    {"traceparent": VALID[:-2].upper() + "00"},
    {"traceparent": VALID[:-2] + "00-more"},
    {"traceparent": "01" + VALID[2:-2] + "00"},
    {"traceparent": "cc" + VALID[2:-2] + "00-more"},
    {"traceparent": "cc" + VALID[2:-2] + "00more"},
    {"traceparent": "ff" + VALID[2:-2] + "00"},
    {"traceparent": f"00-{0:032x}-{5:016x}-00"},
    {"traceparent": f"00-{5:032x}-{0:016x}-00"},
    {"traceparent": VALID[:-1]},
]


@pytest.mark.parametrize("carrier", HEADERS)
def test_headers_are_read_as_opentelemetry_reads_them(carrier):
    from opentelemetry.context import Context
    from opentelemetry.trace import get_current_span

    context = TraceContextTextMapPropagator().extract(carrier or {}, Context())
    theirs = get_current_span(context).get_span_context()
    assert unsampled(carrier) == (theirs.is_valid and not theirs.trace_flags.sampled)


def test_headers_that_cannot_be_read_make_a_root():
    world = World()
    world.at(1).lookup(key(1), ReqContext("r1", None, {"traceparent": "nonsense"}))
    world.flush(2)
    world.flush(3)
    (probe,) = world.named("probe")
    assert probe.parent is None


def test_whose_root_the_sampler_does_not_record_costs_no_children():
    asked: list[str] = []

    class Never(ParentBased):
        def should_sample(self, parent_context, trace_id, name, *args, **kwargs):
            asked.append(name)
            return super().should_sample(parent_context, trace_id, name, *args, **kwargs)

    world = World(sampler=Never(ALWAYS_OFF))
    hit(world)
    world.release(5, "r1")
    assert not world.all
    assert sorted(asked) == ["lookup_batch 1:test", "probe 1:test"]


def test_a_traced_request_that_joins_an_untraced_probe_starts_its_history_there():
    world = World()
    world.at(1).lookup(key(1), traced("r0", 1, sampled=False))
    world.at(2).lookup(key(1), traced("r1", 2))
    world.flush(3)
    world.flush(4)
    world.release(5, "r0", "r1")
    assert world.lines == [
        "probe g1 2-4 r1 #1 - - -: hit #3 w2 truncated",
        "probe.pending g1 2-3 - #2 pending send in_flight: sent w2 truncated",
        "probe.in_flight g1 3-4 #2 #3 in_flight answer resolved: hit w2",
        "probe.resolved g1 4-5 #3 #5 resolved release absent: released w0 yes",
    ]
    (probe,) = world.named("probe")
    assert ids(probe)[0] == 2


def test_one_that_joins_an_untraced_verdict_sees_only_that_it_is_held():
    world = World()
    world.at(1).lookup(key(1), traced("r0", 1, sampled=False))
    world.flush(2)
    world.flush(3)
    world.at(4).lookup(key(1), traced("r1", 2))
    world.release(6, "r0", "r1")
    assert world.lines == [
        "probe g1 4-4 r1 #1 - - -: - - w- truncated",
        "probe.resolved g1 4-6 - #3 resolved release absent: released w0 truncated",
    ]


def test_who_was_in_an_untraced_probe_before_is_no_later_waiter_of_it():
    world = World(deadline=1.0)
    world.at(1).lookup(key(1), traced("r0", 1, sampled=False))
    world.at(3).lookup(key(1), traced("r1", 2))
    world.at(4).lookup(key(1), traced("r0", 1, sampled=False))
    world.flush(5)
    assert world.lines == []
    world.flush(6)
    assert world.lines == [
        "probe g1 3-6 r1 #1 - - -: hit #4 w2 truncated",
        "probe.pending g1 3-5 - #3 pending send in_flight: sent w2 deadline_reads=2 truncated",
        "probe.in_flight g1 5-6 #3 #4 in_flight answer resolved: hit w2",
    ]


def test_an_untraced_request_that_joins_is_a_link_by_its_id():
    world = World()
    world.at(1).lookup(key(1), traced("r1", 1))
    world.at(2).lookup(key(1), traced("r0", 2, sampled=False))
    world.flush(3)
    world.flush(4)
    (probe,) = world.named("probe")
    assert [link.context.is_valid for link in probe.links] == [False]
    assert line(probe).endswith("<r0@2")


def test_a_new_question_that_only_untraced_requests_ask_is_not_traced():
    world = World(verdict_lifetime=3.0)
    untraced = traced("r0", 2, sampled=False)
    hit(world)
    world.lookups.lookup(key(1), untraced)
    world.release(5, "r1")
    world.at(20).lookup(key(1), untraced)
    world.flush(21)
    world.flush(22)
    world.release(23, "r0")
    assert world.lines[-1] == (
        "probe.resolved g1 4-20 #3 #6 resolved join pending: expired w1 yes <r0@4"
    )
    assert len(world.named("probe")) == 1
    assert world.forgets_everything()


def test_beside_an_observer_that_wants_everything_it_keeps_to_its_own():
    recorder = RecordingObserver()
    world = World(observed=lambda spans: CompositeObserver(recorder, spans))
    world.at(1).lookup(key(1), traced("r0", 1, sampled=False))
    world.at(1).lookup(key(2), traced("r1", 2))
    world.flush(2)
    world.flush(3)
    world.release(4, "r0", "r1")
    assert len(recorder.transitions) == 8
    assert [attributes(span)[names.KEY] for span in world.named("probe")] == [b"key 2".hex()]
    assert world.forgets_everything()


# -- calls of the back end -------------------------------------------------------------------


def test_a_call_of_the_back_end_is_a_span_with_links_to_its_requests():
    world = World(answer=lambda keys: [True, False])
    world.at(1).lookup(key(1), traced("r1", 1))
    world.lookups.lookup(key(2), traced("r1", 1))
    world.lookups.lookup(key(2), traced("r2", 2))
    world.lookups.lookup(key(2), traced("r3", 3, sampled=False))
    world.flush(2, work=False)
    world.runtime.time = 2.5
    world.lookups.step_worker()
    world.flush(3)
    (batch,) = world.named("lookup_batch")
    assert batch.name == "lookup_batch 1:test"
    assert batch.kind is SpanKind.CLIENT
    assert batch.parent is None
    assert (seconds(batch.start_time), seconds(batch.end_time)) == ("2.5", "2.5")
    assert attributes(batch) == {
        "kvtier.manager.id": "o/1:test",
        "kvtier.tier": "1:test",
        "kvtier.lookup_batch.keys": 2,
        "kvtier.lookup_batch.answers": 2,
        "kvtier.lookup_batch.hits": 1,
        "kvtier.lookup_batch.untraced": 0,
        "kvtier.lookup_batch.queue_time": 0.5,
    }
    assert [
        (link.context.span_id, dict(link.attributes or {})[names.REQUEST_ID])
        for link in batch.links
    ] == [(101, "r1"), (102, "r2"), (0, "r3")]
    assert batch.status.is_unset


def test_a_failed_call_is_an_error_and_says_why():
    with quiet():
        world = World(answer=fails)
        world.ask(1, "r1")
        world.flush(2)
        world.flush(3)
    (batch,) = world.named("lookup_batch")
    has = attributes(batch)
    assert (has[names.BATCH_ANSWERS], has[names.BATCH_HITS]) == (0, 0)
    assert has[names.ERROR_TYPE] == "lookup_error"
    assert batch.status.status_code is StatusCode.ERROR
    assert batch.status.description == "OSError('unreachable')"


def test_a_call_for_nobody_traced_has_no_span():
    world = World()
    world.at(1).lookup(key(1), traced("r1", 1, sampled=False))
    world.flush(2)
    world.flush(3)
    assert not world.named("lookup_batch")


def test_nor_has_one_for_another_generation_of_a_probe():
    world = World()
    world.ask(1, "r1")
    world.observer.on_batch(batch_report("1:test", generations=[99]))
    assert not world.named("lookup_batch")


def test_at_most_128_requests_are_linked():
    world = World()
    world.ask(1, *(f"r{number}" for number in range(200)))
    world.flush(2)
    world.flush(3)
    (batch,) = world.named("lookup_batch")
    assert [dict(link.attributes or {})[names.REQUEST_ID] for link in batch.links] == [
        f"r{number}" for number in range(128)
    ]


@pytest.mark.parametrize(
    ("tier", "kind"),
    [
        ("1:fs", SpanKind.INTERNAL),
        ("2:memory", SpanKind.INTERNAL),
        ("fs", SpanKind.INTERNAL),
        ("1:redis", SpanKind.CLIENT),
        ("1:test", SpanKind.CLIENT),
    ],
)
def test_a_call_is_remote_unless_the_tier_is_in_this_machine(tier, kind):
    world = World()
    report = batch_report(tier)
    world.observer.wants(ctx("r1"), tier)
    world.observer.on_transition(birth(tier))
    world.observer.on_batch(report)
    (batch,) = world.named("lookup_batch")
    assert batch.kind is kind
    assert attributes(batch)[names.BATCH_QUEUE_TIME] == 1.0


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


@pytest.mark.parametrize(
    ("changes", "answers", "error"),
    [
        ({"verdicts": None, "failure": "OSError()"}, 0, "lookup_error"),
        ({"verdicts": None, "failure": "no answer before shutdown", "began": None}, 0, "shutdown"),
        ({"verdicts": None, "failure": "worker_died: OSError()"}, 0, "worker_died"),
        ({"keys": [key(1), key(2)], "generations": [1, 2]}, 1, None),
    ],
)
def test_what_became_of_a_call_is_told_as_it_is(changes, answers, error):
    world = World()
    world.observer.wants(ctx("r1"), "1:test")
    world.observer.on_transition(birth())
    world.observer.on_batch(batch_report("1:test", **changes))
    (batch,) = world.named("lookup_batch")
    has = attributes(batch)
    assert has[names.BATCH_ANSWERS] == answers
    assert has.get(names.ERROR_TYPE) == error


# -- jobs and passes -------------------------------------------------------------------------


def job_report(
    req_context: ReqContext,
    outcome: JobOutcome = JobOutcome.OK,
    *,
    load: bool = True,
    tier: str = "1:test",
) -> JobReport:
    job = TransferJob(7, (key(1), key(2)), (0, 1), load, req_context)
    return JobReport(tier, job, 1, outcome, 10.0, 12.0)


def test_a_load_is_a_promotion_in_the_trace_of_its_request_with_links_to_its_probes():
    world = World()
    asker = traced("r1", 5)
    for number in (1, 2):
        world.at(1).lookup(key(number), asker)
    world.lookups.lookup(key(3), asker)
    world.flush(2)
    world.flush(3)
    world.observer.on_job(job_report(asker))
    (promotion,) = world.named("promotion")
    assert promotion.name == "promotion 1:test"
    assert promotion.kind is SpanKind.CLIENT
    assert promotion.parent is not None
    assert promotion.parent.span_id == 105
    assert (seconds(promotion.start_time), seconds(promotion.end_time)) == ("10", "12")
    assert attributes(promotion) == {
        "kvtier.tier": "1:test",
        "kvtier.job.id": 7,
        "kvtier.job.blocks": 2,
        "kvtier.job.moved": 1,
        "kvtier.job.outcome": "ok",
        "kvtier.request.id": "r1",
    }
    probes = {attributes(span)[names.KEY]: ids(span) for span in world.named("probe")}
    assert [(link.context.trace_id, link.context.span_id) for link in promotion.links] == [
        probes[b"key 1".hex()],
        probes[b"key 2".hex()],
    ]


def test_a_store_is_a_cascade():
    world = World()
    world.observer.on_job(job_report(ctx("r1"), load=False, tier="1:fs"))
    (cascade,) = world.all
    assert (cascade.name, cascade.kind, cascade.parent) == ("cascade 1:fs", SpanKind.INTERNAL, None)


@pytest.mark.parametrize("outcome", JobOutcome)
def test_a_job_that_did_not_move_everything_is_an_error(outcome):
    world = World()
    world.observer.on_job(job_report(ctx("r1"), outcome))
    (promotion,) = world.all
    failed = outcome not in (JobOutcome.OK, JobOutcome.OPEN)
    assert (promotion.status.status_code is StatusCode.ERROR) == failed
    assert attributes(promotion).get(names.ERROR_TYPE) == (outcome.value if failed else None)


def test_a_job_links_to_no_other_tenants_probe():
    world = World()
    mine, theirs = traced("r1", 1, tenant="mine"), traced("r2", 2, tenant="theirs")
    world.at(1).lookup(key(1), theirs)
    world.lookups.lookup(key(2), mine)
    world.flush(2)
    world.flush(3)
    world.observer.on_job(job_report(mine))
    (promotion,) = world.named("promotion")
    assert [link.context.trace_id for link in promotion.links] == [1]


@pytest.mark.parametrize(
    ("deferred", "result"),
    [
        (None, ("admitted", None)),
        (DeferReason.PROBE, ("retry", "probe")),
        (DeferReason.PROMOTION, ("hit_pending", "promotion")),
        (DeferReason.STORE, ("hit_pending", "store")),
    ],
)
def test_a_pass_of_the_scheduler_says_what_it_came_to(deferred, result):
    world = World()
    world.observer.on_pass(PassReport(traced("r1", 5), 8, 3, deferred, 1.0, 1.5))
    (span,) = world.all
    assert span.name == "scheduler.lookup"
    assert span.parent is not None
    assert span.parent.span_id == 105
    assert (seconds(span.start_time), seconds(span.end_time)) == ("1", "1.5")
    expected = {
        "kvtier.request.id": "r1",
        "kvtier.lookup.blocks": 8,
        "kvtier.lookup.hit_blocks": 3,
        "kvtier.lookup.result": result[0],
    }
    if result[1] is not None:
        expected["kvtier.lookup.behind"] = result[1]
    assert attributes(span) == expected


# -- bounds ------------------------------------------------------------------------------------


def test_lost_records_are_counted_and_cut_off_what_was_under_way():
    world = World(own={"limit": 6})
    world.ask(1, "r1")
    world.flush(2, work=False)
    world.ask(3, "r1", number=2)
    world.observer.pump()
    for number in range(3, 10):
        world.ask(4, "r2", number=number)
    assert world.observer.lost == 2  # of the greeting and seven births
    world.observer.pump()
    world.lookups.step_worker()
    world.flush(6)
    assert world.observer.lost == 2 + 4  # of the call, one answer and eight that are sent
    assert world.lines[:5] == [
        "probe g1 1-4 r1 #1 absent join pending: - - w- open",
        "probe.pending g1 1-2 #1 #2 pending send in_flight: sent w1",
        "probe.in_flight g1 2-4 #2 - in_flight - -: - w- open",
        "probe g2 3-4 r1 #3 absent join pending: - - w- open",
        "probe.pending g2 3-4 #3 - pending - -: - w- open",
    ]
    assert len(world.lines) == 3 + 6 * 2
    assert all(text.endswith(" open") for text in world.lines[2:])
    assert world.forgets_everything()


def test_what_was_cut_off_is_not_taken_up_again_and_what_comes_later_is_whole():
    world = World(own={"limit": 2})
    world.ask(1, "r1")
    world.observer.pump()
    world.ask(2, "r2", number=2)
    world.ask(2, "r2", number=3)
    assert world.observer.lost == 1
    world.observer.pump()
    # Number 3 of r2 was lost. This shows it:
    world.ask(3, "r3", number=1)
    world.observer.pump()
    assert sorted(world.lines) == [
        "probe g1 1-2 r1 #1 absent join pending: - - w- open",
        "probe g2 2-2 r2 #2 absent join pending: - - w- open",
        "probe.pending g1 1-2 #1 - pending - -: - w- open",
        "probe.pending g2 2-2 #2 - pending - -: - w- open",
    ]
    world.release(4, "r1")
    world.observer.pump()
    world.release(4, "r2")
    world.observer.pump()
    world.release(4, "r3")
    world.observer.pump()
    world.exporter.clear()
    world.ask(5, "r4")
    world.observer.pump()
    world.release(6, "r4")
    assert world.lines == [
        "probe g4 5-6 r4 #9 absent join pending: abandoned #10 w0",
        "probe.pending g4 5-6 #9 #10 pending release absent: abandoned w0",
    ]
    assert world.forgets_everything()


def test_a_transition_that_does_not_fit_what_is_known_cuts_the_history_off():
    world = World()
    observer = world.observer
    observer.wants(ctx("r1"), "1:test")
    observer.on_transition(birth())
    observer.on_transition(
        birth(
            seq=2,
            time=2.0,
            source=LookupPhase.IN_FLIGHT,
            target=LookupPhase.RESOLVED,
            trigger=Trigger.ANSWER,
            outcome=Outcome.HIT,
            req_id=None,
        )
    )
    assert world.lines == [
        "probe g1 1-2 r1 #1 absent join pending: - - w- open",
        "probe.pending g1 1-2 #1 - pending - -: - w- open",
    ]
    assert world.forgets_everything()


def test_what_did_not_fit_is_not_taken_up_again():
    world = World()
    observer = world.observer
    sent: dict[str, Any] = {"source": LookupPhase.PENDING, "target": LookupPhase.IN_FLIGHT}
    joined: dict[str, Any] = {
        "source": LookupPhase.IN_FLIGHT,
        "target": LookupPhase.IN_FLIGHT,
        "outcome": Outcome.JOINED,
        "req_id": "r2",
    }
    observer.wants(ctx("r1"), "1:test")
    observer.wants(ctx("r2"), "1:test")
    observer.on_transition(birth())
    observer.on_transition(birth(seq=2, trigger=Trigger.SEND, req_id=None, **sent))
    observer.on_transition(birth(seq=3, trigger=Trigger.SEND, req_id=None, **sent))
    observer.on_transition(birth(seq=4, **joined))
    observer.on_transition(birth(seq=5, key=key(2), generation=2, **joined))
    observer.close()
    assert [
        (has[names.GENERATION], names.TRUNCATED in has)
        for has in map(attributes, world.named("probe"))
    ] == [(1, False), (2, True)]


def test_requests_whose_release_may_be_lost_are_forgotten_and_whoever_is_new_is_not():
    world = World()
    observer = world.observer
    observer.wants(ctx("r1"), "1:test")
    observer.on_transition(birth())
    observer.wants(ctx("r0"), "1:test")
    observer.wants(ctx("r2"), "1:test")
    observer.on_transition(birth(seq=3, key=key(2), generation=3, req_id="r2"))
    observer.pump()
    (histories,) = observer._managers.values()
    assert len(histories) == 2  # r2 and its probe
    observer.close()
    assert [attributes(span)[names.REQUEST_ID] for span in world.named("probe")] == ["r1", "r2"]


def test_an_unlawful_transition_is_told_as_it_is():
    world = World()
    observer = world.observer
    observer.wants(ctx("r1"), "1:test")
    observer.on_transition(birth())
    observer.on_transition(
        birth(
            seq=2,
            time=2.0,
            source=LookupPhase.PENDING,
            target=LookupPhase.RESOLVED,
            trigger=Trigger.MARK_MISS,
            outcome=Outcome.FORCED_MISS,
            req_id=None,
        )
    )
    observer.close()
    assert world.lines == [
        "probe g1 1-2 r1 #1 absent join pending: forced_miss #2 w1",
        "probe.pending g1 1-2 #1 #2 pending mark_miss resolved: forced_miss w1",
        "probe.resolved g1 2-2 #2 - resolved - -: - w- no open",
    ]


def test_a_full_queue_wants_no_more_requests():
    observer = SpanObserver(thread=False, limit=1)
    assert observer.wants(ctx("r1"), "1:test")
    assert not observer.wants(ctx("r2"), "1:test")
    assert observer.lost == 1


@pytest.mark.parametrize(
    "settings", [{"limit": 0}, {"max_probes_per_second": 0.0}, {"max_probes_per_second": -1.0}]
)
def test_bounds_that_make_no_sense_are_refused(settings):
    with pytest.raises(UsageError):
        SpanObserver(**settings)


def test_a_bucket_admits_a_burst_and_then_so_many_a_second():
    bucket = TokenBucket(2.0)
    assert [bucket.admit(10.0) for _ in range(3)] == [True, True, False]
    assert [bucket.admit(10.5) for _ in range(2)] == [True, False]
    assert [bucket.admit(9.0), bucket.admit(10.9)] == [False, False]
    assert [bucket.admit(99.0) for _ in range(3)] == [True, True, False]


def test_less_than_one_a_second_is_still_one_now_and_then():
    bucket = TokenBucket(0.5)
    assert [bucket.admit(time) for time in (0.0, 1.0, 2.0, 3.0)] == [True, False, True, False]


def test_probes_beyond_the_rate_are_counted_on_their_batch():
    world = World(own={"max_probes_per_second": 2.0})
    for number in range(5):
        world.ask(1, "r1", number=number)
    world.flush(1)
    world.flush(2)
    world.release(3, "r1")
    assert len(world.named("probe")) == 2
    assert len([span for span in world.all if span.name in STAYS]) == 6
    (batch,) = world.named("lookup_batch")
    has = attributes(batch)
    assert (has[names.BATCH_KEYS], has[names.BATCH_HITS], has[names.BATCH_UNTRACED]) == (5, 5, 3)
    assert world.observer.untraced == 3
    assert world.forgets_everything()


def test_a_burst_is_bounded_unless_told_otherwise():
    world = World()
    for number in range(600):
        world.ask(1, "r1", number=number)
    world.release(1, "r1")
    assert len(world.named("probe")) == 500
    assert world.observer.untraced == 100


def test_a_batch_of_which_the_rate_left_nothing_still_has_its_span():
    world = World(own={"max_probes_per_second": 1.0})
    world.ask(1, "r1", number=1)
    world.flush(1)
    world.ask(1, "r1", number=2)
    world.flush(1)
    world.flush(1)
    assert [
        (attributes(span)[names.BATCH_UNTRACED], len(span.links))
        for span in world.named("lookup_batch")
    ] == [(0, 1), (1, 0)]


class Steady(AsyncLookupManager):
    def batch_lookup(self, keys, req_context):
        return [bool(key[-1] & 1) for key in keys]


def test_nothing_is_remembered_of_ten_thousand_requests_that_are_gone():
    observer = SpanObserver(thread=False, max_probes_per_second=1000.0)
    runtime = VirtualRuntime()
    with Steady("1:fs", runtime=runtime, observer=observer, verdict_lifetime=0.05) as lookups:
        for number in range(10_000):
            asker = traced(f"r{number}", number + 1, sampled=number % 3 > 0)
            for other in range(3):
                lookups.lookup(key(number + other), asker)
            if number % 7 == 0:
                lookups.cleanup(asker.req_id)
            if number % 10 == 9:
                lookups.flush()
                runtime.wait(0.01)
            if number >= 20:
                lookups.cleanup(f"r{number - 20}")
            if number % 1000 == 0:
                observer.pump()
                alive = sum(map(len, observer._managers.values()))
                assert alive < 150
        for number in range(10_000):
            lookups.cleanup(f"r{number}")
    observer.pump()
    assert observer.lost == 0
    assert not observer._queue
    assert sum(map(len, observer._managers.values())) == 0


# -- the end -----------------------------------------------------------------------------------


def test_closing_the_observer_cuts_off_what_is_open():
    world = World()
    hit(world)
    world.ask(4, "r1", number=2)
    world.ask(5, "r1", number=3)
    world.observer.close()
    assert world.lines[3:] == [
        "probe.resolved g1 4-5 #3 - resolved - -: - w- yes open",
        "probe g2 4-5 r1 #4 absent join pending: - - w- open",
        "probe.pending g2 4-5 #4 - pending - -: - w- open",
        "probe g3 5-5 r1 #5 absent join pending: - - w- open",
        "probe.pending g3 5-5 #5 - pending - -: - w- open",
    ]


def test_closing_twice_says_nothing_twice_and_what_comes_later_is_lost():
    world = World()
    hit(world)
    world.observer.close()
    spans = len(world.all)
    world.observer.close()
    world.release(6, "r1")
    assert not world.observer.wants(ctx("r2"), "1:test")
    assert len(world.all) == spans
    assert world.observer.lost == 2


class Counting(SimpleSpanProcessor):
    """Counts spans that were started and not yet ended."""

    started = ended = 0

    def on_start(self, span, parent_context=None):
        self.started += 1

    def on_end(self, span):
        self.ended += 1


def ends_stay(t: Transition) -> bool:
    if t.source is LookupPhase.ABSENT:
        return False
    marked = t.outcome in (Outcome.FORCED_HIT, Outcome.FORCED_MISS)
    return marked or t.source is not t.target


@pytest.mark.parametrize("seed", range(6))
def test_each_birth_is_a_probe_and_each_end_of_a_stay_a_span_whatever_happens(seed):
    recorder = RecordingObserver()
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    counting = Counting(exporter)
    provider.add_span_processor(counting)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    class Wanting(SpanObserver):
        def wants(self, req_context, tier):
            return super().wants(ReqContext(req_context.req_id), tier)

    observer = Wanting(provider, observer_id="o", epoch_ns=EPOCH, thread=False)
    wander(seed, CompositeObserver(recorder, observer), observer.pump)
    observer.close()
    assert counting.started == counting.ended == len(exporter.get_finished_spans())
    spans = [
        span
        for span in exporter.get_finished_spans()
        if span.name.startswith("probe")
        and (span.name not in STAYS or names.OPEN not in attributes(span))
    ]
    check_parents(spans)
    seen = recorder.transitions
    births = [t.seq for t in seen if t.target is LookupPhase.PENDING is not t.source]
    ends = [t.seq for t in seen if ends_stay(t)]
    assert len(births) > 50
    assert sorted(attributes(s)[names.SEQ] for s in spans if s.name not in STAYS) == births
    assert sorted(attributes(s)[names.SEQ] for s in spans if s.name in STAYS) == ends
    told = Counter(attributes(s)[names.OUTCOME] for s in spans if s.name in STAYS)
    assert told == Counter(t.outcome.value for t in seen if ends_stay(t))


class Truth:
    """The stays that there were, from all transitions."""

    def __init__(self, seen: Sequence[Transition]) -> None:
        self.opened: dict[int, tuple[LookupPhase, int, float]] = {}
        """By the number that ended it: phase, number and time of its beginning."""
        self.ended: dict[tuple[bytes, int], int] = {}
        """By key and the number that began it: the number that ended it."""
        self.verdicts: dict[int, bool] = {}
        """By the number that began it."""
        under_way: dict[bytes, tuple[LookupPhase, int, float]] = {}
        for t in seen:
            if t.key in under_way and ends_stay(t):
                self.opened[t.seq] = under_way.pop(t.key)
                self.ended[t.key, self.opened[t.seq][1]] = t.seq
            if t.target is not LookupPhase.ABSENT and t.key not in under_way:
                under_way[t.key] = (t.target, t.seq, t.time)
                if t.target is LookupPhase.RESOLVED:
                    self.verdicts[t.seq] = t.outcome in (Outcome.HIT, Outcome.FORCED_HIT)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_told_is_true_although_records_are_lost_and_requests_left_out(seed):
    recorder = RecordingObserver()
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observer = SpanObserver(provider, observer_id="o", epoch_ns=EPOCH, limit=12, thread=False)
    wander(seed, CompositeObserver(recorder, observer), observer.pump, steps=3000)
    observer.close()
    assert observer.lost > 50
    truth = Truth(recorder.transitions)
    told = set()
    whole = 0
    spans = [span for span in exporter.get_finished_spans() if span.name.startswith("probe")]
    probes = {ids(span): span for span in spans if span.name not in STAYS}
    generations = Counter(attributes(span)[names.GENERATION] for span in probes.values())
    assert set(generations.values()) == {1}
    for span in spans:
        has = attributes(span)
        if span.name not in STAYS:
            continue
        assert span.parent is not None
        assert (span.parent.trace_id, span.parent.span_id) in probes
        opened: Any = has.get(names.OPENED_SEQ)
        ended: Any = has.get(names.SEQ)
        if ended is not None:
            phase, began, time = truth.opened[ended]
            assert has[names.PHASE_FROM] == phase.name.lower()
            assert opened in (began, None)
            assert (opened is None) == (names.TRUNCATED in has)
            stay = ended
            if opened is not None:
                whole += 1
                assert span.start_time == EPOCH + round(time * 1e9)
        else:
            assert has[names.OPEN] is True
            if opened is None:
                continue
            stay = truth.ended.get((bytes.fromhex(has[names.KEY]), opened), -opened)
        assert stay not in told
        told.add(stay)
        if names.VERDICT in has:
            assert has[names.VERDICT] == truth.verdicts[opened]
    assert whole > 50


def test_two_tiers_of_one_observer_are_told_apart():
    world = World()
    second = ScriptedLookups(world.runtime, observer=world.observer)
    second._table.reporter._tier = second.tier = "2:other"
    for number, lookups in enumerate((world.lookups, second), start=1):
        lookups.lookup(key(1), traced("r1", number))
    for lookups in (world.lookups, second):
        lookups.flush()
        lookups.step_worker()
        lookups.flush()
    world.lookups.cleanup("r1")
    assert [
        (span.name, attributes(span)[names.MANAGER_ID], attributes(span)[names.SEQ], ids(span)[0])
        for span in world.named("probe")
    ] == [("probe 1:test", "o/1:test", 1, 1), ("probe 2:other", "o/2:other", 1, 2)]
    assert not world.forgets_everything()
    second.cleanup("r1")
    assert world.forgets_everything()


def test_two_observers_have_different_names():
    observers = [SpanObserver(thread=False) for _ in range(2)]
    assert len({observer._manager_id("1:fs") for observer in observers}) == 2
    assert len(observers[0]._manager_id("1:fs")) == len("01234567/1:fs")


# -- the thread --------------------------------------------------------------------------------


def spans_threads() -> int:
    return sum(thread.name == "kvtier-spans" for thread in threading.enumerate())


def test_a_thread_makes_the_spans_and_ends_when_the_observer_is_closed():
    world = World(own={"thread": True, "epoch_ns": None})
    assert spans_threads() == 0
    before = time.time_ns() - 3_600 * 10**9
    hit(world)
    world.release(5, "r1")
    assert spans_threads() == 1
    end = time.monotonic() + PATIENCE
    while len(world.exporter.get_finished_spans()) < 5 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(world.exporter.get_finished_spans()) == 5
    assert before - time.monotonic_ns() < world.exporter.get_finished_spans()[0].start_time  # type: ignore[operator]
    world.observer.close()
    assert spans_threads() == 0


def test_the_times_are_wall_clock_times_if_nothing_else_is_said():
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = time.time_ns()
    with SpanObserver(provider) as observer, Steady("1:fs", observer=observer) as lookups:
        lookups.lookup(key(1), ctx("r1"))
    after = time.time_ns()
    spans = exporter.get_finished_spans()
    assert len(spans) >= 2
    for span in spans:
        assert span.start_time is not None
        assert before - 10**8 <= span.start_time <= after + 10**8


class Stuck(SpanExporter):
    def __init__(self) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()

    def export(self, spans):
        self.entered.set()
        self.let_go.wait(PATIENCE)
        return SpanExportResult.SUCCESS


def test_closing_does_not_wait_for_an_exporter_that_hangs(caplog):
    stuck = Stuck()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(stuck))
    observer = SpanObserver(provider)
    for _ in range(3):
        observer.on_pass(PassReport(ctx("r1"), 1, 0, None, 1.0, 2.0))
    assert stuck.entered.wait(PATIENCE)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        observer.close(timeout=0.1)
        observer.close(timeout=0.1)
    assert time.monotonic() - began < PATIENCE / 2
    assert caplog.text.count("spans_given_up") == 1
    assert observer.lost >= 2
    stuck.let_go.set()


def test_a_tracer_that_raises_is_told_once_and_stops_nothing(caplog):
    class Raising(TracerProvider):
        def get_tracer(self, *args, **kwargs):
            class Tracer:
                calls = 0

                def start_span(self, *args, **kwargs):
                    Tracer.calls += 1
                    raise RuntimeError("broken")

            self.made = Tracer
            return Tracer()

    provider = Raising(shutdown_on_exit=False)
    observer = SpanObserver(provider, thread=False)
    for _ in range(3):
        observer.on_pass(PassReport(ctx("r1"), 1, 0, None, 1.0, 2.0))
    with caplog.at_level(logging.ERROR):
        observer.close()
    assert provider.made.calls == 3
    assert observer.lost == 3
    assert caplog.text.count("span_failed") == 1


def test_without_an_sdk_nothing_is_made_and_nothing_goes_wrong():
    observer = SpanObserver(thread=False)
    with Steady("1:fs", runtime=VirtualRuntime(), observer=observer) as lookups:
        lookups.lookup(key(1), ctx("r1"))
    observer.close()
    assert observer.lost == 0


def test_it_needs_the_api_only():
    code = (
        "import sys, kvtier.telemetry.spans, kvtier.telemetry.compose\n"
        "sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- several observers ----------------------------------------------------------------------------


def test_several_observers_are_each_asked_and_each_told_what_they_have_methods_for():
    told: list[str] = []

    class Lookups:
        def wants(self, req_context, tier):
            told.append("wants")
            return False

        def on_transition(self, transition):
            told.append("transition")

    class Tiers:
        def on_job(self, report):
            told.append("job")

        def on_pass(self, report):
            told.append("pass")

    class Wanting(Lookups):
        def wants(self, req_context, tier):
            return True

        def on_batch(self, report):
            told.append("batch")

    both = CompositeObserver(Lookups(), Tiers(), Wanting())
    assert both.wants(ctx("r1"), "1:fs")
    both.on_transition(birth())
    both.on_batch(batch_report("1:fs"))
    both.on_job(job_report(ctx("r1")))
    both.on_pass(PassReport(ctx("r1"), 1, 0, None, 1.0, 2.0))
    assert told == ["wants", "transition", "transition", "batch", "job", "pass"]
    assert not CompositeObserver(Lookups(), Tiers()).wants(ctx("r1"), "1:fs")


@pytest.mark.parametrize("method", ["wants", "on_transition"])
def test_an_observer_that_raises_is_dropped_and_the_others_go_on(method, caplog):
    class Raising(RecordingObserver):
        calls = 0

    def fail(self, *args):
        Raising.calls += 1
        raise RuntimeError("broken")

    setattr(Raising, method, fail)
    before, after = RecordingObserver(), RecordingObserver()
    with caplog.at_level(logging.ERROR):
        world = World(observed=lambda spans: CompositeObserver(before, Raising(), after))
        hit(world)
    assert len(before.transitions) == len(after.transitions) == 3
    assert Raising.calls == 1
    assert caplog.text.count("observer_dropped") == 1
    assert "Raising" in caplog.text
