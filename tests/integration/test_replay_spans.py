"""`kvtier replay --spans` and `--otlp`: what arrives, and what is said if it does not."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from kvtier.cli import main
from kvtier.cli.spans import Delivery, collector
from kvtier.errors import BadInput

QUICK = [
    "replay",
    "--limit",
    "40",
    "--tier",
    "memory",
    "--block-bytes",
    "64",
    "--host-blocks",
    "64",
]
GOOD = '{"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [0, 1]}\n'


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, args)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def spans(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                assert scope["scope"]["name"] == "kvtier"
                yield from scope["spans"]


def kinds(names: Iterator[str]) -> Counter[str]:
    return Counter(name.split()[0] for name in names)


def trigger(span: dict[str, Any]) -> str | None:
    values = {one["key"]: one["value"] for one in span["attributes"]}
    found = values.get("kvtier.probe.trigger", {}).get("stringValue")
    return None if found is None else str(found)


def expected(report: dict[str, Any]) -> dict[str, int]:
    """How many spans of each kind a run with these figures has, by the table of spans."""
    answered = report["probes_resolved"]
    return {
        "request": report["requests"],
        "probe": report["probes_issued"],
        "probe.pending": report["probes_issued"],
        "probe.in_flight": report["probes_issued"] - report["probes_abandoned"],
        "probe.resolved": answered,
        "lookup_batch": report["backend_calls"],
        "promotion": report["promotions"]["submitted"],
        "cascade": report["stores"]["submitted"],
        "scheduler.lookup": report["requests"] + sum(report["deferrals"].values()),
    }


@pytest.mark.parametrize("concurrency", ["1", "8"])
def test_the_file_has_a_span_for_every_stay_batch_job_and_pass(concurrency):
    code, out, err = invoke(
        *QUICK, "--concurrency", concurrency, "--spans", "spans.jsonl", "--json"
    )
    assert (code, err) == (0, "")
    found = list(spans(Path("spans.jsonl")))
    count = kinds(span["name"] for span in found)
    # A mark ends one verdict and begins another.
    count["probe.resolved"] -= sum(trigger(span) in ("mark_hit", "mark_miss") for span in found)
    assert count == expected(json.loads(out))


def test_all_that_is_done_for_a_request_is_in_its_trace():
    assert invoke(*QUICK, "--spans", "spans.jsonl")[0] == 0
    found = list(spans(Path("spans.jsonl")))
    roots = {s["spanId"]: s["traceId"] for s in found if s["name"] == "request"}
    assert len(roots) == len(set(roots.values())) == 40
    children = [s for s in found if s["name"].split()[0] in ("probe", "promotion", "cascade")]
    assert children
    assert all(s["traceId"] == roots[s["parentSpanId"]] for s in children)


def test_errors_of_a_back_end_are_spans_with_status_error():
    faults = ["--faults", "probe_error=0.3,load_error=0.3", "--concurrency", "4"]
    code, out, _ = invoke(*QUICK, *faults, "--spans", "s", "--json")
    assert code == 0
    failed = Counter(s["name"] for s in spans(Path("s")) if s.get("status", {}).get("code") == 2)
    assert failed["probe 1:memory"] == json.loads(out)["lookup_errors"] > 0
    promotions = json.loads(out)["promotions"]
    assert failed["promotion 1:memory"] == promotions["failed"] + promotions["partial"] > 0


def test_what_the_file_held_goes_and_bad_input_leaves_it_alone():
    Path("spans").write_text("old\n" * 100)
    assert invoke("replay", "--tier", "tape", "--spans", "spans")[0] == 2
    assert Path("spans").read_text() == "old\n" * 100
    assert invoke(*QUICK, "--spans", "spans")[0] == 0
    assert "old" not in Path("spans").read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--spans", "no/spans"], "no/spans: cannot be written: No such file or directory"),
        (["--spans", ""], "'--spans': it is empty"),
        (["--spans", "one", "--log", "./one"], "one: is the log too; expected a file of its own"),
        (["trace", "--spans", "trace"], "trace: belongs to the workload trace"),
        (["--otlp", "localhost:4318"], "--otlp: 'localhost:4318' is no address; expected http"),
        (["--otlp", "ftp://host"], "--otlp: 'ftp://host' is no address"),
        (["--otlp", "http://host:99999"], "is no address"),
        (["--otlp", ""], "--otlp: '' is no address"),
    ],
)
def test_where_spans_cannot_go_is_bad_input(args, said):
    Path("trace").write_text(GOOD)
    code, out, err = invoke(*QUICK, *args)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert [p.name for p in Path().iterdir()] == ["trace"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_said_and_the_result_is_there():
    code, out, err = invoke(*QUICK, "--spans", "/dev/full", "--json")
    assert code == 1
    assert json.loads(out)["requests"] == 40
    assert err == "kvtier: /dev/full: cannot be written: No space left on device\n"


@pytest.mark.parametrize("was_there", [True, False])
def test_without_the_sdk_the_extra_is_named_and_the_file_left_alone(was_there, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    if was_there:
        Path("spans").write_text("precious")
    code, out, err = invoke(*QUICK, "--spans", "spans")
    assert (code, out) == (3, "")
    assert err.endswith("pip install 'kvtier[otlp]'\n")
    assert err.count("\n") == 1
    assert [p.read_text() for p in Path().iterdir()] == ["precious"] * was_there


# -- a collector ---------------------------------------------------------------------------


def test_an_address_without_a_path_gets_the_usual_one():
    assert collector("http://localhost:4318") == "http://localhost:4318/v1/traces"
    assert collector("http://localhost:4318/") == "http://localhost:4318/v1/traces"
    assert collector("http://host?token=1") == "http://host/v1/traces?token=1"
    assert collector("https://host/tenant/traces") == "https://host/tenant/traces"
    with pytest.raises(BadInput):
        collector("http://")


class _Collector(http.server.BaseHTTPRequestHandler):
    answer = 200
    body = b""
    names: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.names += [span.name for span in scope.spans]
        self.send_response(self.answer)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def listening() -> Iterator[tuple[str, type[_Collector]]]:
    """A collector on loopback: its address, and the class that says what it answers and got."""
    handler = type("Handler", (_Collector,), {"names": []})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()
        thread.join()


def test_a_collector_gets_every_span(listening):
    url, collected = listening
    code, out, err = invoke(*QUICK, "--otlp", url, "--spans", "too", "--json")
    assert (code, err) == (0, "")
    assert kinds(iter(collected.names)) == expected(json.loads(out))
    assert sorted(collected.names) == sorted(span["name"] for span in spans(Path("too")))


def test_a_collector_that_refuses_is_asked_once_and_said(listening):
    url, collected = listening
    collected.answer = 400
    code, out, err = invoke(*QUICK, "--otlp", url, "--json")
    assert code == 1
    every = sum(expected(json.loads(out)).values())
    why = "Failed to export spans batch code: 400, reason: Bad Request"
    assert err == f"kvtier: {url}/v1/traces: did not take {every} spans: {why}\n"
    assert len(collected.names) == min(512, every)


def test_a_collector_that_is_somewhere_else_has_not_taken_anything(listening):
    url, collected = listening
    collected.answer = 307
    code, out, err = invoke(*QUICK, "--otlp", url, "--json")
    assert code == 1
    every = sum(expected(json.loads(out)).values())
    assert err.startswith(f"kvtier: {url}/v1/traces: did not take {every} spans: ")
    assert err.endswith("redirected to nowhere\n")


@pytest.mark.parametrize(("why", "said"), [("too old", ": too old"), ("", "")])
def test_what_a_collector_rejects_is_said_and_the_rest_is_sent(why, said, listening):
    url, collected = listening
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 3
    answer.partial_success.error_message = why
    collected.body = answer.SerializeToString()
    code, out, err = invoke(*QUICK, "--otlp", url, "--json")
    assert code == 1
    every = sum(expected(json.loads(out)).values())
    assert len(collected.names) == every > 512
    batches = -(-every // 512)
    assert err == f"kvtier: {url}/v1/traces: did not take {3 * batches} spans{said}\n"


@pytest.mark.parametrize("body", [b"{}", b"OK", b'{"partialSuccess":{}}', b"\xff" * 9])
def test_a_collector_that_says_yes_in_other_words_has_taken_all(body, listening):
    url, collected = listening
    collected.body = body
    assert invoke(*QUICK, "--otlp", url)[::2] == (0, "")


def test_why_a_collector_refuses_is_said_once_where_nothing_is_set_up_to_log(listening):
    """A program of its own: under pytest somebody listens to every logger."""
    url, collected = listening
    collected.answer = 400
    command = [sys.executable, "-m", "kvtier", *QUICK, "--otlp", url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "reason: Bad Request" in done.stderr


def test_an_exporter_that_raises_loses_spans_and_not_the_run():
    class Broken:
        def export(self, batch: list[Any]) -> Any:
            raise KeyError("no")

        def shutdown(self) -> None:
            pass

    delivery = Delivery(Broken(), "there")
    delivery.on_end(object())
    delivery.on_end(object())
    delivery.shutdown()
    assert (delivery.sent, delivery.lost, delivery.reason) == (0, 2, "KeyError('no')")


def test_after_a_signal_in_the_middle_of_a_batch_nothing_more_is_sent():
    class Hanging:
        calls = 0

        def export(self, batch: list[Any]) -> Any:
            self.calls += 1
            raise KeyboardInterrupt

        def shutdown(self) -> None:
            pass

    exporter = Hanging()
    delivery = Delivery(exporter, "there")
    delivery.on_end(object())
    with pytest.raises(KeyboardInterrupt):
        delivery.force_flush()
    delivery.on_end(object())
    delivery.shutdown()
    assert (exporter.calls, delivery.sent, delivery.lost) == (1, 0, 2)


# -- the environment -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_SAMPLER", "always_off"),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", "3"),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", "few"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "3"),
        ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "0"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "0"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4"),
    ],
)
def test_what_a_span_holds_is_not_for_the_environment_to_say(name, value, monkeypatch):
    command = [*QUICK, "--concurrency", "8", "--spans"]
    assert invoke(*command, "usual")[0] == 0
    monkeypatch.setenv(name, value)
    assert invoke(*command, "limited")[0] == 0
    assert invoke("validate", "--require-complete", "limited")[0] == 0
    usual, limited = (list(spans(Path(file))) for file in ("usual", "limited"))
    assert shapes(limited) == shapes(usual)
    assert any(span.get("links") for span in limited)


def shapes(found: list[dict[str, Any]]) -> set[tuple[str, tuple[str, ...], int]]:
    """Names, names of attributes, and how much the SDK left out."""
    return {
        (
            span["name"],
            tuple(one["key"] for one in span["attributes"]),
            span.get("droppedAttributesCount", 0) + span.get("droppedLinksCount", 0),
        )
        for span in found
    }


@pytest.mark.parametrize("option", [["--spans", "spans"], ["--otlp", "http://127.0.0.1:9"]])
def test_an_sdk_that_is_switched_off_is_bad_input(option, monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "True")
    code, out, err = invoke(*QUICK, *option)
    assert (code, out) == (2, "")
    assert err.startswith("kvtier: OTEL_SDK_DISABLED: is true, so there are no spans")
    assert list(Path().iterdir()) == []
