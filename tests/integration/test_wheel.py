"""The wheel by itself: built, installed into a fresh environment, used from another folder."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

import kvtier

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of `command`; its standard error is in the failure, if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, into: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "--directory", into, cwd=source)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [path] = built.glob("*.whl")
    return path


Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Program]:
    """Installs the wheel with some extras; what comes runs programs of that, elsewhere."""
    pins = ROOT / "constraints.txt"

    def install(extras: str) -> Program:
        environment = tmp_path_factory.mktemp("environment")
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        venv.create(environment, with_pip=True)
        programs = environment / "bin"
        pip = (programs / "python", "-m", "pip", "install", "-qq", "-c", pins)
        run(*pip, f"{wheel}{extras}", cwd=elsewhere)
        return lambda program, *arguments: subprocess.run(
            (programs / program, *arguments), capture_output=True, text=True, cwd=elsewhere
        )

    return install


@pytest.fixture(scope="module")
def bare(installed: Callable[[str], Program]) -> Program:
    """Runs a program of an environment in which only the wheel is installed."""
    return installed("")


@pytest.fixture(scope="module")
def alone(bare: Program) -> Callable[..., str]:
    """The same for a program that must succeed: its standard output."""

    def output(program: str, *arguments: str) -> str:
        done = bare(program, *arguments)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return output


@pytest.fixture(scope="module")
def checking(installed: Callable[[str], Program]) -> Program:
    """Runs a program of an environment that has the tools for checking and tracing too."""
    return installed("[otlp,proof,tla]")


def members(wheel: Path) -> set[str]:
    return set(ZipFile(wheel).namelist())


def test_it_holds_the_package_and_its_metadata_only(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in members(wheel)}
    assert tops == {"kvtier", f"kvtier-{kvtier.__version__}.dist-info"}


def test_it_holds_every_file_of_the_package(wheel: Path) -> None:
    paths = (p for p in (ROOT / "kvtier").rglob("*") if p.is_file() and p.suffix != ".pyc")
    ours = {p.relative_to(ROOT).as_posix() for p in paths}
    assert {"kvtier/py.typed", "kvtier/lifecycle.py"} <= ours
    assert {name for name in members(wheel) if name.startswith("kvtier/")} - data(wheel) == ours


def data(wheel: Path) -> set[str]:
    return {name for name in members(wheel) if name.startswith("kvtier/_data/")}


def test_it_holds_the_models_and_the_specification(wheel: Path) -> None:
    paths = [p for top in ("tla", "spec") for p in (ROOT / top).rglob("*") if p.is_file()]
    names = (p.relative_to(ROOT).as_posix() for p in paths)
    ours = {name for name in names if "/." not in name and "/__pycache__/" not in name}
    assert "tla/AsyncLookup.tla" in ours
    assert data(wheel) == {f"kvtier/_data/{name}" for name in ours}


def test_the_sdist_builds_the_same_wheel(built: Path, wheel: Path, tmp_path: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    build(source, tmp_path / "dist")
    [again] = (tmp_path / "dist").glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_it_names_its_version(alone: Callable[..., str]) -> None:
    assert kvtier.__version__ in alone("kvtier", "--version")
    assert alone("python", "-m", "kvtier", "--version") == alone("kvtier", "--version")


def test_it_replays_a_workload(alone: Callable[..., str]) -> None:
    assert alone("kvtier", "replay", "--limit", "5")


def test_its_tiers_are_found(alone: Callable[..., str]) -> None:
    program = (
        "from importlib.metadata import entry_points\n"
        "for e in sorted(entry_points(group='kvtier.tiers')): print(e.name, callable(e.load()))"
    )
    assert alone("python", "-c", program) == "fs True\nmemory True\n"


def test_it_explores_the_model(alone: Callable[..., str]) -> None:
    found = json.loads(alone("kvtier", "model", "--json"))
    assert (found["states"], found["edges"]) == (1188, 3677)


def test_it_lists_the_models_that_it_brings(alone: Callable[..., str]) -> None:
    found = json.loads(alone("kvtier", "check", "--list", "--json"))
    manifest = json.loads((ROOT / "tla" / "manifest.json").read_text())
    assert [m["name"] for m in found["models"]] == [m["name"] for m in manifest["models"]]


@pytest.mark.parametrize(
    ("command", "extra"),
    [("check", "tla"), ("prove", "proof"), ("replay --limit 5 --spans spans.jsonl", "otlp")],
)
def test_it_names_the_extra_that_a_command_needs(bare: Program, command: str, extra: str) -> None:
    done = bare("kvtier", *command.split())
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert f"pip install 'kvtier[{extra}]'" in done.stderr


def test_with_its_extra_it_checks_models(checking: Program) -> None:
    done = checking("kvtier", "check", "MC_1x1", "cleanup_forgets_index", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [model["ok"] for model in json.loads(done.stdout)["models"]] == [True, True]


def test_with_its_extra_it_proves(checking: Program) -> None:
    done = checking("kvtier", "prove", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"]


def test_with_its_extra_it_traces_and_without_any_it_validates_and_draws(
    checking: Program, bare: Program, tmp_path: Path
) -> None:
    spans, page = str(tmp_path / "spans.jsonl"), str(tmp_path / "page.html")
    done = checking("kvtier", "replay", "--limit", "5", "--spans", spans, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    asked = json.loads(done.stdout)["probes_issued"]
    done = bare("kvtier", "validate", spans, "--require-complete", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["complete"] == asked > 0
    done = bare("kvtier", "timeline", spans, "-o", page, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["probes"] == asked
