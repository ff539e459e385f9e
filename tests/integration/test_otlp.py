"""Spans leave the process: over HTTP to a collector on loopback, and into files of OTLP JSON.

What arrives is read with other code than that which wrote it: the protobuf classes of
`opentelemetry.proto` and the standard library's JSON.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import otlp_json
import pytest
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvtier.check.spans.checking import Checked, check_spans
from kvtier.check.spans.generation import Gap
from kvtier.keys import OffloadKey
from kvtier.lookup import AsyncLookupManager
from kvtier.request import ReqContext
from kvtier.runtime import VirtualRuntime
from kvtier.telemetry import names
from kvtier.telemetry.spans import SpanObserver
from tests.support.wandering import wander

EPOCH = 1_700_000_000_000_000_000
KEY = OffloadKey(b"\xab" * 36)
LIMIT = 1 << 20


class Yes(AsyncLookupManager):
    def batch_lookup(self, keys, req_context):
        return [True] * len(keys)


def asker(number: int) -> ReqContext:
    header = f"00-{number:032x}-{number + 100:016x}-01"
    return ReqContext(f"r{number}", None, {"traceparent": header})


def life_of_a_probe(provider: TracerProvider) -> None:
    """Asked by r1, joined by r2 and by r3, which has no headers; answered; let go. Five spans."""
    runtime = VirtualRuntime()
    with (
        SpanObserver(provider, observer_id="o", epoch_ns=EPOCH) as observer,
        Yes("1:remote", runtime=runtime, observer=observer) as lookups,
    ):
        for one in (asker(1), asker(2), ReqContext("r3")):
            lookups.lookup(KEY, one)
        lookups.flush()
        runtime.wait(1)
        lookups.flush()
        for number in (1, 2, 3):
            lookups.cleanup(f"r{number}")


class Collector(BaseHTTPRequestHandler):
    received: ClassVar[list[ExportTraceServiceRequest]]

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        if self.path != "/v1/traces" or length > LIMIT:
            self.send_error(400)
            return
        self.received.append(ExportTraceServiceRequest.FromString(self.rfile.read(length)))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Its address and what it has received."""

    class Handler(Collector):
        received = []  # noqa: RUF012
        timeout = 5

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", Handler.received
        finally:
            server.shutdown()
            thread.join(5)


