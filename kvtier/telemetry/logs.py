"""An observer that writes one log event for every transition.

The event's name is the name of the span that the transition closes: a probe
that leaves `IN_FLIGHT` is logged as `probe.in_flight`, and a probe's birth as
`probe`. So a log and a trace of the same run can be laid side by side, and a
request that came with trace headers has their ids in its events.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import structlog
from opentelemetry.trace import format_span_id, format_trace_id

from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupPhase, Transition, Trigger
from kvtier.log import shown
from kvtier.request import ReqContext
from kvtier.telemetry import names
from kvtier.telemetry.sampling import origin

__all__ = ["EVENT_NAMES", "LineLogger", "LoggingObserver", "event_first", "json_lines"]

EVENT_NAMES = {
    LookupPhase.ABSENT: names.PROBE,
    LookupPhase.PENDING: names.PENDING,
    LookupPhase.IN_FLIGHT: names.IN_FLIGHT,
    LookupPhase.RESOLVED: names.RESOLVED,
}
"""Event name of a transition, by the phase that it leaves."""


class LoggingObserver:
    """Logs every transition at level `info` to `logger` (default: structlog's, named `kvtier`).

    Fields: `seq`, `time` (seconds on the manager's clock), `tier`, `key` (hex),
    `generation`, `source`, `target`, `trigger`, `outcome`, `waiters`, and where
    there is one `request` and `scope`. Enumerations appear by name in lower case.

    `trace_id` and `span_id` (hex) are those of the trace headers of the request
    whose call it was or, where it was nobody's, of the request that asked. They are
    left out for a request without headers.
    """

    def __init__(self, logger: Any = None) -> None:
        self._info = (structlog.get_logger("kvtier") if logger is None else logger).info
        self._traces = _Traces()

    def wants(self, req_context: ReqContext, tier: str) -> bool:
        self._traces.greet(req_context, tier)
        return True

    def on_transition(self, transition: Transition) -> None:
        fields: dict[str, object] = {
            "seq": transition.seq,
            "time": round(transition.time, 9),
            "tier": transition.tier,
            "key": transition.key.hex(),
            "generation": transition.generation,
            "source": transition.source.name.lower(),
            "target": transition.target.name.lower(),
            "trigger": transition.trigger.name.lower(),
            "outcome": transition.outcome.value,
            "waiters": transition.waiters,
        }
        if transition.req_id is not None:
            fields["request"] = transition.req_id
        if transition.scope is not None:
            fields["scope"] = shown(transition.scope)
        if (trace := self._traces.of(transition)) is not None:
            fields["trace_id"], fields["span_id"] = trace
        self._info(EVENT_NAMES[transition.source], **fields)


class _Traces:
    """Trace and span ids of the requests that have any, and of the probes that they asked for.

    A request is forgotten after its releases in a tier, which come one after the
    other, and a probe when it ends; shutdown of a tier, after which a request may
    have nothing left to release, forgets all of that tier.
    """

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str | None], tuple[str, str]] = {}
        self._probes: dict[tuple[str, Hashable, OffloadKey], tuple[str, str]] = {}
        self._leaving: tuple[str, str | None] | None = None

    def greet(self, req_context: ReqContext, tier: str) -> None:
        """A request asks a tier for the first time."""
        self._let_go(None)
        span = origin(req_context.trace_headers)
        if span.is_valid:
            ids = format_trace_id(span.trace_id), format_span_id(span.span_id)
            self._requests[tier, req_context.req_id] = ids

    def of(self, transition: Transition) -> tuple[str, str] | None:
        """The ids to log with a transition."""
        tier = transition.tier
        request = tier, transition.req_id
        probe = tier, transition.scope, transition.key
        self._let_go(request if transition.trigger is Trigger.RELEASE else None)
        asked = self._probes.get(probe)
        ids = asked if transition.req_id is None else self._requests.get(request)
        if transition.target is LookupPhase.ABSENT:
            self._probes.pop(probe, None)
        elif transition.target is LookupPhase.PENDING is not transition.source:
            self._probes.pop(probe, None)
            if ids is not None:
                self._probes[probe] = ids
        if transition.trigger is Trigger.CLOSE:
            self._requests = {key: ids for key, ids in self._requests.items() if key[0] != tier}
        return ids

    def _let_go(self, leaving: tuple[str, str | None] | None) -> None:
        if self._leaving is not None and self._leaving != leaving:
            self._requests.pop(self._leaving, None)
        self._leaving = leaving


class _Stream(Protocol):
    def write(self, text: str, /) -> object: ...


class LineLogger:
    """The end of a structlog chain: rendered events become lines of `stream`, which may buffer."""

    def __init__(self, stream: _Stream) -> None:
        self._write = stream.write

    def msg(self, line: str) -> None:
        self._write(line + "\n")

    debug = info = warning = error = critical = msg


def event_first(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """A structlog processor: the event's name comes before its fields."""
    return {"event": event.pop("event"), **event}


def json_lines(stream: _Stream) -> Any:
    """A structlog logger that writes each event to `stream` as one line of JSON.

    The name comes first, under `event`. No wall-clock time is added, so that a
    deterministic run logs the same bytes each time.
    """
    return structlog.wrap_logger(
        LineLogger(stream),
        processors=[event_first, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.BoundLogger,
    )
