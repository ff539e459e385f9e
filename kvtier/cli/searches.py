"""What a search shows on a terminal while it runs: states found, still to be looked at, rate."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from kvtier.cli.terminal import is_terminal

__all__ = ["Searches", "searches"]


class Searches:
    """A line for each search that is running, and one for all of them."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar = bar
        self._total = total
        self._done = 0
        self._all = bar.add_task(self._heading(), told="") if total > 1 else None
        self._running: dict[str, tuple[TaskID, float]] = {}

    def begin(self, name: str) -> None:
        """A search begins."""
        task = self._bar.add_task(name, told="begins")
        self._running[name] = task, time.monotonic()

    def update(self, name: str, states: int, queue: int) -> None:
        """So many distinct states are found; of them `queue` are still to be looked at."""
        task, begun = self._running[name]
        rate = states / max(time.monotonic() - begun, 0.001)
        self._bar.update(task, told=f"{states:,} states, {queue:,} in the queue, {rate:,.0f}/s")

    def end(self, name: str) -> None:
        """A search is over."""
        task, _ = self._running.pop(name)
        self._bar.remove_task(task)
        self._done += 1
        if self._all is not None:
            self._bar.update(self._all, description=self._heading())

    def _heading(self) -> str:
        return f"{self._done} of {self._total} done"


@contextmanager
def searches(total: int) -> Iterator[Searches | None]:
    """For so many searches; `None` where standard error is no terminal."""
    if not is_terminal(sys.stderr):
        yield None
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        yield Searches(bar, total)
