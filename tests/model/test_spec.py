"""spec/ is whole and true: exported files are fresh, vectors hold of the code, ids lead home.

What a port in another language makes of it is in `tests/port/test_port.py`.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvtier.lifecycle import TABLE, Guard, Outcome, Row, Trigger
from kvtier.model import invariants, properties
from kvtier.model.actions import Machine
from kvtier.model.explore import explore
from kvtier.model.mutants import MUTANTS
from kvtier.model.state import Config
from tests.port.__main__ import WALKS, exported, main
from tests.port.coverage import NO_CALL_TAKES, rows_of
from tests.port.replay import Port
from tests.port.schema import problems
from tests.port.vectors import encoded, replayed, walked
from tests.support.lookups import quiet

ROOT = Path(__file__).parents[2]
SPEC, TLA = ROOT / "spec", ROOT / "tla"
CALLS = sorted((SPEC / "vectors" / "calls").glob("*.jsonl"))
SCHEMA = json.loads((SPEC / "vectors" / "calls.schema.json").read_text())
LIFECYCLE = (SPEC / "lifecycle.md").read_text()
PARAGRAPHS = dict(
    re.findall(r"^\*\*(L\d+)\.\*\* (.*?)(?=\n\n\*\*|\n\n## |\Z)", LIFECYCLE, re.M | re.S)
)
PROPERTIES = tomllib.loads((SPEC / "invariants.toml").read_text())["property"]
IDS = {row["id"]: row for row in PROPERTIES}
EVERY_ROW = {
    (phase.name, trigger.name, row.target.name, row.outcome.value)
    for (phase, trigger), rows in TABLE.items()
    for row in rows
}


@pytest.fixture(autouse=True)
def _no_log_lines() -> Iterator[None]:
    with quiet():
        yield


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- exported files ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return dict(exported())


def test_exported_files_are_what_the_code_and_the_model_say_now(files: dict[str, str]) -> None:
    assert main(SPEC, files, check=True) == 0, "run `make spec`"


def test_stale_files_are_noticed_and_written_anew(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "spec"
    shutil.copytree(SPEC, copy)
    calls = copy / "vectors" / "calls"
    table = copy / "transitions.json"
    table.write_text(table.read_text().replace("unclaimed", "forgotten"))
    (calls / "story_old.jsonl").write_text("")
    (calls / "story_orphan.jsonl").unlink()
    wrong = {
        "transitions.json",
        "vectors/calls/story_old.jsonl",
        "vectors/calls/story_orphan.jsonl",
    }
    assert main(copy, files, check=True) == 1
    assert set(capsys.readouterr().out.split()) == {"stale:", *wrong}
    assert main(copy, files, check=False) == 0
    assert set(capsys.readouterr().out.split()) == {"written:", *wrong}
    assert main(copy, files, check=True) == 0


def test_nothing_else_is_in_the_folder_and_it_stays_small() -> None:
    files = {p.relative_to(SPEC).as_posix() for p in SPEC.rglob("*") if p.is_file()}
    ours = {p.relative_to(SPEC).as_posix() for p in CALLS}
    rest = {f for f in files - ours if not f.startswith(("telemetry/", "vectors/spans/"))}
    assert rest == {
        "lifecycle.md",
        "transitions.json",
        "invariants.toml",
        "vectors/calls.schema.json",
    }
    assert sum(path.stat().st_size for path in CALLS) < 1_000_000


def test_transitions_are_the_table_row_by_row() -> None:
    spec = json.loads((SPEC / "transitions.json").read_text())
    cells = [((c["phase"], c["trigger"]), c["rows"]) for c in spec["cells"]]
    assert [cell for cell, _ in cells] == [(p.name, t.name) for p, t in TABLE]
    for (_, rows), expected in zip(cells, TABLE.values(), strict=True):
        assert [(r["guard"], r["target"], r["outcome"]) for r in rows] == [
            (row.guard and row.guard.name, row.target.name, row.outcome.value) for row in expected
        ]
    assert spec["guards"] == {guard.name: guard.value for guard in Guard}


# -- vectors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CALLS, ids=lambda path: path.stem)
def test_the_code_does_what_the_vectors_say(path: Path) -> None:
    port = None
    for number, line in enumerate(lines_of(path), 1):
        returned = None
        if line["op"] == "new":
            port = Port(line["args"])
        else:
            assert port is not None
            returned = port.op(line["op"], line["args"])
        where = f"{path.name}:{number} {line['op']} {line['args']}"
        assert returned is line["returns"], where
        assert port.shown() == line["state"], where


@pytest.mark.parametrize("path", CALLS, ids=lambda path: path.stem)
def test_vectors_have_the_form_of_their_schema(path: Path) -> None:
    for number, line in enumerate(lines_of(path), 1):
        assert problems(SCHEMA, line) == [], f"{path.name}:{number}"


@pytest.mark.parametrize(
    "change",
    [
        {"op": "lookups"},
        {"op": "flush", "args": {"key": "k1"}},
        {"returns": "no"},
        {"state": {}},
        {"op": "new"},
        {"note": ""},
    ],
    ids=str,
)
def test_a_line_of_another_form_does_not_fit_the_schema(change: dict[str, Any]) -> None:
    line = lines_of(CALLS[0])[1]
    assert problems(SCHEMA, line) == []
    assert problems(SCHEMA, line | change)


def test_generations_are_counted_and_never_given_out_twice() -> None:
    for path in CALLS:
        last, known = 0, set[int]()
        for line in lines_of(path):
            if line["op"] == "new":
                last, known = 0, set()
            now = {entry["generation"] for entry in line["state"]["entries"].values()}
            assert now - known <= {last + 1}
            known |= now
            last = max(last, *now, 0) if now else last


def kind(label: str) -> tuple[str, ...]:
    """What a label says, names left out."""
    action, *words = label.split("_")
    said = words[2:] if action == "Lookup" else sorted(word[2:] for word in words)
    return action, *said


def shown(*paths: Path) -> tuple[set[tuple[str, ...]], set[tuple[str, str, str, str]]]:
    """The kinds of labels and the rows of the table on the model's way through these files."""
    kinds, rows = set(), set()
    for path in paths:
        for walk in walked((line["op"], line["args"]) for line in lines_of(path)):
            for label, before, after in walk.steps:
                kinds.add(kind(label))
                rows |= set(rows_of(walk.config, before, label, after))
    return kinds, rows


