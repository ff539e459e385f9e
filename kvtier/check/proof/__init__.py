"""Link 4: the lookup machine is right for any number of keys, requests, batches and generations.

TLC and the model look at every state, and so at small sizes only. Here every
invariant is proved *inductive*: it holds in the beginning, and whatever happens in a
state in which all of them hold, it holds afterwards. That no more than this is
needed makes it a question without a search, one for each action and conjunct, and
z3 answers it for all sizes at once.

* `logic.py`: the language in which all this is written.
* `state.py`, `decisions.py`, `actions.py`: the machine, written beside the model.
* `history.py`: what must be remembered to say what is claimed.
* `invariants.py`, `steps.py`: the claims, of states and of steps.
* `solver.py`, `witness.py`: z3, and what it says if it refutes one.
* `finite.py`, `structure.py`, `tie.py`: the same formulas read by plain Python, which
  shows that at small sizes they allow exactly the steps of the model.
* `mutants.py`: the machine with the known bugs, for which the proof fails.

What is not proved here: liveness (that something happens, not that nothing wrong
does), which TLC checks at its sizes. Scopes are left out as they are in the model:
they share nothing. And that `sent` and `unread` are the number of batches in their
places is not said in the language of the proof, which cannot count; each step
changes them as it should, and the comparison with the model counts.

A refuted conjunct does not mean that the machine gets there. It means that the
conjuncts do not suffice to show that it does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kvtier.check.proof.actions import Action, Formulas, counted, unused
from kvtier.check.proof.history import remembering
from kvtier.check.proof.invariants import INVARIANTS, STRENGTHENING, Conjunct
from kvtier.check.proof.logic import FALSE, TRUE, Less, Term, number
from kvtier.check.proof.solver import Solver
from kvtier.check.proof.state import INITIAL, MAX_OUT, NOW
from kvtier.check.proof.steps import STEPS
from kvtier.check.proof.witness import witness

__all__ = ["POSSIBLE", "Obligation", "ProofReport", "Row", "obligations", "prove"]

POSSIBLE = "Possible"
"""The row that says that there is such a step: of no step at all everything could be proved."""


@dataclass(frozen=True, slots=True)
class Row:
    """One claim about one action."""

    action: str
    conjunct: str
    ok: bool
    seconds: float
    counterexample: str | None
    """A step that the claim does not hold of; `None` with `ok` false: not decided in time."""


@dataclass(frozen=True, slots=True)
class ProofReport:
    """Every row, and whether they make a proof."""

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is proved."""
        return all(row.ok for row in self.rows)


@dataclass(frozen=True, slots=True)
class Obligation:
    """What is to be shown: that the hypotheses imply the goal."""

    action: Action
    conjunct: str
    hypotheses: tuple[Term, ...]
    goal: Term

    def row(self, solver: Solver, timeout: float | None = None) -> Row:
        """Ask z3."""
        answer = solver.ask(self.hypotheses, self.goal, timeout)
        if self.conjunct == POSSIBLE:
            found = answer.model is not None
            told = "it can never happen" if answer.proved else None
        else:
            found = answer.proved
            told = str(witness(answer.model, self.action)) if answer.model else None
        return Row(self.action.name, self.conjunct, found, answer.seconds, told)


def obligations(
    formulas: Formulas | None = None,
    *,
    conjuncts: Mapping[str, Conjunct] | None = None,
    only: str | None = None,
) -> Iterator[Obligation]:
    """All that the proof consists of, action by action; or that about one action."""
    machine = Formulas() if formulas is None else formulas
    claims = {**INVARIANTS, **STRENGTHENING} if conjuncts is None else conjuncts
    size = Less(number(0), MAX_OUT())
    start = Action("Init", (), TRUE, INITIAL)
    if only in (None, start.name):
        for name, claim in claims.items():
            yield Obligation(start, name, (size,), claim(INITIAL))
    known = (size, *(claim(NOW) for claim in claims.values()))
    actions = list(machine.actions(unused))
    actions[1:1] = [a for a in machine.actions(counted, "LookupCounted") if "Counted" in a.name]
    for action in map(remembering, (a for a in actions if only in (None, a.name))):
        given = (*known, action.guard)
        yield Obligation(action, POSSIBLE, given, FALSE)
        for name, claim in claims.items():
            yield Obligation(action, name, given, claim(action.after))
        for name, step in STEPS.items():
            goal = step(action)
            if goal is not TRUE:
                yield Obligation(action, name, given, goal)


def prove(
    progress: Callable[[int, int, Row], None] | None = None,
    timeout: float | None = None,
    *,
    formulas: Formulas | None = None,
) -> ProofReport:
    """Prove everything; of `formulas` instead of the correct machine if given.

    `progress` is called after each row, with how many there are so far and in all.
    After `timeout` seconds the rest is not decided. Raises `MissingTool`.
    """
    solver = Solver()
    end = None if timeout is None else time.monotonic() + timeout
    everything = list(obligations(formulas))
    rows: list[Row] = []
    for obligation in everything:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            row = Row(obligation.action.name, obligation.conjunct, False, 0.0, None)
        else:
            row = obligation.row(solver, left)
        rows.append(row)
        if progress is not None:
            progress(len(rows), len(everything), row)
    return ProofReport(tuple(rows))
