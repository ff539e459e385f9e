"""Exports are read whoever wrote them, and what is wrong with a file is said by line."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link as ApiLink
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from otlp_json import encode_spans

from kvtier.check.spans.reading import Link, Span, SpanFile, read_spans
from kvtier.errors import BadInput
from tests.support.span_builder import Life, Told, export, export_line

KEY = {"kvtier.key": "aa"}


def lines(count: int = 3) -> list[str]:
    """Each with a probe that was taken back: two spans in a line."""
    return [
        export_line(*(span.otlp() for span in taken_back(number).spans)) + "\n"
        for number in range(1, count + 1)
    ]


def taken_back(number: int) -> Life:
    life = Life("aa", number, number * 10)
    return life.stay("pending", (number * 10 + 1, "release", "abandoned", "absent"))


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(path: Path, **settings: int) -> str:
    with pytest.raises(BadInput) as caught:
        list(SpanFile(path, **settings))
    return str(caught.value).replace(str(path), "FILE").partition("; expected")[0]


def made_by_the_sdk() -> Sequence[ReadableSpan]:
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "engine"}))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("kvtier", "0.1")
    begun = 1_790_000_000_123_456_000
    probe = tracer.start_span("probe 1:fs", attributes={**KEY, "n": 7, "f": 0.5}, start_time=begun)
    stay = tracer.start_span(
        "probe.pending",
        context=set_span_in_context(probe),
        kind=SpanKind.CLIENT,
        attributes={**KEY, "kvtier.probe.stored": True, "list": [1, 2]},
        links=[ApiLink(probe.get_span_context(), {"kvtier.request.id": "r2"})],
        start_time=begun,
    )
    stay.set_status(StatusCode.ERROR, "no")
    stay.end(begun + 1000)
    other = tracer.start_span("GET", attributes={"http.request.method": "GET"})
    other.end()
    probe.end(begun + 2000)
    provider.shutdown()
    return memory.get_finished_spans()


def by_the_file_exporter(spans: Sequence[ReadableSpan], path: Path) -> None:
    exporter = FileSpanExporter(str(path))
    exporter.export(spans)
    exporter.shutdown()


def by_otlp_json(spans: Sequence[ReadableSpan], path: Path) -> None:
    path.write_bytes(encode_spans(spans) + b"\n")


def by_the_console(spans: Sequence[ReadableSpan], path: Path) -> None:
    out = io.StringIO()
    ConsoleSpanExporter(out=out).export(spans)
    path.write_text(out.getvalue())


def by_the_console_in_lines(spans: Sequence[ReadableSpan], path: Path) -> None:
    out = io.StringIO()
    ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n").export(
        spans
    )
    path.write_text(out.getvalue())


@pytest.mark.parametrize(
    "exported",
    [by_the_file_exporter, by_otlp_json, by_the_console, by_the_console_in_lines],
)
def test_what_an_exporter_writes_is_read(exported: Any, tmp_path: Path) -> None:
    path, written = tmp_path / "spans", made_by_the_sdk()
    exported(written, path)
    file = SpanFile(path)
    probe, stay = sorted(file, key=lambda span: span.name)
    assert file.foreign == 1
    assert file.spans == 2
    assert file.cut is None
    assert not file.unusable
    prefix = "0x" if "console" in exported.__name__ else ""
    context = next(span for span in written if span.name == "probe 1:fs").context
    assert context is not None
    trace, span_id = f"{prefix}{context.trace_id:032x}", f"{prefix}{context.span_id:016x}"
    begun = 1_790_000_000_123_456_000
    assert (probe.trace_id, probe.span_id, probe.parent_id) == (trace, span_id, None)
    assert probe.attributes == {**KEY, "n": 7, "f": 0.5}
    assert (probe.start, probe.end, probe.error) == (begun, begun + 2000, False)
    assert (stay.trace_id, stay.parent_id, stay.error) == (trace, span_id, True)
    assert stay.attributes == {**KEY, "kvtier.probe.stored": True}
    # otlp-json has no links.
    expected = (Link(trace, span_id, {"kvtier.request.id": "r2"}),)
    assert stay.links == (() if exported is by_otlp_json else expected)


def test_numbers_may_be_strings_or_numbers(tmp_path: Path) -> None:
    told = taken_back(1).probe.otlp()
    told["startTimeUnixNano"], told["endTimeUnixNano"] = 5, "9"
    told["attributes"] = [
        {"key": "kvtier.a", "value": {"intValue": 3}},
        {"key": "kvtier.b", "value": {"intValue": "-3"}},
        {"key": "kvtier.c", "value": {"stringValue": "3"}},
        {"key": "kvtier.d", "value": {"doubleValue": 3}},
        {"key": "kvtier.e", "value": {"boolValue": False}},
        {"key": "kvtier.f", "value": {"arrayValue": {"values": []}}},
        {"key": "kvtier.g"},
    ]
    (span,) = read_spans(write(tmp_path / "spans", export_line(told)))
    assert (span.start, span.end) == (5, 9)
    assert repr(span.attributes) == repr(
        {"kvtier.a": 3, "kvtier.b": -3, "kvtier.c": "3", "kvtier.d": 3.0, "kvtier.e": False}
    )


@pytest.mark.parametrize("code", [2, "2", "STATUS_CODE_ERROR"])
def test_an_error_is_one_however_it_is_written(code: object, tmp_path: Path) -> None:
    told = taken_back(1).probe.otlp() | {"status": {"code": code}}
    (span,) = read_spans(write(tmp_path / "spans", export_line(told)))
    assert span.error


def test_lines_are_counted(tmp_path: Path) -> None:
    text = "\n".join((lines()[0].strip(), "", "  ", lines()[1].strip(), lines()[2].strip()))
    assert [span.line for span in read_spans(write(tmp_path / "a", text))] == [1, 1, 4, 4, 5, 5]


def test_one_object_over_many_lines_tells_the_line_of_each_span(tmp_path: Path) -> None:
    twice = taken_back(1).probe.otlp()
    whole = json.loads(export_line(twice, taken_back(2).probe.otlp(), twice))
    text = json.dumps(whole, indent=2) + "\n"
    found = [span.line for span in read_spans(write(tmp_path / "a", text))]
    # The line on which the object of each span begins.
    depth = " " * 12 + "{"
    assert found == [n for n, line in enumerate(text.splitlines(), 1) if line == depth]
    assert len(found) == 3


def test_gzip_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    one, two, three = lines()
    path = write(tmp_path / "plain.jsonl", gzip.compress((one + two[:50]).encode()))
    with path.open("ab") as file:
        file.write(gzip.compress((two[50:] + three).encode()) + b"\x00" * 10)
    file_of = SpanFile(path)
    assert [span.line for span in file_of] == [1, 1, 2, 2, 3, 3]
    assert file_of.cut is None
    assert file_of.position == file_of.size == path.stat().st_size


# -- bad input --------------------------------------------------------------------------------


def test_no_file(tmp_path: Path) -> None:
    assert refused(tmp_path / "none") == "FILE: cannot be read: No such file or directory"
    assert refused(tmp_path) == "FILE: cannot be read: Is a directory"
    assert refused(write(tmp_path / "empty", "")) == "FILE: is empty"
    assert refused(write(tmp_path / "packed", gzip.compress(b""))) == "FILE: is empty"
    with pytest.raises(BadInput, match="is no path"):
        list(SpanFile(Path("a\x00b")))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "secret", lines()[0])
    path.chmod(0)
    assert refused(path) == "FILE: cannot be read: Permission denied"


def test_what_is_no_export(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert refused(write(path, b"\x7fELF\x00\x01\x02")) == "FILE:1: is binary"
    assert refused(write(path, b"\x0a\x20" + bytes(range(256)))) == "FILE:2: is not a JSON object"
    assert refused(write(path, "hello")) == "FILE:1: is not a JSON object"
    assert refused(write(path, "[1]\n")) == "FILE:1: is not a JSON object"
    told = refused(write(path, '{"resourceSpans": 3}'))
    assert told.startswith("FILE:1: is not JSON of spans: Expected `array`, got `int`")
    damaged = bytearray(gzip.compress("".join(lines(50)).encode()))
    damaged[len(damaged) // 2] ^= 0xFF
    assert refused(write(path, bytes(damaged))).startswith("FILE: is a damaged gzip file")


@pytest.mark.parametrize("bad", ['{"resourceSpans": [', "{'a': 1}", '{"a": "\\ud8"}', '{"a":1}}'])
def test_a_malformed_line_in_the_middle(bad: str, tmp_path: Path) -> None:
    one, two, _ = lines()
    path = write(tmp_path / "a", f"{one}{bad}\n{two}")
    assert refused(path).startswith("FILE:2: is not JSON of spans")
    assert refused(write(path, f"{one}{bad}\n")).startswith("FILE:2: is not JSON of spans")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    one, two, _ = lines()
    bad = two.replace("1:fs", "1:\udcff").encode(errors="surrogateescape")
    assert refused(write(tmp_path / "a", one.encode() + bad)).startswith("FILE:2: is not JSON")


def test_nesting_without_end(tmp_path: Path) -> None:
    deep = '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}\n"
    assert refused(write(tmp_path / "a", deep)).startswith("FILE:1: is not JSON")


def test_an_end_that_is_cut_off_is_noted(tmp_path: Path) -> None:
    one, two, _ = lines()
    for cut in (1, 2, 30, len(two) - 2):
        file = SpanFile(write(tmp_path / "a", one + two[:cut]))
        assert [span.line for span in file] == [1, 1], cut
        assert file.cut in ("line 2 is cut off", "the object that begins in line 2 has no end")
    file = SpanFile(write(tmp_path / "a", one + two[:-1]))
    assert len(list(file)) == 4
    assert file.cut is None


def test_compressed_data_that_are_cut_off_are_noted(tmp_path: Path) -> None:
    packed = gzip.compress("".join(lines(200)).encode(), compresslevel=1)
    counts = []
    for cut in range(len(packed) // 4, len(packed), len(packed) // 4):
        file = SpanFile(write(tmp_path / "a", packed[:cut]))
        found = [span.line for span in file]
        assert file.cut == "the compressed data end early"
        assert found == [line for line in range(1, len(found) // 2 + 1) for _ in range(2)]
        counts.append(len(found))
    assert 0 < counts[0] < counts[1] < counts[2] <= 400


def test_console_objects_may_be_cut_off_or_run_into_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a"
    by_the_console(made_by_the_sdk(), path)
    whole = path.read_text()
    second = whole.index("\n{") + 1
    line = whole[:second].count("\n") + 1
    file = SpanFile(write(path, whole[: second + 200]))
    assert len(list(file)) == 1
    assert file.cut == f"the object that begins in line {line} has no end"
    torn = whole[: second - 20] + "\n" + whole[second:]
    assert refused(write(path, torn)) == "FILE:1: the object that begins here has no end"


def test_a_line_without_end_is_not_read(tmp_path: Path) -> None:
    one, two, _ = lines()
    path = write(tmp_path / "a", one + '{"a":"' + "x" * 5000 + two)
    assert refused(path, longest=4000) == "FILE:2: this line is too long"
    path = write(tmp_path / "a", "{\n" + '"a": 1,\n' * 1000 + "}\n")
    assert refused(path, longest=4000) == "FILE:1: the object that begins here is too long"


def test_a_gigabyte_line_takes_no_gigabyte(tmp_path: Path) -> None:
    path = write(tmp_path / "a", '{"resourceSpans":[')
    os.truncate(path, 2**30)
    program = (
        "import sys; from pathlib import Path;"
        "from kvtier.check.spans.reading import SpanFile\n"
        "try: list(SpanFile(Path(sys.argv[1])))\n"
        "except Exception as error: print(error)\n"
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    told, kilobytes = ran.stdout.splitlines()
    assert "too long; expected at most 67,108,864 bytes" in told
    assert int(kilobytes) < 300_000


def unusable(path: Path, *told: Told | dict[str, Any]) -> tuple[list[Span], SpanFile]:
    spans = (one.otlp() if isinstance(one, Told) else one for one in told)
    file = SpanFile(write(path, "".join(export_line(span) + "\n" for span in spans)))
    return list(file), file


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"spanId": ""}, "spanId"),
        ({"traceId": 5}, "traceId"),
        ({"startTimeUnixNano": "soon"}, "startTimeUnixNano"),
        ({"endTimeUnixNano": None}, "endTimeUnixNano"),
        ({"endTimeUnixNano": 2**64}, "endTimeUnixNano"),
        ({"attributes": [{"key": "kvtier.n", "value": {"intValue": "1_0"}}]}, "attributes[0]"),
        ({"attributes": [{"key": "kvtier.n", "value": {"intValue": 2**70}}]}, "attributes[0]"),
    ],
)
def test_a_span_that_is_none_is_noted(wrong: dict[str, Any], why: str, tmp_path: Path) -> None:
    good, bad = taken_back(1).probe, taken_back(2).probe.otlp() | wrong
    found, file = unusable(tmp_path / "a", good, bad, taken_back(3).probe)
    assert [span.line for span in found] == [1, 3]
    ((line, told),) = file.unusable
    assert file.unusable_count == 1
    assert line == 2
    assert why in told


def test_a_span_of_others_may_be_as_it_likes(tmp_path: Path) -> None:
    foreign = {"name": "x", "startTimeUnixNano": "soon", "attributes": [{"key": "http.x"}]}
    found, file = unusable(tmp_path / "a", foreign, taken_back(3).probe)
    assert len(found) == 1
    assert file.foreign == 1
    assert not file.unusable


def test_a_console_span_without_times_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "a"
    by_the_console(made_by_the_sdk(), path)
    text = path.read_text().replace('"end_time": "20', '"end_time": "yesterday 20')
    file = SpanFile(write(path, text))
    assert not list(file)
    assert [one.line for one in file.unusable] == [
        1,
        text[: text.rindex("\n{") + 1].count("\n") + 1,
    ]


@pytest.mark.parametrize("odd", ["NaN", "-Infinity", '"half \\udc80"'])
def test_python_prints_for_the_console_what_json_does_not_have(odd: str, tmp_path: Path) -> None:
    path = tmp_path / "console.json"
    by_the_console(made_by_the_sdk(), path)
    other = f'{{\n    "name": "GET",\n    "context": {{}},\n    "attributes": {{"a": {odd}}}\n}}\n'
    wanted = len(list(read_spans(path)))
    path.write_text(other + path.read_text())
    file = SpanFile(path)
    assert len(list(file)) == wanted
    plain = SpanFile(write(tmp_path / "plain", path.read_text().removeprefix(other)))
    list(plain)
    assert file.foreign == plain.foreign + 1
    write(path, other.replace('"a"', '"kvtier.key"') + path.read_text())
    assert "is not JSON of spans" in refused(path)


def test_a_console_time_without_a_zone_is_of_greenwich(tmp_path: Path) -> None:
    path = tmp_path / "a"
    by_the_console(made_by_the_sdk(), path)
    before = list(SpanFile(path))
    assert list(SpanFile(write(path, path.read_text().replace('Z"', '"')))) == before


def test_a_console_number_of_more_than_64_bits_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "a"
    by_the_console(made_by_the_sdk(), path)
    file = SpanFile(write(path, path.read_text().replace('"n": 7', f'"n": {2**63}')))
    assert [span.name for span in file] == ["probe.pending"]
    ((_, why),) = file.unusable
    assert "n has more than 64 bits" in why


def test_other_signals_in_a_file_say_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a", '{"resourceMetrics":[{}]}\n' + lines()[0])
    assert [span.line for span in read_spans(path)] == [2, 2]


def test_no_spans_of_kvtier_at_all(tmp_path: Path) -> None:
    foreign = {"traceId": "1", "spanId": "2", "startTimeUnixNano": 1, "endTimeUnixNano": 2}
    path = write(tmp_path / "a", export_line(foreign, foreign))
    with pytest.raises(BadInput, match=r"has no kvtier spans \(2 of other libraries\)"):
        list(read_spans(path))
    path = write(tmp_path / "a", export([taken_back(1).probe])[:300])
    with pytest.raises(BadInput, match=r"has no kvtier spans \(line 1 is cut off\)"):
        list(read_spans(path))


WHOLE = ("".join(lines()) + export(taken_back(4).spans)).encode()


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3), st.integers(0, 40)),
        min_size=1,
        max_size=4,
    ),
    packed=st.booleans(),
)
def test_whatever_is_in_a_file_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes, int]], packed: bool
) -> None:
    text = bytearray(gzip.compress(WHOLE, mtime=0) if packed else WHOLE)
    for at, new, old in changes:
        text[at % len(text) : at % len(text) + old] = new
    path = tmp_path_factory.getbasetemp() / "mutated"
    path.write_bytes(text)
    file = SpanFile(path)
    with suppress(BadInput):
        found = list(file)
        assert file.spans == len(found)
