"""`kvtier replay`: options to a `ReplayConfig`, a report to a summary or to JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import StringIO, TextIOBase
from pathlib import Path
from threading import Timer

import click
import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from structlog.typing import EventDict

from kvtier.cli.logfile import LogFile, refuse_to_overwrite
from kvtier.cli.options import Duration, NamedPath, Whole
from kvtier.cli.signals import PROGRAM, Signals, let_go
from kvtier.cli.spans import collector, tracing
from kvtier.cli.summary import summary
from kvtier.cli.terminal import is_terminal
from kvtier.errors import BadInput
from kvtier.replay import LONGEST, POLICIES, FaultRates, ReplayConfig, ReplayReport, replaying
from kvtier.telemetry.logs import LineLogger, LoggingObserver, event_first, json_lines
from kvtier.workload import Workload, open_workload

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
  kvtier replay --concurrency 8 --spans spans.jsonl
      trace every probe; then: kvtier validate spans.jsonl, kvtier timeline spans.jsonl

Exit codes: 0 all laws hold; 1 a law is broken, or the log, the spans or the result
cannot be written (which, on standard error); 2 bad input; 3 --spans or --otlp without
the extra otlp, and nothing has run; 130 ended by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP:
the summary so far is printed. A second signal abandons what is still under way; the
summary is printed all the same.
"""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What is written besides the result."""

    log: Path | None
    spans: Path | None
    otlp: str | None

    def check(self, trace: Path | None) -> None:
        """Raises `BadInput` if one would destroy the workload or the other."""
        for path in (self.log, self.spans):
            if path is not None and trace is not None:
                refuse_to_overwrite(trace, path)
        if self.log is not None and self.spans is not None:
            log, spans = map(os.path.realpath, (self.log, self.spans))
            if log == spans:
                raise BadInput(str(self.spans), "is the log too", "a file of its own")


def _faults(context: click.Context, option: click.Parameter, value: str | None) -> FaultRates:
    return FaultRates() if value is None else FaultRates.parse(value)


@click.command("replay", epilog=EPILOG)
@click.argument("trace", required=False, type=NamedPath())
@click.option(
    "--host-blocks",
    type=Whole(min=1),
    default=DEFAULTS.host_blocks,
    show_default=True,
    help="Slots of the primary tier, one block each.",
)
@click.option(
    "--block-bytes",
    type=Whole(min=1),
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
    type=Whole(min=1),
    default=DEFAULTS.concurrency,
    show_default=True,
    help="Requests in flight together. With 1, each finishes before the next is admitted.",
)
@click.option(
    "--slow-backend",
    metavar="MS",
    type=Duration(min=0, max=LONGEST * 1000),
    default=0.0,
    help="Delay every question to a back end by so many milliseconds, at most a day.",
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
    type=Duration(min=0, min_open=True, max=LONGEST * 1000),
    help="Read a question that is not answered by then as a miss; at most a day.",
)
@click.option("--limit", metavar="N", type=Whole(min=1), help="Only the first N requests.")
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
    type=NamedPath(),
    help="Write every transition of every probe to FILE, as JSON lines. What it held goes.",
)
@click.option(
    "--spans",
    "spans_path",
    metavar="FILE",
    type=NamedPath(),
    help="Write a span for every stay of every probe in a phase, and more, to FILE, as OTLP "
    "JSON lines, for `kvtier validate` and `kvtier timeline`. What it held goes.",
)
@click.option(
    "--otlp",
    metavar="URL",
    help="Send the spans to a collector, OTLP over HTTP; for example http://localhost:4318.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, not a summary.")
@click.pass_context
def replay_command(
    context: click.Context,
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
    spans_path: Path | None,
    otlp: str | None,
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
    with Signals(is_last=context.find_root().obj == PROGRAM) as signals:
        try:
            outputs = Outputs(log_path, spans_path, None if otlp is None else collector(otlp))
            outputs.check(trace)
            workload = open_workload(trace, seed=seed, limit=limit)
            return _run(config, workload, outputs, as_json, signals)
        except KeyboardInterrupt:
            _say("interrupted")
            return 128 + next(iter(signals.numbers), signal.SIGINT)


def _run(
    config: ReplayConfig,
    workload: Workload,
    outputs: Outputs,
    as_json: bool,
    signals: Signals,
) -> int:
    """Replay, say what was found, and then clean up, which may take long. The exit code."""
    with ExitStack() as stack:
        log, spans = (
            None if path is None else stack.enter_context(LogFile(path, what))
            for path, what in ((outputs.log, "the log"), (outputs.spans, "the spans"))
        )
        stack.enter_context(_messages_to(log))
        removing = stack.enter_context(_told_if_long())
        shown = stack.enter_context(ExitStack())
        traced = stack.enter_context(ExitStack())
        observers, deliveries = traced.enter_context(
            tracing(spans, outputs.otlp, None if log is None else LoggingObserver(json_lines(log)))
        )
        signals.begin()
        report = stack.enter_context(
            replaying(
                config,
                workload,
                observers=observers,
                progress=shown.enter_context(_progress_bar(len(workload))),
                stop=signals.is_asked,
                hurry=signals.is_urged,
            )
        )
        shown.close()
        traced.close()
        signals.deliver()
        files = [file for file in (log, spans) if file is not None]
        try:
            for file in files:
                file.finish()
            _print(report, config, as_json)
            for law in report.violations:
                _say(f"broken law: {law}")
            for file in files:
                if file.error is not None:
                    _say(f"{file.path}: cannot be written: {file.error.strerror}")
            for delivery in deliveries:
                if delivery.lost:
                    why = "" if delivery.reason is None else f": {delivery.reason}"
                    _say(f"{delivery.where}: did not take {delivery.lost} spans{why}")
        finally:
            signals.clean_up()
            removing()
    if any(file.error for file in files) or any(delivery.lost for delivery in deliveries):
        return 1
    if report.interrupted:
        return 128 + signals.numbers[0]
    return 1 if report.violations else 0


def _print(report: ReplayReport, config: ReplayConfig, as_json: bool) -> None:
    try:
        if as_json:
            click.echo(json.dumps(report.as_json(), indent=2))
        else:
            # What does not fit into the width goes beyond it: a figure is never cut.
            Console(highlight=False).print(summary(report, config), crop=False)
    except KeyboardInterrupt:
        let_go(sys.stdout)
        raise


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

    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(
        processors=[
            *([] if log is not None else [once]),
            structlog.processors.add_log_level,
            event_first,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("error" if log is None else "warning"),
        logger_factory=lambda *_: LineLogger((sys.stderr or StringIO()) if log is None else log),
    )
    try:
        yield
    finally:
        if before is None:
            structlog.reset_defaults()
        else:
            structlog.configure(**before)


@contextmanager
def _told_if_long() -> Iterator[Callable[[], None]]:
    """Takes the moment at which temporary files begin to go. If it takes long, it is said."""
    timer = Timer(1.0, _say, ["removing temporary files ..."])
    timer.daemon = True

    def begin() -> None:
        if is_terminal(sys.stderr):
            with suppress(RuntimeError):  # no thread to be had
                timer.start()

    try:
        yield begin
    finally:
        timer.cancel()


def _say(message: str) -> None:
    """One line on standard error, if anybody is there."""
    with suppress(OSError):
        click.echo(f"kvtier: {message}", err=True)


@contextmanager
def _progress_bar(total: int) -> Iterator[Callable[[int], None] | None]:
    """Takes the number of requests that ended; `None` where standard error is no terminal."""
    if not is_terminal(sys.stderr):
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
