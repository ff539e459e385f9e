"""`kvtier validate`: files of spans to a verdict."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvtier.check.spans.checking import Checked, Violation, Watch, check_spans
from kvtier.check.spans.generation import Step
from kvtier.check.spans.reading import SpanFile
from kvtier.cli.options import NamedPath, Whole
from kvtier.cli.tables import plain_table
from kvtier.cli.terminal import is_terminal, print_wide, printable

__all__ = ["validate_command"]

SCHEMA = "kvtier.validate/1"
SHOWN = 10

EPILOG = """\b
Examples:
  kvtier replay --spans spans.jsonl && kvtier validate spans.jsonl
      a run of kvtier's own
  kvtier validate monday.jsonl.gz tuesday.jsonl.gz
      what a collector wrote, several files as one export
  kvtier validate spans.jsonl --json | jq -r '.violations[] | .requirement, .says'
      what is wrong, for a program
  zcat spans.gz | kvtier validate - --require-complete
      from a pipe; what is missing counts as wrong

\b
What is said of a probe, each generation counted as one:
  complete     all of its spans are there, and all is as spec/lifecycle.md has it
  incomplete   something is not told: a sampled or cut export is no fault, and no proof
  wrong        a span contradicts the spec; L73 is a paragraph of spec/lifecycle.md

