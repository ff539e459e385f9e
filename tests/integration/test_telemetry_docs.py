"""The program on the page about telemetry runs, and leaves the spans that the page draws."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvtier.telemetry import names

DOCS = Path(__file__).parents[2] / "docs"
TRACE, REQUEST = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the program on the page left behind."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "telemetry.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))
    Path("example.py").write_text(code)
    return runpy.run_path("example.py")


def spans_in(path: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        span["name"]: span
        for line in lines
        for resource in line["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    }


def test_the_program_makes_a_probe_in_the_trace_of_its_request_with_its_stays(
    ran: dict[str, Any], tmp_path: Path
) -> None:
    spans = spans_in(tmp_path / "spans.jsonl")
    stays = [names.PENDING, names.IN_FLIGHT, names.RESOLVED]
    assert spans.keys() == {"probe 1:mine", "lookup_batch 1:mine", *stays}
    probe = spans["probe 1:mine"]
    assert (probe["traceId"], probe["parentSpanId"]) == (TRACE, REQUEST)
    for stay in stays:
        assert (spans[stay]["traceId"], spans[stay]["parentSpanId"]) == (TRACE, probe["spanId"])


def test_what_the_program_leaves_is_the_whole_life_of_a_correct_probe(
    ran: dict[str, Any], tmp_path: Path
) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "kvtier", "validate", "spans.jsonl", "--require-complete", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(run.stdout)
    assert (found["probes"], found["complete"], found["violations"]) == (1, 1, [])


def test_the_program_counts_that_probe(ran: dict[str, Any]) -> None:
    (resource,) = ran["measured"].resource_metrics
    found = {metric.name: metric.data.data_points for metric in resource.scope_metrics[0].metrics}
    assert sum(point.value for point in found[names.LOOKUPS]) == 1
    (duration,) = found[names.PROBE_DURATION]
    assert (duration.count, duration.attributes[names.OUTCOME]) == (1, "hit")
    assert {point.value for point in found[names.DROPPED]} == {0}


def test_the_page_names_no_attribute_or_metric_that_is_none() -> None:
    text = re.sub(r"```.*?```", "", (DOCS / "telemetry.md").read_text(), flags=re.S)
    said = set(re.findall(r"`(kvtier(?:\.[a-z_]+)+)`", text))
    known = {value for name, value in vars(names).items() if name.isupper()}
    assert said <= known
    assert {name for name in known if name.startswith("kvtier.")} <= said
