"""A replay's report as a person wants to see it."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvtier.replay import ReplayConfig, ReplayReport

__all__ = ["summary"]

_BAR_WIDTH = 24


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


def _headline(report: ReplayReport, config: ReplayConfig) -> Text:
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
    return line


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _blocks(report: ReplayReport) -> Table:
    table = _table("Blocks came from", "blocks", "share", "")
    for label, number in report.hits.items():
        table.add_row(
            label,
            f"{number:,}",
            _share(number, report.blocks),
            ProgressBar(
                total=max(1, report.blocks),
                completed=number,
                width=_BAR_WIDTH,
                complete_style="green",
                finished_style="green",
            ),
        )
    missed = sum(report.misses.values())
    table.add_row(
        "computed",
        f"{missed:,}",
        _share(missed, report.blocks),
        ProgressBar(
            total=max(1, report.blocks),
            completed=missed,
            width=_BAR_WIDTH,
            complete_style="yellow",
            finished_style="yellow",
        ),
    )
    for reason, number in report.misses.items():
        if number:
            table.add_row(f"  {_words(reason)}", f"{number:,}", _share(number, report.blocks))
    return table


def _questions(report: ReplayReport) -> Table:
    shared = report.probes_joined
    wanted = report.probes_issued + shared
    table = _table("Questions to slow tiers", "")
    table.add_row("wanted", f"{wanted:,}")
    table.add_row("  shared with another request", f"{shared:,}", _share(shared, wanted))
    table.add_row("  asked", f"{report.probes_issued:,}")
    table.add_row("calls of a back end", f"{report.backend_calls:,}")
    for name in ("lookup_errors", "probes_abandoned", "answers_discarded", "unclaimed"):
        if number := getattr(report, name):
            table.add_row(_words(name), f"{number:,}")
    return table


def _counts(title: str, counts: Mapping[str, int]) -> Table:
    table = _table(title, "")
    for name, number in counts.items():
        if number:
            table.add_row(_words(name), f"{number:,}")
    return table


def _transfers(report: ReplayReport) -> Table:
    ways = ("submitted", "ok", "partial", "failed", "raised")
    table = _table("Transfer jobs", *ways, "blocks without room")
    rows = (("promotions", report.promotions, "no_room"), ("stores", report.stores, "skipped"))
    for name, jobs, refused in rows:
        table.add_row(name, *(f"{jobs[way]:,}" for way in (*ways, refused)))
    return table


def _failed_blocks(report: ReplayReport) -> Table:
    table = _table("Blocks that could not be moved", "", "blocks")
    for label, errors in report.failed_blocks.items():
        for error, number in errors.items():
            table.add_row(label, error, f"{number:,}")
    return table


def _verdict(report: ReplayReport) -> Text:
    verified = f"{_size(report.bytes_verified)} read back and compared"
    if report.violations:
        return Text.assemble(("wrong: ", "bold red"), "; ".join(report.violations), f"; {verified}")
    return Text.assemble(
        ("right: ", "bold green"), f"{verified}, no mismatch, no leak, all counts add up"
    )


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