@pytest.mark.parametrize("size", ["1x1", "1x2"])
def test_every_kind_of_label_and_every_row_that_a_step_takes_is_in_the_walk(size: str) -> None:
    keys, requests, out, _ = WALKS[size]
    config = Config.of(keys, requests, out)
    graph, _ = explore(Machine(config))
    kinds, rows = set(), set()
    for a, label, b in graph.edges:
        kinds.add(kind(label))
        rows |= set(rows_of(config, graph.states[a], label, graph.states[b]))
    assert shown(SPEC / "vectors" / "calls" / f"walk_{size}.jsonl") == (kinds, rows)


def test_the_walk_with_two_keys_shows_all_that_smaller_ones_do_and_what_needs_two() -> None:
    folder = SPEC / "vectors" / "calls"
    kinds, rows = shown(folder / "walk_2x1.jsonl")
    smaller, their_rows = shown(folder / "walk_1x1.jsonl")
    assert kinds > smaller
    assert kinds - smaller == {("WorkerAnswer", *two) for two in ("FF", "FT", "TT")}
    assert rows == their_rows


def test_the_vectors_take_every_row_that_a_call_can_take() -> None:
    _, rows = shown(*CALLS)
    assert rows == EVERY_ROW - NO_CALL_TAKES
    assert NO_CALL_TAKES < EVERY_ROW


