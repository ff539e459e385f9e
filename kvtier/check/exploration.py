"""The lifecycle explored in plain Python, as a report: how much there is, and what holds of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvtier.check.counterexample import Event, events_of_model
from kvtier.errors import BadInput
from kvtier.model.actions import Machine
from kvtier.model.explore import explore
from kvtier.model.invariants import INVARIANTS, holding
from kvtier.model.mutants import MUTANTS
from kvtier.model.state import Config

__all__ = ["Exploration", "explored"]


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a search found; one that broke an invariant ended there."""

    states: int
    edges: int
    invariants: dict[str, bool]
    """Which of them hold in every state that was looked at."""
    way: tuple[Event, ...]
    """A shortest way to what is broken."""

    @property
    def ok(self) -> bool:
        """Whether every invariant holds."""
        return all(self.invariants.values())

    def as_json(self) -> dict[str, Any]:
        """The object of `kvtier model --json`."""
        return {
            "schema": "kvtier.model/1",
            "states": self.states,
            "edges": self.edges,
            "invariants": self.invariants,
        }


def explored(
    config: Config,
    bug: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Exploration:
    """Explore the machine, or its twin with the bug of that name, at the size of `config`.

    `progress` is told the number of states found and of those still to be looked
    at. Raises `BadInput` for a bug that no twin has.
    """
    if bug is not None and bug not in MUTANTS:
        raise BadInput(bug, "is no known bug", f"one of {', '.join(MUTANTS)}")
    machine = Machine(config) if bug is None else MUTANTS[bug](config)
    graph, broken = explore(machine, predicates=INVARIANTS, progress=progress)
    states = [graph.states[0]]
    if broken is not None:
        states += [state for _, state in broken.way]
    labels = [label for label, _ in broken.way] if broken is not None else []
    return Exploration(
        len(graph.states),
        len(graph.edges),
        holding(machine, states[-1]),
        tuple(events_of_model(config, labels, states)) if broken is not None else (),
    )
