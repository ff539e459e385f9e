"""A small language of formulas that is read twice: by z3, and by plain Python over finite sets.

What the proof says of the machine is written once, in this language. `solver.py`
gives a formula to z3, where keys, requests and batches may be any number of
things. `finite.py` computes the value of the same formula where they are a given
few. So what is proved for all sizes can be held against the model at small ones.

A term stands for a value. Its sort is one of those that z3 calls uninterpreted
(things that can be told apart, and nothing else), an enumeration, the integers, or
the truth values; a formula is a term that stands for a truth value. Terms are
immutable, and each is equal to itself only: `same(a, b)` is the formula that says
that two of them have the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, reduce
from typing import TypeAlias

__all__ = [
    "BOOL",
    "FALSE",
    "NUMBER",
    "TRUE",
    "And",
    "Apply",
    "Each",
    "Fn",
    "Ite",
    "Less",
    "Not",
    "Plus",
    "Same",
    "Sort",
    "Symbol",
    "Term",
    "Value",
    "Var",
    "among",
    "both",
    "each",
    "ite",
    "number",
    "same",
    "some",
]


@dataclass(frozen=True, slots=True)
class Sort:
    """A kind of value. With `names` it is an enumeration, and `PHASE("PENDING")` is one of it."""

    name: str
    names: tuple[str, ...] = ()

    def __call__(self, name: str) -> Value:
        if name not in self.names:
            raise ValueError(f"{self.name} has no {name}")
        return _named(self, name)


@cache
def _named(sort: Sort, name: str) -> Value:
    return Value(sort, name)


BOOL = Sort("Bool")
NUMBER = Sort("Number")
"""The integers."""


class Term:
    """Something with a value. `&`, `|`, `~` and `>>` (implies) join formulas."""

    __slots__ = ()

    def __and__(self, other: Term) -> Term:
        if self is FALSE or other is FALSE:
            return FALSE
        return other if self is TRUE else self if other is TRUE else And(self, other)

    def __or__(self, other: Term) -> Term:
        return ~(~self & ~other)

    def __invert__(self) -> Term:
        if self is TRUE or self is FALSE:
            return FALSE if self is TRUE else TRUE
        return self.of if isinstance(self, Not) else Not(self)

    def __rshift__(self, other: Term) -> Term:
        return ~self | other


@dataclass(frozen=True, slots=True, eq=False)
class Var(Term):
    """Anything of its sort: bound by a quantifier, or a parameter of an action."""

    name: str
    sort: Sort


@dataclass(frozen=True, slots=True, eq=False)
class Value(Term):
    """A truth value, an integer, or a value of an enumeration."""

    sort: Sort
    value: bool | int | str


@dataclass(frozen=True, slots=True, eq=False)
class Apply(Term):
    """The value of a function."""

    symbol: Symbol
    args: tuple[Term, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Not(Term):
    """The other truth value."""

    of: Term


@dataclass(frozen=True, slots=True, eq=False)
class And(Term):
    """Both."""

    left: Term
    right: Term


@dataclass(frozen=True, slots=True, eq=False)
class Same(Term):
    """Whether two values are the same; of formulas: if and only if."""

    left: Term
    right: Term


@dataclass(frozen=True, slots=True, eq=False)
class Less(Term):
    """Whether one integer is less than another."""

    left: Term
    right: Term


@dataclass(frozen=True, slots=True, eq=False)
class Plus(Term):
    """The sum of two integers."""

    left: Term
    right: Term


@dataclass(frozen=True, slots=True, eq=False)
class Ite(Term):
    """One value or another, as a formula says."""

    test: Term
    then: Term
    other: Term


@dataclass(frozen=True, slots=True, eq=False)
class Each(Term):
    """Whether a formula holds whatever the value of the variable is."""

    var: Var
    body: Term


TRUE: Term = Value(BOOL, True)
FALSE: Term = Value(BOOL, False)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function that a state gives its values, or, if `rigid`, one that no step changes."""

    name: str
    takes: tuple[Sort, ...]
    gives: Sort
    rigid: bool = False

    def __call__(self, *args: Term) -> Term:
        return Apply(self, args)


Fn: TypeAlias = Callable[..., Term]
"""Terms to a term: a symbol, or what a step makes of it."""


def number(value: int) -> Term:
    """An integer."""
    return Value(NUMBER, value)


def same(left: Term, right: Term) -> Term:
    """Whether two values are the same."""
    if left is right:
        return TRUE
    if isinstance(left, Value) and isinstance(right, Value):
        return TRUE if left.value == right.value else FALSE
    return Same(left, right)


def among(term: Term, *values: Term) -> Term:
    """Whether a value is one of these."""
    return reduce(lambda so_far, value: so_far | same(term, value), values, FALSE)


def both(parts: Iterable[Term]) -> Term:
    """All of these formulas."""
    return reduce(lambda so_far, part: so_far & part, parts, TRUE)


def ite(test: Term, then: Term, other: Term) -> Term:
    """`then` if `test`, else `other`."""
    if then is other or test is TRUE:
        return then
    return other if test is FALSE else Ite(test, then, other)


def each(sort: Sort, body: Callable[[Term], Term]) -> Term:
    """Whether `body` holds of everything of that sort."""
    var = Var(sort.name, sort)
    inside = body(var)
    return inside if inside is TRUE or inside is FALSE else Each(var, inside)


def some(sort: Sort, body: Callable[[Term], Term]) -> Term:
    """Whether `body` holds of something of that sort."""
    return ~each(sort, lambda var: ~body(var))
