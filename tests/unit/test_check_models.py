"""The manifest: what it must hold, what is chosen from it, and how a run is held to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvtier.check import models
from kvtier.check.models import Model, choose, lifecycle, read_manifest, run_model
from kvtier.check.tlc import INVARIANT, OK, PROPERTY, TlcFailed, TlcResult
from kvtier.errors import BadInput, KvtierError
from kvtier.resources import resource_folder

ENTRY = {
    "name": "small",
    "module": "MC",
    "cfg": "small.cfg",
    "shows": "A small one.",
    "expected": 0,
    "property": None,
    "distinct": 7,
    "depth": 3,
    "class": "ci",
}


def manifest(folder: Path, *entries: object) -> Path:
    (folder / "mutants").mkdir()
    for name in ("small.cfg", "mutants/bad.cfg"):
        (folder / name).write_text("SPECIFICATION Spec\n")
    (folder / "manifest.json").write_text(json.dumps({"models": entries}))
    return folder


SMALL = Model("small", "MC", "small.cfg", "A small one.", OK, None, 7, 3, "ci")


def a_model(**fields: Any) -> Model:
    return replace(SMALL, **fields)


# -- reading -------------------------------------------------------------------------------


def test_an_entry_becomes_a_model_with_its_configuration(tmp_path):
    bad = ENTRY | {"name": "bad", "cfg": "mutants/bad.cfg", "property": "P", "report": "vllm 1"}
    good, mutant = read_manifest(manifest(tmp_path, ENTRY, bad))
    assert (good.name, good.distinct, good.time_class, good.bug) == ("small", 7, "ci", None)
    assert good.text == "SPECIFICATION Spec\n"
    assert (mutant.bug, mutant.breaks, mutant.report) == ("bad", "P", "vllm 1")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({k: v for k, v in ENTRY.items() if k != "shows"}, "shows"),
        (ENTRY | {"cfg": "nowhere.cfg"}, "nowhere.cfg"),
        (ENTRY | {"class": "fast"}, "fast"),
        ("small", "not complete"),
    ],
)
def test_an_entry_that_is_wrong_is_bad_input(tmp_path, entry, told):
    with pytest.raises(BadInput, match=told):
        read_manifest(manifest(tmp_path, entry))


@pytest.mark.parametrize("text", ["", "[", "3", '{"models": 3}'])
def test_a_manifest_that_is_none_is_bad_input(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(BadInput, match=r"manifest\.json"):
        read_manifest(tmp_path)


# -- choosing ------------------------------------------------------------------------------

ALL = [
    a_model(name="one"),
    a_model(name="big", time_class="slow"),
    a_model(name="bug", cfg="mutants/bug.cfg"),
]


@pytest.mark.parametrize(
    ("how", "chosen"),
    [
        ({}, ["one", "bug"]),
        ({"slow": True}, ["one", "big", "bug"]),
        ({"names": ["big", "one"]}, ["big", "one"]),
        ({"bug": "bug"}, ["bug"]),
    ],
)
def test_models_are_chosen_by_class_by_name_or_by_bug(how, chosen):
    assert [model.name for model in choose(ALL, **how)] == chosen


@pytest.mark.parametrize("how", [{"names": ["none"]}, {"bug": "one"}])
def test_what_is_not_in_the_manifest_is_bad_input(how):
    with pytest.raises(BadInput, match="manifest"):
        choose(ALL, **how)


# -- the lifecycle at a size of one's own --------------------------------------------------


def test_a_size_sets_the_constants_and_leaves_the_properties():
    folder = resource_folder("tla")
    model = lifecycle(folder, 3, 2, 1)
    assert model.constant("K") == {"k1", "k2", "k3"}
    assert model.constant("R") == {"r1", "r2"}
    assert model.constant("MaxOut") == 1
    base = (folder / "MC_1x1.cfg").read_text()
    assert base.partition("INVARIANTS")[2] in model.text


@pytest.mark.parametrize(
    ("keys", "requests", "renamed"), [(1, 1, 0), (3, 1, 0), (1, 3, 0), (2, 2, 1)]
)
def test_renaming_is_used_only_where_there_are_two_of_both(keys, requests, renamed):
    """TLC stops with an error on a symmetry set of one element."""
    text = lifecycle(resource_folder("tla"), keys, requests, 1).text
    assert text.count("SYMMETRY") == renamed


@pytest.mark.parametrize("size", [(0, 1, 1), (1, -1, 1), (1, 1, 0), (10**9, 1, 1), (1, 1, 5)])
def test_a_size_that_is_nonsense_is_bad_input(size):
    with pytest.raises(BadInput, match="no size"):
        lifecycle(resource_folder("tla"), *size)


# -- holding a run to the manifest ---------------------------------------------------------


FOUND = TlcResult(OK, None, 20, 7, 3, (), {}, "")


@pytest.fixture
def tlc(monkeypatch):
    """Says what TLC finds."""

    def say(result: TlcResult | TlcFailed) -> None:
        def run_tlc(*args: object, **kwargs: object) -> TlcResult:
            if isinstance(result, TlcFailed):
                raise result
            return result

        monkeypatch.setattr(models, "run_tlc", run_tlc)

    return say


REFUTED = {"exit_code": INVARIANT, "violated": "SomeInv"}
MUTANT = {"expected": INVARIANT, "breaks": "SomeInv"}


@pytest.mark.parametrize(
    ("model", "result", "problem"),
    [
        ({}, {}, None),
        (MUTANT, REFUTED, None),
        ({}, {"distinct": 6}, "distinct states 6 instead of 7"),
        ({}, {"depth": 4}, "depth 4 instead of 3"),
        ({}, REFUTED, "exit code 12 instead of 0; broken SomeInv instead of nothing"),
        (MUTANT, {}, "exit code 0 instead of 12; broken nothing instead of SomeInv"),
        (MUTANT, REFUTED | {"violated": "TypeInv"}, "broken TypeInv instead of SomeInv"),
        ({"distinct": None, "depth": None}, {"distinct": 6, "depth": 4}, None),
        ({"actions": ("Flush", "Drain")}, {"taken": {"Flush": 1, "Drain": 2}}, None),
        (
            {"actions": ("Flush", "Drain")},
            {"taken": {"Flush": 1, "Drain": 0}},
            "never taken: Drain",
        ),
        ({"actions": ("Flush", "Drain")}, {"taken": {"Flush": 1}}, "never taken: Drain"),
    ],
)
def test_a_run_is_right_only_if_all_is_as_the_manifest_says(tlc, model, result, problem):
    tlc(replace(FOUND, **result))
    row = run_model(Path(), a_model(**model))
    assert row.problem == problem
    assert row.ok is row.as_json()["ok"] is (problem is None)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("PROPERTY SomeLive", True),
        ("PROPERTIES\n    SomeLive\nINVARIANTS TypeInv", True),
        (r"PROPERTIES SomeLive \* and no OtherLive", True),
        ("PROPERTIES OtherLive", False),
        ("PROPERTIES SomeLive OtherLive", False),
        ("INVARIANTS TypeInv", False),
    ],
)
def test_a_temporal_property_is_known_by_being_the_only_one(tlc, text, right):
    """TLC does not say which temporal property it found broken."""
    tlc(replace(FOUND, exit_code=PROPERTY))
    model = a_model(text=text, expected=PROPERTY, breaks="SomeLive")
    assert run_model(Path(), model).ok is right


def test_a_run_without_an_end_is_a_row_that_is_wrong(tlc):
    tlc(TlcFailed("ended after 5 seconds"))
    row = run_model(Path(), a_model())
    assert (row.ok, row.observed, row.problem) == (False, None, "ended after 5 seconds")


def test_a_row_has_the_fields_that_it_is_said_to_have(tlc):
    tlc(FOUND)
    fields = run_model(Path(), a_model()).as_json()
    seconds = fields.pop("seconds")
    assert isinstance(seconds, float)
    assert fields == {
        "name": "small",
        "cfg": "small.cfg",
        "shows": "A small one.",
        "expected": 0,
        "observed": 0,
        "distinct": 7,
        "depth": 3,
        "ok": True,
    }


# -- where the files are -------------------------------------------------------------------


def test_a_checkout_has_its_files_beside_the_package():
    assert resource_folder("tla") == Path(__file__).resolve().parents[2] / "tla"


def test_an_installed_package_has_them_inside(tmp_path, monkeypatch):
    """And does not take a folder that happens to lie beside it."""
    package = tmp_path / "kvtier"
    (package / "_data" / "tla").mkdir(parents=True)
    (tmp_path / "tla").mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr("kvtier.__file__", str(package / "__init__.py"))
    monkeypatch.setattr("kvtier.resources.files", lambda name: package)
    assert resource_folder("tla") == package / "_data" / "tla"
    with pytest.raises(KvtierError, match="spec/ is not in this installation"):
        resource_folder("spec")
