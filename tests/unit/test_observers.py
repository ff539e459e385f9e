"""What observers do with the transitions that they are shown."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import structlog

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey, make_offload_key
from kvtier.lifecycle import LookupPhase, Outcome, Transition, Trigger
from kvtier.lookup.manager import AsyncLookupManager
from kvtier.request import ReqContext
from kvtier.runtime import VirtualRuntime
from kvtier.telemetry.logs import LoggingObserver, json_lines
from kvtier.telemetry.recording import RecordingObserver
from tests.support.lookups import HandRuntime, ScriptedLookups, key, quiet

KEY = make_offload_key(b"\xab" * 32, 1)
P = LookupPhase


def transition(seq: int = 0, **changes) -> Transition:
    fields: dict[str, Any] = {
        "seq": seq,
        "time": 1.5,
        "tier": "1:fs",
        "scope": None,
        "key": KEY,
        "generation": 3,
        "source": P.IN_FLIGHT,
        "target": P.RESOLVED,
        "trigger": Trigger.ANSWER,
        "outcome": Outcome.HIT,
        "waiters": 2,
        "req_id": None,
    }
    return Transition(**(fields | changes))


# -- recording -----------------------------------------------------------------------------


def test_a_recorder_keeps_transitions_in_order():
    recorder = RecordingObserver()
    for seq in range(5):
        recorder.on_transition(transition(seq))
    assert [t.seq for t in recorder.transitions] == [0, 1, 2, 3, 4]
    assert recorder.lost == 0


def test_a_bounded_recorder_keeps_the_newest_and_counts_the_others():
    recorder = RecordingObserver(limit=2)
    for seq in range(5):
        recorder.on_transition(transition(seq))
    assert [t.seq for t in recorder.transitions] == [3, 4]
    assert recorder.lost == 3


def test_a_cleared_recorder_is_empty():
    recorder = RecordingObserver(limit=1)
    for seq in range(3):
        recorder.on_transition(transition(seq))
    recorder.clear()
    assert (recorder.transitions, recorder.lost) == ((), 0)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_recorder_that_could_keep_nothing_is_refused(limit):
    with pytest.raises(UsageError, match="give 1 or more"):
        RecordingObserver(limit)


def test_a_recorder_wants_every_request_unless_told_which():
    ctx = ReqContext("r1")
    assert RecordingObserver().wants(ctx, "1:fs")
    picky = RecordingObserver(wanted=lambda ctx, tier: tier == "2:memory")
    assert not picky.wants(ctx, "1:fs")
    assert picky.wants(ctx, "2:memory")


# -- logging -------------------------------------------------------------------------------


def logged(*transitions: Transition) -> list[dict[str, object]]:
    stream = io.StringIO()
    observer = LoggingObserver(json_lines(stream))
    assert observer.wants(ReqContext("r1"), "1:fs")
    for one in transitions:
        observer.on_transition(one)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("source", "event"),
    [
        (P.ABSENT, "probe"),
        (P.PENDING, "probe.pending"),
        (P.IN_FLIGHT, "probe.in_flight"),
        (P.RESOLVED, "probe.resolved"),
    ],
)
def test_an_event_has_the_name_of_the_span_that_the_transition_closes(source, event):
    (line,) = logged(transition(source=source))
    assert line["event"] == event


def test_an_event_has_all_that_a_transition_has():
    (line,) = logged(transition(req_id="r7", scope=("tenant", 1)))
    assert line == {
        "event": "probe.in_flight",
        "seq": 0,
        "time": 1.5,
        "tier": "1:fs",
        "key": "ab" * 32 + "00000001",
        "generation": 3,
        "source": "in_flight",
        "target": "resolved",
        "trigger": "answer",
        "outcome": "hit",
        "waiters": 2,
        "request": "r7",
        "scope": "('tenant', 1)",
    }


def test_request_and_scope_are_left_out_where_there_is_none():
    (line,) = logged(transition())
    assert not {"request", "scope"} & line.keys()


def test_one_event_for_each_transition_in_order():
    assert [line["seq"] for line in logged(*map(transition, range(4)))] == [0, 1, 2, 3]


def test_without_a_logger_of_its_own_it_logs_to_structlogs():
    with structlog.testing.capture_logs() as events:
        LoggingObserver().on_transition(transition(seq=9))
    assert [(event["event"], event["log_level"], event["seq"]) for event in events] == [
        ("probe.in_flight", "info", 9)
    ]


# -- logging: whose trace it is --------------------------------------------------------------

TRACES = {
    "r1": ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"),
    "r2": ("1" * 32, "2" * 16),
}


def traced(name: str) -> ReqContext:
    """A request that came with the headers of its trace."""
    trace_id, span_id = TRACES[name]
    return ReqContext(name, None, {"traceparent": f"00-{trace_id}-{span_id}-01"})


class Logged:
    """Lookups that a test moves by hand, their log, and the observer that writes it."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.observer = LoggingObserver(json_lines(self.stream))
        self.lookups = ScriptedLookups(HandRuntime(), observer=self.observer)

    def round(self, *asked: tuple[OffloadKey, ReqContext]) -> None:
        for k, context in asked:
            self.lookups.lookup(k, context)
        self.lookups.flush()
        self.lookups.step_worker()
        self.lookups.drain_results()

    def lines(self) -> list[tuple[str, str | None, tuple[str, str] | None]]:
        """Trigger, request and ids of every line."""
        found = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        assert all(("trace_id" in line) == ("span_id" in line) for line in found)
        return [
            (
                line["trigger"],
                line.get("request"),
                (line["trace_id"], line["span_id"]) if "trace_id" in line else None,
            )
            for line in found
        ]

    @property
    def kept(self) -> int:
        traces = self.observer._traces
        return len(traces._requests) + len(traces._probes)


