"""`kvtier model`: a size to an exploration, that to a table or to JSON."""

from __future__ import annotations

import json

import click
from rich.console import RenderableType
from rich.text import Text

from kvtier.check.exploration import Exploration, explored
from kvtier.cli.limits import SIZE
from kvtier.cli.searches import searches
from kvtier.cli.tables import plain_table, steps_table
from kvtier.cli.terminal import print_wide
from kvtier.model.mutants import MUTANTS
from kvtier.model.state import Config

__all__ = ["model_command"]

EPILOG = """\b
Examples:
  kvtier model
      one key and one request: all there is to it, in a moment
  kvtier model --keys 2 --requests 2 --json
      1.3 million states: two minutes or so, and 1.2 GB of memory
  kvtier model --bug short_answer
      a machine with a known bug, and the shortest way to what it breaks

Exit codes: 0 every invariant holds; 1 one is broken (which, on standard error);
2 bad input; 130 interrupted.
"""


@click.command("model", epilog=EPILOG)
@click.option("--keys", type=SIZE, default=1, show_default=True, help="Asked for.")
@click.option("--requests", type=SIZE, default=1, show_default=True, help="That ask.")
@click.option(
    "--batches-out",
    type=SIZE,
    default=1,
    show_default=True,
    help="So many batches may be with the worker at once.",
)
@click.option(
    "--bug",
    type=click.Choice(list(MUTANTS)),
    metavar="NAME",
    help="Explore the machine with this bug. Not every bug breaks an invariant: `kvtier check "
    "--bug NAME` shows what it does break.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, not a table.")
def model_command(
    keys: int, requests: int, batches_out: int, bug: str | None, as_json: bool
) -> int:
    """Explore the lifecycle in plain Python: every state, every step, every invariant.

    This is the model that the code is held to. TLC finds the same states (`kvtier
    check`); this needs no Java. The search ends at the first state that breaks an
    invariant.
    """
    with searches(1) as shown:
        if shown is not None:
            shown.begin("exploring")
        progress = None if shown is None else lambda *told: shown.update("exploring", *told)
        found = explored(Config.of(keys, requests, batches_out), bug, progress)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        print_wide(*_parts(found))
    if not found.ok:
        broken = ", ".join(name for name, holds in found.invariants.items() if not holds)
        way = ", ".join(event.action for event in found.way[1:])
        click.echo(f"kvtier: broken: {broken}; the shortest way: {way}", err=True)
    return 0 if found.ok else 1


def _parts(found: Exploration) -> list[RenderableType]:
    table = plain_table("invariant", "")
    for name, holds in found.invariants.items():
        table.add_row(name, Text("holds", "green") if holds else Text("broken", "bold red"))
    parts: list[RenderableType] = [f"{found.states:,} states, {found.edges:,} steps", "", table]
    return [*parts, "", steps_table(found.way)] if found.way else parts
