"""`kvtier timeline`: files of spans to a page."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from kvtier.check.spans.reading import SpanFile, no_spans
from kvtier.check.timeline import arranged, page_of, write_page
from kvtier.check.timeline.page import counted
from kvtier.cli.options import NamedPath
from kvtier.errors import BadInput

__all__ = ["timeline_command"]

SCHEMA = "kvtier.timeline/1"
_ENDINGS = (".gz", ".jsonl", ".json")

EPILOG = """\b
Examples:
  kvtier replay --spans spans.jsonl && kvtier timeline spans.jsonl
      a run of kvtier's own; the page is spans.html, here
  kvtier timeline monday.jsonl.gz tuesday.jsonl.gz -o slow.html
      what a collector wrote, several files as one history
  kvtier timeline spans.jsonl --json | jq -r .out
      where the page is

\b
On the page:
  a lane for each key; pending is dotted, in flight striped, a hit solid, a miss hollow,
  a failed question cross-hatched, a forced verdict has a double edge;
  a tick for each request that joined; above the keys what the tiers did;
  search for a request id or a key; everything works with the keyboard, and there is a
  table instead of the drawing. It needs no network and is one file to pass on.

Nothing is judged here: an illegal history is drawn as it was told.

Exit codes: 0 the page is written; 1 it cannot be; 2 bad input, or no kvtier spans.
"""


@click.command("timeline", epilog=EPILOG)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=NamedPath())
@click.option(
    "-o",
    "--out",
    metavar="OUT.html",
    type=NamedPath(),
    help="The page.  [default: the name of the first FILE with .html, in this directory]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, not a sentence.")
def timeline_command(paths: tuple[Path, ...], out: Path | None, as_json: bool) -> int:
    """Draw the spans in FILE... as one HTML page: every probe, phase by phase.

    FILE is what `kvtier replay --spans`, a collector's file exporter or the console
    exporter wrote, gzipped or not; `-` is standard input.
    """
    if str(out) == "-":
        raise BadInput("-o -", "a page is not for standard output", "the name of a file")
    out = out or _page_for(paths[0])
    for path in paths:
        if out.exists() and path.exists() and os.path.samefile(out, path):
            raise BadInput(str(out), "is one of the files to be read", "a file of its own")
    exports = [SpanFile(path) for path in paths]
    timeline = arranged(span for export in exports for span in export)
    if not timeline.spans:
        raise no_spans(exports)
    timeline.others += sum(export.foreign for export in exports)
    title = (
        exports[0].name if len(exports) == 1 else f"{exports[0].name} and {len(exports) - 1} more"
    )
    write_page(out, page_of(timeline, title))
    for export in exports:
        _warn(export)
    if as_json:
        told = {
            "schema": SCHEMA,
            "out": str(out),
            "lanes": len(timeline.lanes),
            "keys": timeline.keys,
            "probes": timeline.probes,
            "spans": timeline.spans,
        }
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(f"{out}: {counted(timeline)}; open it in a browser")
    return 0


def _page_for(path: Path) -> Path:
    name = "spans" if str(path) == "-" else path.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending) or name
    return Path(f"{name}.html")


def _warn(export: SpanFile) -> None:
    """What of the file is not on the page."""
    if export.unusable_count:
        first = export.unusable[0]
        click.echo(
            f"kvtier: {export.name}: spans that cannot be drawn: {export.unusable_count:,};"
            f" the first: line {first.line} {first.why}",
            err=True,
        )
    if export.cut:
        click.echo(f"kvtier: {export.name}: {export.cut}; what came before is drawn", err=True)
