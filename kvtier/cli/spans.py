"""Where `kvtier replay` sends its spans: a file of OTLP JSON lines, a collector, or both.

Spans are built and handed on between two steps of the scheduler, on its thread: a
replay that waits for its exporter is slower, and loses nothing.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast
from urllib.parse import urlsplit

from kvtier.cli.logfile import LogFile
from kvtier.errors import BadInput, MissingTool
from kvtier.lifecycle import LookupObserver
from kvtier.replay import ReplayObservers
from kvtier.telemetry.compose import CompositeObserver
from kvtier.telemetry.requests import RequestSpans
from kvtier.telemetry.spans import SpanObserver

__all__ = ["Delivery", "collector", "tracing"]

_BATCH = 512
"""Spans that an exporter gets together."""

_SEND_TIMEOUT = 10
"""Seconds that a collector has for one batch."""


class Delivery:
    """A span processor of the SDK that exports in order, on the thread that ends the spans.

    After the first batch that is refused nothing is sent any more, or a collector
    that is down would hold up the run for its timeout, batch after batch.
    """

    def __init__(self, exporter: Any, where: str) -> None:
        self.where = where
        self.sent = 0
        self.lost = 0
        """Spans that did not arrive."""
        self._exporter = exporter
        self._batch: list[Any] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        return

    def _on_ending(self, span: Any) -> None:
        return

    def on_end(self, span: Any) -> None:
        self._batch.append(span)
        if len(self._batch) >= _BATCH:
            self.force_flush()

    def force_flush(self, timeout_millis: int = 0) -> bool:
        """Send what is there."""
        batch, self._batch = self._batch, []
        if batch and not self.lost and self._exporter.export(batch).name == "SUCCESS":
            self.sent += len(batch)
        else:
            self.lost += len(batch)
        return not self.lost

    def shutdown(self) -> None:
        """Send the rest and let the exporter go."""
        self.force_flush()
        self._exporter.shutdown()


def collector(url: str) -> str:
    """The address that spans are posted to. Raises `BadInput` if `url` is none.

    As with OpenTelemetry's own setting, an address without a path gets `/v1/traces`.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
        known = known and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known:
        raise BadInput("--otlp", f"{url!r} is no address", "http://HOST:4318, or https")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/v1/traces"


@contextmanager
def tracing(
    file: LogFile | None, url: str | None, also: LookupObserver | None
) -> Iterator[tuple[ReplayObservers, list[Delivery]]]:
    """What watches the run, spans and `also`, and where its spans go.

    Raises `MissingTool` without the SDK. Everything is delivered when the block ends.
    """
    if file is None and url is None:
        yield ReplayObservers(also), []
        return
    try:
        from opentelemetry.exporter.otlp.json.file import FileSpanExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError as error:
        raise MissingTool("OpenTelemetry's SDK with its exporters", "otlp") from error
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource.create({"service.name": "kvtier replay"}),
        shutdown_on_exit=False,
    )
    deliveries = []
    if file is not None:
        deliveries.append(Delivery(FileSpanExporter(stream=cast(IO[str], file)), str(file.path)))
    if url is not None:
        # It is said once at the end, not by the exporter for each batch.
        logging.getLogger("opentelemetry.exporter.otlp.proto.http").disabled = True
        exporter = OTLPSpanExporter(endpoint=collector(url), timeout=_SEND_TIMEOUT)
        deliveries.append(Delivery(exporter, url))
    for delivery in deliveries:
        provider.add_span_processor(delivery)  # type: ignore[arg-type]
    offset = time.time_ns() - time.monotonic_ns()
    spans = SpanObserver(
        provider, epoch_ns=offset, limit=sys.maxsize, max_probes_per_second=None, thread=False
    )
    requests = RequestSpans(provider, lambda: offset + time.monotonic_ns())
    lookups = spans if also is None else CompositeObserver(spans, also)
    try:
        yield ReplayObservers(lookups, spans, requests, spans.pump), deliveries
    finally:
        requests.close()
        spans.close()
        provider.shutdown()
