"""A replay's report as a person wants to see it."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvtier.replay import ReplayConfig, ReplayReport

__all__ = ["summary"]

_BAR_WIDTH = 24
_ANY = 10_000
"""More columns than any table has."""


def summary(report: ReplayReport, config: ReplayConfig) -> RenderableType:
    """Where the blocks came from, what was asked, what was moved, and whether all is right."""
    parts: list[RenderableType] = [_headline(report, config), "", _blocks(report), ""]
    parts += [_questions(report), ""]
    if any(report.deferrals.values()):
        parts += [_counts("Passes deferred, because of", report.deferrals), ""]
    parts += [_transfers(report), ""]
    if any(report.failed_blocks.values()):
        parts += [_failed_blocks(report), ""]
    parts.append(_verdict(report))
    return Group(*parts)


def _headline(report: ReplayReport, config: ReplayConfig) -> _Folded:
    reused = sum(report.hits.values())
    line = Text.assemble(
        ("interrupted: ", "bold yellow") if report.interrupted else "",
        (report.workload, "bold"),
        f": {report.requests:,} requests, {report.blocks:,} blocks in {report.wall_s:.1f} s\n",
        ("reused ", "bold"),
        (_share(reused, report.blocks), "bold green"),
        f" of all blocks ({reused:,})",
        f", with {config.host_blocks:,} slots of {_size(config.block_bytes)}",
        f" ({config.policy.upper()}), {config.concurrency:,} in flight",
    )
    return _Folded(line)


class _Folded:
    """Text that is folded between words only: a word too long for the width goes beyond it."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        longest = max(map(cell_len, self._text.plain.split()), default=0)
        yield from console.render(self._text, options.update(width=max(options.max_width, longest)))


class _Table:
    """A table that gives up its bars, and then its columns, before a figure would be cut."""

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        self._rows: list[tuple[tuple[str, ...], ProgressBar | None]] = []

    def add_row(self, *cells: str, bar: ProgressBar | None = None) -> None:
        """A name, and what is to be said of it under the other columns."""
        self._rows.append((cells, bar))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for with_bars in (True, False):
            table = self._drawn(with_bars)
            if console.measure(table, options=options.update(max_width=_ANY)).maximum <= (
                options.max_width
            ):
                yield table
                return
        yield self._stacked()

    def _drawn(self, with_bars: bool) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for number, column in enumerate(self._columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True)
        for cells, bar in self._rows:
            table.add_row(*cells, *([bar] if with_bars and bar is not None else []))
        return table

    def _stacked(self) -> _Folded:
        heading, *columns = self._columns
        lines = [Text(heading, style="dim")]
        for (name, *cells), _ in self._rows:
            pairs = list(zip(columns, cells, strict=False))
            lines.append(Text(" ".join([name, *(cell for column, cell in pairs if not column)])))
            lines += [Text(f"  {column} {cell}") for column, cell in pairs if column]
        return _Folded(Text("\n").join(lines))


def _bar(part: int, whole: int, colour: str) -> ProgressBar:
    return ProgressBar(
        total=max(1, whole),
        completed=part,
        width=_BAR_WIDTH,
        complete_style=colour,
        finished_style=colour,
    )


def _blocks(report: ReplayReport) -> _Table:
    table, whole = _Table("Blocks came from", "blocks", "share"), report.blocks
    for label, number in report.hits.items():
        bar = _bar(number, whole, "green")
        table.add_row(label, f"{number:,}", _share(number, whole), bar=bar)
    missed = sum(report.misses.values())
    bar = _bar(missed, whole, "yellow")
    table.add_row("computed", f"{missed:,}", _share(missed, whole), bar=bar)
    for reason, number in report.misses.items():
        if number:
            table.add_row(f"  {_words(reason)}", f"{number:,}", _share(number, whole))
    return table


def _questions(report: ReplayReport) -> _Table:
    shared = report.probes_joined
    wanted = report.probes_issued + shared
    table = _Table("Questions to slow tiers", "", "")
    table.add_row("wanted", f"{wanted:,}")
    table.add_row("  shared with another request", f"{shared:,}", _share(shared, wanted))
    table.add_row("  asked", f"{report.probes_issued:,}")
    table.add_row("calls of a back end", f"{report.backend_calls:,}")
    for name in ("lookup_errors", "probes_abandoned", "answers_discarded", "unclaimed"):
        if number := getattr(report, name):
            table.add_row(_words(name), f"{number:,}")
    return table


def _counts(title: str, counts: Mapping[str, int]) -> _Table:
    table = _Table(title, "")
    for name, number in counts.items():
        if number:
            table.add_row(_words(name), f"{number:,}")
    return table


def _transfers(report: ReplayReport) -> _Table:
    ways = ("submitted", "ok", "partial", "failed", "raised")
    table = _Table("Transfer jobs", *ways, "blocks without room")
    rows = (("promotions", report.promotions, "no_room"), ("stores", report.stores, "skipped"))
    for name, jobs, refused in rows:
        table.add_row(name, *(f"{jobs[way]:,}" for way in (*ways, refused)))
    return table


def _failed_blocks(report: ReplayReport) -> _Table:
    table = _Table("Blocks that could not be moved", "", "blocks")
    for label, errors in report.failed_blocks.items():
        for error, number in errors.items():
            table.add_row(label, error, f"{number:,}")
    return table


def _verdict(report: ReplayReport) -> _Folded:
    verified = f"{_size(report.bytes_verified)} read back and compared"
    if report.violations:
        told = f"{'; '.join(report.violations)}; {verified}"
        return _Folded(Text.assemble(("wrong: ", "bold red"), told))
    told = f"{verified}, no mismatch, no leak, all counts add up"
    return _Folded(Text.assemble(("right: ", "bold green"), told))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _size(count: int) -> str:
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:,.1f} {units[0]}" if size != int(size) else f"{int(size):,} {units[0]}"
