"""An observer that writes one log event for every transition.

The event's name is the name of the span that the transition closes: a probe
that leaves `IN_FLIGHT` is logged as `probe.in_flight`, and a probe's birth as
`probe`. So a log and a trace of the same run can be laid side by side.
"""

from __future__ import annotations

from typing import Any, Protocol

import structlog

from kvtier.lifecycle import LookupPhase, Transition
from kvtier.request import ReqContext

__all__ = ["EVENT_NAMES", "LineLogger", "LoggingObserver", "event_first", "json_lines"]

EVENT_NAMES = {
    LookupPhase.ABSENT: "probe",
    LookupPhase.PENDING: "probe.pending",
    LookupPhase.IN_FLIGHT: "probe.in_flight",
    LookupPhase.RESOLVED: "probe.resolved",
}
"""Event name of a transition, by the phase that it leaves."""


class LoggingObserver:
    """Logs every transition at level `info` to `logger` (default: structlog's, named `kvtier`).

    Fields: `seq`, `time` (seconds on the manager's clock), `tier`, `key` (hex),
    `generation`, `source`, `target`, `trigger`, `outcome`, `waiters`, and where
    there is one `request` and `scope`. Enumerations appear by name in lower case.
    """

    def __init__(self, logger: Any = None) -> None:
        self._info = (structlog.get_logger("kvtier") if logger is None else logger).info

    def wants(self, req_context: ReqContext, tier: str) -> bool:
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
            fields["scope"] = repr(transition.scope)
        self._info(EVENT_NAMES[transition.source], **fields)


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
