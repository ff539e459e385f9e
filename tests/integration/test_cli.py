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
from collections.abc import Sequence
from contextlib import suppress
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
        [sys.executable, *extra.pop("program", ["-m", "kvtier"]), *args],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | extra.pop("env", {}),
        stdout=extra.pop("stdout", subprocess.PIPE),
        stderr=extra.pop("stderr", subprocess.PIPE),
        text=True,
        **extra,
    )


def altered(code: str) -> list[str]:
    """Arguments of Python for the program `kvtier`, after `code` has altered it."""
    return ["-c", f"{code}\nfrom kvtier.__main__ import main; main()"]


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
        deadline-ms limit seed log spans otlp json"""
    for option in options.split():
        assert f"--{option} " in out
    assert out.count("kvtier replay") > 4
    assert "3 --spans or --otlp without the extra otlp" in " ".join(out.split())


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
    "half a block": (["--host-blocks", "1.5"], r"'--host-blocks': '1\.5' is not a valid whole"),
    "no number of blocks": (["--host-blocks", "nan"], r"'nan' is not a valid whole number"),
    "no name": ([""], r"'\[TRACE\]': it is empty: name a file or a directory"),
    "a log without a name": (["--log", ""], r"'--log': it is empty: name a file"),
    "a tier without a name": (["--tier", ""], r"there is no tier ''"),
    "a home of nobody": (["--tier", "fs:~nosuchuser/x"], r"tier 'fs:~nosuchuser/x': Could not"),
    "a home of nobody, later": (["--tier", "fs:new", "--tier", "fs:~nosuchuser"], r"Could not"),
    "a number too long": (["long.jsonl"], r"long\.jsonl:1: timestamp is 9+\.\.\.; expected"),
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
    "a delay for ever": (
        ["--slow-backend", "1e300"],
        r"1e\+300 is not in the range 0<=x<=86400000",
    ),
    "a delay beyond a day": (["--slow-backend", "86400001"], r"is not in the range 0<=x<=86400000"),
    "a deadline beyond a day": (["--deadline-ms", "1e300"], r"is not in the range 0<x<=86400000"),
    "a deadline of NaN": (["--deadline-ms", "nan"], r"'--deadline-ms': nan is not a finite number"),
    "a delay of NaN": (["--slow-backend", "nan"], r"'--slow-backend': nan is not a finite number"),
    "no deadline": (["--deadline-ms", "0"], r"'--deadline-ms': 0\.0 is not in the range 0<x<="),
    "an endless deadline": (["--deadline-ms", "inf"], r"'--deadline-ms': inf is not in the range"),
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
        "long.jsonl": GOOD.replace(": 0,", f": {'9' * 401},", 1).encode(),
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


def test_a_limit_beyond_any_number_of_requests_is_none(folder):
    args = ["replay", "--tier", "memory", "--block-bytes", "8", "--json"]
    assert json.loads(invoke(*args, "--limit", "9" * 20)[1])["requests"] > 100


@pytest.mark.parametrize(
    "log",
    [
        "texts/a.md",
        "./texts/../texts/a.md",
        "link",
        "hard",
        "texts/new",
        "folder/new",
        "folder/a.md",
    ],
)
@pytest.mark.parametrize("trace", ["texts", "folder", "texts/a.md", "link", "hard"])
def test_a_log_that_would_destroy_the_workload_is_refused(folder, trace, log):
    """By whatever name; a new file is refused only in a directory that is read."""
    Path("texts").mkdir()
    text = (GOOD * 20).encode()
    Path("texts/a.md").write_bytes(text)
    Path("link").symlink_to("texts/a.md")
    Path("hard").hardlink_to("texts/a.md")
    Path("folder").symlink_to("texts")
    before = files(folder)
    code, out, err = invoke("replay", trace, "--tier", "memory", "--log", log)
    if log.endswith("new") and trace not in ("texts", "folder"):
        assert code == 0
        return
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"kvtier: .*: belongs to the workload {trace}; expected .*\n", err)
    assert Path("texts/a.md").read_bytes() == text
    assert files(folder) == before


def test_a_log_that_would_destroy_what_comes_on_standard_input_is_refused(folder):
    Path("trace").write_text(GOOD)
    with open("trace") as trace:
        process = kvtier_command("replay", "/dev/stdin", "--log", "trace", stdin=trace)
        code, out, err = result(process)
    assert (code, out) == (2, "")
    assert "belongs to the workload" in err
    assert Path("trace").read_text() == GOOD


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def from_spec(:", "broken:from_spec cannot be imported: SyntaxError: "),
        ("import sys; sys.exit(7)", "broken:from_spec cannot be imported: SystemExit: 7"),
        ("def from_spec(arg, setup): int(arg)", "broken:from_spec failed: ValueError: invalid"),
        ("def from_spec(arg, setup): exit(9)", "broken:from_spec failed: SystemExit: 9"),
    ],
)
def test_a_tier_of_somebody_else_that_is_broken_is_bad_input(folder, code, told):
    path = install(folder, "broken", code)
    args = ["replay", "--tier", "fs:new", "--tier", "broken:x"]
    code, out, err = result(kvtier_command(*args, env={"PYTHONPATH": path}))
    assert (code, out) == (2, "")
    assert err.startswith(f"kvtier: tier 'broken:x': {told}")
    assert err.count("\n") == 1
    assert not Path("new").exists()


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
        assert set(found["failed_blocks"]["1:fs"]) == ({"OSError EFBIG"} if full else set())
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


def in_a_shell(line: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {line}', "sh", sys.executable, "-m", "kvtier", *args]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=50)


@pytest.mark.parametrize("line", ["2>&-", "<&- 2>&-"])
def test_standard_error_may_be_closed(folder, line):
    done = in_a_shell(line, *QUICK, "--json", "--log", "log", "--faults", "store_error=1")
    assert done.returncode == 0
    assert json.loads(done.stdout)["requests"] == 12
    assert all(json.loads(line) for line in Path("log").read_text().splitlines())
    assert in_a_shell(line, *QUICK, "--faults", "store_error=1").returncode == 0
    assert in_a_shell(line, "replay", "nowhere").returncode == 2


@pytest.mark.parametrize(
    "args", [QUICK, [*QUICK, "--json"], ["replay", "--limit=3"], ["--version"], ["--help"]]
)
def test_a_result_that_nobody_can_get_is_said(folder, args):
    done = in_a_shell(">&-", *args)
    assert done.returncode == 1
    assert done.stderr == "kvtier: cannot write the result: standard output is closed\n"
    assert in_a_shell(">&- 2>&-", *args).returncode == 1
    assert files(folder) == ["cwd", "tmp"]


def test_a_reader_that_goes_away_leaves_no_files_behind(folder):
    process = kvtier_command("replay", "--limit", "20", "--json")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    code, _, err = result(process)
    assert code == 1
    assert err == ""  # as it is with pipes
    assert files(folder) == ["cwd", "tmp"]


# -- interruptions -------------------------------------------------------------------------

SLOW_REMOVAL = """
import time
from kvtier.replay import machine
remove = machine.remove_folder
machine.remove_folder = lambda folder: (time.sleep(2.5), remove(folder))
"""


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


def test_a_terminal_that_goes_away_is_like_control_c_with_its_own_code(folder):
    code, out, _ = interrupted(folder, signal.SIGHUP, "--json")
    assert code == 128 + signal.SIGHUP
    assert json.loads(out)["interrupted"]
    assert files(folder) == ["cwd", "tmp"]


def test_a_run_that_is_to_outlive_its_terminal_does(folder):
    args = ["replay", "--limit", "30", "--slow-backend", "20", "--json"]
    process = kvtier_command(*args, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for(lambda: list((folder / "tmp").rglob("*.kv")))
    process.send_signal(signal.SIGHUP)
    code, out, _ = result(process)
    assert code == 0
    assert json.loads(out)["requests"] == 30


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.05])
@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGINT),
        (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM, signal.SIGINT),
    ],
)
def test_further_signals_lose_neither_the_summary_nor_the_files(folder, numbers, pause):
    """The first decides the exit code. Two of a kind may reach the process as one."""
    process = kvtier_command("replay", "--slow-backend", "20", "--json")
    wait_for(lambda: list((folder / "tmp").rglob("*.kv")))
    for number in numbers:
        process.send_signal(number)
        time.sleep(pause)
    code, out, err = result(process)
    assert code == 128 + (numbers[0] if pause else code - 128)
    assert code - 128 in numbers
    assert err == ""
    assert json.loads(out)["interrupted"]
    assert json.loads(out)["violations"] == []
    assert files(folder) == ["cwd", "tmp"]


def wait_for(condition) -> None:
    until = time.monotonic() + 30
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def first_object(process: subprocess.Popen[str]) -> dict[str, object]:
    """The JSON object that comes first, while the process goes on."""
    assert process.stdout is not None
    text = ""
    while not text.endswith("\n}\n"):
        line = process.stdout.readline()
        assert line, text
        text += line
    found: dict[str, object] = json.loads(text)
    return found


def test_the_report_of_a_finished_run_comes_before_the_removal_which_no_signal_disturbs(folder):
    process = kvtier_command(
        "replay", "--limit", "20", "--json", program=altered(SLOW_REMOVAL), bufsize=1
    )
    found = first_object(process)
    assert list((folder / "tmp").rglob("*.kv")) != []
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        process.send_signal(number)
        time.sleep(0.05)
    assert process.poll() is None
    code, out, err = result(process)
    assert (code, out, err) == (0, "", "")
    assert (found["interrupted"], found["requests"]) == (False, 20)
    assert files(folder) == ["cwd", "tmp"]


def test_no_signal_disturbs_the_removal_after_an_interrupted_run(folder):
    process = kvtier_command(
        "replay", "--slow-backend", "20", "--json", program=altered(SLOW_REMOVAL), bufsize=1
    )
    wait_for(lambda: list((folder / "tmp").rglob("*.kv")))
    process.send_signal(signal.SIGTERM)
    found = first_object(process)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(0.05)
    code, out, err = result(process)
    assert (code, out, err) == (128 + signal.SIGTERM, "", "")
    assert found["interrupted"]
    assert files(folder) == ["cwd", "tmp"]


def test_a_signal_that_comes_when_all_has_run_does_not_change_the_exit_code(folder):
    """Between the last step and the end of the process, a signal at every moment there is."""
    at_shutdown = """
