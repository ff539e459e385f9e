"""The same graph twice: TLC's and the model's, state by state and edge by edge.

TLC labels an edge with the name of the action only. So the module that is checked
here is a generated one: for each label of the model an operator of that name,
with the arguments filled in. Its body begins with `TRUE /\\`, or TLC would look
through the name to what is behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from kvtier.check.tlc import OK, TlcFailed, run_tlc
from kvtier.check.values import parse_state
from kvtier.model.actions import Machine
from kvtier.model.explore import explore
from kvtier.model.state import Config, Entry, State

__all__ = ["GraphDifference", "compare_graphs", "labelled_module", "state_of", "tlc_graph"]

Edges = set[tuple[State, str, State]]

_PLAIN = (
    "Flush",
    "Drain",
    "WorkerTake",
    "WorkerCall",
    "WorkerHang",
    "ShutdownBegin",
    "ShutdownTimeout",
    "ShutdownEnd",
)
_NODE = re.compile(r'^(-?\d+) \[label="((?:[^"\\]|\\.)*)"', re.M)
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w+)"', re.M)


@dataclass(frozen=True, slots=True)
class GraphDifference:
    """How the two graphs differ; nothing in it: they are the same."""

    states: int
    edges: int
    """Of the model."""
    only_tlc_states: frozenset[State]
    only_model_states: frozenset[State]
    only_tlc_edges: frozenset[tuple[State, str, State]]
    only_model_edges: frozenset[tuple[State, str, State]]

    @property
    def same(self) -> bool:
        """Whether there is no difference."""
        return not (
            self.only_tlc_states
            or self.only_model_states
            or self.only_tlc_edges
            or self.only_model_edges
        )


def compare_graphs(modules: Path, config: Config) -> GraphDifference:
    """Both graphs of the correct machine at the size of `config`. `MissingTool` without TLC."""
    graph, _ = explore(Machine(config))
    states = graph.states
    mine = {(states[a], label, states[b]) for a, label, b in graph.edges}
    tlc_states, theirs = tlc_graph(modules, config)
    return GraphDifference(
        len(states),
        len(mine),
        frozenset(tlc_states - set(states)),
        frozenset(set(states) - tlc_states),
        frozenset(theirs - mine),
        frozenset(mine - theirs),
    )


def tlc_graph(modules: Path, config: Config) -> tuple[set[State], Edges]:
    """States and labelled edges as TLC finds them."""
    result = run_tlc(
        modules,
        "Labelled",
        _cfg(config),
        extra={"Labelled": labelled_module(config)},
        graph=True,
    )
    if result.exit_code != OK:
        raise TlcFailed(
            f"TLC found {result.violated or 'a violation'} where only a graph was asked for"
        )
    text = result.graph
    nodes = {
        number: state_of(config, parse_state(_unescaped(label)))
        for number, label in _NODE.findall(text)
    }
    edges = {(nodes[a], label.removeprefix("The"), nodes[b]) for a, b, label in _EDGE.findall(text)}
    return set(nodes.values()), edges


def state_of(config: Config, values: dict[str, Any]) -> State:
    """The model's state for the values of the variables of `AsyncLookup.tla`."""
    doing, batch = values["worker"]
    return State(
        entry=tuple(Entry(**values["entry"][k]) for k in config.keys),
        held=tuple(values["held"][r] for r in config.requests),
        batch=values["batch"],
        due=values["due"],
        queue=values["queue"],
        worker=(doing, batch),
        results=values["results"],
        shut=values["shut"],
    )


def _unescaped(label: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label)


def labelled_module(config: Config) -> str:
    """A module whose actions are the labels of the model."""
    names = dict(_labels(config))
    body = "\n".join(f"{name} == TRUE /\\ {action}" for name, action in names.items())
    choice = "\n".join(f"    \\/ {name}" for name in names)
    constants = ", ".join([*config.keys, *config.requests])
    return (
        "---- MODULE Labelled ----\n"
        "EXTENDS AsyncLookup\n"
        f"CONSTANTS {constants}\n"
        "Least(e, rs) == CHOOSE g \\in 1..(1 + Cardinality(GensInUse(e, rs))) :\n"
        "    g \\notin GensInUse(e, rs) /\\ \\A h \\in 1..(g - 1) : h \\in GensInUse(e, rs)\n"
        f"{body}\n"
        f"LabelledNext ==\n{choice}\n"
        "LabelledSpec == Init /\\ [][LabelledNext]_vars\n"
        "====\n"
    )


def _labels(config: Config) -> Iterator[tuple[str, str]]:
    words = {"None": "none", "True": "T", "False": "F"}
    for r, k, (word, reply) in product(config.requests, config.keys, words.items()):
        yield f"Lookup_{r}_{k}_{word}", f'Lookup({r}, {k}, "{reply}")'
    for action in ("MarkMiss", "MarkHit", "DeadlinePasses", "VerdictAges"):
        for k in config.keys:
            yield f"{action}_{k}", f"{action}({k})"
    for r in config.requests:
        yield f"Cleanup_{r}", f"Cleanup({r})"
    for answers in product(("", "T", "F"), repeat=len(config.keys)):
        asked = [(k, a) for k, a in zip(config.keys, answers, strict=True) if a]
        if asked:
            name = "_".join(k + a for k, a in asked)
            keys = ", ".join(k for k, _ in asked)
            yes = ", ".join(k for k, a in asked if a == "T")
            yield (
                f"WorkerAnswer_{name}",
                f"{{q[1] : q \\in worker[2]}} = {{{keys}}} /\\ WorkerAnswer({{{yes}}})",
            )
    yield "WorkerAnswer_Error", "WorkerFails"
    for action in _PLAIN:
        yield f"The{action}", action


def _cfg(config: Config) -> str:
    lines = ["SPECIFICATION LabelledSpec", "CONSTANTS"]
    lines += [f"  {name} = {name}" for name in (*config.keys, *config.requests)]
    features = ", ".join(f'"{name}"' for name in sorted(config.features))
    lines += [
        f"  K = {{{', '.join(config.keys)}}}",
        f"  R = {{{', '.join(config.requests)}}}",
        f"  MaxOut = {config.max_out}",
        f"  Features = {{{features}}}",
        "  NextGen <- Least",
    ]
    return "\n".join(lines) + "\n"