def test_an_event_has_the_ids_of_the_request_whose_call_it_was_else_of_the_one_that_asked():
    log = Logged()
    log.round((KEY, traced("r1")), (KEY, traced("r2")), (KEY, ReqContext("r3")))
    for name in ("r1", "r2", "r3"):
        log.lookups.cleanup(name)
    assert log.lines() == [
        ("join", "r1", TRACES["r1"]),
        ("join", "r2", TRACES["r2"]),
        ("join", "r3", None),
        ("send", None, TRACES["r1"]),
        ("answer", None, TRACES["r1"]),
        ("release", "r1", TRACES["r1"]),
        ("release", "r2", TRACES["r2"]),
        ("release", "r3", None),
    ]


def test_a_request_that_lets_go_of_several_probes_has_its_ids_in_every_release():
    log = Logged()
    log.round((key(1), traced("r1")), (key(2), traced("r1")), (key(3), traced("r1")))
    log.lookups.cleanup("r1")
    assert log.lines()[-3:] == [("release", "r1", TRACES["r1"])] * 3


def test_who_asks_again_is_who_asked():
    with quiet():
        log = Logged()
        log.lookups.answer = lambda keys: []
        log.round((KEY, traced("r1")))
        log.round((KEY, traced("r2")))
        log.round((KEY, ReqContext("r3")))
    assert [(trigger, ids) for trigger, _, ids in log.lines()] == [
        *((trigger, TRACES["r1"]) for trigger in ("join", "send", "answer")),
        *((trigger, TRACES["r2"]) for trigger in ("join", "send", "answer")),
        *((trigger, None) for trigger in ("join", "send", "answer")),
    ]


def test_a_request_comes_again_with_other_headers():
    log = Logged()
    log.round((KEY, traced("r1")))
    log.lookups.cleanup("r1")
    again = ReqContext("r1", None, traced("r2").trace_headers)
    log.round((KEY, again))
    log.lookups.cleanup("r1")
    log.round((KEY, ReqContext("r1")))
    assert {ids for _, _, ids in log.lines()[:4]} == {TRACES["r1"]}
    assert {ids for _, _, ids in log.lines()[4:8]} == {TRACES["r2"]}
    assert {ids for _, _, ids in log.lines()[8:]} == {None}


@pytest.mark.parametrize("headers", [None, {}, {"traceparent": "nonsense"}, {"other": "x"}])
def test_without_usable_headers_there_are_no_ids(headers):
    log = Logged()
    log.round((KEY, ReqContext("r1", None, headers)))
    assert {ids for _, _, ids in log.lines()} == {None}
    assert log.kept == 0