@pytest.mark.parametrize("bug", MUTANTS)
def test_every_known_bug_of_the_model_differs_from_the_vectors(bug: str) -> None:
    for path in CALLS:
        ops = [(line["op"], line["args"]) for line in lines_of(path)]
        try:
            if encoded(replayed(ops, MUTANTS[bug])) != path.read_text():
                return
        except ValueError:
            return  # it cannot even do what is asked
    pytest.fail(f"a machine with {bug} passes all vectors")


IN_A_CELL = [(cell, n) for cell, rows in TABLE.items() for n in range(len(rows) - 1)]


@pytest.mark.parametrize(
    ("cell", "n"),
    IN_A_CELL,
    ids=lambda x: f"{x[0].name}-{x[1].name}" if isinstance(x, tuple) else x,
)
def test_the_vectors_notice_two_rows_of_a_cell_in_the_wrong_order(cell: Any, n: int) -> None:
    rows = list(TABLE[cell])
    rows[n : n + 2] = [rows[n + 1], rows[n]]
    table = {**TABLE, cell: tuple(rows)}
    if not differs(table):
        assert looks_the_same(*TABLE[cell][n : n + 2])


def looks_the_same(a: Row, b: Row) -> bool:
    """Nobody but whoever is told outcomes can tell these rows apart."""
    return {a.outcome, b.outcome} in (
        {Outcome.EXCUSED, Outcome.DEADLINE},
        {Outcome.HIT, Outcome.FORCED_HIT},
        {Outcome.DISCARDED, Outcome.ILLEGAL},
    )


def differs(table: Any) -> bool:
    """Whether the code on this table does something else than the vectors say."""
    for path in CALLS:
        port = None
        for line in lines_of(path):
            returned = None
            try:
                if line["op"] == "new":
                    port = Port(line["args"], table)
                elif port is not None:
                    returned = port.op(line["op"], line["args"])
            except Exception:
                return True
            if port is not None and (returned, port.shown()) != (line["returns"], line["state"]):
                return True
    return False


# -- paragraphs and ids --------------------------------------------------------------------------


def test_paragraphs_have_numbers_that_ascend_and_occur_once() -> None:
    numbers = [int(n) for n in re.findall(r"^\*\*L(\d+)\.\*\*", LIFECYCLE, re.M)]
    assert numbers == sorted(set(numbers))
    assert len(PARAGRAPHS) == len(numbers)
    body = LIFECYCLE.split("## Terms", 1)[1]
    lost = [
        p for p in body.split("\n\n") if not p.startswith(("**L", "## ", "-", "Each paragraph"))
    ]
    assert [p for p in lost if p.strip()] == []


CITING = [
    SPEC / "lifecycle.md",
    SPEC / "vectors" / "calls.schema.json",
    *(p for p in (ROOT / "tests" / "port").rglob("*.*") if p.suffix in (".py", ".mjs")),
]


@pytest.mark.parametrize("path", CITING, ids=lambda path: path.name)
def test_what_cites_a_paragraph_cites_one_that_is_there(path: Path) -> None:
    assert set(re.findall(r"\bL\d+", path.read_text())) <= PARAGRAPHS.keys()


def test_every_word_of_the_table_is_explained() -> None:
    guards = set(re.findall(r"^- `([A-Z_]+)`", PARAGRAPHS["L16"], re.M))
    assert guards == {guard.name for guard in Guard}
    triggers = set(re.findall(r"`([A-Z_]+)`", PARAGRAPHS["L17"]))
    assert triggers == {trigger.name for trigger in Trigger}
    explained = "".join(PARAGRAPHS[n] for n in ("L14", "L20", "L21", "L22", "L23", "L24", "L25"))
    outcomes = {outcome.value for outcome in Outcome}
    # What lets go is told by the trigger and not by the outcome.
    assert outcomes - set(re.findall(r"`([a-z_]+)`", explained)) == {"released", "abandoned"}


