"""The contract suffices: a port written from `spec/` alone passes its vectors, a broken one fails.

The port is `node/lookup.mjs`; `node/broken.mjs` has ports that break one rule each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.port.coverage import NO_CALL_TAKES

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"
PORT = Path(__file__).parent / "node"
BROKEN = re.findall(r"^  (\w+): ", (PORT / "broken.mjs").read_text().partition("= {\n")[2], re.M)


def installed_node() -> str:
    found = shutil.which("node")
    if found is None:
        reason = "the port in another language needs node, which is not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def node() -> str:
    return installed_node()


def run(node: str, *arguments: str | Path) -> dict[str, Any]:
    command = [node, PORT / "run.mjs", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PORT)
    assert done.stderr == ""
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["failed"] is None else 1)
    return report


def test_the_port_passes_every_line_of_every_file(node: str) -> None:
    report = run(node, SPEC)
    assert report["failed"] is None
    files = sorted((SPEC / "vectors" / "calls").glob("*.jsonl"))
    assert report["passed"] == sum(len(path.read_text().splitlines()) for path in files)


def test_the_port_takes_every_row_that_a_call_can_take(node: str) -> None:
    """As the port finds them in the table; `test_spec.py` finds the same in the model."""
    cells = json.loads((SPEC / "transitions.json").read_text())["cells"]
    every = {
        (cell["phase"], cell["trigger"], row["target"], row["outcome"])
        for cell in cells
        for row in cell["rows"]
    }
    taken = {tuple(row.split()) for row in run(node, SPEC)["rows"]}
    assert taken == every - NO_CALL_TAKES


@pytest.mark.parametrize("variant", BROKEN)
def test_a_port_with_a_broken_rule_is_noticed(node: str, variant: str) -> None:
    assert run(node, SPEC, variant)["failed"] is not None


def test_the_broken_ports_are_all_there_are(node: str) -> None:
    script = f"import({json.dumps(str(PORT / 'broken.mjs'))})"
    script += ".then((m) => console.log(Object.keys(m.broken).join(' ')))"
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == BROKEN


def test_it_uses_nothing_but_what_node_brings() -> None:
    for path in PORT.glob("*.mjs"):
        for imported in re.findall(r"^import .* from \"(.*)\";", path.read_text(), re.M):
            assert imported.startswith(("node:", "./"))
    assert not list(PORT.glob("package*.json"))


@pytest.mark.parametrize("ci", ["", "true"])
def test_without_node_ci_fails_and_a_desk_skips(ci: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    outcome = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match="needs node"):
        installed_node()
