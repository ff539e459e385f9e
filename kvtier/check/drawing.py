"""The graph of the lifecycle with one key and one request, as a file that can be looked at.

FILE.dot             every state and every step, in Graphviz' language
FILE.mmd, FILE.md    a Mermaid diagram; folded
FILE.svg             the same diagram drawn by Graphviz' `dot`

Folded means that states count as one if the entry of the key looks the same to
its callers: phase, verdict, whether the verdict stands for a failed question, and
whether anybody waits. There are ten such, and every step between two different
ones is an arrow. (Mermaid draws at most 500 arrows, and nobody reads so many.)
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from kvtier.errors import BadInput
from kvtier.model.actions import Machine
from kvtier.model.explore import Graph, explore
from kvtier.model.state import Config, State, show

__all__ = ["SUFFIXES", "write_graph"]

SUFFIXES = (".dot", ".md", ".mmd", ".svg")
_CONFIG = Config.of(1, 1)

Folded = dict[tuple[str, str], set[str]]
"""The steps from one fold of states to another."""


def write_graph(path: Path) -> None:
    """Write the graph in the language that the name of the file asks for.

    Raises `BadInput` for another name, a file that cannot be written, or an SVG
    without Graphviz.
    """
    if path.suffix not in SUFFIXES:
        raise BadInput(str(path), "says no known language", " or ".join(SUFFIXES))
    dot = shutil.which("dot") if path.suffix == ".svg" else None
    if path.suffix == ".svg" and dot is None:
        raise BadInput(str(path), "needs Graphviz' dot, which is not on the path", "dot, or .mmd")
    graph, _ = explore(Machine(_CONFIG))
    if path.suffix == ".dot":
        lines = _whole_dot(graph)
    elif dot is not None:
        lines = iter([_drawn(dot, "\n".join(_folded_dot(_folded(graph))))])
    else:
        lines = _mermaid(_folded(graph))
    fence = path.suffix == ".md"
    text = "\n".join([*["```mermaid"] * fence, *lines, *["```"] * fence])
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(str(path), f"cannot be written: {error.strerror}") from error


def _drawn(dot: str, text: str) -> str:
    done = subprocess.run(  # noqa: S603 - the path is what `which` found
        [dot, "-Tsvg"], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BadInput(dot, f"failed: {' '.join(done.stderr.split())}")
    return done.stdout.rstrip("\n")


def _fold(state: State) -> str:
    entry = state.entry[0]
    parts = [entry.phase, entry.verdict, "error" if entry.error else "none"]
    if entry.phase != "ABSENT" and not entry.waiters:
        parts.append("unclaimed" if entry.phase == "RESOLVED" else "nobody waits")
    return " ".join(part for part in parts if part != "none")


def _folded(graph: Graph) -> Folded:
    steps: Folded = {}
    for before, label, after in graph.edges:
        ends = _fold(graph.states[before]), _fold(graph.states[after])
        if ends[0] != ends[1]:
            steps.setdefault(ends, set()).add(_name(label))
    return steps


def _name(label: str) -> str:
    """A label without its key and request, of which there is one."""
    name, *arguments = label.split("_")
    return f"{name} = {arguments[-1]}" if name == "Lookup" else name


def _mermaid(steps: Folded) -> Iterator[str]:
    number = {fold: n for n, fold in enumerate(dict.fromkeys(f for ends in steps for f in ends))}
    yield "stateDiagram-v2"
    for fold, n in number.items():
        yield f'    state "{fold}" as s{n}'
    yield "    [*] --> s0"
    for (before, after), names in steps.items():
        yield f"    s{number[before]} --> s{number[after]} : {', '.join(sorted(names))}"


def _folded_dot(steps: Folded) -> Iterator[str]:
    yield "digraph lifecycle {"
    yield "  node [shape=box, style=rounded]"
    for (before, after), names in steps.items():
        told = "\\n".join(sorted(names))
        yield f'  "{before}" -> "{after}" [label="{told}"]'
    yield "}"


def _whole_dot(graph: Graph) -> Iterator[str]:
    yield "digraph lifecycle {"
    for n, state in enumerate(graph.states):
        yield f'  {n} [label="{show(_CONFIG, state)}"]'
    for before, label, after in graph.edges:
        yield f'  {before} -> {after} [label="{label}"]'
    yield "}"
