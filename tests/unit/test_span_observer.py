"""`SpanObserver` under load, at its end, in its thread, and beside other observers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvtier.errors import UsageError
from kvtier.lifecycle import LookupPhase, Outcome, Transition, Trigger
from kvtier.lookup import AsyncLookupManager
from kvtier.request import ReqContext
from kvtier.runtime import ThreadRuntime, VirtualRuntime
from kvtier.telemetry import names
from kvtier.telemetry.compose import CompositeObserver
from kvtier.telemetry.recording import RecordingObserver
from kvtier.telemetry.sampling import TokenBucket
from kvtier.telemetry.spans import SpanObserver
from kvtier.tiering.reports import PassReport
from tests.support.lookups import PATIENCE, ScriptedLookups, ctx, key
from tests.support.span_world import (
    EPOCH,
    STAYS,
    World,
    attributes,
    batch_report,
    birth,
    check_parents,
    hit,
    ids,
    job_report,
)
from tests.support.wandering import traced, wander

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


def born_and_then(source: LookupPhase, trigger: Trigger, outcome: Outcome) -> World:
    """A probe was asked for, and a second later it is said to have been resolved."""
    world = World()
    world.observer.wants(ctx("r1"), "1:test")
    world.observer.on_transition(birth())
    resolved: dict[str, Any] = {"source": source, "target": LookupPhase.RESOLVED}
    resolved |= {"trigger": trigger, "outcome": outcome, "req_id": None}
    world.observer.on_transition(birth(seq=2, time=2.0, **resolved))
    return world


def test_a_transition_that_does_not_fit_what_is_known_cuts_the_history_off():
    world = born_and_then(LookupPhase.IN_FLIGHT, Trigger.ANSWER, Outcome.HIT)
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
    world = born_and_then(LookupPhase.PENDING, Trigger.MARK_MISS, Outcome.FORCED_MISS)
    world.observer.close()
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
    assert [bucket.admit(9.0), bucket.admit(10.9), bucket.admit(11.0)] == [False, False, True]
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


def test_a_queue_that_was_filled_before_there_was_a_thread_is_emptied_all_the_same():
    """What others want comes to the span observer too, which does not want this request."""
    world = World(
        own={"thread": True, "limit": 3},
        observed=lambda spans: CompositeObserver(spans, RecordingObserver()),
    )
    unsampled = ReqContext("r1", None, {"traceparent": f"00-{5:032x}-{6:016x}-00"})
    for number in range(5):
        world.lookups.lookup(key(number), unsampled)
    assert (world.observer.lost, spans_threads()) == (2, 0)
    world.ask(1, "r2", number=7)
    end = time.monotonic() + PATIENCE
    while world.observer._queue and time.monotonic() < end:
        time.sleep(0.01)
    world.ask(2, "r3", number=8)
    world.observer.close()
    assert [span.attributes[names.REQUEST_ID] for span in world.named("probe")] == ["r3"]  # type: ignore[index]


def test_without_a_thread_to_be_had_nothing_is_traced_and_closing_is_quiet(monkeypatch, caplog):
    def none_left(thread):
        raise RuntimeError("can't start new thread")

    world = World(own={"thread": True})
    monkeypatch.setattr(threading.Thread, "start", none_left)
    with caplog.at_level(logging.ERROR):
        assert world.ask(1, "r1") == [None]
    assert caplog.text.count("observer_dropped") == 1
    world.observer.close()
    assert world.all == ()


FORKED = """
import os, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from kvtier.runtime import VirtualRuntime
from kvtier.telemetry.spans import SpanObserver
from tests.support.lookups import ScriptedLookups, ctx, key

exporter = InMemorySpanExporter()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(exporter))
observer = SpanObserver(provider, observer_id="o")

def live(number):
    lookups = ScriptedLookups(VirtualRuntime(), observer=observer)
    lookups.lookup(key(number), ctx("r1"))
    lookups.cleanup("r1")

live(1)
child = os.fork()
if child == 0:
    live(2)
observer.close()
probes = [span for span in exporter.get_finished_spans() if span.name == "probe 1:test"]
keys = [span.attributes["kvtier.key"] for span in probes]
if child == 0:
    own = probes[0].attributes["kvtier.manager.id"] == f"o-{os.getpid()}/1:test"
    os._exit(0 if own and keys == [key(2).hex()] and observer.lost == 0 else 1)
status = os.waitpid(child, 0)[1]
sys.exit(status != 0 or keys != [key(1).hex()])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_traces_what_it_does_itself_under_a_name_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKED], check=False, timeout=30)
    assert done.returncode == 0


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


def test_real_threads_tell_the_same():
    recorder = RecordingObserver()
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with SpanObserver(provider, epoch_ns=EPOCH, max_probes_per_second=None) as observer:
        both = CompositeObserver(recorder, observer)
        runtime = ThreadRuntime()
        with Steady("1:test", runtime=runtime, observer=both) as lookups:
            for number in range(200):
                lookups.lookup(key(number), ctx(f"r{number}"))
                lookups.lookup(key(number // 2), ctx(f"r{number}"))
                if number % 10 == 9:
                    lookups.flush()
                    runtime.wait(PATIENCE)
                if number >= 20:
                    lookups.cleanup(f"r{number - 20}")
            for number in range(200):
                lookups.cleanup(f"r{number}")
    assert observer.lost == 0
    spans = [span for span in exporter.get_finished_spans() if span.name.startswith("probe")]
    check_parents(spans)
    ends = [t.seq for t in recorder.transitions if ends_stay(t)]
    assert len(ends) > 400
    assert sorted(attributes(s)[names.SEQ] for s in spans if s.name in STAYS) == ends


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


def test_closing_several_closes_each_that_can_be_closed(caplog):
    closed: list[str] = []

    class Stubborn:
        def close(self):
            closed.append("stubborn")
            raise OSError("no")

    world = World()
    world.lookups.shutdown()
    several = CompositeObserver(Stubborn(), RecordingObserver(), world.observer)
    several.wants(ctx("r1"), "1:test")
    several.on_transition(birth())
    with caplog.at_level(logging.ERROR):
        several.close()
    assert closed == ["stubborn"]
    assert caplog.text.count("observer_not_closed") == 1
    assert [span.name for span in world.exporter.get_finished_spans()] == [
        "probe 1:test",
        "probe.pending",
    ]
