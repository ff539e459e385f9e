"""The model by itself: its invariants and properties hold, and each known bug breaks one."""

from __future__ import annotations

import pytest

from kvtier.model.actions import Machine
from kvtier.model.explore import explore
from kvtier.model.invariants import INVARIANTS
from kvtier.model.mutants import MUTANTS
from kvtier.model.properties import PROPERTIES
from kvtier.model.state import FEATURES, Config

ONLY_LIVENESS = {"shutdown_waits_for_ever"}
"""It does nothing wrong; it does nothing."""


@pytest.mark.parametrize(
    ("config", "states", "edges"),
    [(Config.of(1, 1), 1_188, 3_677), (Config.of(1, 2), 4_332, 15_437)],
    ids=["1x1", "1x2"],
)
def test_everything_holds_in_every_state_and_step(config: Config, states: int, edges: int) -> None:
    graph, broken = explore(Machine(config), predicates=INVARIANTS, properties=PROPERTIES)
    assert broken is None
    assert (len(graph.states), len(graph.edges)) == (states, edges)  # as TLC counts them


@pytest.mark.slow
def test_everything_holds_with_two_keys_and_one_batch_out() -> None:
    machine = Machine(Config.of(2, 1, max_out=1))
    graph, broken = explore(machine, predicates=INVARIANTS, properties=PROPERTIES)
    assert broken is None
    assert (len(graph.states), len(graph.edges)) == (69_616, 285_111)


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - ONLY_LIVENESS))
def test_a_known_bug_breaks_something(name: str) -> None:
    for config in (Config.of(1, 1), Config.of(1, 2)):
        machine = MUTANTS[name](config)
        _, broken = explore(machine, predicates=INVARIANTS, properties=PROPERTIES)
        if broken is not None:
            return
    pytest.fail(f"{name} breaks nothing")


def test_a_shutdown_without_timeout_waits_for_a_hung_back_end_for_ever() -> None:
    graph, _ = explore(MUTANTS["shutdown_waits_for_ever"](Config.of(1, 1)))
    stuck = {
        n for n, s in enumerate(graph.states) if s.shut == "sentinel" and s.worker[0] == "hung"
    }
    assert stuck
    assert not [label for a, label, b in graph.edges if a in stuck]
    graph, _ = explore(Machine(Config.of(1, 1)))
    stuck = {
        n for n, s in enumerate(graph.states) if s.shut == "sentinel" and s.worker[0] == "hung"
    }
    assert stuck <= {a for a, label, _ in graph.edges if label == "ShutdownTimeout"}


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_what_is_switched_off_never_happens(feature: str) -> None:
    graph, _ = explore(Machine(Config.of(1, 1, without=frozenset({feature}))))
    labels = {label.split("_")[0] for _, label, _ in graph.edges}
    errors = {label for _, label, _ in graph.edges if label.endswith("_Error")}
    gone = {
        "errors": errors,
        "marks": labels & {"MarkMiss", "MarkHit"},
        "deadline": labels & {"DeadlinePasses"},
        "lifetime": labels & {"VerdictAges"},
        "hang": labels & {"WorkerHang"},
        "shutdown": labels & {"ShutdownBegin", "ShutdownTimeout", "ShutdownEnd"},
    }
    assert not gone[feature]
    assert len(graph.states) < 1_188
