"""The formulas held against the model: for finitely many things they allow just the model's steps.

A state has many structures (`structure.py`), which differ in the batches that are
nowhere: what they ask, and when they were or would be sent, is not in the state.
Every possibility is tried.

An action is a condition, and a value for every function after it. So for given
parameters there is at most one structure after a structure, and it can be computed:
the action, as a relation, is true of that pair and false of every other. That is how
*all* pairs of states are decided: from every state, the steps that the formulas
allow are compared with the model's, label and all (`compare`). What is claimed of
states and steps is held against the model's predicates of the same names
(`compare_claims`), best in machines with bugs, where they do not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

from kvtier.check.proof.actions import Action, B, Formulas, K, R, least
from kvtier.check.proof.decisions import YES
from kvtier.check.proof.finite import Binding, Vector, World
from kvtier.check.proof.invariants import INVARIANTS as CLAIMS
from kvtier.check.proof.logic import NUMBER
from kvtier.check.proof.state import BATCH, HISTORY, KEY, NOW, REQUEST, RIGID, SYMBOLS
from kvtier.check.proof.steps import STEPS
from kvtier.check.proof.structure import Place, Values, is_state, out_of, state_of, structure
from kvtier.model.actions import Machine
from kvtier.model.explore import Graph, explore
from kvtier.model.invariants import INVARIANTS, Predicate, questions_out
from kvtier.model.properties import PROPERTIES
from kvtier.model.state import Batch, Config, State, show

__all__ = ["Tie", "Tied", "compare", "compare_claims"]

_CORE = {name: symbol for name, symbol in SYMBOLS.items() if name not in HISTORY}
_CLAIMED = {name: claim for name, claim in CLAIMS.items() if name in INVARIANTS}
"""All but those about what must be remembered: the model has no predicates for them."""
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


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """An action with given parameters, as functions of the structure."""

    action: Action
    binding: Binding
    world: World
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
        self._world_of = cache(self._world)
        self._steps = cache(self._steps_in)
        self._invariants = cache(self._invariants_in)
        self._properties = cache(self._properties_of)
        self._goals = cache(lambda action: {name: of(action) for name, of in STEPS.items()})

    def steps(self, s: State) -> set[tuple[str, State | None]]:
        """Every step that the formulas allow. `None` is a structure that is no state."""
        return {(label, after) for _, _, label, after in self._allowed(s)}

    def state_claims(self, s: State) -> dict[str, bool]:
        """The value of every invariant that the model has a predicate for."""
        order, place = next(self._orders(s))
        batches, yes, _ = next(self._choices(order))
        vector = self._world_of(len(order)).vector(structure(self.config, s, batches, place, yes))
        return {name: of(vector) for name, of in self._invariants(len(order)).items()}

    def step_claims(self, s: State) -> Iterator[tuple[str, State, dict[str, bool]]]:
        """Every step from `s`, with the value of every step property."""
        for step, vector, label, after in self._allowed(s):
            if after is not None:
                yield label, after, {n: of(vector) for n, of in self._properties(step).items()}

    def _allowed(self, s: State) -> Iterator[tuple[_Step, Vector, str, State | None]]:
        for order, place in self._orders(s):
            steps = self._steps(len(order))
            for batches, yes, chosen in self._choices(order):
                values = structure(self.config, s, batches, place, yes)
                vector = self._world_of(len(order)).vector(values)
                for step in steps[chosen]:
                    if step.guard(vector):
                        after = {**values, **step.after(vector)}
                        fits = is_state(after, batches)
                        there = state_of(self.config, after, batches) if fits else None
                        yield step, vector, self._label(step, vector, batches, values), there

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

    def _steps_in(self, batches: int) -> dict[str, list[_Step]]:
        world = self._world_of(batches)
        steps: dict[str, list[_Step]] = {"plain": [], "sends": [], "answers": []}
        for action in self._formulas.actions(least):
            kind = {"WorkerAnswer": "answers"}.get(
                action.name, "sends" if B in action.parameters else "plain"
            )
            after = world.points({sym: getattr(action.after, name) for name, sym in _CORE.items()})
            for binding in world.bindings(action.parameters):
                reply = None if action.reply is None else world.function(action.reply, binding)
                steps[kind].append(
                    _Step(
                        action,
                        binding,
                        world,
                        world.function(action.guard, binding),
                        world.update(after, binding),
                        reply,
                    )
                )
        return {**steps, "all": [step for some in steps.values() for step in some]}

    def _invariants_in(self, batches: int) -> dict[str, Callable[[Vector], bool]]:
        world = self._world_of(batches)
        return {name: world.function(claim(NOW)) for name, claim in _CLAIMED.items()}

    def _properties_of(self, step: _Step) -> dict[str, Callable[[Vector], bool]]:
        return {
            name: step.world.function(goal, step.binding)
            for name, goal in self._goals(step.action).items()
        }

    def _label(
        self, step: _Step, vector: Vector, batches: tuple[Batch, ...], values: Values
    ) -> str:
        name = step.action.name
        words = [_LABELS.get(name, name)]
        if name == "WorkerAnswer":
            asked = next(
                content for b, content in enumerate(batches) if values["at", (b,)] == "worker"
            )
            keys = [(n, k) for n, k in enumerate(self.config.keys) if k in dict(asked)]
            return "_".join([*words, *(k + "FT"[values["yes", (n,)]] for n, k in keys)])
        words += [self.config.requests[step.binding[R]]] if R in step.binding else []
        words += [self.config.keys[step.binding[K]]] if K in step.binding else []
        words += [_WORDS[step.reply(vector)]] if step.reply else []
        return "_".join(words)


def compare(
    machine: Machine,
    formulas: Formulas,
    *,
    where: Predicate | None = None,
    spare: int = 1,
    thorough: bool = False,
) -> Tied:
    """Whether the formulas allow exactly the steps of the machine, from every state that it has.

    Or from those `where` a predicate holds.
    """
    graph, _ = explore(machine)
    tie = Tie(machine.config, formulas, numbers=_numbers(graph), spare=spare, thorough=thorough)
    edges: dict[int, set[tuple[str, State]]] = {n: set() for n in range(len(graph.states))}
    for here, label, there in graph.edges:
        edges[here].add((label, graph.states[there]))
    for here, s in enumerate(graph.states):
        if where is not None and not where(machine, s):
            continue
        found = tie.steps(s)
        if found != edges[here]:
            wrong = found.symmetric_difference(edges[here])
            return Tied(len(graph.states), len(graph.edges), _told(machine.config, s, wrong, found))
    return Tied(len(graph.states), len(graph.edges), None)


def compare_claims(machine: Machine, formulas: Formulas) -> str | None:
    """The first claim that is true as a formula and false as a predicate, or the other way."""
    graph, _ = explore(machine)
    tie = Tie(machine.config, formulas, numbers=_numbers(graph))
    for s in graph.states:
        for name, value in tie.state_claims(s).items():
            if value != INVARIANTS[name](machine, s):
                return f"{name} is {value}: {show(machine.config, s)}"
        for label, after, values in tie.step_claims(s):
            for name, value in values.items():
                if value != PROPERTIES[name](machine, s, label, after):
                    step = f"{label} -> {show(machine.config, after)}"
                    return f"{name} is {value}: {show(machine.config, s)} -- {step}"
    return None


def _numbers(graph: Graph) -> int:
    """The highest generation that a new question can have."""
    entries = {e.gen for s in graph.states for e in s.entry}
    return 1 + max(entries | {gen for s in graph.states for _, gen in questions_out(s)})


def _told(config: Config, s: State, wrong: set[Any], found: set[Any]) -> str:
    label, after = min(wrong, key=lambda step: step[0])
    who = "the formulas" if (label, after) in found else "the model"
    there = "no state" if after is None else show(config, after)
    return f"only {who}: {show(config, s)} -- {label} -> {there}"


def _questions(way: Iterable[tuple[str, int]]) -> Batch:
    return frozenset((k, g) for k, g in way if g)
