"""`kvtier check` and `kvtier model`: what they print, how they fail, and what they leave behind."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.progress import Progress, TextColumn

from kvtier.cli import main
from kvtier.cli.searches import Searches
from kvtier.resources import resource_folder
from tests.support.tools import need_tlc, need_z3

ROOT = Path(__file__).resolve().parents[2]
BUG = "cleanup_forgets_index"
OTHER = "taken_back"
"""Something that must be reachable."""
LONG = "MC_2x1"
"""A model that takes longer than any of these tests waits before it ends it."""

PATIENCE_S = 50
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def tlc() -> None:
    need_tlc()


@pytest.fixture(scope="module")
def z3() -> None:
    need_z3()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """An empty working directory, with an empty directory for temporary files beside it."""
    for name in ("cwd", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command, and ends at last what is still there of it."""
    processes = []

    def start(
        *args: str, path: str = str(ROOT), stderr: int = subprocess.PIPE, alone: bool = False
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvtier", *args],
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=alone,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def result(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=2 * PATIENCE_S)
    return process.returncode, out, err


def invoke(*args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, args)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def programs_of(folder: Path) -> list[str]:
    """Command lines of processes that work in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# -- what is printed -----------------------------------------------------------------------


def test_json_has_the_fields_that_it_is_said_to_have(tlc, folder, started):
    code, out, err = result(started("check", OTHER, BUG, "--json"))
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found.keys() == {"schema", "ok", "models"}
    assert (found["schema"], found["ok"]) == ("kvtier.check/1", True)
    fields = "name cfg shows expected observed distinct depth seconds ok"
    assert [list(model) for model in found["models"]] == [fields.split()] * 2
    other, bug = found["models"]
    assert (other["name"], other["expected"], other["observed"]) == (OTHER, 13, 13)
    assert (bug["name"], bug["expected"], bug["observed"]) == (BUG, 12, 12)
    assert left_in(folder) == ["cwd", "tmp"]


def test_a_bug_is_told_step_by_step_and_exported(tlc, folder):
    code, out, err = invoke("check", "--bug", BUG, "--history", "steps.jsonl")
    assert (code, err) == (0, "")
    assert re.search(rf"right +{BUG} .* breaks IndexInv\b", out)
    assert re.search(r"1 +Lookup\(r1, k1\) = None .*\n +entry\[k1\]: phase ABSENT → PENDING", out)
    assert re.search(r"2 +Cleanup\(r1\) +batch: -k1 *\n +entry\[k1\]: phase PENDING → ABSENT", out)
    steps = [json.loads(line) for line in Path("steps.jsonl").read_text().splitlines()]
    assert [step["label"] for step in steps] == ["Initial", "Lookup_r1_k1_None", "Cleanup_r1"]
    assert steps[-1]["state"]["held"] == {"r1": ["k1"]}
    assert left_in(folder / "tmp") == []


def test_the_list_names_every_model_and_bug(folder):
    code, out, err = invoke("check", "--list")
    assert (code, err) == (0, "")
    manifest = json.loads((resource_folder("tla") / "manifest.json").read_text())
    for entry in manifest["models"]:
        assert re.search(rf"^{entry['name']} +{entry['kind']} +{entry['class']} ", out, re.M)
    code, out, _ = invoke("check", "--list", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "kvtier.check-list/1"
    assert [m["name"] for m in found["models"]] == [m["name"] for m in manifest["models"]]
    assert BUG in [model["bug"] for model in found["models"]]


def test_the_lifecycle_is_checked_at_a_size_of_ones_own(tlc, folder):
    """TLC and the model in Python find the same number of states."""
    code, out, err = invoke("check", "lifecycle", "--requests", "2", "--json")
    assert (code, err) == (0, "")
    [found] = json.loads(out)["models"]
    code, out, _ = invoke("model", "--requests", "2", "--json")
    assert code == 0
    assert found["distinct"] == json.loads(out)["states"] == 4332


def test_a_graph_is_drawn_without_java(folder, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert invoke("check", "--graph", "g.mmd") == (0, "", "")
    assert Path("g.mmd").read_text().startswith("stateDiagram-v2\n")


def test_a_terminal_is_shown_how_far_it_is(tlc, folder, started):
    ours, theirs = pty.openpty()
    process = started("check", OTHER, BUG, stderr=theirs)
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], PATIENCE_S)[0]:
        try:
            piece = os.read(ours, 10_000)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    code, out, _ = result(process)
    assert code == 0
    assert b"0 of 2 done" in shown
    assert b"2 of 2 done" in shown
    assert "\x1b" not in out


def test_the_progress_line_tells_states_queue_and_rate():
    text = io.StringIO()
    columns = TextColumn("{task.description}"), TextColumn("{task.fields[told]}")
    bar = Progress(*columns, console=Console(file=text, force_terminal=True, width=100))
    with bar:
        shown = Searches(bar, 2)
        shown.begin("MC_2x1")
        shown.update("MC_2x1", 69_616, 12)
        bar.refresh()
        shown.end("MC_2x1")
    assert re.search(r"MC_2x1 +69,616 states, 12 in the queue, [\d,]+/s", text.getvalue())
    assert "1 of 2 done" in text.getvalue()


def test_the_model_is_explored_without_java(folder, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    code, out, err = invoke("model", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["schema", "states", "edges", "invariants"]
    assert (found["schema"], found["states"], found["edges"]) == ("kvtier.model/1", 1188, 3677)
    assert set(found["invariants"].values()) == {True}
    code, out, err = invoke("model")
    assert (code, err) == (0, "")
    assert "1,188 states, 3,677 steps" in out
    assert re.search(r"ConservationInv +holds", out)


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_a_twin_with_a_bug_shows_the_shortest_way_to_what_it_breaks(folder, extra):
    code, out, err = invoke("model", "--bug", BUG, *extra)
    way = "Lookup(r1, k1) = None, Cleanup(r1)"
    assert (code, err) == (1, f"kvtier: broken: IndexInv; the shortest way: {way}\n")
    if extra:
        holds = json.loads(out)["invariants"]
        assert [name for name, ok in holds.items() if not ok] == ["IndexInv"]
    else:
        assert re.search(r"2 +Cleanup\(r1\) +batch: -k1", out)


def test_the_proof_has_a_row_for_each_action_and_invariant(z3, folder):
    code, out, err = invoke("prove", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["schema", "ok", "rows"]
    assert (found["schema"], found["ok"]) == ("kvtier.prove/1", True)
    rows = {(row["action"], row["invariant"]): row["ok"] for row in found["rows"]}
    assert len(rows) == len(found["rows"])
    assert {(a, "ConservationInv") for a in ("Init", "Lookup", "Flush", "Cleanup")} <= set(rows)
    assert set(rows.values()) == {True}


def test_what_is_not_proved_in_time_is_not_proved(z3, folder):
    code, out, err = invoke("prove", "--timeout", "0.001")
    assert code == 1
    assert re.search(r"wrong +Flush +0 of \d+ ", out)
    assert "kvtier: Flush, IndexInv: not decided in time\n" in err


def test_a_bug_that_has_no_end_is_told_as_one(tlc, folder):
    code, out, err = invoke("check", "waited_for_resolved")
    assert (code, err) == (0, "")
    assert "and back to one of these states, over and over" in out
    code, out, err = invoke("check", "--bug", "shutdown_waits_for_ever")
    assert (code, err) == (0, "")
    assert re.search(r"\d+ +Stuttering", out)
    assert "over and over" not in out


def test_a_history_of_what_holds_is_said_to_be_empty(tlc, folder):
    code, out, err = invoke("check", "MC_1x1", "--history", "steps.jsonl", "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    assert err == "kvtier: steps.jsonl: empty, for there is no counterexample\n"
    assert Path("steps.jsonl").read_text() == ""


# -- what is not as the manifest says ------------------------------------------------------


@pytest.fixture
def manifest(folder, monkeypatch) -> Callable[[str, dict[str, object]], None]:
    """Changes what a copy of the manifest expects of a model."""
    copy = folder / "tla"
    shutil.copytree(resource_folder("tla"), copy)
    monkeypatch.setattr("kvtier.cli.check.resource_folder", lambda name: copy)

    def change(name: str, fields: dict[str, object]) -> None:
        path = copy / "manifest.json"
        whole = json.loads(path.read_text())
        for entry in whole["models"]:
            if entry["name"] == name:
                entry.update(fields)
        path.write_text(json.dumps(whole))

    return change


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"property": "TypeInv"}, "broken IndexInv instead of TypeInv"),
        ({"distinct": 100}, r"distinct states \d+ instead of 100"),
    ],
)
def test_a_bug_that_is_refuted_otherwise_is_wrong(tlc, folder, manifest, fields, told):
    manifest(BUG, fields)
    code, out, err = invoke("check", "--bug", BUG)
    assert code == 1
    assert re.fullmatch(rf"kvtier: {BUG}: {told}\n", err)
    assert f"wrong  {BUG}" in out


def test_a_dead_action_is_wrong(tlc, folder, manifest):
    manifest("MC_1x1", {"actions": ["Flush", "Never"]})
    code, out, err = invoke("check", "MC_1x1", "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)
    assert err == "kvtier: MC_1x1: never taken: Never\n"


def test_a_module_that_does_not_parse_is_one_line(tlc, folder, manifest):
    (folder / "tla" / "AsyncLookup.tla").write_text("---- MODULE AsyncLookup ----\nVARIABLE\n")
    code, out, err = invoke("check", "MC_1x1", "--json")
    assert code == 1
    assert json.loads(out)["models"][0]["observed"] is None
    assert re.fullmatch(r"kvtier: MC_1x1: TLC could not check the model \(exit code 150\).*\n", err)


# -- wrong input and missing tools ---------------------------------------------------------

WRONG = {
    "no keys": ["check", "lifecycle", "--keys", "0"],
    "negative keys": ["check", "lifecycle", "--keys", "-3"],
    "too many requests": ["check", "lifecycle", "--requests", "1000000"],
    "no batch out": ["check", "lifecycle", "--batches-out", "0"],
    "half a key": ["check", "lifecycle", "--keys", "1.5"],
    "a size without lifecycle": ["check", "--keys", "2"],
    "a size of another model": ["check", "MC_1x1", "--keys", "2"],
    "a model that is not there": ["check", "nope"],
    "a bug that is not there": ["check", "--bug", "nope"],
    "a bug and a model": ["check", "MC_1x1", "--bug", BUG],
    "no time": ["check", "MC_1x1", "--timeout", "0"],
    "time that is none": ["check", "MC_1x1", "--timeout", "nan"],
    "a history of many": ["check", "--history", "steps.jsonl"],
    "a history nowhere": ["check", "--bug", BUG, "--history", "no/such/file"],
    "a graph in no language": ["check", "--graph", "g.png"],
    "no time to prove": ["prove", "--timeout", "-1"],
    "more time than there is": ["prove", "--timeout", "1e300"],
    "a model without keys": ["model", "--keys", "0"],
    "a model of negative size": ["model", "--requests", "-1"],
    "a huge model": ["model", "--keys", "99999999999999999999"],
    "a twin that is not there": ["model", "--bug", "nope"],
}


@pytest.mark.parametrize("args", WRONG.values(), ids=list(WRONG))
def test_wrong_input_is_one_line_and_exit_code_2(folder, args):
    code, out, err = invoke(*args)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"kvtier: .+\n", err)
    assert left_in(folder) == ["cwd", "tmp"]


@pytest.mark.parametrize("missing", ["JAVA_HOME", "TLA2TOOLS_JAR"])
def test_a_missing_tool_is_named_with_its_extra(folder, monkeypatch, missing):
    monkeypatch.setenv(missing, "/nowhere")
    code, out, err = invoke("check")
    assert (code, out) == (3, "")
    assert re.fullmatch(r"kvtier: (TLC|Java) is not installed: pip install 'kvtier\[tla\]'\n", err)


def test_a_missing_z3_is_named_with_its_extra(folder, started):
    (folder / "z3.py").write_text("raise ImportError\n")
    code, out, err = result(started("prove", path=f"{folder}:{ROOT}"))
    assert (code, out) == (3, "")
    assert err == "kvtier: z3 is not installed: pip install 'kvtier[proof]'\n"


# -- ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_a_check_no_java_and_no_file_is_left(tlc, folder, started, number):
    process = started("check", LONG, "MCRefines_2x1")
    assert eventually(lambda: len(programs_of(folder)) == 2), "two Javas work"
    process.send_signal(number)
    code, out, err = result(process)
    assert out == ""
    if number == signal.SIGINT:
        assert (code, err.strip()) == (130, "kvtier: interrupted")
    assert eventually(lambda: programs_of(folder) == [])
    assert eventually(lambda: left_in(folder) == ["cwd", "tmp"])


def test_ctrl_c_in_a_terminal_reaches_everybody_and_says_one_line(tlc, folder, started):
    """There it goes to the whole process group, lanes included."""
    process = started("check", LONG, alone=True)
    assert eventually(lambda: programs_of(folder) != [])
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = result(process)
    assert (code, out, err.strip()) == (130, "", "kvtier: interrupted")
    assert programs_of(folder) == []
    assert left_in(folder) == ["cwd", "tmp"]


def children_of(process: subprocess.Popen[str]) -> list[str]:
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def test_ctrl_c_ends_a_proof(z3, folder, started):
    """z3 would keep it to itself."""
    process = started("prove", alone=True)
    assert eventually(lambda: len(children_of(process)) == 2), "prover and multiprocessing's own"
    time.sleep(2)
    both = children_of(process)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = result(process)
    assert (code, out, err.strip()) == (130, "", "kvtier: interrupted")
    assert eventually(lambda: not any(Path("/proc", child).exists() for child in both))


@pytest.mark.parametrize("how", ["tidily", "at once"])
def test_processes_apart_do_not_hear_ctrl_c_and_go_with_their_parent(how):
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.support.idle", how],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        told = [parent.stdout.readline().split() for _ in range(2)]
    finally:
        parent.kill()
    assert [is_blocked for _, is_blocked in told] == ["True", "True"]
    assert eventually(lambda: not any(Path("/proc", pid).exists() for pid, _ in told))
    assert parent.communicate(timeout=PATIENCE_S) == ("", "")


def test_a_model_that_takes_too_long_is_ended(tlc, folder):
    begun = time.monotonic()
    code, out, err = invoke("check", LONG, "--timeout", "1.5", "--json")
    assert time.monotonic() - begun < PATIENCE_S
    [row] = json.loads(out)["models"]
    assert (code, row["observed"], row["ok"]) == (1, None, False)
    assert re.fullmatch(rf"kvtier: {LONG}: TLC was ended after 1\.5 seconds.*\n", err)
    assert programs_of(folder) == []
    assert left_in(folder) == ["cwd", "tmp"]


def test_two_runs_side_by_side_do_not_disturb_each_other(tlc, folder, started):
    both = [started("check", OTHER, BUG, "--json") for _ in range(2)]
    for process in both:
        code, out, err = result(process)
        assert (code, err) == (0, "")
        assert json.loads(out)["ok"]
    assert left_in(folder) == ["cwd", "tmp"]
