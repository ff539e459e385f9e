"""The graph of the lifecycle as a file."""

from __future__ import annotations

import re

import pytest

from kvtier.check.drawing import write_graph
from kvtier.errors import BadInput

# From the table of spec/lifecycle.md, by hand: what a caller can make of a probe.
ARROWS = {
    ("ABSENT", "PENDING"): "Lookup = None",
    ("PENDING", "IN_FLIGHT"): "Flush",
    ("PENDING", "ABSENT"): "Cleanup, ShutdownEnd",
    ("IN_FLIGHT", "IN_FLIGHT nobody waits"): "Cleanup",
    ("IN_FLIGHT", "RESOLVED T"): "Drain, Flush, Lookup = True, ShutdownEnd",
    ("RESOLVED T", "RESOLVED F"): "MarkMiss",
    ("RESOLVED F", "RESOLVED T"): "MarkHit",
    ("RESOLVED F error", "RESOLVED F"): "MarkMiss",
    ("RESOLVED T unclaimed", "ABSENT"): "Flush, ShutdownEnd",
    ("RESOLVED T unclaimed", "RESOLVED T"): "Lookup = True",
}


@pytest.mark.parametrize("name", ["g.mmd", "g.md"])
def test_a_mermaid_diagram_shows_what_a_caller_sees(tmp_path, name):
    write_graph(tmp_path / name)
    text = (tmp_path / name).read_text()
    assert text.startswith("```mermaid\nstate" if name == "g.md" else "stateDiagram-v2\n")
    assert text.endswith("\n```\n") is (name == "g.md")
    names = {n: fold for fold, n in re.findall(r'state "(.+)" as (s\d+)', text)}
    arrows = {
        (names[a], names[b]): told for a, b, told in re.findall(r"(s\d+) --> (s\d+) : (.+)", text)
    }
    assert ARROWS.items() <= arrows.items()
    assert ("ABSENT", "IN_FLIGHT") not in arrows
    assert f"[*] --> {next(n for n, fold in names.items() if fold == 'ABSENT')}" in text


def test_graphviz_gets_every_state_and_every_step(tmp_path):
    """As many as TLC finds; tla/manifest.json has the number of states of MC_1x1."""
    write_graph(tmp_path / "g.dot")
    text = (tmp_path / "g.dot").read_text()
    assert text.startswith("digraph")
    assert len(re.findall(r"^  \d+ \[label", text, re.M)) == 1188
    assert len(re.findall(r"^  \d+ -> \d+ \[label", text, re.M)) == 3677


def test_an_svg_is_drawn_by_dot(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\nread first; echo "<svg>$1 $first</svg>"; cat > /dev/null\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    write_graph(tmp_path / "g.svg")
    assert (tmp_path / "g.svg").read_text() == "<svg>-Tsvg digraph lifecycle {</svg>\n"


def test_a_dot_that_fails_is_one_line(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\ncat > /dev/null; echo no font >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(BadInput, match="no font"):
        write_graph(tmp_path / "g.svg")


def test_no_svg_without_dot(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="Graphviz"):
        write_graph(tmp_path / "g.svg")
    assert not (tmp_path / "g.svg").exists()


@pytest.mark.parametrize("name", ["g.png", "g", "nowhere/g.mmd"])
def test_a_file_that_cannot_be_is_bad_input(tmp_path, name):
    with pytest.raises(BadInput, match="g"):
        write_graph(tmp_path / name)