def test_ids_of_one_tier_outlive_the_release_in_another():
    log = Logged()
    other = transition(tier="2:other", trigger=Trigger.RELEASE, req_id="r1", target=P.ABSENT)
    log.observer.wants(traced("r1"), "2:other")
    log.round((KEY, traced("r1")))
    log.observer.on_transition(other)
    log.lookups.cleanup("r1")
    assert log.lines()[-1] == ("release", "r1", TRACES["r1"])


def test_what_is_kept_for_ids_is_forgotten_when_requests_let_go():
    log = Logged()
    for number in range(50):
        context = ReqContext(f"r{number}", None, traced("r1").trace_headers)
        log.round((key(number), context), (key(number + 1), context))
        log.lookups.lookup(key(1000 + number), context)  # abandoned
        log.lookups.cleanup(f"r{number}")
        assert log.kept <= 1  # the one that let go last
    log.lookups.lookup(KEY, ReqContext("last"))
    assert log.kept == 0


def test_shutdown_forgets_whom_nothing_is_left_to_release():
    log = Logged()
    for number in range(10):
        context = ReqContext(f"r{number}", None, traced("r1").trace_headers)
        log.lookups.lookup(key(number), context)
    log.observer.wants(traced("r2"), "2:other")
    log.lookups.shutdown()
    assert [ids for trigger, _, ids in log.lines() if trigger == "close"] == [TRACES["r1"]] * 10
    assert log.kept == 1
    log.observer.on_transition(transition(tier="2:other", trigger=Trigger.JOIN, req_id="r2"))
    assert log.lines()[-1] == ("join", "r2", TRACES["r2"])


# -- with a real manager -------------------------------------------------------------------


class Yes(AsyncLookupManager):
    def batch_lookup(self, keys, req_context):
        return [True] * len(keys)


def life_of_a_probe(observer) -> None:
    """Asked by one request, joined by a second, answered, and let go by both."""
    runtime = VirtualRuntime()
    with Yes("1:fs", runtime=runtime, observer=observer) as lookups:
        for name in ("r1", "r2"):
            lookups.lookup(KEY, ReqContext(name))
        lookups.flush()
        runtime.wait(1)
        for name in ("r1", "r2"):
            assert lookups.lookup(KEY, ReqContext(name)) is True
            lookups.cleanup(name)


def test_a_found_block_passes_through_all_phases():
    recorder = RecordingObserver()
    life_of_a_probe(recorder)
    seen = [(t.source, t.trigger, t.target, t.req_id) for t in recorder.transitions]
    assert seen == [
        (P.ABSENT, Trigger.JOIN, P.PENDING, "r1"),
        (P.PENDING, Trigger.JOIN, P.PENDING, "r2"),
        (P.PENDING, Trigger.SEND, P.IN_FLIGHT, None),
        (P.IN_FLIGHT, Trigger.ANSWER, P.RESOLVED, None),
        (P.RESOLVED, Trigger.RELEASE, P.RESOLVED, "r1"),
        (P.RESOLVED, Trigger.RELEASE, P.ABSENT, "r2"),
    ]


def test_the_log_of_the_same_calls_is_the_same_bytes():
    logs = []
    for _ in range(2):
        stream = io.StringIO()
        life_of_a_probe(LoggingObserver(json_lines(stream)))
        logs.append(stream.getvalue())
    assert logs[0] == logs[1]
    assert logs[0].count("\n") == 6


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_a_scope_that_cannot_be_shown_is_named_by_its_type():
    (line,) = logged(transition(scope=Unspeakable()))
    assert line["scope"] == "<Unspeakable>"


@pytest.mark.parametrize("headers", [{"traceparent": 5}, [("traceparent", "x")], "x", 5])
def test_headers_that_are_none_are_no_headers_to_the_log(headers):
    stream = io.StringIO()
    observer = LoggingObserver(json_lines(stream))
    assert observer.wants(ReqContext("r1", None, headers), "1:fs")
    observer.on_transition(transition(req_id="r1"))
    assert "trace_id" not in json.loads(stream.getvalue())
