"""The formulas held against the model: for finitely many things they allow just the model's steps.

A state has many structures (`structure.py`), which differ in the batches that are
nowhere: what they ask, and when they were or would be sent, is not in the state.
Every possibility is tried.

An action is a condition, and a value for every function after it. So for given
parameters there is at most one structure after a structure, and it can be computed:
the action, as a relation, is true of that pair and false of every other. That is how
*all* pairs of states are decided: from every state, the steps that the formulas
allow are compared with the model's, label and all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

from kvtier.check.proof.actions import B, Formulas, least
from kvtier.check.proof.decisions import YES
from kvtier.check.proof.finite import Vector, World
from kvtier.check.proof.logic import NUMBER
from kvtier.check.proof.state import BATCH, HISTORY, KEY, REQUEST, RIGID, SYMBOLS
from kvtier.check.proof.structure import Place, Values, is_state, out_of, state_of, structure
from kvtier.model.actions import Machine
from kvtier.model.explore import explore
from kvtier.model.state import Batch, Config, State, show

__all__ = ["Tie", "Tied", "compare"]

_CORE = {name: symbol for name, symbol in SYMBOLS.items() if name not in HISTORY}
_WORDS = {"none": "None", "T": "True", "F": "False"}
_LABELS = {
    "WorkerStop": "WorkerTake",
    "WorkerFails": "WorkerAnswer_Error",
    "LookupClosed": "Lookup",
}


@dataclass(frozen=True, slots=True)
class Tied:
    """What a comparison found."""

    states: int
    edges: int
    difference: str | None
    """The first step that one side has and the other has not."""


@dataclass(frozen=True, slots=True)
class _Step:
    """An action with given parameters, as functions of the structure."""

    action: str
    binding: Mapping[str, int]
    guard: Callable[[Vector], bool]
    after: Callable[[Vector], Values]
    reply: Callable[[Vector], str] | None


class Tie:
    """The formulas at the size of `config`, with generations up to `numbers`.

    `spare` batches are nowhere. With `thorough` all that they may ask is tried with
    every action, and not only with those that choose a batch.
    """

    def __init__(
        self,
        config: Config,
        formulas: Formulas,
        *,
        numbers: int,
        spare: int = 1,
        thorough: bool = False,
    ) -> None:
        self.config, self.numbers, self.spare, self.thorough = config, numbers, spare, thorough
        self._formulas = formulas
        ways = product(range(numbers + 1), repeat=len(config.keys))
        self._contents = [_questions(zip(config.keys, way, strict=True)) for way in ways]
        self.world = cache(self._world)
        self._steps = cache(self._steps_of)

    def steps(self, s: State) -> set[tuple[str, State | None]]:
        """Every step that the formulas allow. `None` is a structure that is no state."""
        found: set[tuple[str, State | None]] = set()
        for order, place in self._orders(s):
            steps = self._steps(len(order))
            for batches, yes, chosen in self._choices(order):
                values = structure(self.config, s, batches, place, yes)
                vector = self.world(len(order)).vector(values)
                for step in steps[chosen]:
                    if step.guard(vector):
                        after = {**values, **step.after(vector)}
                        label = self._label(step, vector, batches, values)
                        there = (
                            state_of(self.config, after, batches)
                            if is_state(after, batches)
                            else None
                        )
                        found.add((label, there))
        return found

    def _orders(self, s: State) -> Iterator[tuple[tuple[Batch | None, ...], Place]]:
        """The batches that are out, with spare ones (`None`) between or behind them."""
        out = out_of(s)
        number = len(out) + self.spare
        ways = list(combinations(range(number), len(out)))
        for way in ways if self.thorough else ways[:1]:
            there = dict(zip(way, out, strict=True))
            order = tuple(there[b][0] if b in there else None for b in range(number))
            yield order, {b: (where, answers) for b, (_, where, answers) in there.items()}

    def _choices(
        self, order: tuple[Batch | None, ...]
    ) -> Iterator[tuple[tuple[Batch, ...], frozenset[str], str]]:
        """What the spare batches ask, and what the back end has; and which steps to try."""
        nothing: Batch = frozenset()
        blank = tuple(nothing if content is None else content for content in order)
        contents = list(
            product(*(self._contents if content is None else [content] for content in order))
        )
        answers = [
            frozenset(k for k, yes in zip(self.config.keys, way, strict=True) if yes)
            for way in product((False, True), repeat=len(self.config.keys))
        ]
        if self.thorough:
            yield from ((batches, yes, "all") for batches, yes in product(contents, answers))
        else:
            yield blank, frozenset(), "plain"
            yield from ((batches, frozenset(), "sends") for batches in contents)
            yield from ((blank, yes, "answers") for yes in answers)

    def _world(self, batches: int) -> World:
        sizes = {
            KEY: range(len(self.config.keys)),
            REQUEST: range(len(self.config.requests)),
            BATCH: range(batches),
            NUMBER: range(self.numbers + 1),
        }
        return World(sizes, (*_CORE.values(), *RIGID, YES))

    def _steps_of(self, batches: int) -> dict[str, list[_Step]]:
        world = self.world(batches)
        steps: dict[str, list[_Step]] = {"plain": [], "sends": [], "answers": []}
        for action in self._formulas.actions(least):
            kind = {"WorkerAnswer": "answers"}.get(
                action.name, "sends" if B in action.parameters else "plain"
            )
            after = {symbol: getattr(action.after, name) for name, symbol in _CORE.items()}
            for binding in world.bindings(action.parameters):
                reply = None if action.reply is None else world.function(action.reply, binding)
                steps[kind].append(
                    _Step(
                        action.name,
                        {var.name: value for var, value in binding.items()},
                        world.function(action.guard, binding),
                        world.update(after, binding),
                        reply,
                    )
                )
        return {**steps, "all": [step for some in steps.values() for step in some]}

    def _label(
        self, step: _Step, vector: Vector, batches: tuple[Batch, ...], values: Values
    ) -> str:
        words = [_LABELS.get(step.action, step.action)]
        if step.action == "WorkerAnswer":
            asked = next(
                content for b, content in enumerate(batches) if values["at", (b,)] == "worker"
            )
            keys = [(n, k) for n, k in enumerate(self.config.keys) if k in dict(asked)]
            return "_".join([*words, *(k + "FT"[values["yes", (n,)]] for n, k in keys)])
        words += [self.config.requests[step.binding["r"]]] if "r" in step.binding else []
        words += [self.config.keys[step.binding["k"]]] if "k" in step.binding else []
        words += [_WORDS[step.reply(vector)]] if step.reply else []
        return "_".join(words)


def compare(
    machine: Machine, formulas: Formulas, *, spare: int = 1, thorough: bool = False
) -> Tied:
    """Whether the formulas allow exactly the steps of the machine, from every state that it has."""
    graph, _ = explore(machine)
    numbers = max(e.gen for s in graph.states for e in s.entry)
    tie = Tie(machine.config, formulas, numbers=numbers + 1, spare=spare, thorough=thorough)
    edges: dict[int, set[tuple[str, State]]] = {n: set() for n in range(len(graph.states))}
    for here, label, there in graph.edges:
        edges[here].add((label, graph.states[there]))
    for here, s in enumerate(graph.states):
        found = tie.steps(s)
        if found != edges[here]:
            wrong = found.symmetric_difference(edges[here])
            return Tied(len(graph.states), len(graph.edges), _told(machine.config, s, wrong, found))
    return Tied(len(graph.states), len(graph.edges), None)


def _told(config: Config, s: State, wrong: set[Any], found: set[Any]) -> str:
    label, after = min(wrong, key=lambda step: step[0])
    who = "the formulas" if (label, after) in found else "the model"
    there = "no state" if after is None else show(config, after)
    return f"only {who}: {show(config, s)} -- {label} -> {there}"


def _questions(way: Iterable[tuple[str, int]]) -> Batch:
    return frozenset((k, g) for k, g in way if g)
