"""Link 5: what TLC finds against a known bug is found in its twin, and the real code passes it.

TLC's counterexample is read as calls. The twin takes them and breaks the predicate
of the same name at the end. The real manager takes the same calls, as far as the
correct machine offers them, and does what the correct machine does.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvtier.check.counterexample import Event, events
from kvtier.check.lanes import run_models
from kvtier.check.models import Row, choose, read_manifest
from kvtier.model.actions import Machine
from kvtier.model.invariants import INVARIANTS
from kvtier.model.mutants import MUTANTS
from kvtier.model.properties import PROPERTIES
from kvtier.model.state import Config, State
from kvtier.resources import resource_folder
from tests.support.hand_machine import HandMachine, step
from tests.support.lookups import quiet
from tests.support.tools import need_tlc

TLA = resource_folder("tla")
BUGS = [model for model in read_manifest(TLA) if model.bug in MUTANTS]
HISTORY = {
    "no_mark_miss": "MarkMissProp",
    "store_not_noted": "MarkHitProp",
    "nobody_excused": "ReaskProp",
    "batch_sent_twice": "FlushSendsProp",
}
"""TLC refutes these by what a request is told or how often the back end is called, which needs
a history. On the same way the twin breaks this property of a single step."""
NEVER_ENDS = "shutdown_waits_for_ever"
"""No state and no step of it is wrong: what is wrong is that nothing follows."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    need_tlc()
    names = [model.name for model in BUGS]
    return {row.model.name: row for row in run_models(TLA, choose(BUGS, names=names), timeout=300)}


@pytest.fixture(autouse=True)
def _no_log_lines() -> Iterator[None]:
    with quiet():
        yield


def config_of(row: Row) -> Config:
    """The size and the features of the model that was checked."""
    constant = row.model.constant
    return Config(
        tuple(sorted(constant("K"))),
        tuple(sorted(constant("R"))),
        constant("MaxOut"),
        frozenset(constant("Features")),
    )


def calls(row: Row) -> list[str]:
    found: list[Event] = events(row)
    return [event.label for event in found[1:] if event.label != "Stuttering"]


def taken(machine: Machine, labels: list[str]) -> list[tuple[State, str, State]]:
    """The steps that the twin takes on this way."""
    state, steps = machine.initial(), []
    for label in labels:
        after = dict(machine.steps(state))[label]
        steps.append((state, label, after))
        state = after
    return steps


@pytest.mark.parametrize("name", [m.name for m in BUGS if m.name != NEVER_ENDS])
def test_the_counterexample_breaks_the_predicate_of_that_name_in_the_twin(
    name: str, rows: dict[str, Row]
) -> None:
    machine = MUTANTS[name](config_of(rows[name]))
    way = taken(machine, calls(rows[name]))
    breaks = rows[name].model.breaks
    assert breaks is not None
    if breaks in INVARIANTS:
        good, bad = [before for before, _, _ in way], way[-1][2]
        assert all(INVARIANTS[breaks](machine, state) for state in good)
        assert not INVARIANTS[breaks](machine, bad)
    elif breaks in PROPERTIES:
        assert all(PROPERTIES[breaks](machine, *taken_step) for taken_step in way[:-1])
        assert not PROPERTIES[breaks](machine, *way[-1])
    else:
        holds = PROPERTIES[HISTORY[name]]
        assert not all(holds(machine, *taken_step) for taken_step in way)


def test_a_shutdown_that_waits_for_ever_is_stuck_where_tlc_says(rows: dict[str, Row]) -> None:
    row = rows[NEVER_ENDS]
    bug, right = MUTANTS[NEVER_ENDS](config_of(row)), Machine(config_of(row))
    last = taken(bug, calls(row))[-1][2]
    assert last.shut == "sentinel"
    assert list(bug.steps(last)) == []
    assert "ShutdownTimeout" in dict(right.steps(last))


@pytest.mark.parametrize("name", [model.name for model in BUGS])
def test_the_real_code_passes_the_counterexample(name: str, rows: dict[str, Row]) -> None:
    config = config_of(rows[name])
    machine, real = Machine(config), HandMachine(config)
    state, done = machine.initial(), 0
    for label in calls(rows[name]):
        action, *words = label.split("_")
        arguments = words[:-1] if action == "Lookup" else words
        same = "_".join([action, *arguments])
        offered = [s for s in machine.steps(state) if s[0] == same or s[0].startswith(f"{same}_")]
        if not offered:
            continue
        [(right, after)] = [s for s in offered if s[0] == label] or offered[:1]
        assert step(real, state, right, after) is None
        assert all(holds(machine, real.state()) for holds in INVARIANTS.values())
        assert all(holds(machine, state, right, after) for holds in PROPERTIES.values())
        state, done = after, done + 1
    assert done >= len(calls(rows[name])) // 2
