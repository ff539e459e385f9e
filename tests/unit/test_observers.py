"""What observers do with the transitions that they are shown."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import structlog

from kvtier.errors import UsageError
from kvtier.keys import make_offload_key
from kvtier.lifecycle import LookupPhase, Outcome, Transition, Trigger
from kvtier.lookup.manager import AsyncLookupManager
from kvtier.request import ReqContext
from kvtier.runtime import VirtualRuntime
from kvtier.telemetry.logs import LoggingObserver, json_lines
from kvtier.telemetry.recording import RecordingObserver

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