Exit codes: 0 nothing is wrong (also if something is incomplete, and a line says so);
1 something is wrong or, with --require-complete, incomplete; 2 a file cannot be read
or has no spans of kvtier; 130 interrupted.
"""


@click.command("validate", epilog=EPILOG)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=NamedPath())
@click.option("--require-complete", is_flag=True, help="What is incomplete is wrong: exit with 1.")
@click.option(
    "--limit",
    metavar="N",
    type=Whole(min=0),
    help=f"Show the first N violations.  [default: {SHOWN}; with --json all, up to 10,000]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, not a summary.")
def validate_command(
    paths: tuple[Path, ...], require_complete: bool, limit: int | None, as_json: bool
) -> int:
    """Hold the spans in FILE... to the lifecycle of spec/lifecycle.md, probe by probe.

    FILE is OTLP JSON, one object on a line or one over many, or what the console
    exporter prints; gzipped or not; `-` is standard input. Spans of other libraries
    are passed over. All files together are one export.
    """
    with _progress(paths[0]) as watch:
        checked = check_spans(paths, watch=watch)
    shown = checked.violations[: limit if limit is not None or as_json else SHOWN]
    if as_json:
        click.echo(json.dumps(_as_json(checked, shown), indent=2))
    else:
        print_wide(*_summary(checked, shown, require_complete))
    if checked.violation_count:
        return 1
    return 1 if require_complete and not checked.is_complete else 0


@contextmanager
def _progress(first: Path) -> Iterator[Watch | None]:
    """Bytes read, where standard error is a terminal."""
    if not is_terminal(sys.stderr):
        yield None
        return
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(f"reading {first.name}", total=None)

        def watch(file: SpanFile | None) -> None:
            if file is None:
                bar.update(task, description="judging", total=None)
            else:
                what = f"reading {file.path.name}"
                bar.update(task, description=what, completed=file.position, total=file.size or None)

        yield watch


def _verdict(checked: Checked) -> str:
    if checked.violation_count:
        return "wrong"
    return "right" if checked.is_complete else "incomplete"


def _as_json(checked: Checked, shown: list[Violation]) -> dict[str, Any]:
    reasons = sorted(checked.incomplete.items())
    return {
        "schema": SCHEMA,
        "verdict": _verdict(checked),
        "probes": checked.probes,
        "complete": checked.complete,
        "incomplete": checked.incomplete.total(),
        "wrong": checked.wrong,
        "incomplete_because": {gap.name.lower(): number for gap, number in reasons},
        "violation_count": checked.violation_count,
        "violations": [_violation(checked, violation) for violation in shown],
        "batches": checked.batches,
        "others": checked.others,
        "repeats": checked.repeats,
        "files": [
            {
                "name": file.name,
                "spans": file.spans,
                "foreign": file.foreign,
                "cut": file.cut,
                "unusable_count": file.unusable_count,
                "unusable": [one._asdict() for one in file.unusable],
            }
            for file in checked.files
        ],
    }


def _violation(checked: Checked, violation: Violation) -> dict[str, Any]:
    told = asdict(violation)
    span = {name: told[name] for name in ("name", "span_id", "file", "line")}
    history = [
        {
            "seq": step.seq,
            "phase.from": step.source,
            "trigger": step.trigger,
            "outcome": step.outcome,
            "phase.to": step.target,
            "generation": step.generation,
            "file": checked.files[step.file].name,
            "line": step.line,
        }
        for step in violation.history
    ]
    return {
        "requirement": violation.requirement,
        "says": violation.says,
        "span": span,
        "history": history,
    }


def _summary(
    checked: Checked, shown: list[Violation], require_complete: bool
) -> Iterator[RenderableType]:
    yield _counts(checked)
    yield ""
    for violation in shown:
        yield from _told(violation)
    hidden = checked.violation_count - len(shown)
    if hidden:
        yield f"{hidden:,} more: --limit N shows them"
        yield ""
    notices = list(_notices(checked))
    yield from notices
    if notices:
        yield ""
    yield _last_line(checked, require_complete)


def _counts(checked: Checked) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("Probes", "", ""):
        table.add_column(column, justify="right" if not column else "left", no_wrap=True)
    whole = checked.probes
    table.add_row("told", f"{whole:,}")
    rows = [("complete", checked.complete), ("incomplete", checked.incomplete.total())]
    for name, number in (*rows, ("wrong", checked.wrong)):
        table.add_row(name, f"{number:,}", f"{100 * number / whole:.1f} %" if whole else "-")
        if name == "incomplete":
            for gap, count in sorted(checked.incomplete.items()):
                table.add_row(f"  {gap.says}", f"{count:,}")
    table.add_row("calls of a back end", f"{checked.batches:,}")
    if checked.others:
        table.add_row("jobs, passes, requests", f"{checked.others:,}")
    return table


def _told(violation: Violation) -> Iterator[RenderableType]:
    where = f"{violation.file}:{violation.line}"
    told = printable(f" {where}: {violation.name}: {violation.says}")
    yield Text.assemble((violation.requirement, "bold red"), told)
    if violation.history:
        yield Padding.indent(_history(violation.history), 4)
    yield ""


def _history(history: tuple[Step, ...]) -> Table:
    table = plain_table("generation", "seq", "from", "trigger", "outcome", "to", "line")
    for step in history:
        cells = (step.generation, step.seq, step.source, step.trigger, step.outcome, step.target)
        table.add_row(
            *("" if cell is None else printable(str(cell)) for cell in cells), str(step.line)
        )
    return table


def _notices(checked: Checked) -> Iterator[str]:
    """What was not judged."""
    for file in checked.files:
        if file.foreign:
            yield f"{file.name}: {file.foreign:,} spans of other libraries passed over"
        if file.cut:
            yield f"{file.name}: {file.cut}; what came before is judged"
        for one in file.unusable[:SHOWN]:
            yield printable(f"{file.name}:{one.line}: cannot be used: {one.why}")
        if file.unusable_count > SHOWN:
            more = file.unusable_count - SHOWN
            yield f"{file.name}: {more:,} more spans cannot be used"
    if checked.repeats:
        yield f"{checked.repeats:,} spans were exported more than once, unchanged"


def _last_line(checked: Checked, require_complete: bool) -> Text:
    verdict = _verdict(checked)
    if verdict == "wrong":
        count = checked.violation_count
        told = f"{count:,} {'violation' if count == 1 else 'violations'} of spec/lifecycle.md"
        return Text.assemble(("wrong: ", "bold red"), told)
    if verdict == "right":
        told = (
            f"{checked.complete:,} of {checked.probes:,} complete, all as spec/lifecycle.md has it"
        )
        return Text.assemble(("right: ", "bold green"), told)
    told = "nothing that is told is wrong; what is not told is neither right nor wrong"
    if require_complete:
        told += "; --require-complete makes that wrong"
    return Text.assemble(("incomplete: ", "bold yellow"), told)
