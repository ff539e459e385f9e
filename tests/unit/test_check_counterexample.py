"""A counterexample told to people: labels with arguments, and what changed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvtier.check.counterexample import Event, differences, events, history
from kvtier.check.models import Model, Row
from kvtier.check.tlc import INVARIANT, Step

CFG = r"""
SPECIFICATION Spec
CONSTANTS
    K = {k1}
    R = {r1}
    MaxOut = 2
    Features = {"errors", "marks"}
"""


def row(*steps: tuple[str, str]) -> Row:
    model = Model("some", "MC", "some.cfg", "", INVARIANT, "SomeInv", None, None, "ci", text=CFG)
    trace = tuple(Step(action, state) for action, state in steps)
    return Row(model, INVARIANT, 1, 1, 0.1, None, trace)


def state(entry: str = "", **values: str) -> str:
    """A state of the machine as TLC prints it; what is not given is as in the beginning."""
    fields = {
        "phase": '"ABSENT"',
        "gen": "0",
        "verdict": '"none"',
        "waiters": "{}",
        "error": "FALSE",
        "stored": "FALSE",
        "excused": "{}",
        "late": "FALSE",
        "age": '"none"',
    }
    fields |= dict(part.split("=") for part in entry.split())
    record = ", ".join(f"{name} |-> {value}" for name, value in fields.items())
    usual = {
        "entry": f"(k1 :> [{record}])",
        "held": "(r1 :> {})",
        "batch": "{}",
        "due": "FALSE",
        "queue": "<<>>",
        "worker": '<<"idle", {}>>',
        "results": "<<>>",
        "shut": '"open"',
    }
    return "\n".join(f"/\\ {name} = {value}" for name, value in (usual | values).items())


START = state()
HELD = {"held": "(r1 :> {k1})"}
ASKED = state('phase="PENDING" gen=1 waiters={r1}', **HELD, batch="{k1}")
SENT = state('phase="IN_FLIGHT" gen=1 waiters={r1}', **HELD, due="TRUE", queue="<<{<<k1, 1>>}>>")
CALLED = SENT.replace("queue = <<{<<k1, 1>>}>>", "queue = <<>>").replace(
    'worker = <<"idle", {}>>', 'worker = <<"call", {<<k1, 1>>}>>'
)


def answered(how: str) -> str:
    return CALLED.replace('worker = <<"call", {<<k1, 1>>}>>', 'worker = <<"idle", {}>>').replace(
        "results = <<>>", f'results = <<{{<<k1, 1, "{how}">>}}>>'
    )


def test_a_lookup_is_told_with_its_arguments_and_its_answer():
    first, second = events(row(("Initial", START), ("LookupOpen", ASKED)))
    assert (first.step, first.label, first.changes) == (0, "Initial", ())
    assert (second.step, second.label) == (1, "Lookup_r1_k1_None")
    assert second.action == "Lookup(r1, k1) = None"
    assert second.changes == (
        "batch: +k1",
        "entry[k1]: phase ABSENT → PENDING, gen 0 → 1, waiters +r1",
        "held[r1]: +k1",
    )


def test_an_action_without_arguments_is_told_by_its_name():
    _, step = events(row(("Initial", ASKED), ("Flush", SENT)))
    assert step.action == step.label == "Flush"
    assert "queue: () → ({(k1, 1)})" in step.changes


@pytest.mark.parametrize(
    ("action", "how", "label"),
    [
        ("WorkerAnswer", "T", "WorkerAnswer_k1T"),
        ("WorkerAnswer", "F", "WorkerAnswer_k1F"),
        ("WorkerFails", "E", "WorkerAnswer_Error"),
        ("ToldWorkerFails", "E", "WorkerAnswer_Error"),
    ],
)
def test_what_the_worker_answered_is_told(action, how, label):
    _, step = events(row(("Initial", CALLED), (action, answered(how))))
    assert step.label == label


def test_of_two_actions_with_the_same_effect_it_is_the_one_that_tlc_names():
    """A completed store changes nothing where nothing is held; and so does a failed load."""
    for action in ("MarkMiss", "MarkHit"):
        _, step = events(row(("Initial", START), (action, START)))
        assert step.label == f"{action}_k1"


def test_a_step_that_only_the_bug_can_take_is_told_too():
    """A short answer: the reply has nothing in it, which the correct worker never publishes."""
    steps = ("Initial", CALLED), ("WorkerAnswer", answered("T").replace('<<k1, 1, "T">>', ""))
    assert events(row(*steps))[1].label == "WorkerAnswer"
    bug = replace(row().model, name="short_answer", cfg="mutants/short_answer.cfg")
    labelled = events(replace(row(*steps), model=bug))[1].label
    assert labelled in ("WorkerAnswer_k1T", "WorkerAnswer_k1F")


def test_stuttering_is_a_step_that_leaves_the_state():
    first, last = events(row(("Initial", START), ("Stuttering", "")))
    assert (last.label, last.changes, last.state) == ("Stuttering", (), first.state)


def test_no_trace_has_no_events():
    assert events(row()) == []


# -- tiering -------------------------------------------------------------------------------

SLOTS = '<<[key |-> {}, refs |-> 0], [key |-> "none", refs |-> 0]>>'
REQ = '[r1 |-> [phase |-> {}], r2 |-> [phase |-> "new"]]'


def tiering(key: str = '"none"', phase: str = '"new"', jobs: str = "{}") -> str:
    return f"/\\ slot = {SLOTS.format(key)}\n/\\ req = {REQ.format(phase)}\n/\\ jobs = {jobs}"


JOB = '[kind |-> "load", req |-> "r1", claims |-> {<<1, "k2", 1>>, <<2, "k1", 1>>}]'


@pytest.mark.parametrize(
    ("action", "before", "after", "told"),
    [
        ("Arrive", {}, {"phase": '"waiting"'}, "Arrive(r1)"),
        ("StepEnd", {}, {"phase": '"waiting"'}, "StepEnd"),
        ("WriteOld", {}, {"key": '"k1"'}, "WriteOld(1)"),
        ("JobReport", {"jobs": f"{{{JOB}}}"}, {}, "JobReport(load, r1, k1, k2)"),
    ],
)
def test_arguments_of_tiering_follow_from_what_changed(action, before, after, told):
    steps = ("Initial", tiering(**before)), (action, tiering(**after))
    assert events(row(*steps))[1].action == told


def test_slots_are_told_one_by_one():
    _, step = events(row(("Initial", tiering()), ("Arrive", tiering(key='"k1"', phase='"gone"'))))
    assert step.changes == ("req[r1]: phase new → gone", "slot[1]: key none → k1")


# -- differences and histories -------------------------------------------------------------


def test_sets_are_told_by_what_came_and_went():
    before, after = {"s": frozenset("ab")}, {"s": frozenset("bc")}
    assert list(differences(before, after)) == ["s: -a +c"]


def test_a_function_that_gains_an_argument():
    before, after = {"f": {"a": 1}}, {"f": {"a": 1, "b": 2}}
    assert list(differences(before, after)) == ["f[b]: nothing → 2"]


def test_a_history_is_a_line_of_json_for_each_step():
    lines = list(history(row(("Initial", START), ("LookupOpen", ASKED))))
    first, second = map(json.loads, lines)
    assert {first["schema"], second["schema"]} == {"kvtier.history/1"}
    assert (first["step"], first["label"], first["model"]) == (0, "Initial", "some")
    assert second["label"] == "Lookup_r1_k1_None"
    assert second["state"]["entry"]["k1"]["waiters"] == ["r1"]
    assert second["state"]["worker"] == ["idle", []]


def test_an_event_with_several_arguments_is_a_call():
    assert Event(1, "WorkerAnswer_k1T_k2F", (), {}).action == "WorkerAnswer(k1T, k2F)"
