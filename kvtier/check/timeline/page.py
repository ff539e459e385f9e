"""Lanes as one HTML page that needs nothing but a browser.

`page.html` is the skeleton, `page.css` the looks, the `.js` files the program; all of
it and the spans, as JSON, go into one file. The page's own policy allows the program
by its hash and nothing else: no network, no other script, whatever is in a span.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from kvtier.check.spans.reading import Span
from kvtier.check.timeline.model import Bar, Timeline, arranged
from kvtier.errors import KvtierError
from kvtier.telemetry import names

__all__ = ["page_of", "render_timeline", "write_page"]

_SCRIPTS = ("model.js", "view.js", "panel.js", "page.js")
_SAFE: Final = 2**53
"""The whole numbers below it are exact in JavaScript."""


def render_timeline(spans: Iterable[Span], title: str, *, steps: bool = False) -> str:
    """A page that draws `spans`. With `steps` a nanosecond is shown as one step."""
    return page_of(arranged(spans), title, steps=steps)


def page_of(timeline: Timeline, title: str, *, steps: bool = False) -> str:
    """The same for spans that were arranged before."""
    data = _data(timeline, title, steps)
    style, script = _part("page.css"), "".join(map(_part, _SCRIPTS))
    policy = f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)}"
    parts = {
        "POLICY": html.escape(policy, quote=False),
        "TITLE": html.escape(f"{title}: {data['counts']}".encode(errors="replace").decode()),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": _json(data),
    }
    return re.sub("%([A-Z]+)%", lambda mark: parts[mark[1]], _part("page.html"))


def counted(timeline: Timeline) -> str:
    """How much there is, in words."""
    parts = (timeline.probes, "probe"), (timeline.keys, "key"), (timeline.spans, "span")
    return ", ".join(_amount(n, word) for n, word in parts)


def _amount(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def write_page(path: Path, page: str) -> None:
    """Write `page`, all of it or nothing. Raises `KvtierError` if that cannot be.

    What is not a file (`/dev/stdout`, a pipe) is written to and not replaced.
    """
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            with path.open("w", encoding="utf-8") as file:
                file.write(page)
            return
        _replace(Path(os.path.realpath(path)), page)
    except OSError as error:
        raise KvtierError(f"{path}: cannot be written: {error.strerror}") from error


def _replace(target: Path, page: str) -> None:
    handle, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(page)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
        os.chmod(beside, mode)
        os.replace(beside, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _part(name: str) -> str:
    return (files("kvtier.check.timeline") / name).read_text(encoding="utf-8")


def _allowed(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# Data


def _json(data: object) -> str:
    """ASCII without `<`: it ends no element, and is no comment."""
    compact = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return compact.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(timeline: Timeline, title: str, steps: bool) -> dict[str, Any]:
    """What `model.js` reads; there is said what is what."""
    table = _Tables()
    rows = [(lane, part, row) for lane in timeline.lanes for part, row in enumerate(lane.rows)]
    number = {bar: n for n, bar in enumerate(bar for _, _, row in rows for bar in row)}
    begin = min((bar.start for bar in number), default=0)
    end = max((bar.end for bar in number), default=0)
    lanes = []
    for lane, part, row in rows:
        shared = _shared(row)
        bars = [table.bar(bar, begin, number, shared) for bar in row]
        about = [lane.group, lane.name, int(lane.is_key), part]
        lanes.append([*about, table.said(shared), bars])
    return {
        "title": title,
        "counts": _amount(end - begin - 1, "step") if steps and number else counted(timeline),
        "repeats": timeline.repeats,
        "others": timeline.others,
        "steps": steps,
        "began": None if steps or not number else _iso(begin),
        "length": end - begin,
        "lanes": lanes,
        "probes": table.probes,
        "shapes": list(table.shapes),
        "traces": list(table.traces),
    }


class _Tables:
    """What many spans share, told once."""

    def __init__(self) -> None:
        self.shapes: dict[tuple[str, ...], int] = {}
        self.traces: dict[str, int] = {}
        self.probes: list[list[Any]] = []
        self._known: dict[int, int] = {}

    def bar(
        self, bar: Bar, begin: int, number: Mapping[Bar, int], shared: Mapping[str, Any]
    ) -> list[Any]:
        probe = -1
        if bar.probe is not None and bar.probe is not bar.span:
            probe = self._known.setdefault(id(bar.probe), len(self.probes))
            if probe == len(self.probes):
                self.probes.append(self._span(bar.probe, begin, shared))
        ticks = [
            [None if tick.time is None else tick.time - begin, tick.request] for tick in bar.ticks
        ]
        arrows = [number[target] for target in bar.arrows]
        return [bar.kind, *self._span(bar.span, begin, shared), probe, ticks, arrows]

    def said(self, attributes: Mapping[str, Any]) -> list[Any]:
        """The names, as a number, and the values."""
        shape = self.shapes.setdefault(tuple(attributes), len(self.shapes))
        return [shape, [_plain(value) for value in attributes.values()]]

    def _span(self, span: Span, begin: int, shared: Mapping[str, Any]) -> list[Any]:
        said = span.attributes
        flags = bool(said.get(names.OPEN)) + 2 * bool(said.get(names.TRUNCATED))
        own = {name: value for name, value in said.items() if name not in shared}
        trace = self.traces.setdefault(span.trace_id, len(self.traces))
        where = [trace, span.span_id, span.line]
        return [span.start - begin, span.end - span.start, flags, *where, *self.said(own)]


def _shared(bars: Sequence[Bar]) -> dict[str, Any]:
    """What all spans of a row say alike, their probes included."""
    spans = [span for bar in bars for span in (bar.span, bar.probe) if span is not None]
    first = spans[0].attributes
    return {
        name: value
        for name, value in first.items()
        if all(_is_same(span.attributes.get(name), value) for span in spans)
    }


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _plain(value: Any) -> Any:
    """As JavaScript can hold it without changing it."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if -_SAFE < value < _SAFE else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value)


def _iso(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{nanoseconds} ns after 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
