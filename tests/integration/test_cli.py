"""The command `kvtier replay`: what it prints, how it fails, and what it leaves behind."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import kvtier
from kvtier.cli import main

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["replay", "--limit", "12", "--tier", "memory", "--block-bytes", "64"]
GOOD = '{"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [0, 1]}\n'

FIELDS = """schema requests blocks lookups probes_issued probes_joined backend_calls hits misses
deferrals promotions stores probes_resolved probes_abandoned probes_closed answers_discarded
unclaimed lookup_errors bytes_verified mismatches leaks peak steps wall_s"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """An empty working directory, with an empty directory for temporary files beside it."""
    for name in ("cwd", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def kvtier_command(*args: str, **extra) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kvtier", *args],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | extra.pop("env", {}),
        stdout=extra.pop("stdout", subprocess.PIPE),
        stderr=extra.pop("stderr", subprocess.PIPE),
        text=True,
        **extra,
    )


def result(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=50)
    finally:
        process.kill()
    return process.returncode, out, err


def invoke(*args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, args)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# -- what it prints ------------------------------------------------------------------------


def test_json_is_one_object_with_every_field(folder):
    code, out, err = invoke(*QUICK, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(FIELDS.split()) <= found.keys()
    assert found["schema"] == "kvtier.replay/1"
    assert set(found["hits"]) == {"0:primary", "1:memory"}
    jobs = {"submitted", "ok", "partial", "failed", "raised", "open"}
    assert set(found["promotions"]) == jobs | {"no_room"}
    assert set(found["stores"]) == jobs | {"skipped"}
    assert found["leaks"] == {"lookup_entries": 0, "pins": 0, "jobs": 0, "requests": 0}
    assert set(found["peak"]) == {"lookup_entries", "probes_out"}
    assert set(found["deferrals"]) == {"probe", "promotion", "store"}
    assert {"absent", "no_room", "beyond"} < set(found["misses"])
    assert found["violations"] == []
    assert files(folder) == ["cwd", "tmp"]


def test_the_summary_says_what_matters(folder):
    code, out, err = invoke(*QUICK)
    assert (code, err) == (0, "")
    for words in (
        "pydoc_data.topics: 12 requests",
        "0:primary",
        "1:memory",
        "shared with another request",
        "promotions",
        "stores",
        "right: ",
        "no mismatch, no leak, all counts add up",
    ):
        assert words in out
    assert "\x1b" not in out


def test_the_default_tier_is_on_disk_and_gone_afterwards(folder):
    code, out, _ = invoke("replay", "--limit", "5", "--json")
    assert code == 0
    assert set(json.loads(out)["hits"]) == {"0:primary", "1:fs"}
    assert files(folder) == ["cwd", "tmp"]


def test_options_reach_the_replay(folder):
    Path("trace.jsonl").write_text(GOOD * 3)
    tiers = ["--tier", "memory", "--tier", "fs:kv"]
    more = ["--groups", "--policy", "arc", "--concurrency", "2", "--slow-backend", "1"]
    faults = ["--faults", "store_error=1", "--deadline-ms", "5000", "--seed", "-4"]
    code, out, _ = invoke("replay", "trace.jsonl", *tiers, *more, *faults, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["workload"], found["requests"], found["blocks"]) == ("trace.jsonl", 3, 6)
    assert list(found["hits"]) == ["0:primary", "1:memory", "2:fs"]
    assert found["stores"]["failed"] == found["stores"]["submitted"] > 0
    assert Path("kv").is_dir()


def test_a_directory_of_texts_is_a_workload(folder):
    Path("texts").mkdir()
    Path("texts/a.md").write_text("kvtier " * 500)
    code, out, _ = invoke("replay", "texts", "--tier", "memory", "--json")
    assert code == 0
    assert json.loads(out)["requests"] > 1


def test_the_log_has_one_json_line_for_each_transition(folder):
    code, out, _ = invoke(*QUICK, "--log", "probes.log", "--json")
    assert code == 0
    lines = [json.loads(line) for line in Path("probes.log").read_text().splitlines()]
    names = {line["event"] for line in lines}
    assert names == {"probe", "probe.pending", "probe.in_flight", "probe.resolved"}
    born = [line for line in lines if line["outcome"] == "asked"]
    assert len(born) == json.loads(out)["probes_issued"]


def test_a_log_that_was_there_is_replaced(folder):
    Path("probes.log").write_text("old\n" * 10_000)
    assert invoke(*QUICK, "--log", "probes.log")[0] == 0
    assert "old" not in Path("probes.log").read_text()


def test_what_goes_wrong_with_a_back_end_is_in_the_log_and_not_on_standard_output(folder):
    faulty = ["--faults", "store_error=0.5", "--json"]
    for log in ([], ["--log", "probes.log"]):
        code, out, err = invoke(*QUICK, *faulty, *log)
        assert (code, err) == (0, "")
        assert json.loads(out)["stores"]["partial"] > 0
    assert '"event": "cascade_failed"' in Path("probes.log").read_text()


@pytest.mark.parametrize("args", [["--help"], ["-h"], []])
def test_help_says_where_to_begin(args):
    code, out, _ = invoke(*args)
    assert code == 0
    assert "kvtier replay" in out


def test_help_of_replay_has_every_option_and_examples():
    code, out, _ = invoke("replay", "--help")
    assert code == 0
    options = """host-blocks block-bytes policy tier groups concurrency slow-backend faults
        deadline-ms limit seed log json"""
    for option in options.split():
        assert f"--{option} " in out
    assert out.count("kvtier replay") > 4
    assert "Exit codes" in out


def test_the_version_is_the_packages():
    assert invoke("--version")[:2] == (0, f"kvtier {kvtier.__version__}\n")


# -- bad input -----------------------------------------------------------------------------

BAD = {
    "no such file": (["nowhere.jsonl"], r"nowhere\.jsonl: cannot be read: No such file"),
    "an empty file": (["empty"], r"empty: holds no request; expected one JSON object per line"),
    "an empty directory": (["folder"], r"folder: holds no whole block of text"),
    "a binary file": (["binary"], r"binary:1: not UTF-8 text; expected one JSON object"),
    "a malformed line": (["half.jsonl"], r"half\.jsonl:2: not JSON: .*; expected one JSON object"),
    "a wrong type": (["type.jsonl"], r"type\.jsonl:1: input_length is \"900\"; expected"),
    "a negative": (["negative.jsonl"], r"negative\.jsonl:1: timestamp is -1; expected"),
    "NaN": (["nan.jsonl"], r"nan\.jsonl:1: not JSON: NaN is no JSON number"),
    "a repeated block": (["twice.jsonl"], r"twice\.jsonl:1: hash_ids has 1 twice; expected"),
    "a name with a line break": (["no\nsuch"], r"no such: cannot be read"),
    "a name with an escape": (["\x1b[2J"], r"\\x1b\[2J: cannot be read"),
    "no blocks": (["--host-blocks", "0"], r"'--host-blocks': 0 is not in the range x>=1"),
    "negative blocks": (["--host-blocks=-5"], r"'--host-blocks': -5 is not in the range"),
    "half a block": (["--host-blocks", "1.5"], r"'--host-blocks': '1\.5' is not a valid int"),
    "no bytes": (["--block-bytes", "0"], r"'--block-bytes': 0 is not in the range"),
    "more than there is": (["--host-blocks", "9" * 18], r"no memory for \d+ bytes; expected"),
    "more than a number": (["--host-blocks", "9" * 30], r"no memory for \d+ bytes; expected"),
    "no concurrency": (["--concurrency", "0"], r"'--concurrency': 0 is not in the range"),
    "a policy": (["--policy", "mru"], r"'--policy': 'mru' is not one of 'lru', 'arc'"),
    "a tier": (["--tier", "tape:0"], r"tier 'tape:0': there is no tier 'tape'; expected one of"),
    "a tier after a good one": (["--tier", "fs:new", "--tier", "tape"], r"there is no tier 'tape'"),
    "an argument of a tier": (["--tier", "fs:new", "--tier", "memory:9"], r"no argument"),
    "no directory": (["--tier", "fs:"], r"tier 'fs': no directory is named"),
    "a file as directory": (["--tier", "fs:empty"], r"empty: cannot be used: .*; expected a dir"),
    "below a file": (["--tier", "fs:new", "--tier", "fs:empty/kv"], r"empty/kv: cannot be used"),
    "too long a name": (["--tier", "fs:" + "x" * 300], r"cannot be used: File name too long"),
    "a negative delay": (["--slow-backend", "-1"], r"'--slow-backend': -1\.0 is not in the range"),
    "a delay of NaN": (["--slow-backend", "nan"], r"'--slow-backend': nan is not a finite number"),
    "no deadline": (["--deadline-ms", "0"], r"'--deadline-ms': 0\.0 is not in the range x>0"),
    "an endless deadline": (["--deadline-ms", "inf"], r"'--deadline-ms': inf is not a finite"),
    "a fault": (["--faults", "rot=1"], r"faults 'rot=1': there is no fault 'rot'; expected KIND"),
    "a rate": (["--faults", "corrupt=2"], r"the rate of corrupt is '2'; expected a number from 0"),
    "no requests": (["--limit", "0"], r"'--limit': 0 is not in the range"),
    "a seed": (["--seed", "x"], r"'--seed': 'x' is not a valid integer"),
    "a log nowhere": (["--log", "no/log"], r"no/log: cannot be written: No such file"),
    "a directory as log": (["--log", "folder"], r"folder: cannot be written: Is a directory"),
    "a log of a run that cannot be": (["--log", "log", "--tier", "tape"], r"no tier 'tape'"),
    "an option": (["--turbo"], r"No such option '?--turbo"),
    "two traces": (["empty", "binary"], r"unexpected extra argument"),
}


@pytest.fixture
def bad_files(folder) -> None:
    Path("folder").mkdir()
    for name, content in {
        "empty": b"",
        "binary": bytes(range(128, 256)) * 20,
        "half.jsonl": (GOOD + GOOD[:40]).encode(),
        "type.jsonl": GOOD.replace("900", '"900"').encode(),
        "negative.jsonl": GOOD.replace(": 0,", ": -1,", 1).encode(),
        "nan.jsonl": GOOD.replace("900", "NaN").encode(),
        "twice.jsonl": GOOD.replace("[0, 1]", "[1, 1]").encode(),
    }.items():
        Path(name).write_bytes(content)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line_and_nothing_is_left_behind(name, folder, bad_files):
    args, message = BAD[name]
    before = files(folder)
    code, out, err = invoke("replay", *args)
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"kvtier: .*{message}.*\n", err), err
    assert files(folder) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("args", [["--tier", "fs:locked/kv"], ["--log", "locked/log"], ["locked"]])
def test_a_locked_directory_is_bad_input(args, folder):
    Path("locked").mkdir(mode=0)
    code, out, err = invoke("replay", *args)
    assert (code, out) == (2, "")
    assert "Permission denied" in err


@pytest.mark.parametrize(
    "args", [["nowhere.jsonl"], ["--host-blocks", "0"], ["--tier", "fs:new", "--tier", "tape"]]
)
def test_bad_input_of_the_real_program(args, folder):
    code, out, err = result(kvtier_command("replay", *args))
    assert (code, out) == (2, "")
    assert err.startswith("kvtier: ")
    assert err.count("\n") == 1
    assert files(folder) == ["cwd", "tmp"]


def test_a_log_that_was_there_survives_bad_input(folder):
    Path("log").write_text("precious")
    assert invoke("replay", "--log", "log", "--tier", "tape")[0] == 2
    assert Path("log").read_text() == "precious"


def test_an_unknown_command_is_one_line():
    code, out, err = invoke("reply")
    assert (code, out) == (2, "")
    assert err.startswith("kvtier: No such command 'reply'")
    assert err.count("\n") == 1


# -- bad luck ------------------------------------------------------------------------------

LYING_TIER = '''
from kvtier.tiers.base import SecondaryTierManager
from kvtier.tiers.memory import MemoryStore


class Lying(SecondaryTierManager):
    """Memory, but the first byte of what it has loaded and verified is altered afterwards."""

    tier_type = "lying"

    def __init__(self, setup):
        self._inner, self._view, self._loads = setup.tier(MemoryStore(), "memory"), setup.view, {}

    def submit_load(self, job):
        self._loads[job.job_id] = job
        self._inner.submit_load(job)

    def get_finished_jobs(self):
        for report in self._inner.get_finished_jobs():
            if report.job_id in self._loads:
                self._view.slot(self._loads.pop(report.job_id).slots[0])[0] ^= 1
            yield report

    def lookup(self, key, req_context): return self._inner.lookup(key, req_context)
    def submit_store(self, job): self._inner.submit_store(job)
    def release_lookups(self, ctx): self._inner.release_lookups(ctx)
    def on_request_finished(self, ctx): self._inner.on_request_finished(ctx)
    def on_schedule_end(self): self._inner.on_schedule_end()
    def has_pending_work(self): return self._inner.has_pending_work()
    def shutdown(self, timeout=5.0): self._inner.shutdown(timeout)


def from_spec(arg, setup):
    return Lying(setup)
'''


def install(folder: Path, name: str, code: str) -> str:
    """A path on which a package brings the tier `name`, as somebody else's would."""
    site = folder / "site"
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[kvtier.tiers]\n{name} = {name}:from_spec\n")
    (site / f"{name}.py").write_text(code)
    return os.pathsep.join([str(site), str(ROOT)])