import os, signal
from kvtier.tiering import TieringOffloadingManager as manager
shutdown = manager.shutdown
def late(self, timeout=5.0):
    os.kill(os.getpid(), signal.SIGINT)
    shutdown(self, timeout)
manager.shutdown = late
"""
    after_the_command = """
import os, signal, sys
leave = sys.exit
def late(code=0):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    leave(code)
sys.exit = late
"""
    for moment in (at_shutdown, after_the_command):
        process = kvtier_command("replay", "--limit", "5", "--json", program=altered(moment))
        code, out, err = result(process)
        assert (code, err) == (0, "")
        assert json.loads(out)["interrupted"] is False
    assert files(folder) == ["cwd", "tmp"]


def test_a_result_that_nobody_takes_can_be_given_up(folder):
    """A pipe that is full and not read: a signal that comes after some seconds ends the wait."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    code = "import kvtier.cli.signals as s; s._HUNG = 0.5"
    process = kvtier_command("replay", "--limit", "5", program=altered(code), stdout=writing)
    wait_for(lambda: list((folder / "tmp").rglob("*.kv")))
    until = time.monotonic() + 40
    while process.poll() is None and time.monotonic() < until:
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    os.close(reading)
    os.close(writing)
    assert process.poll() == 130
    assert result(process)[2] == "kvtier: interrupted\n"
    assert files(folder) == ["cwd", "tmp"]


