"""Link 1: TLC's labelled graph of `tla/AsyncLookup.tla` is the model's, states and edges.

The labels carry arguments and returned values, so what a lookup returns is
compared too.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvtier.check import graph
from kvtier.check.graph import compare_graphs
from kvtier.model.mutants import MUTANTS
from kvtier.model.state import Config
from kvtier.resources import resource_folder
from tests.support.tools import need_tlc

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module", autouse=True)
def _tlc() -> None:
    need_tlc()


@pytest.mark.parametrize(
    ("config", "states", "edges"),
    [
        pytest.param(Config.of(1, 1), 1_188, 3_677, id="1x1"),
        pytest.param(Config.of(1, 2), 4_332, 15_437, id="1x2"),
        pytest.param(
            Config.of(2, 1, max_out=1),
            69_616,
            285_111,
            id="2x1",
            marks=[pytest.mark.slow, pytest.mark.timeout(900)],
        ),
    ],
)
def test_tla_and_python_have_the_same_graph(config, states, edges):
    found = compare_graphs(resource_folder("tla"), config)
    assert found.same
    assert (found.states, found.edges) == (states, edges)


@pytest.mark.parametrize("bug", ["store_not_noted", "flush_does_not_drain"])
def test_a_wrong_model_is_another_graph(bug, monkeypatch):
    """The one has fewer states; the other has as many, and other edges."""
    monkeypatch.setattr(graph, "Machine", MUTANTS[bug])
    found = compare_graphs(resource_folder("tla"), Config.of(1, 1))
    assert not found.same
    assert found.only_tlc_edges
    assert (found.states < 1_188) is (bug == "store_not_noted")


def test_a_wrong_spec_is_another_graph(tmp_path: Path):
    """A lookup that returns what it should not: no state differs, only labels do."""
    folder = tmp_path / "tla"
    shutil.copytree(resource_folder("tla"), folder)
    path = folder / "AsyncLookup.tla"
    right = r'ELSE IF r \in en.excused \/ en.late THEN "F"'
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, r'ELSE IF r \in en.excused THEN "F"'))
    found = compare_graphs(folder, Config.of(1, 1))
    assert not found.same
    assert not found.only_model_states
    assert not found.only_tlc_states
    assert {label for _, label, _ in found.only_model_edges} == {"Lookup_r1_k1_False"}
    assert {label for _, label, _ in found.only_tlc_edges} == {"Lookup_r1_k1_None"}
