"""`kvtier replay`: options to a `ReplayConfig`, a report to a summary or to JSON."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOBase
from pathlib import Path
from types import FrameType

import click
import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from structlog.typing import EventDict

from kvtier.cli.logfile import LogFile
from kvtier.cli.summary import summary
from kvtier.replay import POLICIES, FaultRates, ReplayConfig, replay
from kvtier.telemetry.logs import LineLogger, LoggingObserver, event_first, json_lines
from kvtier.workload import open_workload

__all__ = ["replay_command"]

DEFAULTS = ReplayConfig()

EPILOG = """\b
Examples:
  kvtier replay
      multi-turn sessions over real text that Python ships
  kvtier replay trace.jsonl --host-blocks 5000 --tier fs:/mnt/nvme/kv --json
      a trace in Mooncake's format, with a tier that stays on disk
  kvtier replay trace.jsonl --slow-backend 5 --concurrency 64
      64 requests at a time and a back end that takes 5 ms: see what sharing saves
  kvtier replay --tier memory --tier fs:/tmp/kv --policy arc --groups
      two secondary tiers, ARC in the primary, a hybrid model
  kvtier replay --faults corrupt=0.01,probe_error=0.01,load_error=0.01
      a back end that lies and fails: nothing wrong may be served

Exit codes: 0 all laws hold; 1 a law is broken (which, on standard error);
2 bad input; 130 interrupted (the summary so far is printed).
"""


def _finite(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number of milliseconds.")
    return value


def _faults(context: click.Context, option: click.Parameter, value: str | None) -> FaultRates:
    return FaultRates() if value is None else FaultRates.parse(value)


@click.command("replay", epilog=EPILOG)
@click.argument("trace", required=False, type=click.Path(readable=False, path_type=Path))
@click.option(
    "--host-blocks",
    type=click.IntRange(min=1),
    default=DEFAULTS.host_blocks,
    show_default=True,
    help="Slots of the primary tier, one block each.",
)
@click.option(
    "--block-bytes",
    type=click.IntRange(min=1),
    default=DEFAULTS.block_bytes,
    show_default=True,
    help="Bytes of one block.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default=DEFAULTS.policy,
    show_default=True,
    help="What leaves the primary when it is full.",
)
@click.option(
    "--tier",
    "tiers",
    metavar="fs:DIR | memory",
    multiple=True,
    help="A secondary tier; give it again for a slower one behind it. "
    "[default: fs in a temporary directory]",
)
@click.option(
    "--groups",
    is_flag=True,
    help="A hybrid model: a full attention group and a sliding window group.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=DEFAULTS.concurrency,
    show_default=True,
    help="Requests in flight together. With 1, each finishes before the next is admitted.",
)
@click.option(
    "--slow-backend",
    metavar="MS",
    type=click.FloatRange(min=0),
    callback=_finite,
    default=0.0,
    help="Delay every question to a back end by so many milliseconds.",
)
@click.option(
    "--faults",
    metavar="SPEC",
    callback=_faults,
    help="Make back ends fail: KIND=RATE[,...] with corrupt, probe_error, load_error, "
    "store_error and rates from 0 to 1.",
)
@click.option(
    "--deadline-ms",
    metavar="MS",
    type=click.FloatRange(min=0, min_open=True),
    callback=_finite,
    help="Read a question that is not answered by then as a miss.",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Only the first N requests.")
@click.option(
    "--seed",
    metavar="N",
    type=int,
    default=DEFAULTS.seed,
    show_default=True,
    help="Of payloads, faults and text sessions.",
)
@click.option(
    "--log",
    "log_path",
    metavar="FILE",
    type=click.Path(readable=False, path_type=Path),
    help="Write every transition of every probe to FILE, as JSON lines.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, not a summary.")
def replay_command(
    trace: Path | None,
    host_blocks: int,
    block_bytes: int,
    policy: str,
    tiers: tuple[str, ...],
    groups: bool,
    concurrency: int,
    slow_backend: float,
    faults: FaultRates,
    deadline_ms: float | None,
    limit: int | None,
    seed: int,
    log_path: Path | None,
    as_json: bool,
) -> int:
    """Drive a workload through scheduler, tiers and back ends, with real bytes.

    TRACE is a file in Mooncake's format (JSON lines with timestamp, input_length,
    output_length, hash_ids) or a directory of text files, which is cut into
    blocks and asked in multi-turn sessions. Without TRACE, the texts are the help
    topics of Python itself.

    Every block that is reused is read back and compared with what was stored.
    """
    config = ReplayConfig(
        host_blocks=host_blocks,
        block_bytes=block_bytes,
        policy=policy,
        tiers=tiers,
        hybrid=groups,
        concurrency=concurrency,
        slow_backend=slow_backend / 1000,
        deadline=None if deadline_ms is None else deadline_ms / 1000,
        faults=faults,
        seed=seed,
    )
    workload = open_workload(trace, seed=seed, limit=limit)
    with ExitStack() as stack:
        log = None if log_path is None else stack.enter_context(LogFile(log_path))
        stack.enter_context(_messages_to(log))
        signals = stack.enter_context(_caught_signals())
        progress = stack.enter_context(_progress_bar(len(workload)))
        report = replay(
            config,
            workload,
            observer=None if log is None else LoggingObserver(json_lines(log)),
            progress=progress,
            stop=lambda: bool(signals),
        )
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        Console(highlight=False).print(summary(report, config))
    for law in report.violations:
        click.echo(f"kvtier: broken law: {law}", err=True)
    if log is not None and log.error is not None:
        click.echo(f"kvtier: {log.path}: cannot be written: {log.error.strerror}", err=True)
        return 1
    if signals:
        return 128 + signals[0]
    return 1 if report.violations else 0


@contextmanager
def _messages_to(log: TextIOBase | None) -> Iterator[None]:
    """What kvtier has to say goes to the log; without one, each kind of error is said once."""
    said: set[object] = set()

    def once(logger: object, method: str, event: EventDict) -> EventDict:
        kind = event["event"], event.get("tier"), event.get("call")
        if kind in said:
            raise structlog.DropEvent
        said.add(kind)
        return event

    before = structlog.get_config()
    structlog.configure(
        processors=[
            *([] if log is not None else [once]),
            structlog.processors.add_log_level,
            event_first,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("error" if log is None else "warning"),
        logger_factory=lambda *_: LineLogger(sys.stderr if log is None else log),
    )
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """The signals that asked the run to end. A second one ends it at once."""
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress_bar(total: int) -> Iterator[Callable[[int], None] | None]:
    """Takes the number of requests that ended; `None` where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = Progress(
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("requests", total=total)
        yield lambda done: bar.update(task, completed=done)
