"""Covering walks: shortest ways through the model to whatever was not yet seen.

What is to be seen: every kind of label, every row of the table that a step can
take, and every situation (`coverage.py`). From where a walk stands the nearest
unseen thing is searched, breadth first; where there is none, a new walk begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from kvtier.model.actions import Machine
from kvtier.model.state import ABSENT, State
from tests.port.coverage import rows_of, situations
from tests.port.vectors import DEADLINE, LIFETIME, Walk, config_of

__all__ = ["Op", "covering"]

Op = tuple[str, dict[str, Any]]


class _Node(NamedTuple):
    state: State
    ages: tuple[int, ...]
    """Of the verdicts, in seconds, as far as it matters."""


class _Edge(NamedTuple):
    label: str
    there: _Node
    shows: frozenset[object]


class _Map:
    """The model at one size, with as much of a clock as the walks need; found on the way."""

    def __init__(self, machine: Machine, every_situation: bool) -> None:
        self._machine = machine
        self._every_situation = every_situation
        self._edges: dict[_Node, list[_Edge]] = {}

    def start(self) -> _Node:
        return _Node(self._machine.initial(), tuple(0 for _ in self._machine.config.keys))

    def edges(self, here: _Node) -> list[_Edge]:
        found = self._edges.get(here)
        if found is None:
            found = self._edges[here] = list(self._find(here))
        return found

    def _find(self, here: _Node) -> Iterator[_Edge]:
        config, s = self._machine.config, here.state
        for label, t in self._machine.steps(s):
            action = label.partition("_")[0]
            if action in ("DeadlinePasses", "VerdictAges"):
                continue
            ages = tuple(
                age if e.age == f.age == "young" and action != "MarkHit" else 0
                for age, e, f in zip(here.ages, s.entry, t.entry, strict=True)
            )
            yield _Edge(label, _Node(t, ages), frozenset(self._shown(s, label, t)))
        if s.shut == "open" and s.entry != (ABSENT,) * len(config.keys):
            yield self._advanced(here)

    def _advanced(self, here: _Node) -> _Edge:
        t, ages = here.state, tuple(age + 1 for age in here.ages)
        passed = set()
        for label, _ in self._machine.time(here.state):
            action, k = label.split("_")
            n = self._machine.config.keys.index(k)
            if action == "DeadlinePasses" or ages[n] > LIFETIME:
                t = dict(self._machine.time(t))[label]
                passed.add((action, here.state.entry[n].phase))
        ages = tuple(age if e.age == "young" else 0 for age, e in zip(ages, t.entry, strict=True))
        return _Edge("advance", _Node(t, ages), frozenset({*passed, "advance"}))

    def _shown(self, s: State, label: str, t: State) -> Iterator[object]:
        config = self._machine.config
        action, *words = label.split("_")
        said = words[2:] if action == "Lookup" else sorted(word[2:] for word in words)
        yield action, *said
        yield from rows_of(config, s, label, t)
        if self._every_situation:
            yield from situations(config, s, label)


def covering(new: dict[str, Any], keys: int, requests: int, every_situation: bool) -> list[Op]:
    """Walks that show all there is at this size; with `every_situation`, in all situations."""
    if DEADLINE != 1:
        raise ValueError("one `advance` must be enough for every deadline")
    machine = Machine(config_of(new, keys, requests))
    graph = _Map(machine, every_situation)
    seen: set[object] = set()
    ops: list[Op] = []
    while (way := _nearest(graph, graph.start(), seen)) is not None:
        walk = Walk(new)
        ops.append(("new", new))
        while way is not None:
            for edge in way:
                seen |= edge.shows
                op = _op(edge.label, walk, len(ops))
                walk.do(*op)
                ops.append(op)
            way = _nearest(graph, way[-1].there, seen)
    return ops


def _nearest(
    graph: _Map, start: _Node, seen: set[object], limit: int = 3_000
) -> list[_Edge] | None:
    """A shortest way from `start` to something unseen, if it is not too far."""
    came: dict[_Node, tuple[_Node, _Edge] | None] = {start: None}
    waiting = deque([start])
    while waiting and len(came) < limit:
        here = waiting.popleft()
        for edge in graph.edges(here):
            if not edge.shows <= seen:
                way = [edge]
                while (step := came[here]) is not None:
                    here = step[0]
                    way.append(step[1])
                return way[::-1]
            if edge.there not in came:
                came[edge.there] = (here, edge)
                waiting.append(edge.there)
    return None


def _op(label: str, walk: Walk, number: int) -> Op:
    """The op of a label; a failed question fails in another way each time."""
    action, *words = label.split("_")
    match action:
        case "advance":
            return "advance", {"seconds": 1}
        case "Lookup":
            return "lookup", {"key": words[1], "request": words[0]}
        case "Cleanup":
            return "cleanup", {"request": words[0]}
        case "MarkMiss" | "MarkHit":
            return {"MarkMiss": "mark_miss", "MarkHit": "mark_hit"}[action], {"keys": words}
        case "WorkerAnswer" if words != ["Error"]:
            said = {word[:-1]: word[-1] == "T" for word in words}
            return "answer", {"answers": [said[k] for k in walk.asked()]}
        case "WorkerAnswer":
            return failures(len(walk.asked()))[number % 6]
        case _:
            return OPS[action], {}


def failures(asked: int) -> list[Op]:
    """Ways in which a back end can break its word about so many keys."""
    return [
        ("fail", {"after": 0}),
        ("answer", {"answers": [True] * (asked - 1)}),
        ("answer", {"answers": [True] * (asked + 1)}),
        ("answer", {"answers": [*[True] * (asked - 1), None]}),
        ("answer", {"answers": [*[True] * (asked - 1), 1]}),
        ("fail", {"after": asked}),
    ]


OPS = {
    "Flush": "flush",
    "Drain": "drain_results",
    "WorkerTake": "take",
    "WorkerCall": "call",
    "WorkerHang": "hang",
    "ShutdownBegin": "shutdown_begins",
    "ShutdownTimeout": "shutdown_times_out",
    "ShutdownEnd": "shutdown_ends",
}
