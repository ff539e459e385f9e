"""`kvtier prove`: a proof to a table or to JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import click
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from kvtier.check.proof import Row
from kvtier.check.proving import prove_apart
from kvtier.cli.limits import timeout_option
from kvtier.cli.tables import plain_table
from kvtier.cli.terminal import is_terminal, print_wide

__all__ = ["prove_command"]

EPILOG = """\b
Exit codes: 0 all is proved; 1 something is not (which, on standard error);
2 bad input; 3 z3 is not installed; 130 interrupted.
"""


@click.command("prove", epilog=EPILOG)
@timeout_option("Give up after so long: what is not proved by then is not proved.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, not a table.")
def prove_command(timeout: float | None, as_json: bool) -> int:
    """Prove the invariants of the lifecycle for any number of keys, requests and generations.

    Each of them holds in the beginning, and no action breaks it: z3 shows it for
    all sizes at once, one action and one invariant after the other. (TLC, in
    `kvtier check`, searches small sizes to their end instead.)
    """
    with _progress_bar() as progress:
        report = prove_apart(progress, timeout)
    if as_json:
        rows = [_as_json(row) for row in report.rows]
        click.echo(
            json.dumps({"schema": "kvtier.prove/1", "ok": report.ok, "rows": rows}, indent=2)
        )
    else:
        print_wide(_result(report.rows))
    for row in report.rows:
        if not row.ok:
            why = " ".join((row.counterexample or "not decided in time").split())
            click.echo(f"kvtier: {row.action}, {row.conjunct}: {why}", err=True)
    return 0 if report.ok else 1


def _as_json(row: Row) -> dict[str, object]:
    return {
        "action": row.action,
        "invariant": row.conjunct,
        "ok": row.ok,
        "seconds": round(row.seconds, 3),
        "counterexample": row.counterexample,
    }


def _result(rows: Sequence[Row]) -> RenderableType:
    table = plain_table("", "action", "proved", "s", "not proved")
    for action, group in groupby(rows, key=lambda row: row.action):
        mine = list(group)
        failed = [row.conjunct for row in mine if not row.ok]
        table.add_row(
            Text("wrong", "bold red") if failed else Text("right", "green"),
            action,
            f"{len(mine) - len(failed)} of {len(mine)}",
            f"{sum(row.seconds for row in mine):.1f}",
            ", ".join(failed),
        )
    wrong = sum(not row.ok for row in rows)
    verdict = (
        Text.assemble(("wrong: ", "bold red"), f"{wrong} of {len(rows)} are not proved")
        if wrong
        else Text.assemble(("right: ", "bold green"), f"{len(rows)} of {len(rows)} are proved")
    )
    return Group(table, "", verdict)


@contextmanager
def _progress_bar() -> Iterator[Callable[[int, int, Row], None] | None]:
    """Takes the rows as they come; `None` where standard error is no terminal."""
    if not is_terminal(sys.stderr):
        yield None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("proving", total=None)
        yield lambda done, total, row: bar.update(
            task, completed=done, total=total, description=row.action
        )
