"""`kvtier check`: options to a list of models, rows to a table or to JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.text import Text

from kvtier.check.counterexample import events, history
from kvtier.check.drawing import write_graph
from kvtier.check.lanes import Watch, run_models
from kvtier.check.models import Model, Row, choose, lifecycle, read_manifest
from kvtier.check.timeline import counterexample_spans, render_timeline, write_page
from kvtier.check.tlc import Progress
from kvtier.cli.limits import SIZE, timeout_option
from kvtier.cli.logfile import LogFile
from kvtier.cli.options import NamedPath
from kvtier.cli.searches import Searches, searches
from kvtier.cli.tables import plain_table, steps_table
from kvtier.cli.terminal import print_wide
from kvtier.resources import resource_folder

__all__ = ["check_command"]

SCHEMA = "kvtier.check/1"
LIFECYCLE = "lifecycle"

EPILOG = """\b
Examples:
  kvtier check
      every model that CI checks: bugs that must be found, states that must be reachable
  kvtier check lifecycle --keys 3 --requests 2 --timeout 3600
      the lifecycle at a size of your own
  kvtier check --bug no_mark_miss
      what a known bug does, step by step
  kvtier check --bug no_mark_miss --timeline bug.html
      the same drawn, for a browser
  kvtier check --graph lifecycle.mmd
      a diagram of the lifecycle

Exit codes: 0 all is as the manifest says; 1 something is not (which, on standard
error); 2 bad input; 3 Java or TLC is not installed; 130 interrupted.
"""


@click.command("check", epilog=EPILOG)
@click.argument("names", metavar="[lifecycle | MODEL...]", nargs=-1)
@click.option("--keys", type=SIZE, help="Of `lifecycle`.  [default: 1]")
@click.option("--requests", type=SIZE, help="Of `lifecycle`.  [default: 1]")
@click.option(
    "--batches-out",
    type=SIZE,
    help="Of `lifecycle`: so many batches may be with the worker at once.  [default: 1]",
)
@click.option("--slow", is_flag=True, help="The bigger models too.")
@click.option(
    "--bug",
    metavar="NAME",
    help="Only the model with this bug; right is if it is refuted as the manifest says.",
)
@click.option(
    "--history",
    "history_path",
    metavar="FILE",
    type=NamedPath(),
    help="With a single model: write its counterexample, as JSON lines of labelled steps.",
)
@click.option(
    "--timeline",
    "page_path",
    metavar="OUT.html",
    type=NamedPath(),
    help="With a single model: draw its counterexample, as one page for a browser.",
)
@click.option(
    "--graph",
    "graph_path",
    metavar="FILE",
    type=NamedPath(),
    help="Only draw the lifecycle with one key and one request. FILE.dot: every state; "
    "FILE.mmd, FILE.md, FILE.svg: states with the same entry drawn as one.",
)
@click.option("--list", "listing", is_flag=True, help="Only list the models and bugs.")
@timeout_option("End a model that takes longer; it is wrong then.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, not a table.")
def check_command(
    names: tuple[str, ...],
    keys: int | None,
    requests: int | None,
    batches_out: int | None,
    slow: bool,
    bug: str | None,
    history_path: Path | None,
    page_path: Path | None,
    graph_path: Path | None,
    listing: bool,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Check the TLA+ models with TLC, and hold what comes out to the manifest of tla/.

    Without arguments, all models that CI checks. Each must end as the manifest
    says: with the same exit code, the same property broken (known bugs are among
    them, and must be found), as many distinct states, as deep.
    """
    sizes = (keys, requests, batches_out)
    if any(size is not None for size in sizes) and names != (LIFECYCLE,):
        raise click.UsageError("--keys, --requests and --batches-out are of `lifecycle`.")
    if sum((bool(names), bug is not None, graph_path is not None, listing, slow)) > 1:
        raise click.UsageError("Only one of MODEL, --slow, --bug, --graph and --list.")
    if graph_path is not None:
        write_graph(graph_path)
        return 0
    folder = resource_folder("tla")
    if names == (LIFECYCLE,):
        models: Sequence[Model] = [lifecycle(folder, *(size or 1 for size in sizes))]
    else:
        models = choose(read_manifest(folder), names=names, bug=bug, slow=slow or listing)
    if listing:
        _list(models, as_json)
        return 0
    for option, path in ("--history", history_path), ("--timeline", page_path):
        if path is not None and len(models) != 1:
            raise click.UsageError(f"{option} is of a single model: name it, or a --bug.")
    with ExitStack() as stack:
        log = None if history_path is None else stack.enter_context(LogFile(history_path))
        shown = stack.enter_context(searches(len(models)))
        watch = None if shown is None else _watch(shown)
        rows = run_models(folder, models, timeout=timeout, watch=watch)
        if log is not None:
            log.writelines(f"{line}\n" for line in history(rows[0]))
            if not rows[0].trace:
                click.echo(f"kvtier: {log.path}: empty, for there is no counterexample", err=True)
    ok = all(row.ok for row in rows)
    if as_json:
        found = {"schema": SCHEMA, "ok": ok, "models": [row.as_json() for row in rows]}
        click.echo(json.dumps(found, indent=2))
    else:
        print_wide(_result(rows))
    for row in rows:
        if row.problem is not None:
            click.echo(f"kvtier: {row.model.name}: {row.problem}", err=True)
    if page_path is not None:
        _draw(rows[0], page_path)
    if log is not None and log.error is not None:
        click.echo(f"kvtier: {log.path}: cannot be written: {log.error.strerror}", err=True)
        return 1
    return 0 if ok else 1


