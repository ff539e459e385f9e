"""TLC's view of the tiers' model: configurations, states and graphs as values of the twin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kvtier.check.tlc import run_tlc
from kvtier.check.values import parse_state, parse_value
from kvtier.model.tiering_state import (
    Block,
    Claim,
    Job,
    Known,
    TieringConfig,
    TieringState,
)
from kvtier.resources import resource_folder

__all__ = ["TLA", "config_of", "graph", "prompts_of", "state_of"]

TLA = resource_folder("tla")

Edge = tuple[TieringState, str, TieringState]

_NODE = re.compile(r'^(-?\d+) \[label="((?:[^"\\]|\\.)*)"', re.M)
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w+)"', re.M)
_DEFINITION = re.compile(r"^(\w+) == \[r \\in R \|->(.*)\]$", re.M)


def prompts_of(name: str, requests: int) -> tuple[tuple[str, ...], ...]:
    """The prompts that `MCTiering.tla` defines under that name."""
    text = (TLA / "MCTiering.tla").read_text(encoding="utf-8")
    body = dict(_DEFINITION.findall(text))[name]
    found = [tuple(parse_value(part)) for part in re.findall(r"<<.*?>>", body)]
    return (found[0], *[found[-1]] * (requests - 1))


def config_of(cfg: str) -> TieringConfig:
    """The size and the features that the text of a configuration gives."""

    def constant(name: str) -> Any:
        found = re.search(rf"^\s*{name} = (.*)$", cfg, re.M)
        assert found is not None, name
        return parse_value(found[1])

    named = re.search(r"Prompt <- (\w+)", cfg)
    assert named is not None
    return TieringConfig(
        prompts_of(named[1], len(constant("R"))),
        constant("Cap"),
        constant("Headroom"),
        constant("Has"),
        constant("Slow"),
        constant("Features"),
    )


def state_of(config: TieringConfig, text: str) -> TieringState:
    """A state that TLC has printed."""
    # A set of records has no value in Python: sets are read as sequences, and made sets here.
    values = parse_state(text.replace("{", "<<").replace("}", ">>"))
    return TieringState(
        slot=tuple(Block(**slot) for slot in values["slot"]),
        req=tuple(_known(values["req"][r]) for r in config.requests),
        queue=_claims(values["queue"]),
        jobs=frozenset(Job(**(job | {"claims": _claims(job["claims"])})) for job in values["jobs"]),
        has=frozenset(values["has"]),
        heard=frozenset(values["heard"]),
        polled=values["polled"],
    )


def _known(values: dict[str, Any]) -> Known:
    claims = {name: _claims(values[name]) for name in ("reading", "filling")}
    sets = {
        name: frozenset(values[name]) for name in ("asked", "answered", "notes", "waits", "settled")
    }
    return Known(**(values | sets | claims))


def _claims(values: tuple[tuple[Any, ...], ...]) -> frozenset[Claim]:
    return frozenset(Claim(*value) for value in values)


def graph(config: TieringConfig) -> tuple[set[TieringState], set[Edge]]:
    """The states and the edges that TLC finds; an edge has the name of its action."""
    cfg = "\n".join(
        [
            "SPECIFICATION Spec",
            "CONSTANTS",
            f"R = {_set(config.requests)}",
            "Prompt <- Prompts",
            f"Cap = {config.cap}",
            f"Headroom = {config.headroom}",
            f"Has = {_set(config.has)}",
            f"Slow = {_set(config.slow)}",
            f"Features = {_set(config.features)}",
            "NextWrite <- LeastWrite\n",
        ]
    )
    cases = " [] ".join(_cases(config))
    module = (
        f"---- MODULE Sized ----\nEXTENDS MCTiering\nPrompts == [r \\in R |-> CASE {cases}]\n====\n"
    )
    text = run_tlc(TLA, "Sized", cfg, extra={"Sized": module}, graph=True, quick=True).graph
    nodes = {n: state_of(config, _unescaped(label)) for n, label in _NODE.findall(text)}
    edges = {(nodes[a], action, nodes[b]) for a, b, action in _EDGE.findall(text)}
    return set(nodes.values()), edges


def _cases(config: TieringConfig) -> Iterator[str]:
    for r, prompt in zip(config.requests, config.prompt, strict=True):
        keys = ", ".join(f'"{k}"' for k in prompt)
        yield f'r = "{r}" -> <<{keys}>>'


def _set(words: Any) -> str:
    return "{" + ", ".join(f'"{word}"' for word in sorted(words)) + "}"


def _unescaped(label: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label)
