"""A step that a proof stumbles over, read out of z3's model and written for people.

The state before satisfies every conjunct, the state after does not; that does not
say that the machine ever gets there. The state after is not z3's: it is computed
from the state before by the other reading of the formulas (`finite.py`), and so is
whether the conjunct holds in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from kvtier.check.proof.actions import Action
from kvtier.check.proof.decisions import YES
from kvtier.check.proof.finite import Vector, World
from kvtier.check.proof.logic import NUMBER, Term, Var
from kvtier.check.proof.solver import Model
from kvtier.check.proof.state import BATCH, KEY, NUMBER_OF, REQUEST, RIGID, SYMBOLS
from kvtier.check.proof.structure import Values, state_of
from kvtier.model.state import Config, show

__all__ = ["Witness", "witness"]

_THINGS = (KEY, REQUEST, BATCH)
_ALL = (*SYMBOLS.values(), *RIGID, YES)


@dataclass(frozen=True, slots=True)
class Witness:
    """A step, and the finite sets in which it is one."""

    action: Action
    world: World
    binding: Mapping[Var, int]
    """The parameters of the action: a thing by its number, or a generation."""
    before: Values
    after: Values

    def holds(self, term: Term) -> bool:
        """Whether a formula holds of the state before; a step's formulas are about that too."""
        return bool(self.world.function(term, self.binding)(self._vector()))

    def __str__(self) -> str:
        config = Config.of(len(self.world.sizes[KEY]), len(self.world.sizes[REQUEST]))
        batches = [
            frozenset(
                (k, self.before["number_of", (b, n)])
                for n, k in enumerate(config.keys)
                if self.before["asks", (b, n)]
            )
            for b in self.world.sizes[BATCH]
        ]
        named = {KEY: config.keys, REQUEST: config.requests}
        words = [
            named[var.sort][value] if var.sort in named else f"{var.name}={value}"
            for var, value in self.binding.items()
            if var.sort is not BATCH
        ]
        label = "_".join([self.action.name, *words])
        states = [
            show(config, state_of(config, values, batches)) for values in (self.before, self.after)
        ]
        return f"{states[0]} -- {label} -> {states[1]}"

    def _vector(self) -> Vector:
        return self.world.vector(self.before)


def witness(model: Model, action: Action) -> Witness:
    """The step that a model shows."""
    things = {sort: model.things(sort) for sort in _THINGS}
    chosen = {var: model.parameter(var) for var in action.parameters}
    numbers = {0, *(value for var, value in chosen.items() if var.sort is NUMBER)}
    numbers.update(model.value(SYMBOLS["gen"], k) for k in things[KEY])
    numbers.update(model.value(NUMBER_OF, *pair) for pair in product(things[BATCH], things[KEY]))
    sizes = {**{sort: range(len(things[sort])) for sort in _THINGS}, NUMBER: sorted(numbers)}
    world = World(sizes, _ALL)
    before: Values = {}
    for symbol in _ALL:
        for args in product(*(sizes[sort] for sort in symbol.takes)):
            z3_args = [
                n if sort is NUMBER else things[sort][n]
                for sort, n in zip(symbol.takes, args, strict=True)
            ]
            before[symbol.name, args] = model.value(symbol, *z3_args)
    binding = {
        var: value if var.sort is NUMBER else [str(t) for t in things[var.sort]].index(str(value))
        for var, value in chosen.items()
    }
    points = world.points({sym: getattr(action.after, name) for name, sym in SYMBOLS.items()})
    after = world.update(points, binding)
    return Witness(action, world, binding, before, {**before, **after(world.vector(before))})
