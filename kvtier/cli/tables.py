"""Tables of the checking commands: columns without lines, on a terminal or in a file."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from kvtier.check.counterexample import Event

__all__ = ["plain_table", "steps_table"]

_NUMBERS = ("states", "depth", "s", "step")


def plain_table(*columns: str) -> Table:
    """A table whose last column is folded where it does not fit."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        last = column == columns[-1]
        table.add_column(
            column,
            justify="right" if column in _NUMBERS else "left",
            no_wrap=not last,
            overflow="fold",
        )
    return table


def steps_table(steps: Sequence[Event]) -> Table:
    """What was done, and what it changed."""
    table = plain_table("step", "action", "what changed")
    for event in steps:
        table.add_row(str(event.step), event.action, "\n".join(event.changes))
    return table
