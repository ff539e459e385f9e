"""Formulas given to z3: is the goal true wherever the hypotheses are?

Keys, requests and batches are sorts of which z3 knows nothing, so an answer of yes
holds for any number of them. An answer of no comes with a model: finitely many
things and the values of the functions on them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvtier.check.proof.logic import (
    BOOL,
    NUMBER,
    And,
    Apply,
    Each,
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
)
from kvtier.errors import MissingTool

__all__ = ["Answer", "Model", "Solver"]


class Model:
    """Values that make the hypotheses true and the goal false."""

    def __init__(self, solver: Solver, model: Any) -> None:
        self._solver, self._model = solver, model

    def things(self, sort: Sort) -> list[Any]:
        """Everything of a sort, as z3 names it; there is always something."""
        z3_sort = self._solver.sort(sort)
        known = self._model.get_universe(z3_sort) if z3_sort in self._model.sorts() else None
        return list(known) if known else [self._eval(self._solver.some(z3_sort))]

    def value(self, symbol: Symbol, *args: Any) -> bool | int | str:
        """The value of a function; arguments are things and integers."""
        return self._plain(self._eval(self._solver.function(symbol)(*args)))

    def parameter(self, var: Var) -> Any:
        """A thing, or an integer."""
        found = self._eval(self._solver.term(var))
        return self._plain(found) if var.sort is NUMBER else found

    def _eval(self, expression: Any) -> Any:
        return self._model.eval(expression, model_completion=True)

    def _plain(self, found: Any) -> bool | int | str:
        text = str(found)
        if text in ("True", "False"):
            return text == "True"
        return int(text) if text.lstrip("-").isdigit() else text.partition(".")[2]


@dataclass(frozen=True, slots=True)
class Answer:
    """What z3 said."""

    proved: bool
    seconds: float
    model: Model | None
    """`None` if the goal is proved, or if z3 gave up (it may have been stopped)."""


class Solver:
    """z3 with the sorts and functions of one proof. Raises `MissingTool`."""

    def __init__(self) -> None:
        try:
            import z3
        except ImportError:
            raise MissingTool("z3", "proof") from None
        self._z3 = z3
        self._context = z3.Context()
        self._sorts: dict[Sort, Any] = {
            BOOL: z3.BoolSort(self._context),
            NUMBER: z3.IntSort(self._context),
        }
        self._names: dict[tuple[Sort, bool | int | str], Any] = {}
        self._functions: dict[Symbol, Any] = {}
        self._terms: dict[Term, Any] = {}

    def ask(self, hypotheses: Iterable[Term], goal: Term, timeout: float | None = None) -> Answer:
        """Whether the hypotheses imply the goal; in at most `timeout` seconds."""
        solver = self._z3.Solver(ctx=self._context)
        if timeout is not None:
            solver.set("timeout", max(1, int(timeout * 1000)))
        solver.add(*(self.term(hypothesis) for hypothesis in hypotheses))
        solver.add(self._z3.Not(self.term(goal)))
        start = time.perf_counter()
        found = solver.check()
        seconds = time.perf_counter() - start
        if found == self._z3.unknown and "interrupted" in solver.reason_unknown():
            raise KeyboardInterrupt
        model = Model(self, solver.model()) if found == self._z3.sat else None
        return Answer(found == self._z3.unsat, seconds, model)

    def sort(self, sort: Sort) -> Any:
        """A sort as z3 has it."""
        if sort not in self._sorts:
            if sort.names:
                names = [f"{sort.name}.{name}" for name in sort.names]
                self._sorts[sort], values = self._z3.EnumSort(sort.name, names, self._context)
                for name, value in zip(sort.names, values, strict=True):
                    self._names[sort, name] = value
            else:
                self._sorts[sort] = self._z3.DeclareSort(sort.name, self._context)
        return self._sorts[sort]

    def function(self, symbol: Symbol) -> Any:
        """A function as z3 has it."""
        if symbol not in self._functions:
            domain = [self.sort(sort) for sort in (*symbol.takes, symbol.gives)]
            self._functions[symbol] = self._z3.Function(symbol.name, *domain)
        return self._functions[symbol]

    def some(self, z3_sort: Any) -> Any:
        """Something of a sort, no matter what."""
        return self._z3.Const("some", z3_sort)

    def term(self, term: Term) -> Any:
        """A term as z3 has it."""
        if term not in self._terms:
            self._terms[term] = self._translated(term)
        return self._terms[term]

    def _translated(self, term: Term) -> Any:
        z3, go = self._z3, self.term
        match term:
            case Var():
                return z3.FreshConst(self.sort(term.sort), term.name)
            case Value(sort=sort, value=value):
                if sort is BOOL:
                    return z3.BoolVal(value, self._context)
                if sort is NUMBER:
                    return z3.IntVal(value, self._context)
                self.sort(sort)
                return self._names[sort, value]
            case Apply():
                return self.function(term.symbol)(*map(go, term.args))
            case Not():
                return z3.Not(go(term.of))
            case And():
                return z3.And(go(term.left), go(term.right))
            case Same():
                return go(term.left) == go(term.right)
            case Less():
                return go(term.left) < go(term.right)
            case Plus():
                return go(term.left) + go(term.right)
            case Ite():
                return z3.If(go(term.test), go(term.then), go(term.other))
            case Each():
                return z3.ForAll([go(term.var)], go(term.body))
        raise TypeError(f"no term: {term}")
