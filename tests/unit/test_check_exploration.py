"""The exploration in plain Python, as a report."""

from __future__ import annotations

import re

import pytest

from kvtier.check.exploration import explored
from kvtier.errors import BadInput
from kvtier.model.state import Config
from kvtier.resources import resource_folder

CFG = (resource_folder("tla") / "MC_1x1.cfg").read_text()
INVARIANTS = set(re.findall(r"\w+Inv\b", CFG)) - {"TypeInv"}
"""What TLC checks of the same machine; that types are right is said by the types."""


def test_every_invariant_holds_of_the_correct_machine():
    found = explored(Config.of(1, 1))
    assert found.as_json() == {
        "schema": "kvtier.model/1",
        "states": 1188,
        "edges": 3677,
        "invariants": dict.fromkeys(INVARIANTS, True),
    }
    assert found.ok
    assert found.way == ()


def test_a_bug_is_shown_with_the_shortest_way_to_what_it_breaks():
    """Ask, and let go: the index still has it. Nothing shorter can let go of anything."""
    found = explored(Config.of(1, 1), "cleanup_forgets_index")
    assert [name for name, holds in found.invariants.items() if not holds] == ["IndexInv"]
    assert [event.action for event in found.way] == [
        "Initial",
        "Lookup(r1, k1) = None",
        "Cleanup(r1)",
    ]
    assert "held[r1]: +k1" in found.way[1].changes
    assert not any(change.startswith("held") for change in found.way[2].changes)
    assert not found.ok


def test_a_bug_that_nobody_knows_is_bad_input():
    with pytest.raises(BadInput, match="no known bug"):
        explored(Config.of(1, 1), "all_of_them")