def _draw(row: Row, path: Path) -> None:
    title = f"{row.model.name} breaks {row.model.breaks}" if row.trace else row.model.name
    write_page(path, render_timeline(counterexample_spans(events(row)), title, steps=True))
    if not row.trace:
        click.echo(f"kvtier: {path}: empty, for there is no counterexample", err=True)


def _watch(shown: Searches) -> Watch:
    def watch(model: Model, told: Progress | Row | None) -> None:
        if told is None:
            shown.begin(model.name)
        elif isinstance(told, Progress):
            shown.update(model.name, told.distinct, told.queue)
        else:
            shown.end(model.name)

    return watch


def _list(models: Sequence[Model], as_json: bool) -> None:
    if as_json:
        fields = "name", "kind", "cfg", "shows", "expected", "breaks", "distinct", "depth", "report"
        found = [
            {name: getattr(model, name) for name in fields}
            | {"class": model.time_class, "bug": model.bug}
            for model in models
        ]
        click.echo(json.dumps({"schema": "kvtier.check-list/1", "models": found}, indent=2))
        return
    table = plain_table("model", "kind", "class", "states", "breaks", "shows")
    for model in models:
        states = "" if model.distinct is None else f"{model.distinct:,}"
        shows = model.shows if model.report is None else f"{model.shows} ({model.report})"
        table.add_row(model.name, model.kind, model.time_class, states, model.breaks or "", shows)
    print_wide(table)


def _result(rows: Sequence[Row]) -> RenderableType:
    table = plain_table("", "model", "states", "depth", "s", "found")
    for row in rows:
        table.add_row(
            Text("right", "green") if row.ok else Text("wrong", "bold red"),
            row.model.name,
            "" if row.distinct is None else f"{row.distinct:,}",
            str(row.depth or ""),
            f"{row.seconds:.1f}",
            row.problem or (f"breaks {row.model.breaks}" if row.model.breaks else "all holds"),
        )
    wrong = sum(not row.ok for row in rows)
    verdict = (
        Text.assemble(("wrong: ", "bold red"), f"{wrong} of {len(rows)} not as the manifest says")
        if wrong
        else Text.assemble(("right: ", "bold green"), f"{len(rows)} as the manifest says")
    )
    parts: list[RenderableType] = [table, ""]
    if len(rows) == 1 and rows[0].trace:
        parts += [steps_table(events(rows[0])), *_for_ever(rows[0]), ""]
    return Group(*parts, verdict)


def _for_ever(row: Row) -> list[RenderableType]:
    """What breaks a promise about the end has no end."""
    is_loop = (row.model.breaks or "").endswith("Live") and row.trace[-1].state
    return ["      and back to one of these states, over and over"] if is_loop else []
