"""What the outer shell promises: one version, honest metadata, complete pins, asserts that bite."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kvtier
from tests.support.insist import insist

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


@pytest.fixture
def installed() -> Distribution:
    try:
        return distribution("kvtier")
    except PackageNotFoundError:
        pytest.skip("kvtier is on the path but not installed")


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    """Canonical package name -> version, from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}


def demands(requirements: list[str], extra: str = "") -> list[Requirement]:
    """Those of `requirements` that apply to this Python when `extra` is asked for."""
    parsed = map(Requirement, requirements)
    return [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": extra})]


def test_the_version_is_the_one_in_pyproject(installed: Distribution) -> None:
    assert kvtier.__version__ == installed.version == PROJECT["project"]["version"]


@pytest.mark.parametrize(
    ("file", "line"),
    [("CHANGELOG.md", r"^## {} \("), ("CITATION.cff", r"^version: {}$")],
)
def test_what_names_the_version_names_this_one(file: str, line: str) -> None:
    version = re.escape(PROJECT["project"]["version"])
    assert re.search(line.format(version), (ROOT / file).read_text(), re.MULTILINE)


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "kvtier", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert kvtier.__version__ in done.stdout


def test_entry_points_lead_somewhere(installed: Distribution) -> None:
    ours = installed.entry_points
    assert {(e.group, e.name) for e in ours} == {
        ("console_scripts", "kvtier"),
        ("kvtier.tiers", "fs"),
        ("kvtier.tiers", "memory"),
        ("opentelemetry_instrumentor", "kvtier-vllm"),
    }
    assert all(callable(e.load()) for e in ours)


def test_types_are_published() -> None:
    assert (files("kvtier") / "py.typed").is_file()


def test_constraints_are_versions_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [x for x in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", x)] == []
    assert len(lines) == len(set(lines))


def test_every_requirement_is_pinned_to_a_version_that_fits_it(pins: dict[str, str]) -> None:
    asked = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    asked += [line for extra in EXTRAS.values() for line in extra]
    ours = [r for r in demands(asked) if r.name != "kvtier"]
    assert [str(r) for r in ours if not r.specifier.contains(pins.get(r.name, ""))] == []


def test_what_is_installed_is_what_is_pinned(installed: Distribution, pins: dict[str, str]) -> None:
    """All that the tests run on, however indirectly it came in."""
    todo = [*demands(installed.requires or [], "test"), Requirement("editables")]
    found: dict[str, str] = {}
    while todo:
        need = todo.pop()
        name = canonicalize_name(need.name)
        if name in found:
            continue
        dist = distribution(name)
        found[name] = dist.version
        for extra in need.extras or {""}:
            todo += demands(dist.requires or [], extra)
    assert found.items() <= pins.items()
    assert {"click", "pytest", "hatchling", "hypothesis", "sortedcontainers"} <= found.keys()


def test_asserts_bite_in_test_modules_under_every_python_option() -> None:
    with pytest.raises(AssertionError):
        assert sys.flags.optimize < 0


def test_asserts_bite_in_what_test_modules_import_under_every_python_option() -> None:
    with pytest.raises(AssertionError):
        insist(False)
