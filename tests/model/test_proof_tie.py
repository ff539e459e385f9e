"""Link 4, the half without z3: at small sizes the formulas of the proof are the model.

A formula of an action is true of exactly the pairs of states between which the model
has an edge of that label, and what the proof claims is true of exactly the states
and steps of which the model's predicates are. That holds of the machines with bugs
too, which is the sharper test of a claim: in the correct machine all are true.
"""

from __future__ import annotations

import pytest

from kvtier.check.proof.actions import Formulas
from kvtier.check.proof.invariants import INVARIANTS as PROVED
from kvtier.check.proof.mutants import MUTANTS as FORMULAS
from kvtier.check.proof.steps import STEPS
from kvtier.check.proof.tie import compare, compare_claims
from kvtier.model.actions import Machine
from kvtier.model.invariants import INVARIANTS, answer_once
from kvtier.model.mutants import MUTANTS
from kvtier.model.properties import PROPERTIES
from kvtier.model.state import Config

pytestmark = pytest.mark.timeout(300)

SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]
TWO_OUT = Config.of(1, 1)
ONE_OUT = Config.of(1, 1, max_out=1)
AGES_NEVER = Config.of(1, 1, without=frozenset({"lifetime"}))


@pytest.mark.parametrize(
    ("config", "states", "edges"),
    [
        pytest.param(Config.of(1, 2), 4_332, 15_437, id="1x2"),
        pytest.param(Config.of(2, 1, max_out=1), 69_616, 285_111, id="2x1", marks=SLOW),
    ],
)
def test_the_formulas_allow_exactly_the_edges_of_the_model(
    config: Config, states: int, edges: int
) -> None:
    tied = compare(Machine(config), Formulas())
    assert (tied.states, tied.edges, tied.difference) == (states, edges, None)


@pytest.mark.parametrize("spare", [1, pytest.param(2, marks=SLOW)])
def test_nothing_else_about_batches_that_are_nowhere_matters(spare: int) -> None:
    tied = compare(Machine(Config.of(1, 1)), Formulas(), spare=spare, thorough=True)
    assert (tied.states, tied.edges, tied.difference) == (1_188, 3_677, None)


@pytest.mark.parametrize("config", [ONE_OUT, AGES_NEVER], ids=["one batch out", "no lifetime"])
def test_the_formulas_know_the_bound_and_whether_verdicts_age(config: Config) -> None:
    assert compare(Machine(config), Formulas()).difference is None


def test_every_known_bug_of_the_model_is_there_as_formulas() -> None:
    assert list(FORMULAS) == list(MUTANTS)


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_known_bug_is_the_same_in_both(bug: str) -> None:
    assert compare(MUTANTS[bug](ONE_OUT), FORMULAS[bug]()).difference is None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", MUTANTS)
def test_a_known_bug_is_the_same_in_both_with_two_batches_out(bug: str) -> None:
    """But for which of two answers to one question counts, which the formulas leave open."""
    machine = MUTANTS[bug](Config.of(1, 1))
    assert compare(machine, FORMULAS[bug](), where=answer_once).difference is None


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_bug_in_one_of_them_is_a_difference(bug: str) -> None:
    size = Config.of(1, 2, max_out=1) if bug == "nobody_excused" else ONE_OUT
    assert compare(Machine(size), FORMULAS[bug]()).difference is not None


def test_what_the_model_has_a_predicate_for_is_proved_under_its_name() -> None:
    assert PROVED.keys() - INVARIANTS.keys() == {"CallOnceInv", "GuaranteeInv"}
    assert INVARIANTS.keys() <= PROVED.keys()
    assert list(STEPS) == list(PROPERTIES)


def test_formula_and_predicate_of_a_claim_agree_in_the_correct_machine() -> None:
    assert compare_claims(Machine(Config.of(1, 1)), Formulas()) is None


QUICK = {"cleanup_deletes_in_flight", "shutdown_leaves_pending"}


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=[] if bug in QUICK else SLOW) for bug in MUTANTS]
)
def test_formula_and_predicate_of_a_claim_agree_in_a_wrong_machine(bug: str) -> None:
    size = ONE_OUT if bug in ("batch_sent_twice", "mark_miss_forces_unresolved") else TWO_OUT
    assert compare_claims(MUTANTS[bug](size), FORMULAS[bug]()) is None
