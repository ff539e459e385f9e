"""Spans of requests, where no serving engine makes them: a replay is its own client.

Each request becomes the root of a trace, and what kvtier does on its behalf hangs
below it, as it hangs below the engine's own spans in production.
"""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, TracerProvider, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import kvtier
from kvtier.telemetry import names

__all__ = ["RequestSpans"]


class RequestSpans:
    """Implements `kvtier.replay.RequestObserver`. `wall` is the time, in ns since 1970."""

    def __init__(self, tracer_provider: TracerProvider, wall: Callable[[], int]) -> None:
        self._tracer = tracer_provider.get_tracer(
            names.SCOPE, kvtier.__version__, schema_url=names.SCHEMA_URL
        )
        self._wall = wall
        self._open: dict[str, Span] = {}

    def begin(self, req_id: str) -> dict[str, str]:
        """Open the span of a request; the W3C headers that lead to it."""
        span = self._open[req_id] = self._tracer.start_span(
            names.REQUEST,
            Context(),
            SpanKind.SERVER,
            {names.REQUEST_ID: req_id},
            start_time=self._wall(),
        )
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers, set_span_in_context(span, Context()))
        return headers

    def end(self, req_id: str) -> None:
        """End the span of a request."""
        self._open.pop(req_id).end(self._wall())

    def close(self) -> None:
        """End what is open: requests that were given up."""
        for req_id in list(self._open):
            self.end(req_id)