def test_ids_occur_once_and_every_field_is_one_that_is_known() -> None:
    assert len(IDS) == len(PROPERTIES)
    needed = {"id", "kind", "statement", "paragraph", "tla"}
    for row in PROPERTIES:
        assert needed <= row.keys() <= needed | {"python", "report", "bugs"}
        assert row["kind"] in ("state", "step", "history", "liveness")
        assert "report" in row or row["id"] == "TypeInv"


def test_paragraphs_name_exactly_the_ids_that_refer_to_them() -> None:
    for number, text in PARAGRAPHS.items():
        named = set(re.findall(r"`(\w+(?:Inv|Prop|Live|Spec))`", text))
        refer = {row["id"] for row in PROPERTIES if row["paragraph"] == number}
        assert named == refer - {"TypeInv"}, number
    assert {row["paragraph"] for row in PROPERTIES} <= PARAGRAPHS.keys()


ELSEWHERE = {
    "Probe": "what follows from it alone; ProbeSpec is what the machine owes it",
    **{
        module.stem: "another machine"
        for module in TLA.glob("*.tla")
        if module.stem.removeprefix("MC").startswith(("Tiering", "Scan"))
    },
}
NOT_TRUE = {"WaitedForResolvedLive"}
"""Stated in order to be refuted."""


def operators(module: Path) -> set[str]:
    return set(re.findall(r"^(\w+(?:Inv|Prop|Live|Spec))\s*==", module.read_text(), re.M))


def test_every_id_is_an_operator_of_its_module() -> None:
    for name, row in IDS.items():
        module, operator = row["tla"].split(".")
        assert operator == name
        assert name in operators(TLA / f"{module}.tla")


def test_every_property_in_tla_has_an_id() -> None:
    for module in sorted(TLA.glob("*.tla")):
        if module.stem not in ELSEWHERE:
            found = {name for name in operators(module) if not name.endswith("Spec")}
            here = {name for name, row in IDS.items() if row["tla"].startswith(f"{module.stem}.")}
            assert found - NOT_TRUE == here - {"ProbeSpec"}, module.name


def test_every_predicate_in_python_has_an_id_and_is_where_it_says() -> None:
    found = {**invariants.INVARIANTS, **properties.PROPERTIES}
    assert {name for name, row in IDS.items() if "python" in row} == found.keys()
    for name, predicate in found.items():
        module, function = IDS[name]["python"].rsplit(".", 1)
        assert getattr(importlib.import_module(module), function) is predicate


def test_what_the_proof_shows_has_an_id() -> None:
    proof = pytest.importorskip("kvtier.check.proof.invariants", exc_type=ImportError)
    steps = importlib.import_module("kvtier.check.proof.steps")
    shown = {*proof.INVARIANTS, *steps.STEPS}
    assert shown <= IDS.keys()
    assert not set(proof.STRENGTHENING) & IDS.keys()


def test_known_bugs_are_listed_where_tlc_and_the_model_find_them() -> None:
    listed = {bug for row in PROPERTIES for bug in row.get("bugs", ())}
    assert listed == MUTANTS.keys()
    for model in json.loads((TLA / "manifest.json").read_text())["models"]:
        if (bug := model.get("twin")) in MUTANTS:
            assert bug in IDS[model["property"]]["bugs"]


BROKEN = [(row["id"], bug) for row in PROPERTIES if "python" in row for bug in row.get("bugs", ())]


@pytest.mark.parametrize(("name", "bug"), BROKEN, ids="-".join)
def test_a_listed_bug_breaks_the_property_that_lists_it(name: str, bug: str) -> None:
    for config in (Config.of(1, 1), Config.of(1, 2)):
        _, broken = explore(
            MUTANTS[bug](config),
            predicates={n: p for n, p in invariants.INVARIANTS.items() if n == name},
            properties={n: p for n, p in properties.PROPERTIES.items() if n == name},
        )
        if broken is not None:
            assert broken.name == name
            return
    pytest.fail(f"{bug} does not break {name}")
