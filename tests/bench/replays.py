"""`kvtier replay` of a long public trace, beside the files it cannot do without."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtier.replay.machine import remove_folder
from tests.bench.measure import Result, Spread

__all__ = ["TRACE", "replay_results"]

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT.parent / "shared" / "traces" / "mooncake_conversation_first1900k.jsonl"

HOST_BLOCKS = 5000
BLOCK_BYTES = 8192
SECONDS_BOUND = 60.0
MEGABYTES_BOUND = 600.0


@dataclass(frozen=True, slots=True)
class Run:
    """What a process took."""

    seconds: float
    cpu: float
    megabytes: float
    """Most memory that it had at once."""
    output: str

    @classmethod
    def of(cls, *arguments: str | Path) -> Run:
        """`python ARGUMENTS` from the top of the checkout. Raises `RuntimeError` if it fails."""
        with tempfile.TemporaryFile() as out:
            began = time.perf_counter()
            process = os.posix_spawn(
                sys.executable,
                [sys.executable, *map(str, arguments)],
                {**os.environ, "PYTHONPATH": str(ROOT)},
                file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1)],
            )
            _, status, usage = os.wait4(process, 0)
            seconds = time.perf_counter() - began
            out.seek(0)
            output = out.read().decode()
        if status:
            code = os.waitstatus_to_exitcode(status)
            raise RuntimeError(f"{' '.join(map(str, arguments))}: exit code {code}")
        rss_unit = 1 if sys.platform == "darwin" else 1024
        megabytes = usage.ru_maxrss * rss_unit / 1e6
        return cls(seconds, usage.ru_utime + usage.ru_stime, megabytes, output)


def replay_results(trace: Path) -> Iterator[Result]:
    """The replay, its memory, and its time over that of plain files. One round."""
    with tempfile.TemporaryDirectory(prefix="kvtier-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        replay = Run.of(
            *("-m", "kvtier", "replay", trace, "--json", "--tier", f"fs:{folder / 'tier'}"),
            *("--host-blocks", str(HOST_BLOCKS), "--block-bytes", str(BLOCK_BYTES)),
        )
        report: dict[str, Any] = json.loads(replay.output)
        blocks = [path for path in (folder / "tier").rglob("*.kv")]
        size = blocks[0].stat().st_size
        writes, reads = len(blocks), report["hits"]["1:fs"]
        began = time.perf_counter()
        remove_folder(folder / "tier")
        removal = time.perf_counter() - began
        plain = Run.of(
            "-m", "tests.bench.files", folder / "plain", f"{writes}", f"{reads}", f"{size}"
        )
        remove_folder(folder / "plain")
    about = {"requests": report["requests"], "writes": writes, "reads": reads, "removal_s": removal}
    label = f"replay, {report['requests']} requests"
    beside = f"{writes} files written, {reads} read"
    yield Result.paired(f"{label}, cpu", "s", [replay.cpu], [plain.cpu], beside)
    yield Result.paired(f"{label}, wall", "s", [replay.seconds], [plain.seconds], beside)
    yield Result(
        f"{label}, time", "s", Spread.of([replay.seconds]), bound=SECONDS_BOUND, details=about
    )
    yield Result(f"{label}, memory", "MB", Spread.of([replay.megabytes]), bound=MEGABYTES_BOUND)
