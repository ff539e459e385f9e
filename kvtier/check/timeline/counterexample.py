"""A counterexample as spans, so that the page for histories draws it too.

A step takes one nanosecond, which the page shows as one step. Step n begins with what
was done, and lasts while the state after it does. Keys of the lifecycle have stays like
any other; each further part of the state has a lane that says when it changed, and how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from kvtier.check.counterexample import Event
from kvtier.check.spans.reading import Link, Span
from kvtier.check.timeline.model import PART, PART_OF, STEP
from kvtier.telemetry import names

__all__ = ["counterexample_spans"]

_TRACE: Final = "counterexample"
_STAYS = {"PENDING": names.PENDING, "IN_FLIGHT": names.IN_FLIGHT, "RESOLVED": names.RESOLVED}
_SAID = "phase", "gen", "verdict", "error"
"""What changes of an entry when one stay ends and another begins."""


def counterexample_spans(events: Sequence[Event]) -> list[Span]:
    """The spans of the steps in `events`, for a page with `steps`."""
    found = [_span(STEP, n, n + 1, _done(event), f"step-{n}") for n, event in enumerate(events)]
    entries = events[0].state.get("entry") if events else None
    if isinstance(entries, Mapping):
        for key in entries:
            found += _life(key, events)
    parts: dict[str, list[tuple[int, str]]] = {}
    for number, event in enumerate(events):
        for change in event.changes:
            part, _, told = change.partition(": ")
            if not part.startswith("entry["):
                parts.setdefault(part, []).append((number, told))
    for part, changes in parts.items():
        for (start, told), (end, _) in pairwise([*changes, (len(events), "")]):
            said = {PART_OF: part, "label": told}
            found.append(_span(PART, start, end, said, f"{part}-{start}"))
    return found


def _span(
    name: str,
    start: int,
    end: int,
    said: dict[str, Any],
    span_id: str,
    parent: str | None = None,
    links: tuple[Link, ...] = (),
) -> Span:
    return Span(name, _TRACE, span_id, parent, start, end, said, links, False, 0)


def _done(event: Event) -> dict[str, Any]:
    changes = {f"change {n}": change for n, change in enumerate(event.changes, 1)}
    return {"kvtier.step": event.step, "label": event.action} | changes


# Lives of keys


def _life(key: str, events: Sequence[Event]) -> Iterator[Span]:
    entries: list[Mapping[str, Any]] = [event.state["entry"][key] for event in events]
    said = [tuple(entry[name] for name in _SAID) for entry in entries]
    bounds = [0, *(n for n in range(1, len(said)) if said[n] != said[n - 1]), len(said)]
    stays = [(start, end) for start, end in pairwise(bounds) if entries[start]["phase"] != "ABSENT"]
    for start, end in stays:
        yield _stay(key, start, end, entries, events)
    for generation in {entries[start]["gen"]: None for start, _ in stays}:
        yield _probe(key, generation, stays, entries)


def _stay(
    key: str,
    start: int,
    end: int,
    entries: Sequence[Mapping[str, Any]],
    events: Sequence[Event],
) -> Span:
    entry = entries[start]
    about = _about(key, entry["gen"]) | {names.OPENED_SEQ: start}
    links: tuple[Link, ...] = ()
    if entry["phase"] == "RESOLVED":
        about[names.VERDICT] = entry["verdict"] == "T"
        links = tuple(_joins(entries, range(start + 1, end)))
    if end < len(entries):
        after = entries[end]
        about |= {
            names.SEQ: end,
            names.PHASE_FROM: entry["phase"].lower(),
            names.PHASE_TO: after["phase"].lower(),
            names.TRIGGER: events[end].action,
            names.WAITERS: len(after["waiters"]),
        }
        if outcome := _outcome(after, entry):
            about[names.OUTCOME] = outcome
    else:
        about[names.OPEN] = True
    name = _STAYS[entry["phase"]]
    return _span(name, start, end, about, f"{key}-{start}", f"{key}-g{entry['gen']}", links)


def _outcome(after: Mapping[str, Any], before: Mapping[str, Any]) -> str | None:
    """As far as the two entries tell it."""
    if after["phase"] != "RESOLVED":
        return None
    forced = "forced_" if before["phase"] == "RESOLVED" else ""
    if after["error"]:
        return "lookup_error"
    return forced + ("hit" if after["verdict"] == "T" else "miss")


def _probe(
    key: str,
    generation: int,
    stays: Sequence[tuple[int, int]],
    entries: Sequence[Mapping[str, Any]],
) -> Span:
    """It lasts until the verdict, and its links are those who joined until then."""
    asked = [
        (start, end)
        for start, end in stays
        if entries[start]["gen"] == generation and entries[start]["phase"] != "RESOLVED"
    ]
    begin = asked[0][0] if asked else min(s for s, _ in stays if entries[s]["gen"] == generation)
    end = asked[-1][1] if asked else begin
    about = _about(key, generation)
    if asker := min(entries[begin]["waiters"], default=None):
        about[names.REQUEST_ID] = asker
    links = tuple(_joins(entries, range(begin + 1, end)))
    return _span(f"{names.PROBE} model", begin, end, about, f"{key}-g{generation}", links=links)


def _about(key: str, generation: int) -> dict[str, Any]:
    return {names.KEY: key, names.GENERATION: generation}


def _joins(entries: Sequence[Mapping[str, Any]], steps: range) -> Iterator[Link]:
    for n in steps:
        for request in sorted(entries[n]["waiters"] - entries[n - 1]["waiters"]):
            yield Link(_TRACE, request, {names.REQUEST_ID: request, names.JOINED_AT: n})
