"""Link 4, the half with z3: the invariants hold at every size, and a proof can fail.

That the formulas are those of the model is shown in `test_proof_tie.py`.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from kvtier.check.proof import (
    POSSIBLE,
    Obligation,
    ProofReport,
    Row,
    obligations,
    prove,
)
from kvtier.check.proof.actions import Action, Formulas, G, counted, least, unused
from kvtier.check.proof.decisions import YES
from kvtier.check.proof.finite import Point, World
from kvtier.check.proof.invariants import INVARIANTS, STRENGTHENING
from kvtier.check.proof.logic import (
    FALSE,
    NUMBER,
    TRUE,
    Sort,
    Symbol,
    Term,
    Value,
    Var,
    among,
    both,
    each,
    same,
)
from kvtier.check.proof.mutants import MUTANTS
from kvtier.check.proof.solver import Solver
from kvtier.check.proof.state import BATCH, HISTORY, KEY, NOW, REQUEST, RIGID, SYMBOLS
from kvtier.check.proof.structure import out_of, structure
from kvtier.check.proof.witness import Witness, witness
from kvtier.errors import MissingTool
from kvtier.model.actions import Machine
from kvtier.model.explore import explore
from kvtier.model.state import Config

pytestmark = pytest.mark.timeout(240)

CONJUNCTS = {**INVARIANTS, **STRENGTHENING}

WRONG_STEP = {
    "no_mark_miss": ("MarkMiss", "MarkMissProp"),
    "no_generation": ("Cleanup", "ConservationInv"),
    "cleanup_deletes_in_flight": ("Cleanup", "ConservationInv"),
    "flush_does_not_drain": ("Flush", "FlushDrainsProp"),
    "mark_miss_forces_unresolved": ("MarkMiss", "ConservationInv"),
    "lazy_answer_kills_worker": ("WorkerFails", "ConservationInv"),
    "short_answer": ("WorkerAnswer", "ConservationInv"),
    "shutdown_leaves_pending": ("ShutdownEnd", "ClosedInv"),
    "drain_drops_orphans": ("Drain", "ReuseProp"),
    "batch_sent_twice": ("Flush", "BatchInv"),
    "cleanup_keeps_pending": ("Cleanup", "WaiterInv"),
    "cleanup_forgets_index": ("Cleanup", "IndexInv"),
    "late_asks_again": ("Lookup", "ConservationInv"),
    "store_not_noted": ("MarkHit", "MarkHitProp"),
    "nobody_excused": ("Lookup", "ReaskProp"),
    "forced_miss_expires": ("MarkMiss", "MarkMissProp"),
    "error_kept_as_absent": ("Lookup", "ReaskProp"),
}
"""The step with which a bug does its harm, and what it breaks first."""

ONLY_LIVENESS = {"shutdown_waits_for_ever"}
"""Nothing wrong happens: shutdown does not end."""

RESTS_ON = {
    "AnswerOnceInv": ("Drain", "ConservationInv"),
    "ConservationInv": ("Flush", "AnswerOnceInv"),
    "VerdictInv": ("Lookup", "ReplyProp"),
    "IndexInv": ("Lookup", "GuaranteeInv"),
    "UnclaimedInv": ("LookupClosed", "ReuseProp"),
    "BatchInv": ("Flush", "AnswerOnceInv"),
    "ClosedInv": ("LookupClosed", "ReplyProp"),
    "MarksInv": ("Lookup", "IndexInv"),
    "LastCall": ("WorkerCall", "Uncalled"),
    "Lane": ("WorkerTake", "Uncalled"),
    "Replies": ("WorkerAnswer", "ConservationInv"),
    "Counts": ("Flush", "BoundInv"),
    "Numbers": ("Flush", "VerdictProp"),
    "Uncalled": ("WorkerCall", "CallOnceInv"),
    "Clocks": ("Lookup", "Told"),
    "Told": ("Lookup", "GuaranteeInv"),
}
"""For a conjunct one claim that does not follow without it."""

NOTHING_RESTS_ON = {"WaiterInv", "CallOnceInv", "BoundInv", "GuaranteeInv"}


@pytest.fixture(scope="module", autouse=True)
def _z3() -> None:
    try:
        Solver()
    except MissingTool as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def report() -> ProofReport:
    return prove()


def refuted(obligation: Obligation, solver: Solver) -> Witness | None:
    answer = solver.ask(obligation.hypotheses, obligation.goal)
    return None if answer.model is None else witness(answer.model, obligation.action)


def one(action: str, conjunct: str, **more: Any) -> Obligation:
    return next(o for o in obligations(only=action, **more) if o.conjunct == conjunct)


def test_every_invariant_holds_at_every_size(report: ProofReport) -> None:
    assert [row for row in report.rows if not row.ok] == []
    assert report.ok


def test_every_action_is_asked_about_every_conjunct(report: ProofReport) -> None:
    asked: dict[str, set[str]] = {}
    for row in report.rows:
        asked.setdefault(row.action, set()).add(row.conjunct)
    names = {action.name for action in Formulas().actions(unused)}
    assert asked.keys() == names | {"Init", "LookupCounted"}
    assert asked.pop("Init") == CONJUNCTS.keys()
    for conjuncts in asked.values():
        assert conjuncts >= {*CONJUNCTS, POSSIBLE, "GenerationProp", "PhaseProp", "VerdictProp"}


def test_rows_are_reported_as_they_come() -> None:
    seen: list[tuple[int, int, Row]] = []
    report = prove(lambda *told: seen.append(told), timeout=0)
    assert [row for _, _, row in seen] == list(report.rows)
    assert [done for done, _, _ in seen] == list(range(1, len(report.rows) + 1))
    assert {total for _, total, _ in seen} == {len(report.rows)}


def test_what_time_does_not_suffice_for_is_not_proved() -> None:
    report = prove(timeout=0)
    assert not report.ok
    assert {(row.ok, row.counterexample) for row in report.rows} == {(False, None)}


def test_without_z3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(MissingTool, match=r"kvtier\[proof\]") as raised:
        prove()
    assert (raised.value.tool, raised.value.extra) == ("z3", "proof")


def test_every_known_bug_is_refuted_or_a_matter_of_liveness() -> None:
    assert WRONG_STEP.keys() | ONLY_LIVENESS == MUTANTS.keys()


@pytest.mark.parametrize("bug", WRONG_STEP)
def test_a_known_bug_is_refuted_by_a_step_that_python_takes_for_one_too(bug: str) -> None:
    obligation = one(*WRONG_STEP[bug], formulas=MUTANTS[bug]())
    found = refuted(obligation, Solver())
    assert found is not None
    assert [h for h in obligation.hypotheses if not found.holds(h)] == []
    assert not found.holds(obligation.goal)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", MUTANTS)
def test_a_known_bug_breaks_nothing_but_its_own_action(bug: str) -> None:
    wrong = [row for row in prove(formulas=MUTANTS[bug]()).rows if not row.ok]
    if bug in ONLY_LIVENESS:
        assert wrong == []
        return
    action, conjunct = WRONG_STEP[bug]
    lookups = {"Lookup", "LookupCounted"}
    allowed = lookups | {action} if bug == "drain_drops_orphans" or action in lookups else {action}
    assert {row.action for row in wrong} <= allowed
    assert (action, conjunct) in {(row.action, row.conjunct) for row in wrong}
    assert all(row.counterexample for row in wrong)


def test_the_counterexample_is_told_in_words_of_the_model() -> None:
    obligation = one("Cleanup", "WaiterInv", formulas=MUTANTS["cleanup_keeps_pending"]())
    row = obligation.row(Solver())
    assert not row.ok
    assert row.counterexample is not None
    before, step, after = row.counterexample.partition(" -- Cleanup_r")
    assert step
    assert "PENDING" in before
    assert "PENDING" in after
    assert "waiters= " in f"{after} ".replace(";", " ")


def test_each_conjunct_is_there_for_a_reason() -> None:
    assert RESTS_ON.keys() | NOTHING_RESTS_ON == CONJUNCTS.keys()
    assert STRENGTHENING.keys() <= RESTS_ON.keys()


@pytest.mark.parametrize("dropped", RESTS_ON)
def test_without_a_conjunct_the_proof_fails(dropped: str) -> None:
    rest = {name: claim for name, claim in CONJUNCTS.items() if name != dropped}
    assert refuted(one(*RESTS_ON[dropped], conjuncts=rest), Solver()) is not None


def test_an_action_that_cannot_happen_is_no_proof() -> None:
    class NoSuchStep(Formulas):
        def drain(self, s: Any) -> Action:
            return Action("Drain", (), FALSE, s)

    rows = [o.row(Solver()) for o in obligations(NoSuchStep(), only="Drain")]
    assert [row.conjunct for row in rows if not row.ok] == [POSSIBLE]


@pytest.mark.parametrize("rule", [least, counted])
def test_the_numbers_of_the_model_and_of_the_code_are_not_in_use(rule: Any) -> None:
    known = [claim(NOW) for claim in CONJUNCTS.values()]
    assert Solver().ask([*known, rule(NOW, G)], unused(NOW, G)).proved


def things(sizes: Mapping[Sort, int]) -> dict[Sort, list[Var]]:
    return {sort: [Var(f"{sort.name}{n}", sort) for n in range(m)] for sort, m in sizes.items()}


def apply(symbol: Symbol, args: tuple[int, ...], named: Mapping[Sort, list[Var]]) -> Term:
    return symbol(*(named[sort][n] for sort, n in zip(symbol.takes, args, strict=True)))


def told(symbol: Symbol, value: Any) -> Term:
    return Value(symbol.gives, value)


def just_these(named: Mapping[Sort, list[Var]]) -> list[Term]:
    distinct = [
        ~same(a, b) for many in named.values() for n, a in enumerate(many) for b in many[:n]
    ]
    return distinct + [no_others(sort, many) for sort, many in named.items()]


def no_others(sort: Sort, these: list[Var]) -> Term:
    return each(sort, lambda thing: among(thing, *these))


def test_z3_reads_the_formulas_as_python_does() -> None:
    """In states of the model with names for all things, z3 must prove what Python computes."""
    draw = random.Random(4)
    config = Config.of(1, 2)
    graph, _ = explore(Machine(config))
    core = {symbol: name for name, symbol in SYMBOLS.items() if name not in HISTORY}
    for s in graph.states[::400]:
        out = out_of(s)
        batches = (*(batch for batch, _, _ in out), frozenset({("k1", draw.randint(1, 3))}))
        place = {b: (where, answers) for b, (_, where, answers) in enumerate(out)}
        yes = frozenset({"k1"} if draw.random() < 0.5 else ())
        values = structure(config, s, batches, place, yes)
        named = things({KEY: 1, REQUEST: 2, BATCH: len(batches)})
        sizes = {**{sort: range(len(many)) for sort, many in named.items()}, NUMBER: range(5)}
        symbols = (*core, *RIGID, YES)
        world = World(sizes, symbols)
        vector = world.vector(values)
        by_name = {symbol.name: symbol for symbol in symbols}
        state = [
            same(apply(by_name[name], args, named), told(by_name[name], value))
            for (name, args), value in values.items()
        ]
        for action in Formulas().actions(least):
            binding = draw.choice(world.bindings(action.parameters))
            chosen = [
                same(var, Value(NUMBER, n) if var.sort is NUMBER else named[var.sort][n])
                for var, n in binding.items()
            ]
            points = world.points({sym: getattr(action.after, name) for sym, name in core.items()})
            after: Mapping[Point, Any] = world.update(points, binding)(vector)
            allowed = world.function(action.guard, binding)(vector)
            computed = [
                same(getattr(action.after, name)(*args), told(by_name[name], value))
                for (name, numbers), value in after.items()
                for args in [
                    [named[t][n] for t, n in zip(by_name[name].takes, numbers, strict=True)]
                ]
            ]
            goal = both([same(action.guard, TRUE if allowed else FALSE), *computed])
            hypotheses = [*just_these(named), *state, *chosen]
            assert Solver().ask(hypotheses, goal).proved, action.name