def test_a_tier_that_alters_blocks_after_verification_is_caught(folder):
    path = install(folder, "lying", LYING_TIER)
    args = ["replay", "--tier", "lying", "--host-blocks", "200", "--block-bytes", "64"]
    for as_json in ([], ["--json"]):
        code, out, err = result(kvtier_command(*args, *as_json, env={"PYTHONPATH": path}))
        assert code == 1
        assert err.startswith("kvtier: broken law: ")
        assert "blocks read back were not what was stored (first: request " in err
    assert json.loads(out)["mismatches"] > 0
    assert json.loads(out)["violations"]


RAISING_TIER = """
from kvtier.tiers.base import SecondaryTierManager


class Raising(SecondaryTierManager):
    tier_type = "raising"

    def lookup(self, key, req_context):
        raise RuntimeError("out of order")

    submit_load = submit_store = get_finished_jobs = lookup


def from_spec(arg, setup):
    return Raising()
"""


def test_a_tier_that_raises_is_said_once_for_each_kind_of_call(folder):
    path = install(folder, "raising", RAISING_TIER)
    args = ["replay", "--tier", "raising", "--limit", "20", "--json"]
    code, out, err = result(kvtier_command(*args, env={"PYTHONPATH": path}))
    assert code == 0
    assert json.loads(out)["tier_errors"] > 20
    assert sorted(json.loads(line)["call"] for line in err.splitlines()) == [
        "get_finished_jobs",
        "lookup",
        "submit_store",
    ]