def test_a_collector_gets_every_span_with_parents_links_and_attributes(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with collector() as (address, received):
        provider = TracerProvider(shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=address, timeout=5)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        life_of_a_probe(provider)
        provider.shutdown()
    scopes = [
        scope
        for request in received
        for resource in request.resource_spans
        for scope in resource.scope_spans
    ]
    assert {(scope.scope.name, scope.schema_url) for scope in scopes} == {
        ("kvtier", names.SCHEMA_URL)
    }
    spans = {span.name: span for scope in scopes for span in scope.spans}
    assert sum(len(scope.spans) for scope in scopes) == len(spans) == 5
    probe = spans["probe 1:remote"]
    assert probe.trace_id == (1).to_bytes(16, "big")
    assert probe.parent_span_id == (101).to_bytes(8, "big")
    assert [
        (link.trace_id, link.span_id, {a.key: plain(a.value) for a in link.attributes})
        for link in probe.links
    ] == [
        (
            (2).to_bytes(16, "big"),
            (102).to_bytes(8, "big"),
            {"kvtier.request.id": "r2", "kvtier.waiter.time": EPOCH},
        ),
        (bytes(16), bytes(8), {"kvtier.request.id": "r3", "kvtier.waiter.time": EPOCH}),
    ]
    for name in ("probe.pending", "probe.in_flight", "probe.resolved"):
        assert spans[name].trace_id == probe.trace_id
        assert spans[name].parent_span_id == probe.span_id
    assert {a.key: plain(a.value) for a in spans["probe.in_flight"].attributes} == {
        "kvtier.manager.id": "o/1:remote",
        "kvtier.tier": "1:remote",
        "kvtier.key": "ab" * 36,
        "kvtier.probe.generation": 1,
        "kvtier.probe.opened.seq": 4,
        "kvtier.probe.seq": 5,
        "kvtier.probe.phase.from": "in_flight",
        "kvtier.probe.phase.to": "resolved",
        "kvtier.probe.trigger": "answer",
        "kvtier.probe.outcome": "hit",
        "kvtier.probe.waiters": 3,
    }
    times = [probe.start_time_unix_nano, probe.end_time_unix_nano]
    assert times == [EPOCH, EPOCH + 1_000_000]
    batch = spans["lookup_batch 1:remote"]
    assert batch.kind == 3  # CLIENT
    assert [link.span_id for link in batch.links] == [
        number.to_bytes(8, "big") for number in (101, 102, 0)
    ]


def plain(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def json_spans(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        span
        for resource in document["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def json_attributes(thing: dict[str, Any]) -> dict[str, Any]:
    """Integers are strings in OTLP JSON."""
    found: dict[str, Any] = {}
    for attribute in thing["attributes"]:
        ((kind, value),) = attribute["value"].items()
        found[attribute["key"]] = int(value) if kind == "intValue" else value
    return found


def exported(exporter: SpanExporter) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    life_of_a_probe(provider)
    provider.shutdown()


def check(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """What every producer of OTLP JSON must keep. The probe."""
    by_name = {span["name"]: span for span in spans}
    assert len(spans) == len(by_name) == 5
    probe = by_name["probe 1:remote"]
    assert (probe["traceId"], probe["parentSpanId"]) == (f"{1:032x}", f"{101:016x}")
    assert (probe["startTimeUnixNano"], probe["endTimeUnixNano"]) == (
        str(EPOCH),
        str(EPOCH + 1_000_000),
    )
    assert json_attributes(probe) == {
        "kvtier.manager.id": "o/1:remote",
        "kvtier.tier": "1:remote",
        "kvtier.key": "ab" * 36,
        "kvtier.request.id": "r1",
        "kvtier.probe.generation": 1,
        "kvtier.probe.seq": 1,
        "kvtier.probe.ended.seq": 5,
        "kvtier.probe.phase.from": "absent",
        "kvtier.probe.phase.to": "pending",
        "kvtier.probe.trigger": "join",
        "kvtier.probe.birth": "asked",
        "kvtier.probe.outcome": "hit",
        "kvtier.probe.waiters": 3,
    }
    for name in ("probe.pending", "probe.in_flight", "probe.resolved"):
        assert by_name[name]["parentSpanId"] == probe["spanId"]
    assert json_attributes(by_name["probe.resolved"])["kvtier.probe.verdict"] is True
    return probe


def test_opentelemetrys_own_file_exporter_writes_spans_and_links(tmp_path: Path):
    path = tmp_path / "spans.jsonl"
    exported(FileSpanExporter(path))
    lines = path.read_text().splitlines()
    assert len(lines) == 5  # the simple processor hands on one span at a time
    probe = check([span for text in lines for span in json_spans(json.loads(text))])
    known, unknown = probe["links"]
    assert (known["traceId"], known["spanId"]) == (f"{2:032x}", f"{102:016x}")
    assert json_attributes(known) == {"kvtier.request.id": "r2", "kvtier.waiter.time": EPOCH}
    assert json_attributes(unknown) == {"kvtier.request.id": "r3", "kvtier.waiter.time": EPOCH}


class Roots(SpanObserver):
    """Traces all requests, whatever their headers say."""

    def wants(self, req_context, tier):
        return super().wants(ReqContext(req_context.req_id), tier)


def judged(checked: Checked) -> tuple[object, ...]:
    return checked.complete, checked.incomplete, checked.wrong, checked.batches, checked.others


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("observer_type", "settings"),
    [
        (Roots, {}),
        (SpanObserver, {}),
        (SpanObserver, {"limit": 12}),
        (SpanObserver, {"max_probes_per_second": 2.0}),
    ],
    ids=["whole", "requests left out", "records lost", "probes left out"],
)
def test_what_a_random_run_exports_is_never_wrong_whoever_writes_it(
    tmp_path, seed, observer_type, settings
):
    path = tmp_path / "spans.jsonl"
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with observer_type(provider, epoch_ns=EPOCH, thread=False, **settings) as observer:
        wander(seed, observer, observer.pump)
    exporter = FileSpanExporter(path)
    exporter.export(kept.get_finished_spans())
    exporter.shutdown()
    checked = check_spans([path])
    other = tmp_path / "other.json"
    other.write_bytes(otlp_json.encode_spans(kept.get_finished_spans()))
    assert judged(check_spans([other])) == judged(checked)
    assert checked.violations == []
    assert checked.probes > 10
    missing = set(checked.incomplete) - {Gap.OPEN}
    assert bool(missing) == (observer_type is not Roots)
    assert (observer.lost > 0) == ("limit" in settings)
    assert (observer.untraced > 0) == ("max_probes_per_second" in settings)


def test_otlp_json_writes_spans_without_their_links(tmp_path: Path):
    kept = InMemorySpanExporter()
    exported(kept)
    path = tmp_path / "spans.json"
    path.write_bytes(otlp_json.encode_spans(kept.get_finished_spans()))
    probe = check(json_spans(json.loads(path.read_bytes())))
    assert "links" not in probe
