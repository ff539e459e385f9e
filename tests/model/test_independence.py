"""The four descriptions stay independent, and a room imports only from rooms above it.

Read off the source: what a file imports, wherever in it the import stands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvtier

PACKAGE = Path(kvtier.__file__).parent

ROOMS: list[set[str]] = [
    {"kvtier"},
    {"errors", "log", "runtime"},
    {"keys"},
    {"request"},
    {"results"},
    {"lifecycle"},
    {"lookup.table"},
    {"lookup.worker"},
    {"lookup.manager"},
    {"lookup"},
    {"tiers.base", "tiers.policies", "tiers.frame"},
    {"tiers.host", "tiers.store"},
    {"tiers.registry"},
    {"tiers.memory", "tiers.filesystem", "tiers.objectstore", "tiers.redis"},
    {"tiers"},
    {"tiering"},
    {"scans"},
    {"scheduler"},
    {"workload"},
    {"replay"},
    {"model"},
    {"telemetry"},
    {"resources"},
    {"check"},
    {"cli"},
    {"__main__"},
]
"""From the ground up. Rooms on one line do not know of each other."""

RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}
CORE_ENDS = RANK["model"]

ONE_ROOM = {"tiering", "workload", "replay", "model", "telemetry", "check", "cli"}
"""Whole packages; inside them the order is theirs."""

OF_THE_LOOKUP = {"lookup", "lookup.worker", "lookup.manager"}
"""All else in `lookup/` is parts of the table."""

MAY_NOT: dict[str, set[str]] = {
    "model": {"lookup", "tiers", "tiering", "telemetry", "scheduler", "replay"},
    "check.spans": {"lookup", "tiers", "tiering", "scheduler", "replay"},
    "scheduler": {"tiers.memory", "tiers.filesystem", "tiers.objectstore", "tiers.redis"},
    "lookup.worker": {"lookup.table", "lookup.guards", "lifecycle"},
}
"""Besides the order: what a room must never know of."""

ENUM_NAMES = {"LookupPhase", "Trigger", "Outcome"}
"""All of `kvtier.lifecycle` that the model and the span check may use: never the table."""

Import = tuple[str, str | None]
"""A module, and the name taken from it (`None`: the module itself)."""


def imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from ((node.module or "", alias.name) for alias in node.names)


def is_module(name: str) -> bool:
    path = PACKAGE.parent / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules_of(path: Path) -> Iterator[str]:
    """The modules of kvtier that a file imports; `from kvtier.a import b` may be `kvtier.a.b`."""
    for module, name in imports(path):
        if module.split(".")[0] == "kvtier":
            whole = f"{module}.{name}"
            yield whole if name is not None and is_module(whole) else module


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("kvtier", *(part for part in parts if part != "__init__")))


def room(module: str) -> str:
    """The room of a module: `kvtier.tiering.jobs` is in `tiering`."""
    parts = module.split(".")[1:]
    if not parts:
        return "kvtier"
    name = parts[0] if parts[0] in ONE_ROOM else ".".join(parts[:2])
    return "lookup.table" if parts[0] == "lookup" and name not in OF_THE_LOOKUP else name


def within(module: str, rooms: set[str]) -> bool:
    name = module.removeprefix("kvtier.")
    return any(name == one or name.startswith(f"{one}.") for one in rooms)


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_imports_only_from_rooms_above_its_own(path: Path) -> None:
    here = room(name_of(path))
    assert here in RANK, f"{name_of(path)} has no place in ROOMS"
    for module in modules_of(path):
        there = room(module)
        assert there in RANK, f"{module} has no place in ROOMS"
        assert there == here or RANK[there] < RANK[here], f"{here} imports {module}"
        for name, rooms in MAY_NOT.items():
            if within(name_of(path), {name}):
                assert not within(module, rooms), f"{name} must not know of {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_core_does_without_what_watches_and_checks_it(path: Path) -> None:
    here = room(name_of(path))
    if RANK[here] < CORE_ENDS:
        assert not [m for m in modules_of(path) if RANK[room(m)] >= CORE_ENDS]


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if within(name_of(p), {"model", "check.spans"})],
    ids=name_of,
)
def test_model_and_span_check_take_names_from_the_lifecycle_and_never_the_table(path: Path) -> None:
    for module, name in imports(path):
        if module == "kvtier.lifecycle":
            assert name in ENUM_NAMES
        assert (module, name) != ("kvtier", "lifecycle")


def test_the_model_imports_of_kvtier_nothing_but_itself() -> None:
    for path in (PACKAGE / "model").glob("*.py"):
        assert {room(m) for m in modules_of(path)} <= {"model", "lifecycle"}


def test_the_table_knows_neither_threads_nor_clocks_nor_queues() -> None:
    parts = [path for path in FILES if room(name_of(path)) == "lookup.table"]
    assert {name_of(path) for path in parts} >= {"kvtier.lookup.table", "kvtier.lookup.guards"}
    for path in [*parts, PACKAGE / "lifecycle.py"]:
        found = {module.split(".")[0] for module, _ in imports(path)}
        assert not found & {"threading", "time", "queue", "asyncio", "logging", "opentelemetry"}
        assert not {"log", "runtime"} & {room(module) for module in modules_of(path)}


def test_every_room_of_the_list_but_those_to_come_is_there() -> None:
    to_come = {"tiers.objectstore", "tiers.redis"}
    assert RANK.keys() - {room(name_of(path)) for path in FILES} <= to_come


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from kvtier.lifecycle import TABLE", "kvtier.lifecycle"),
        ("import kvtier.lookup.table as t", "kvtier.lookup.table"),
        ("from kvtier.lookup import table", "kvtier.lookup.table"),
        ("from kvtier import lookup", "kvtier.lookup"),
        ("def f():\n    from kvtier.tiers.host import PrimaryView", "kvtier.tiers.host"),
    ],
)
def test_no_way_to_write_an_import_is_overlooked(line: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(line)
    assert list(modules_of(path)) == [found]