def test_a_log_that_nobody_reads_can_be_given_up(folder):
    """A pipe as log: what is said goes to a reader that has stopped reading."""
    os.mkfifo("log")
    code = "import kvtier.cli.signals as s; s._HUNG = 0.5"
    args = ["replay", "--log", "log", "--json"]
    process = kvtier_command(*args, program=altered(code))
    with open("log", "rb"):
        wait_for(lambda: list((folder / "tmp").rglob("*.kv")))
        until = time.monotonic() + 40
        while process.poll() is None and time.monotonic() < until:
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
    assert process.poll() == 130
    assert "Traceback" not in result(process)[2]
    assert files(folder) == ["cwd", "cwd/log", "tmp"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_python_still_imports_is_one_line(folder, number):
    (folder / "slow").mkdir()
    code = "import time; print('importing', flush=True); time.sleep(30)"
    (folder / "slow" / "click.py").write_text(code)
    path = os.pathsep.join([str(folder / "slow"), str(ROOT)])
    process = kvtier_command("replay", env={"PYTHONPATH": path})
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    assert result(process) == (128 + number, "", "kvtier: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_trace_is_read_is_one_line(folder, number):
    os.mkfifo("trace")
    process = kvtier_command("replay", "trace", "--log", "log")
    with open("trace", "w") as trace:  # waits until it is read
        trace.write(GOOD * 10)
        trace.flush()
        time.sleep(0.2)
        process.send_signal(number)
        assert result(process) == (128 + number, "", "kvtier: interrupted\n")
    assert files(folder) == ["cwd", "cwd/trace", "tmp"]


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


def on_a_terminal(
    stream: str, *args: str, program: Sequence[str] = ("-m", "kvtier"), **env: str
) -> tuple[str, str]:
    """What the command shows on the terminal that `stream` is, and writes to the other stream."""
    ours, theirs = pty.openpty()
    settings = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": "100"} | env
    process = kvtier_command(*args, env=settings, program=program, **{stream: theirs})
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


def test_a_removal_that_takes_long_is_said_on_a_terminal(folder):
    args = ["replay", "--limit", "3", "--json"]
    shown, out = on_a_terminal("stderr", *args, program=altered(SLOW_REMOVAL))
    assert "kvtier: removing temporary files ..." in shown
    assert json.loads(out)["requests"] == 3
    assert "removing" not in on_a_terminal("stderr", *args)[0]


@pytest.mark.parametrize("columns", [1, 7, 20, 40, 60, 100])
def test_no_figure_is_cut_however_narrow_the_terminal(folder, columns, monkeypatch):
    args = [*QUICK, "--faults", "store_error=0.2", "--groups", "--seed", "3"]
    monkeypatch.setenv("COLUMNS", "300")
    wide = invoke(*args)[1]
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = invoke(*args)[1]

    def figures(text: str) -> list[str]:
        """All of them but seconds, and passes deferred, which vary."""
        text = " ".join(text.split())
        text = re.sub(r"in [\d.]+ s|because of( (probe|promotion|store) \d+)+", "", text)
        return sorted(re.findall(r"[\d,.]*\d", text))

    assert figures(narrow) == figures(wide)
    assert "…" not in narrow
    assert "\u2026" not in narrow
    longest = max(map(len, narrow.split()))
    assert max(map(len, narrow.splitlines())) <= max(columns, longest)
