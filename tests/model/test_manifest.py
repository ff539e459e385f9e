"""Every model of the manifest ends as the manifest says, by the same function as `kvtier check`.

What must hold holds, what must be reachable is reached, every bug is refuted by the
property that the manifest names, and no action is dead.
"""

from __future__ import annotations

import pytest

from kvtier.check.lanes import run_models
from kvtier.check.models import Row, choose, read_manifest
from kvtier.model.actions import Machine
from kvtier.model.explore import explore
from kvtier.model.mutants import MUTANTS
from kvtier.model.state import Config
from kvtier.resources import resource_folder
from tests.support.tools import need_tlc

TLA = resource_folder("tla")
MODELS = read_manifest(TLA)
CI = choose(MODELS)
SLOW = [model for model in MODELS if model not in CI]

# The first test of a group waits until all of its models have run.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    """What came of the models that CI checks."""
    need_tlc()
    return {row.model.name: row for row in run_models(TLA, CI, timeout=300)}


@pytest.fixture(scope="module")
def slow_rows() -> dict[str, Row]:
    need_tlc()
    return {row.model.name: row for row in run_models(TLA, SLOW, timeout=3600)}


@pytest.mark.parametrize("name", [model.name for model in CI])
def test_a_model_ends_as_the_manifest_says(name: str, rows: dict[str, Row]) -> None:
    assert rows[name].problem is None


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", [model.name for model in SLOW])
def test_a_slow_model_ends_as_the_manifest_says(name: str, slow_rows: dict[str, Row]) -> None:
    assert slow_rows[name].problem is None


def test_the_manifest_says_of_each_model_how_many_states_it_has() -> None:
    """Or a spec that lost half its states would go unnoticed.

    But for those that break a promise about the end: TLC looks for these now and
    then while it searches, and how far it is by then is a matter of time.
    """
    unsaid = [model for model in MODELS if model.distinct is None]
    assert [m.name for m in unsaid if not (m.breaks or "").endswith("Live")] == []


def test_the_manifest_and_the_configurations_are_the_same_files() -> None:
    files = {path.relative_to(TLA).as_posix() for path in TLA.rglob("*.cfg")}
    assert {model.cfg for model in MODELS} == files
    assert len({model.name for model in MODELS}) == len(MODELS)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("MC_1x1", Config.of(1, 1)),
        ("MC_1x2", Config.of(1, 2)),
        ("MC_2x1", Config.of(2, 1, max_out=1)),
    ],
)
def test_the_whole_machine_has_as_many_states_as_the_model(name: str, config: Config) -> None:
    """The graphs are compared action by action (test_graph.py); this is `Next` as it stands."""
    [model] = choose(MODELS, names=[name])
    assert model.constant("K") == set(config.keys)
    assert model.constant("MaxOut") == config.max_out
    graph, _ = explore(Machine(config))
    assert model.distinct == len(graph.states)


def test_each_twin_has_its_mutant() -> None:
    assert set(MUTANTS) <= {model.bug for model in MODELS}
    assert all(model.report for model in MODELS if model.bug)


def test_a_mutant_breaks_something_by_name() -> None:
    assert all(model.breaks and model.expected for model in MODELS if model.bug)
