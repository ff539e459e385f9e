"""Where `kvtier replay` sends its spans: a file of OTLP JSON lines, a collector, or both.

Spans are built and handed on between two steps of the scheduler, on its thread: a
replay that waits for its exporter is slower, and loses nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import IO, Any, cast
from urllib.parse import urlsplit

from kvtier.cli.logfile import LogFile
from kvtier.errors import BadInput, MissingTool
from kvtier.lifecycle import LookupObserver
from kvtier.log import shown
from kvtier.replay import ReplayObservers
from kvtier.telemetry.compose import CompositeObserver
from kvtier.telemetry.requests import RequestSpans
from kvtier.telemetry.spans import SpanObserver

__all__ = ["Delivery", "collector", "tracing"]

_BATCH = 512
"""Spans that an exporter gets together."""

_SEND_TIMEOUT = 10
"""Seconds that a collector has for one batch."""

_LIMITS = (
    "max_attributes",
    "max_events",
    "max_links",
    "max_span_attributes",
    "max_event_attributes",
    "max_link_attributes",
    "max_attribute_length",
    "max_span_attribute_length",
)
"""What the SDK limits, by default or because the environment says so."""


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
        self.reason: str | None = None
        """What the exporter said first of the batch that did not."""
        self._exporter = exporter
        self._batch: list[Any] = []
        self._rejected = 0
        self._given_up = False

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
        arrived = False
        try:
            arrived = bool(batch) and not self._given_up and self._export(batch)
        finally:  # also if a signal cuts it short
            lost = min(self._rejected, len(batch)) if arrived else len(batch)
            self.lost += lost
            self.sent += len(batch) - lost
            self._given_up = self._given_up or (bool(batch) and not arrived)
        return not self.lost

    def reject(self, spans: int, reason: str) -> None:
        """So many of the batch that is being exported are not taken, the others are."""
        self._rejected = spans
        self.reason = self.reason or reason or None

    def _export(self, batch: list[Any]) -> bool:
        self._rejected = 0
        if not self.lost:
            self.reason = None
        try:
            return bool(self._exporter.export(batch).name == "SUCCESS")
        except Exception as error:  # the run is not to end of it
            self.reason = shown(error)
            return False

    def shutdown(self) -> None:
        """Send the rest and let the exporter go."""
        self.force_flush()
        self._exporter.shutdown()


class _Ear(logging.Handler):
    """Hears why an exporter fails, which it says to its logger only."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__()
        self._delivery = delivery

    def emit(self, record: logging.LogRecord) -> None:
        self._delivery.reason = self._delivery.reason or record.getMessage()


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
    return url if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl()


def _read_answer(delivery: Delivery, response: Any, *args: Any, **kwargs: Any) -> None:
    """What the exporter takes for success and is none: redirects, and a part that is rejected."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    if 300 <= response.status_code < 400:
        where = response.headers.get("Location", "nowhere")
        raise ConnectionRefusedError(f"redirected to {where}")
    if response.status_code < 300:
        answer = trace_service_pb2.ExportTraceServiceResponse()
        with suppress(Exception):  # DecodeError: some answer in JSON, or with a word
            answer.ParseFromString(response.content)
            rejected = answer.partial_success
            if rejected.rejected_spans > 0:
                delivery.reject(rejected.rejected_spans, rejected.error_message)


@contextmanager
def _hearing(logger: str, delivery: Delivery) -> Iterator[None]:
    """What is logged as `logger` is what `delivery` has to say, and is printed by nobody else."""
    log, ear = logging.getLogger(logger), _Ear(delivery)
    before, log.propagate = log.propagate, False
    log.addHandler(ear)
    try:
        yield
    finally:
        log.removeHandler(ear)
        log.propagate = before


@contextmanager
def tracing(
    file: LogFile | None, url: str | None, also: LookupObserver | None
) -> Iterator[tuple[ReplayObservers, list[Delivery]]]:
    """What watches the run, spans and `also`, and where its spans go (`url`: a `collector`).

    The environment has its say in how spans are sent (`OTEL_EXPORTER_OTLP_*`), not in what
    they are: a sampler or a limit would leave out what the options ask for. Raises
    `MissingTool` without the SDK, `BadInput` if it is switched off. Everything is
    delivered when the block ends.
    """
    if file is None and url is None:
        yield ReplayObservers(also), []
        return
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        raise BadInput("OTEL_SDK_DISABLED", "is true, so there are no spans", "it to be unset")
    try:
        import requests
        from opentelemetry.exporter.otlp.json.file import FileSpanExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError as error:
        raise MissingTool("OpenTelemetry's SDK with its exporters", "otlp") from error
    with ExitStack() as stack:
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": "kvtier replay"}),
            span_limits=SpanLimits(**dict.fromkeys(_LIMITS, SpanLimits.UNSET)),
            shutdown_on_exit=False,
        )
        deliveries = []
        if file is not None:
            deliveries.append(
                Delivery(FileSpanExporter(stream=cast(IO[str], file)), str(file.path))
            )
        if url is not None:
            session = requests.Session()
            exporter = OTLPSpanExporter(endpoint=url, timeout=_SEND_TIMEOUT, session=session)
            deliveries.append(Delivery(exporter, url))
            session.hooks["response"].append(partial(_read_answer, deliveries[-1]))
            stack.enter_context(_hearing(OTLPSpanExporter.__module__, deliveries[-1]))
        for delivery in deliveries:
            provider.add_span_processor(delivery)  # type: ignore[arg-type]
        offset = time.time_ns() - time.monotonic_ns()
        spans = SpanObserver(
            provider, epoch_ns=offset, limit=sys.maxsize, max_probes_per_second=None, thread=False
        )
        served = RequestSpans(provider, lambda: offset + time.monotonic_ns())
        lookups = spans if also is None else CompositeObserver(spans, also)
        try:
            yield ReplayObservers(lookups, spans, served, spans.pump), deliveries
        finally:
            served.close()
            spans.close()
            provider.shutdown()
