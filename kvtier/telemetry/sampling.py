"""Which requests and which probes are traced: decided early, cheaply, and the same in each replay.

A request decides by its own W3C trace context, once. If that says "not sampled",
nothing is recorded for it. A request without one (or with one that cannot be read)
would be the root of a trace, and whether that is recorded is the SDK's sampler to say.

The number of probes per second is bounded besides, because a burst of spans beyond
what an exporter takes is lost inside the SDK without order. Time is that of the
transitions, not the wall clock's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvtier.errors import UsageError

__all__ = ["TokenBucket", "origin", "unsampled"]

_propagator = TraceContextTextMapPropagator()

_TRACEPARENT = re.compile(
    r"[ \t]*(?!ff)(?:00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})[ \t]*"
    r"|(?!00)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(?:-.*|[ \t]*))"
)
"""W3C Trace Context, level 1, section 3.2: version 00 ends with the flags, later ones may go on."""


def unsampled(trace_headers: Mapping[str, str] | None) -> bool:
    """Whether these headers say that their trace is not recorded."""
    if not trace_headers:
        return False
    try:
        header = trace_headers.get("traceparent")
    except Exception:
        return False
    if not isinstance(header, str):
        return False
    found = _TRACEPARENT.fullmatch(header)
    return found is not None and not int(found[1] or found[2], 16) & 1


def origin(trace_headers: Mapping[str, str] | None) -> SpanContext:
    """The span that these headers lead to; invalid if there is none, or none to be read.

    Whoever sends a request writes them, so they may be anything.
    """
    if not trace_headers:
        return INVALID_SPAN_CONTEXT
    try:
        context = _propagator.extract(trace_headers, Context())
    except Exception:
        return INVALID_SPAN_CONTEXT
    return get_current_span(context).get_span_context()


class TokenBucket:
    """Admits `per_second` things in a second, and at most one second's worth at once.

    `None`: no bound. Raises `UsageError` for a rate that is not a positive number.
    """

    def __init__(self, per_second: float | None) -> None:
        if per_second is not None and not per_second > 0:
            raise UsageError(f"a rate is a positive number or None, not {per_second!r}")
        self._rate = per_second
        self._burst = 0.0 if per_second is None else max(per_second, 1.0)
        self._left = self._burst
        self._last = 0.0

    def admit(self, now: float) -> bool:
        """Whether one more thing may happen at `now` (seconds)."""
        if self._rate is None:
            return True
        passed = max(0.0, now - self._last)
        self._last = max(self._last, now)
        self._left = min(self._burst, self._left + passed * self._rate)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
