"""Every state and every step of a machine, by breadth-first search in plain Python."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvtier.model.actions import Machine
from kvtier.model.state import State

__all__ = ["Broken", "Graph", "explore"]


@dataclass(frozen=True, slots=True)
class Graph:
    """The reachable states, in the order in which they were found, and all steps between them."""

    states: list[State]
    edges: list[tuple[int, str, int]]
    """Number of the state before, label, number of the state after."""
    reached_by: list[tuple[int, str] | None]
    """For each state a step that is last on a shortest way to it; `None` for the initial one."""

    def way_to(self, number: int) -> list[tuple[str, State]]:
        """A shortest way to a state: labels and states, without the initial one."""
        way: list[tuple[str, State]] = []
        while (step := self.reached_by[number]) is not None:
            way.append((step[1], self.states[number]))
            number = step[0]
        return way[::-1]


@dataclass(frozen=True, slots=True)
class Broken:
    """A predicate that does not hold, and the shortest way to the state or step that shows it."""

    name: str
    way: list[tuple[str, State]]


def explore(
    machine: Machine,
    *,
    predicates: Mapping[str, Callable[[Machine, State], bool]] | None = None,
    properties: Mapping[str, Callable[[Machine, State, str, State], bool]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Graph, Broken | None]:
    """The graph of `machine`, and the first predicate that a state or a step breaks, if one does.

    `predicates` judge states, `properties` steps. The search ends at a broken one.
    `progress` is called now and then with the number of states found and of those
    still to be looked at.
    """
    start = machine.initial()
    graph = Graph([start], [], [None])
    number_of = {start: 0}
    waiting = deque([0])
    while waiting:
        here = waiting.popleft()
        state = graph.states[here]
        for name, holds in (predicates or {}).items():
            if not holds(machine, state):
                return graph, Broken(name, graph.way_to(here))
        for label, after in machine.steps(state):
            for name, holds_of in (properties or {}).items():
                if not holds_of(machine, state, label, after):
                    return graph, Broken(name, [*graph.way_to(here), (label, after)])
            there = number_of.get(after)
            if there is None:
                there = number_of[after] = len(graph.states)
                graph.states.append(after)
                graph.reached_by.append((here, label))
                waiting.append(there)
            graph.edges.append((here, label, there))
        if progress is not None and here % 1000 == 0:
            progress(len(graph.states), len(waiting))
    return graph, None
