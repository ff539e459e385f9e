"""What `SpanObserver` makes of the calls of a real manager, span by span (`span_world.py`)."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvtier.request import ReqContext
from kvtier.telemetry import names
from kvtier.telemetry.compose import CompositeObserver
from kvtier.telemetry.recording import RecordingObserver
from kvtier.telemetry.sampling import unsampled
from kvtier.tiering import DeferReason
from kvtier.tiering.reports import JobOutcome, PassReport
from tests.support.lookups import ctx, key, quiet
from tests.support.span_world import (
    EPOCH,
    STAYS,
    World,
    attributes,
    batch_report,
    birth,
    hit,
    ids,
    job_report,
    line,
    seconds,
)
from tests.support.wandering import headers, traced


def no(keys):
    return [False] * len(keys)


def fails(keys):
    raise OSError("unreachable")


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
        "kvtier.probe.birth": "asked",
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


@pytest.mark.parametrize(
    "carrier",
    [
        {"traceparent": 5},
        {"traceparent": VALID.encode()},
        {"traceparent": VALID, "tracestate": 5},
        [("traceparent", VALID)],
        "traceparent",
        5,
    ],
)
def test_headers_that_are_none_are_no_headers_and_stop_nothing(carrier):
    world = World()
    first = ReqContext("r1", None, carrier)
    world.at(1).lookup(key(1), first)
    world.at(2).lookup(key(2), ctx("r2"))
    world.observer.on_job(job_report(first))
    world.observer.on_pass(PassReport(first, 1, 0, None, 1.0, 2.0))
    world.release(3, "r1", "r2")
    assert [probe.parent for probe in world.named("probe")] == [None, None]
    assert len(world.named("scheduler.lookup")) == 1
    assert world.observer.lost == 0


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
