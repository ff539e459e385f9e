"""`kvtier validate`: what it prints, its exit codes, and how it fails."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner

from kvtier.cli import main
from tests.support import row_disk
from tests.support.span_builder import Life, export, export_line
from tests.support.span_stories import FOLDER, STORIES, hit

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED, INCOMPLETE = FOLDER / "accepted/hit.jsonl", FOLDER / "incomplete/open_in_flight.jsonl"
REJECTED = FOLDER / "rejected/two_questions.jsonl"

PATIENCE_S = 30


def run(*args: str | Path, stdin: bytes | None = None) -> tuple[int, str, str]:
    """In a process of its own: what a person sees."""
    process = subprocess.run(
        [sys.executable, "-m", "kvtier", "validate", *map(str, args)],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        check=False,
    )
    return process.returncode, process.stdout.decode(), process.stderr.decode()


def validated(*args: str | Path) -> tuple[int, str]:
    """In this process: quicker."""
    told = CliRunner().invoke(main, ["validate", *map(str, args)])
    assert told.exception is None or isinstance(told.exception, SystemExit)
    return told.exit_code, told.output


def as_json(*args: str | Path) -> tuple[int, dict[str, Any]]:
    code, out = validated(*args, "--json")
    found: dict[str, Any] = json.loads(out)
    assert found["schema"] == "kvtier.validate/1"
    return code, found


# -- verdicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.file)
def test_every_vector_has_its_exit_code(story: Any) -> None:
    path = FOLDER / story.file
    code, found = as_json(path)
    assert code == (1 if story.kind == "rejected" else 0)
    assert [found[name] for name in ("complete", "incomplete", "wrong")] == [
        story.complete,
        story.incomplete,
        story.wrong,
    ]
    assert found["probes"] == story.complete + story.incomplete + story.wrong
    requirements = {violation["requirement"] for violation in found["violations"]}
    assert requirements == ({story.requirement} if story.requirement else set())
    strict, _ = as_json(path, "--require-complete")
    assert strict == (0 if story.kind == "accepted" else 1)


def test_what_is_right() -> None:
    code, out, err = run(ACCEPTED)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "right: 1 of 1 complete, all as spec/lifecycle.md has it"


def test_what_is_incomplete_says_so_and_is_no_fault() -> None:
    code, out, err = run(INCOMPLETE)
    assert (code, err) == (0, "")
    assert "the end is not told (open)" in out
    assert out.splitlines()[-1] == (
        "incomplete: nothing that is told is wrong; what is not told is neither right nor wrong"
    )
    code, out, err = run(INCOMPLETE, "--require-complete")
    assert (code, err) == (1, "")
    assert out.splitlines()[-1].endswith(
        "neither right nor wrong; --require-complete makes that wrong"
    )
    assert as_json(INCOMPLETE)[1]["incomplete_because"] == {"open": 1}


def test_what_is_wrong_is_shown_with_its_history() -> None:
    code, out, err = run(REJECTED)
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[-1] == "wrong: 1 violation of spec/lifecycle.md"
    assert (
        f"L61 {REJECTED}:7: probe.in_flight: asked while the question of generation 1 was out"
        in (lines)
    )
    (second,) = (line for line in lines if line.split()[:3] == ["2", "6", "pending"])
    assert second.split() == ["2", "6", "pending", "send", "sent", "in_flight", "6"]


def test_json_has_the_span_and_the_shortest_history() -> None:
    _, found = as_json(FOLDER / "rejected/second_answer.jsonl")
    (violation,) = found["violations"]
    assert violation["requirement"] == "L61"
    file = str(FOLDER / "rejected/second_answer.jsonl")
    assert violation["span"]["name"] == "probe.resolved"
    assert (violation["span"]["file"], violation["span"]["line"]) == (file, 4)
    assert violation["history"] == [
        {
            "seq": 3,
            "phase.from": "in_flight",
            "trigger": "answer",
            "outcome": "miss",
            "phase.to": "resolved",
            "generation": 1,
            "file": file,
            "line": 3,
        },
        {
            "seq": 4,
            "phase.from": "resolved",
            "trigger": "answer",
            "outcome": "hit",
            "phase.to": "resolved",
            "generation": 1,
            "file": file,
            "line": 4,
        },
    ]


def test_a_short_answer_and_a_dead_worker_are_named() -> None:
    _, found = as_json(
        FOLDER / "rejected/short_answer.jsonl", FOLDER / "rejected/worker_died.jsonl"
    )
    # Both tell of the same probe, and of a call with the same id.
    assert found["repeats"] == 4
    assert {one["requirement"] for one in found["violations"]} == {"L106"}
    for name, requirement in (("short_answer", "L107"), ("worker_died", "L108")):
        code, out = validated(FOLDER / f"rejected/{name}.jsonl")
        assert code == 1
        assert f"{requirement} " in out
        assert ":5: lookup_batch 1:fs: " in out


def many_wrong(path: Path, count: int) -> Path:
    lives = [hit("aa", n, n * 10) for n in range(1, count + 1)]
    for life in lives:
        life.stays[0].attributes["probe.trigger"] = "sweep"
    path.write_text(export(span for life in lives for span in life.spans))
    return path


def test_only_the_first_violations_are_shown(tmp_path: Path) -> None:
    path = many_wrong(tmp_path / "a", 30)
    _, out = validated(path)
    assert out.count("\nL73 ") == 10
    assert "20 more: --limit N shows them" in out
    assert "wrong: 30 violations" in out
    assert validated(path, "--limit", "2")[1].count("\nL73 ") == 2
    assert validated(path, "--limit", "0")[1].count("\nL73 ") == 0
    assert len(as_json(path)[1]["violations"]) == 30
    _, found = as_json(path, "--limit", "3")
    assert ([one["span"]["line"] for one in found["violations"]], found["violation_count"]) == (
        [2, 6, 10],
        30,
    )


def test_what_was_not_judged_is_said(tmp_path: Path) -> None:
    foreign = {"traceId": "1", "spanId": "2", "startTimeUnixNano": 1, "endTimeUnixNano": 2}
    lives = [hit("aa", n, n * 10) for n in range(1, 14)]
    for life in lives[1:]:
        life.stays[2].without("probe.waiters")
    path = tmp_path / "a"
    text = export(span for life in lives for span in (*life.spans, life.probe))
    path.write_text(f"{export_line(foreign)}\n{text}{text[:100]}")
    code, out = validated(path)
    assert code == 0
    for told in (
        f"{path}: 1 spans of other libraries passed over",
        f"{path}: line 67 is cut off; what came before is judged",
        f"{path}:10: cannot be used: probe.resolved: has no kvtier.probe.waiters",
        f"{path}: 2 more spans cannot be used",
        "13 spans were exported more than once, unchanged",
    ):
        assert told in out.splitlines()


def test_lines_are_whole_however_long_a_path_is(tmp_path: Path) -> None:
    folder = tmp_path / ("f" * 120) / ("g" * 120)
    folder.mkdir(parents=True)
    path = many_wrong(folder / "a", 1)
    _, out, _ = run(path)
    says = "sweep does not lead from pending to in_flight as sent"
    assert f"L73 {path}:2: probe.pending: {says}" in out.splitlines()


def test_a_span_cannot_speak_to_the_terminal(tmp_path: Path) -> None:
    life = hit()
    life.stays[2].attributes["probe.outcome"] = "\x1b[2J\x9b31m"
    life.stays[1].name = "probe.in_flight \x1b]0;owned\x07"
    life.stays[1].without("probe.seq")
    path = tmp_path / "a"
    path.write_text(export(life.spans))
    _, out, _ = run(path)
    assert out.isascii()
    assert all(c.isprintable() or c == "\n" for c in out)
    assert "\\x1b[2J\\x9b31m" in out


def test_several_files_and_standard_input_are_one_export(tmp_path: Path) -> None:
    lines = ACCEPTED.read_bytes().splitlines(keepends=True)
    first = tmp_path / "first"
    first.write_bytes(gzip.compress(b"".join(lines[:2])))
    code, out, _ = run(first, "-", "--json", stdin=b"".join(lines[2:]))
    found = json.loads(out)
    assert (code, found["complete"], found["verdict"]) == (0, 1, "right")
    assert [file["name"] for file in found["files"]] == [str(first), "standard input"]


# -- bad input --------------------------------------------------------------------------------


def test_bad_input_is_one_line_and_exit_2(tmp_path: Path) -> None:
    bad = {
        "empty": (b"", "is empty"),
        "binary": (b"\x0a\x24\x0a\x22kvtier\x00", ":2: is not a JSON object"),
        "text": (b"hello\n", ":1: is not a JSON object"),
        "torn": (ACCEPTED.read_bytes() + b'{"a":\n' + ACCEPTED.read_bytes(), ":5: is not JSON"),
        "foreign": (b'{"resourceSpans":[]}\n', "has no kvtier spans"),
        "none": (None, "No such file"),
        ".": (None, "Is a directory"),
    }
    for name, (content, told) in bad.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        code, out = validated(path)
        assert code == 2, name
        assert out.count("\n") == 1
        assert out.startswith("kvtier: ")
        assert told in out, out
    code, out, err = run(tmp_path / "none")
    assert (code, out) == (2, "")
    assert err.startswith(f"kvtier: {tmp_path}/none: cannot be read: No such file")
    assert validated()[0] == 2
    assert validated(ACCEPTED, "--limit", "-1")[0] == 2


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row_disk.fill(monkeypatch)
    code, out = validated(many_wrong(tmp_path / "a", 600))
    assert code == 1
    assert "cannot keep the spans in a temporary file: database or disk is full" in out


def test_ctrl_c_ends_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvtier", "validate", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(ACCEPTED.read_bytes())
        process.stdin.flush()
        deadline = time.monotonic() + PATIENCE_S
        while unread(process.stdin) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert err.decode().strip() == "kvtier: interrupted"


def unread(pipe: IO[bytes]) -> int:
    """Bytes that nobody has taken out of it."""
    return int.from_bytes(ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_terminal_is_shown_how_far_it_is(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    lives = (Life("aa", n, n * 10).sent(n * 10 + 1) for n in range(1, 3000))
    path.write_text(export(span for life in lives for span in life.spans))
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kvtier", "validate", str(path)],
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=follower,
        cwd=ROOT,
    )
    os.close(follower)
    shown = io.BytesIO()
    try:
        while True:
            try:
                more = os.read(leader, 2**16)
            except OSError:  # the other side is closed
                break
            if not more:
                break
            shown.write(more)
        out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    assert process.returncode == 0
    assert b"reading spans.jsonl" in shown.getvalue()
    assert out.decode().splitlines()[-1].startswith("incomplete: ")


# -- a run of kvtier's own --------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [(), ("--concurrency", "8", "--faults", "probe_error=0.2,load_error=0.2,store_error=0.1")],
    ids=["plain", "faults"],
)
def test_a_replay_is_right_and_complete(options: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    replayed = CliRunner().invoke(
        main, ["replay", "--limit", "60", *options, "--spans", str(path), "--json"]
    )
    assert replayed.exit_code == 0, replayed.output
    code, found = as_json(path, "--require-complete")
    assert (code, found["verdict"]) == (0, "right"), found
    others = f"jobs, passes, requests {found['others']:,}"
    assert others in " ".join(validated(path)[1].split())
    assert found["probes"] > 100


def test_every_field_is_in_the_documentation() -> None:
    _, found = as_json(FOLDER / "rejected/second_answer.jsonl")
    (violation,) = found["violations"]
    fields = {*found, *violation, *violation["span"], *violation["history"][0], *found["files"][0]}
    text = (ROOT / "docs" / "telemetry.md").read_text().split("With `--json`", 1)[1]
    told = set(re.findall(r"`(?:violations\[\])?\.?([a-z_.]+)(?:\[\])?`", text.split("\n\n")[1]))
    assert fields <= told


def test_help_says_what_the_verdicts_and_exit_codes_are() -> None:
    code, out = validated("--help")
    assert code == 0
    for told in ("Examples:", "complete ", "incomplete ", "wrong ", "Exit codes: 0", "130"):
        assert told in out
    assert "kvtier validate" in CliRunner().invoke(main, []).output