def test_a_disk_that_takes_no_more_means_failed_stores_and_a_right_run(folder):
    """No file may grow beyond 4096 bytes, so no block of 8192 fits, and some of 3000 do."""
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
    program = limit + "from kvtier.cli import main; main(sys.argv[1:])"
    for size in ("8192", "3000"):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                program,
                "replay",
                "--limit=40",
                "--json",
                "--block-bytes",
                size,
            ],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=50,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        assert found["mismatches"] == 0
        full = size == "8192"
        assert (found["stores"]["failed"] == found["stores"]["submitted"]) == full
        assert (found["stores"]["ok"] == 0) == full
        assert set(found["failed_blocks"]["1:fs"]) == ({"OSError"} if full else set())
    assert files(folder) == ["cwd", "tmp"]


def test_a_directory_that_vanishes_during_the_run_is_survived(folder):
    script = """
import pathlib, shutil, threading, time
from kvtier.cli import main

def remove():
    while not any(pathlib.Path("kv").rglob("*.kv")):
        time.sleep(0.01)
    shutil.rmtree("kv", ignore_errors=True)

threading.Thread(target=remove, daemon=True).start()
main(["replay", "--tier", "fs:kv", "--host-blocks", "150", "--json"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=50,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["mismatches"] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_summary_that_cannot_be_written_is_said(folder):
    with open("/dev/full", "w") as full:
        code, _, err = result(kvtier_command(*QUICK, "--json", stdout=full))
    assert code == 1
    assert "No space left" in err
    assert "Traceback" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_that_cannot_be_written_is_said(folder):
    code, out, err = result(kvtier_command(*QUICK, "--json", "--log", "/dev/full"))
    assert code == 1
    assert "/dev/full: cannot be written: No space left" in err
    assert "Traceback" not in err
    assert json.loads(out)["violations"] == []


# -- interruptions -------------------------------------------------------------------------


def interrupted(folder: Path, number: int, *args: str) -> tuple[int, str, str]:
    """The command, sent a signal once it has stored some blocks."""
    process = kvtier_command("replay", "--slow-backend", "20", *args)
    until = time.monotonic() + 30
    while not list((folder / "tmp").rglob("*.kv")) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(number)
    return result(process)


def test_control_c_gives_the_summary_so_far_and_leaves_nothing_behind(folder):
    code, out, err = interrupted(folder, signal.SIGINT)
    assert (code, err) == (130, "")
    assert out.startswith("interrupted: pydoc_data.topics: ")
    assert "right: " in out
    assert files(folder) == ["cwd", "tmp"]


def test_control_c_gives_the_json_so_far(folder):
    code, out, err = interrupted(folder, signal.SIGINT, "--json", "--concurrency", "8")
    assert (code, err) == (130, "")
    found = json.loads(out)
    assert found["interrupted"] is True
    assert 0 < found["requests"] < 600
    assert found["blocks"] == sum(found["hits"].values()) + sum(found["misses"].values())
    assert files(folder) == ["cwd", "tmp"]


def test_being_terminated_is_like_control_c_with_its_own_code(folder):
    code, out, _ = interrupted(folder, signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert out.startswith("interrupted: ")
    assert files(folder) == ["cwd", "tmp"]


def test_control_c_does_not_wait_for_a_back_end_that_hangs(folder):
    process = kvtier_command("replay", "--slow-backend", "600000")
    until = time.monotonic() + 30
    while not list((folder / "tmp").rglob("namespace.json")) and time.monotonic() < until:
        time.sleep(0.02)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, out, _ = result(process)
    assert time.monotonic() - began < 20
    assert code == 130
    assert out.startswith("interrupted: ")
    assert files(folder) == ["cwd", "tmp"]


# -- terminals -----------------------------------------------------------------------------


def on_a_terminal(stream: str, *args: str, **env: str) -> tuple[str, str]:
    """What the command shows on the terminal that `stream` is, and writes to the other stream."""
    ours, theirs = pty.openpty()
    settings = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": "100"} | env
    process = kvtier_command(*args, env=settings, **{stream: theirs})
    os.close(theirs)
    shown = b""
    until = time.monotonic() + 40
    while time.monotonic() < until and select.select([ours], [], [], 40)[0]:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    code, out, err = result(process)
    assert code == 0
    return shown.decode(), out or err or ""


def test_a_terminal_shows_progress_and_standard_output_stays_clean(folder):
    shown, out = on_a_terminal("stderr", *QUICK, "--json")
    assert "replaying" in shown
    assert json.loads(out)["requests"] == 12


COLOURS = re.compile(r"\x1b\[[0-9;]*3[0-7]")


def test_a_summary_on_a_terminal_has_colours_unless_they_are_not_wanted(folder):
    assert COLOURS.search(on_a_terminal("stdout", *QUICK)[0])
    assert not COLOURS.search(on_a_terminal("stdout", *QUICK, NO_COLOR="1")[0])
