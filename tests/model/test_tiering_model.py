"""The tiers' model, its twin, its bugs, and the real managers, held against one another.

TLC and the twin have the same graph. Everything that must hold does, at the sizes
that TLC searches. TLC's counterexample to a known bug is taken by the twin with the
bug, which breaks the predicate of the same name; the twin without it and the real
managers take the same calls and break nothing. And the real managers are walked
along random ways of the model, at sizes that TLC does not reach.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from kvtier.check.tlc import TlcResult, run_tlc
from kvtier.model.tiering import Label, TieringMachine
from kvtier.model.tiering_checks import TIERING_INVARIANTS, TIERING_PROPERTIES, ends_live
from kvtier.model.tiering_mutants import TIERING_MUTANTS
from kvtier.model.tiering_state import TIERING_FEATURES, TieringConfig, TieringState
from tests.support.tiering_tlc import TLA, config_of, graph, state_of
from tests.support.tiering_walk import RealTiers, explored, same_call, visible
from tests.support.tools import need_tlc

SMALL = {
    "stores": TieringConfig.of(
        "k1 k2", "k2", cap=1, has="k1", slow="k1", features="fail refuse finish store"
    ),
    "promotions": TieringConfig.of(
        "k1 k2", "k2", cap=1, has="k1 k2", slow="k1", features="fail refuse finish again"
    ),
    "everything": TieringConfig.of(
        "k1 k2", cap=1, has="k1 k2", slow="k1", features=" ".join(TIERING_FEATURES)
    ),
}


@pytest.fixture(autouse=True)
def _no_log_lines() -> Iterator[None]:
    with mock.patch("kvtier.tiering.secondaries._log"):
        yield


# One graph


@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", SMALL)
def test_tlc_and_the_twin_have_the_same_graph(size: str) -> None:
    need_tlc()
    config = SMALL[size]
    edges = list(explored(TieringMachine(config)))
    states, theirs = graph(config)
    assert {before for before, _, _ in edges} == states
    assert {(before, label.action, after) for before, label, after in edges} == theirs


def models() -> dict[str, dict[str, Any]]:
    """The entries of the manifest about the correct machine, promoting at the end of a pass."""
    entries = [
        model
        for path in sorted(TLA.glob("manifest*.json"))
        for model in json.loads(path.read_text(encoding="utf-8"))["models"]
    ]
    return {m["name"]: m for m in entries if m["module"] == "MCTiering" and m["kind"] == "holds"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name",
    [
        n if m["class"] == "ci" else pytest.param(n, marks=pytest.mark.slow)
        for n, m in models().items()
    ],
)
def test_the_twin_has_as_many_states_as_tlc_finds_and_everything_holds(name: str) -> None:
    model = models()[name]
    machine = TieringMachine(config_of((TLA / model["cfg"]).read_text(encoding="utf-8")))
    number: dict[TieringState, int] = {}
    edges: dict[int, list[TieringState]] = {}
    taken: Counter[str] = Counter()
    for before, label, after in explored(machine):
        if before not in number:
            number[before] = len(number)
            broken = [n for n, holds in TIERING_INVARIANTS.items() if not holds(machine, before)]
            assert broken == [], before
        for what, holds_of_step in TIERING_PROPERTIES.items():
            assert holds_of_step(machine, before, after), (what, before, label)
        edges.setdefault(number[before], []).append(after)
        taken[label.action] += 1
    assert model.get("distinct") in (len(number), None)
    assert set(model.get("actions", ())) <= set(taken)
    numbered = {n: [number[state] for state in after] for n, after in edges.items()}
    assert name == "MCTieringLate" or ends_live(machine, list(number), numbered) is None


# Known bugs


@pytest.fixture(scope="module")
def refuted() -> dict[str, tuple[str, TlcResult]]:
    """For each bug the configuration, and what TLC finds."""
    need_tlc()
    found = {}
    for name in TIERING_MUTANTS:
        cfg = (TLA / "mutants" / f"{name}.cfg").read_text(encoding="utf-8")
        found[name] = cfg, run_tlc(TLA, "MCTieringMutants", cfg, quick=True)
    return found


def breaks(cfg: str) -> str:
    """The one property that a configuration names."""
    [name] = re.findall(r"\b\w+(?:Inv|Prop|Live)\b", re.sub(r"\\\*.*", "", cfg))
    return str(name)


def way(
    machine: TieringMachine, found: TlcResult
) -> Iterator[tuple[TieringState, Label, TieringState]]:
    """The counterexample as steps that the machine takes."""
    states = [state_of(machine.config, step.state) for step in found.trace if step.state]
    assert states[0] == machine.initial()
    for before, after, step in zip(states, states[1:], found.trace[1:], strict=False):
        labels = [
            label
            for label, there in machine.steps(before)
            if there == after and label.action == step.action
        ]
        assert labels, f"{step.action} does not lead there"
        yield before, labels[0], after


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TIERING_MUTANTS)
def test_the_counterexample_breaks_the_predicate_of_that_name_in_the_twin(
    name: str, refuted: dict[str, tuple[str, TlcResult]]
) -> None:
    cfg, found = refuted[name]
    bug = TIERING_MUTANTS[name](config_of(cfg))
    steps = list(way(bug, found))
    broken = breaks(cfg)
    if broken in TIERING_INVARIANTS:
        holds = TIERING_INVARIANTS[broken]
        assert all(holds(bug, before) for before, _, _ in steps)
        assert not holds(bug, steps[-1][2])
    elif broken in TIERING_PROPERTIES:
        holds_of_step = TIERING_PROPERTIES[broken]
        assert all(holds_of_step(bug, a, b) for a, _, b in steps[:-1])
        assert not holds_of_step(bug, steps[-1][0], steps[-1][2])
    else:
        assert broken == "EndsLive"
        assert goes_round(bug) is not None
        assert goes_round(TieringMachine(bug.config)) is None


def goes_round(machine: TieringMachine) -> list[int] | None:
    number: dict[TieringState, int] = {}
    edges: dict[TieringState, list[TieringState]] = {}
    for before, _, after in explored(machine):
        number.setdefault(before, len(number))
        edges.setdefault(before, []).append(after)
    numbered = {number[s]: [number[t] for t in after] for s, after in edges.items()}
    return ends_live(machine, list(number), numbered)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TIERING_MUTANTS)
def test_the_real_managers_pass_the_counterexample(
    name: str, refuted: dict[str, tuple[str, TlcResult]]
) -> None:
    cfg, found = refuted[name]
    bug = TIERING_MUTANTS[name](config_of(cfg))
    machine, real = TieringMachine(bug.config), RealTiers(bug.config)
    state, done = machine.initial(), 0
    steps = list(way(bug, found))
    for _, label, _ in steps:
        offered = [s for s in machine.steps(state) if same_call(s[0]) == same_call(label)]
        if offered:
            state, done = take(machine, real, state, offered), done + 1
    assert done >= len(steps) - 1


# Width


def take(
    machine: TieringMachine,
    real: RealTiers,
    before: TieringState,
    offered: list[tuple[Label, TieringState]],
) -> TieringState:
    """The real managers make one call; which of the offered states they are in."""
    returned = real.do(offered[0][0])
    seen = real.seen()
    fitting = [
        after
        for label, after in offered
        if label.result == returned and (real.behind or visible(machine.config, after) == seen)
    ]
    expected = [(label.result, visible(machine.config, after)) for label, after in offered]
    assert fitting, f"{offered[0][0]}: {returned}, {seen}; expected one of {expected}"
    after = fitting[0]
    real.went(before, after)
    assert real.tier.broken == []
    assert all(holds(machine, after) for holds in TIERING_INVARIANTS.values())
    assert all(holds(machine, before, after) for holds in TIERING_PROPERTIES.values())
    return after


OFTEN = {"StepEnd": 2, "Arrive": 1, "Finish": 1, "Preempt": 0.4, "Reset": 0.4}
"""How often an action is chosen; 4 if it is not here."""


def walked(seed: int, steps: int = 60) -> Counter[str]:
    """Walk the real managers along a way of the model; which actions it took."""
    rng = random.Random(seed)
    cap = rng.choice([1, 2, 3])
    config = TieringConfig.of(
        "k1 k2 k3",
        "k3 k1 k2",
        "k2 k4 k1 k3",
        cap=cap,
        headroom=rng.randrange(cap),
        has=rng.choice(["k1 k2 k3", "k1 k3", "k1 k2 k3 k4"]),
        slow=rng.choice(["", "k2", "k1 k4"]),
        features=rng.choice(["fail refuse finish store again preempt reset", "fail store again"]),
    )
    machine = TieringMachine(config)
    real = RealTiers(config, hold_limit=rng.choice([0.0, 1e9]))
    state, taken = machine.initial(), Counter[str]()
    for _ in range(steps):
        calls: dict[str, dict[object, list[tuple[Label, TieringState]]]] = {}
        for label, after in machine.steps(state):
            offered = calls.setdefault(label.action, {})
            offered.setdefault(label.args, []).append((label, after))
        names = sorted(calls)
        action = rng.choices(names, [OFTEN.get(name, 4) for name in names])[0]
        choice = sorted(calls[action].items(), key=lambda item: show(item[0]))
        state = take(machine, real, state, rng.choice(choice)[1])
        taken[action] += 1
    return taken


def show(value: object) -> str:
    """The same text for the same value, whatever the order in its sets."""
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(show, value))) + "}"
    return ", ".join(map(show, value)) if isinstance(value, tuple) else str(value)


def test_the_real_managers_go_the_ways_of_the_model() -> None:
    taken = sum(map(walked, range(150)), Counter[str]())
    assert all(taken[action] >= 10 for action in WALKED), taken


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_real_managers_go_many_ways_of_the_model() -> None:
    taken = sum(map(walked, range(1_000, 6_000)), Counter[str]())
    assert all(taken[action] >= 500 for action in WALKED), taken


WALKED = [
    "Arrive",
    "Pass",
    "Admit",
    "CompleteLoad",
    "PrepareStore",
    "CompleteStore",
    "Finish",
    "Preempt",
    "JobReport",
    "StepEnd",
    "Reset",
]
