"""Formulas read over finite sets: given how many keys, requests and batches there are, their value.

A quantifier becomes as many formulas as there are things, so what is left is a
formula about the values of functions at points (*grounding*). A state is then a
tuple with the values at all points, and a formula a Python function of that tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import product
from operator import itemgetter
from typing import Any, TypeAlias

from kvtier.check.proof.logic import (
    FALSE,
    TRUE,
    And,
    Apply,
    Each,
    Fn,
    Ite,
    Less,
    Not,
    Plus,
    Same,
    Sort,
    Symbol,
    Term,
    Value,
    Var,
    ite,
    same,
)

__all__ = ["Binding", "Point", "Sizes", "Vector", "World"]

Sizes: TypeAlias = Mapping[Sort, Sequence[int]]
"""The things of each sort that is not an enumeration."""
Point: TypeAlias = tuple[str, tuple[Any, ...]]
"""A function, by name, and arguments of it."""
Vector: TypeAlias = tuple[Any, ...]
"""The values at all points, in their order."""
Binding: TypeAlias = Mapping[Var, int]


@dataclass(frozen=True, slots=True)
class World:
    """Finite sets of things, and the functions that states give values on them."""

    sizes: Sizes
    symbols: tuple[Symbol, ...]
    position: dict[Point, int] = field(init=False, default_factory=dict)
    _terms: dict[Any, Term] = field(init=False, default_factory=dict)
    _functions: dict[Term, Callable[[Vector], Any]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for symbol in self.symbols:
            for args in self._arguments(symbol):
                self.position[symbol.name, args] = len(self.position)

    def vector(self, values: Mapping[Point, Any]) -> Vector:
        """The state with these values."""
        return tuple(values[point] for point in self.position)

    def bindings(self, variables: Iterable[Var]) -> list[dict[Var, int]]:
        """Every choice of values for these variables."""
        chosen = list(variables)
        ways = product(*(self.sizes[var.sort] for var in chosen))
        return [dict(zip(chosen, way, strict=True)) for way in ways]

    def function(self, term: Term, binding: Binding | None = None) -> Callable[[Vector], Any]:
        """The value of a term as a function of the state."""
        values = {var: _thing(var.sort, value) for var, value in (binding or {}).items()}
        return self._compiled(self._ground(term, values))

    def points(self, fns: Mapping[Symbol, Fn]) -> dict[Point, Term]:
        """The values of functions at each point, as terms."""
        return {
            (symbol.name, args): fn(*map(_thing, symbol.takes, args))
            for symbol, fn in fns.items()
            for args in self._arguments(symbol)
        }

    def update(
        self, points: Mapping[Point, Term], binding: Binding
    ) -> Callable[[Vector], dict[Point, Any]]:
        """The values at these points as a function of the state."""
        there = {point: self.function(term, binding) for point, term in points.items()}
        return lambda v: {point: of(v) for point, of in there.items()}

    def _arguments(self, symbol: Symbol) -> Iterable[tuple[int, ...]]:
        return product(*(self.sizes[sort] for sort in symbol.takes))

    def _ground(self, term: Term, values: Mapping[Var, Term]) -> Term:
        """Without quantifiers and variables; equal parts are one object."""

        def go(part: Term) -> Term:
            return self._ground(part, values)

        match term:
            case Var():
                return self._one(values[term])
            case Apply():
                return self._one(Apply(term.symbol, tuple(map(go, term.args))))
            case Not():
                return self._one(~go(term.of))
            case And():
                left = go(term.left)
                return left if left is FALSE else self._one(left & go(term.right))
            case Same():
                return self._one(same(go(term.left), go(term.right)))
            case Less():
                return self._one(Less(go(term.left), go(term.right)))
            case Plus():
                return self._one(Plus(go(term.left), go(term.right)))
            case Ite():
                test = go(term.test)
                if test is TRUE or test is FALSE:
                    return go(term.then if test is TRUE else term.other)
                return self._one(ite(test, go(term.then), go(term.other)))
            case Each():
                so_far = TRUE
                for way in self.sizes[term.var.sort]:
                    bound = {**values, term.var: _thing(term.var.sort, way)}
                    so_far = self._one(so_far & self._ground(term.body, bound))
                return so_far
        return self._one(term)

    def _one(self, term: Term) -> Term:
        """The same term for every term that is built alike."""
        if term is TRUE or term is FALSE:
            return term
        parts = tuple(getattr(term, f.name) for f in fields(term))  # type: ignore[arg-type]
        return self._terms.setdefault((type(term), parts), term)

    def _compiled(self, term: Term) -> Callable[[Vector], Any]:
        """A term without quantifiers and variables as a function."""
        if term not in self._functions:
            self._functions[term] = self._compile(term)
        return self._functions[term]

    def _compile(self, term: Term) -> Callable[[Vector], Any]:
        go = self._compiled
        match term:
            case Value(value=value):
                return lambda v: value
            case Apply(symbol=symbol, args=args):
                if all(isinstance(arg, Value) for arg in args):
                    point = symbol.name, tuple(arg.value for arg in args if isinstance(arg, Value))
                    return itemgetter(self.position[point])
                parts = tuple(map(go, args))
                return lambda v: v[self.position[symbol.name, tuple(part(v) for part in parts)]]
            case Not():
                of = go(term.of)
                return lambda v: not of(v)
            case And():
                left, right = go(term.left), go(term.right)
                return _remembered(lambda v: left(v) and right(v))
            case Same(right=Value(value=value)):
                left = go(term.left)
                return lambda v: left(v) == value
            case Same():
                left, right = go(term.left), go(term.right)
                return lambda v: left(v) == right(v)
            case Less():
                left, right = go(term.left), go(term.right)
                return lambda v: left(v) < right(v)
            case Plus():
                left, right = go(term.left), go(term.right)
                return lambda v: left(v) + right(v)
            case Ite():
                test, then, other = go(term.test), go(term.then), go(term.other)
                return _remembered(lambda v: then(v) if test(v) else other(v))
        raise TypeError(f"not a ground term: {term}")


@cache
def _thing(sort: Sort, number: int) -> Term:
    return Value(sort, number)


def _remembered(of: Callable[[Vector], Any]) -> Callable[[Vector], Any]:
    """The function, which knows its last answer: parts are shared by many terms."""
    last: Vector = ()
    answer: Any = None

    def remembering(v: Vector) -> Any:
        nonlocal last, answer
        if v is not last:
            answer, last = of(v), v
        return answer

    return remembering
