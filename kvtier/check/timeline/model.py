"""Spans as lanes: what is drawn beside what, before anybody thinks of pixels.

A lane is one key of one tier, or what one tier did (calls of the back end,
promotions, cascades), or the passes of the scheduler. A bar is one span; those of a
key are its stays, and a `probe` is drawn itself only if none of its stays is there.
What overlaps inside a lane gets further rows, so two bars of a row never do.

Nothing is judged here and nothing is refused: an illegal history is drawn as it was
told. `kvtier.check.spans` says what is wrong with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

from kvtier.check.spans.reading import Link, Span
from kvtier.check.spans.wire import PREFIX
from kvtier.telemetry import names

__all__ = ["PART", "PART_OF", "STEP", "Bar", "Lane", "Tick", "Timeline", "arranged"]

_STAYS = {names.PENDING: "pending", names.IN_FLIGHT: "in_flight", names.RESOLVED: "resolved"}
_DOINGS = {names.LOOKUP_BATCH: "batch", names.PROMOTION: "promotion", names.CASCADE: "cascade"}
_VERDICTS = {
    "hit": "hit",
    "miss": "miss",
    "lookup_error": "error",
    "forced_hit": "forced_hit",
    "forced_miss": "forced_miss",
}
_CLOCK_SLACK: Final = 2_000
"""Nanoseconds by which seconds kept as a float may be off."""
_SAME_FLUSH: Final = 8
"""So many calls are looked through for the one that asked for a probe."""

SCHEDULER: Final = "scheduler"
STEP: Final = "step"
"""Name of the spans of a counterexample: what was done."""
PART: Final = "part"
"""And a value that some part of the state had."""
PART_OF: Final = "kvtier.part"


@dataclass(frozen=True, slots=True)
class Tick:
    """A request that joined."""

    time: int | None
    """Nanoseconds since 1970; `None`: the link does not say."""
    request: str


@dataclass(slots=True, eq=False)
class Bar:
    """One span on the page."""

    span: Span
    kind: str
    """`pending`, `in_flight`, a verdict (`hit`, `miss`, `error`, `forced_hit`,
    `forced_miss`, `resolved` if unknown), `probe`, `batch`, `promotion`, `cascade`,
    `pass`, these four also with `_failed` (of a pass: deferred), `step`."""
    probe: Span | None = None
    """The probe that a stay belongs to, if it was found."""
    ticks: list[Tick] = field(default_factory=list)
    arrows: list[Bar] = field(default_factory=list)
    """The stays that a call asked for, or that a job is about."""

    @property
    def start(self) -> int:
        return self.span.start

    @property
    def end(self) -> int:
        """Not before the start, whatever the span says."""
        return max(self.span.start, self.span.end)


@dataclass(slots=True)
class Lane:
    """One key, or one thing that is done, from left to right."""

    group: str
    """`""`: it is above the keys, in a part that scrolls by itself."""
    name: str
    is_key: bool
    rows: list[list[Bar]]
    """Each in the order of time, without overlaps."""


@dataclass(slots=True)
class Timeline:
    """What is on the page."""

    lanes: list[Lane]
    """Calls, passes, promotions and cascades, then keys by tier, manager and first birth."""
    probes: int
    spans: int
    """That are kvtier's, and drawn."""
    repeats: int
    """The same span once more, as exporters send them when they try again."""
    others: int
    """Spans that are not drawn: those of requests, and what is not kvtier's."""

    @property
    def keys(self) -> int:
        """Lanes of keys: a key of two tiers has two."""
        return sum(lane.is_key for lane in self.lanes)


def arranged(spans: Iterable[Span]) -> Timeline:
    """The lanes of `spans`, which may come in any order."""
    known: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
    lanes: dict[tuple[Any, ...], list[Bar]] = {}
    probes: dict[tuple[str, str], Span] = {}
    stays: list[Bar] = []
    others = repeats = drawn = 0
    for span in spans:
        kind = _kind(span)
        if kind is None:
            others += 1
            continue
        same_id = known[span.trace_id, span.span_id]
        if any(_content(span) == _content(earlier) for earlier in same_id):
            repeats += 1
            continue
        same_id.append(span)
        drawn += 1
        if kind == "probe":
            probes.setdefault((span.trace_id, span.span_id), span)
            if probes[span.trace_id, span.span_id] is span:
                continue
        bar = Bar(span, kind)
        if span.name in _STAYS:
            stays.append(bar)
            bar.ticks = [_tick(link) for link in span.links]
        lanes.setdefault(_lane_of(span, kind), []).append(bar)
    told = _families(stays, probes)
    for place, probe in probes.items():
        if place not in told:
            bar = Bar(probe, "probe", probe, [_tick(link) for link in probe.links])
            told[place] = [bar]
            lanes.setdefault(_lane_of(probe, "probe"), []).append(bar)
    _name_verdicts(stays, told, probes)
    ordered = _in_order(lanes)
    _draw_arrows([bar for lane in ordered for row in lane.rows for bar in row], told)
    return Timeline(ordered, len(probes), drawn, repeats, others)


def text(value: Any) -> str:
    """An attribute in words; it may be of any type, whatever the contract says."""
    return value if isinstance(value, str) else "" if value is None else str(value)


# What a span is


def _kind(span: Span) -> str | None:
    """`None`: not one of kvtier's."""
    first, _, tier = span.name.partition(" ")
    if not any(name.startswith(PREFIX) for name in span.attributes):
        return None
    if span.name in _STAYS:
        return _STAYS[span.name]
    if first == names.PROBE and tier:
        return "probe"
    if first in _DOINGS and tier:
        return _DOINGS[first] + ("_failed" if span.error else "")
    if span.name in (STEP, PART):
        return STEP
    if span.name == names.SCHEDULER_LOOKUP:
        admitted = span.attributes.get(names.LOOKUP_RESULT) in ("admitted", None)
        return "pass" if admitted else "pass_failed"
    return None


def _content(span: Span) -> tuple[Any, ...]:
    links = [(link.trace_id, link.span_id, link.attributes) for link in span.links]
    return span.name, span.parent_id, span.start, span.end, span.attributes, links


def _lane_of(span: Span, kind: str) -> tuple[Any, ...]:
    """Where it belongs: whether it is a key's, then what tells lanes apart."""
    said = span.attributes
    place = text(said.get(names.TIER)), text(said.get(names.MANAGER_ID))
    if span.name in _STAYS or kind == "probe":
        return (True, *place, text(said.get(names.KEY)), text(said.get(names.SCOPE_OF)))
    if span.name == names.SCHEDULER_LOOKUP:
        return (False, SCHEDULER)
    if kind == STEP:
        return (False, STEP, text(said.get(PART_OF)))
    return (False, *place, kind.removesuffix("_failed"))


def _tick(link: Link) -> Tick:
    time = link.attributes.get(names.JOINED_AT)
    told = time if isinstance(time, int) and not isinstance(time, bool) else None
    return Tick(told, text(link.attributes.get(names.REQUEST_ID)))


def _when(bar: Bar) -> tuple[Any, ...]:
    """Stays that took no time come in the order of a life; the id makes it one order."""
    rank = list(_STAYS).index(bar.span.name) if bar.span.name in _STAYS else 0
    return bar.start, bar.end, rank, bar.span.span_id


# Stays and their probes

_Families = dict[tuple[str, str], list[Bar]]
"""By trace and id of the probe span, the stays of it in the order of time."""


def _families(stays: Sequence[Bar], probes: Mapping[tuple[str, str], Span]) -> _Families:
    found: _Families = {}
    for bar in sorted(stays, key=_when):
        place = bar.span.trace_id, bar.span.parent_id or ""
        if place in probes:
            bar.probe = probes[place]
            found.setdefault(place, []).append(bar)
    for place, bars in found.items():
        for tick in map(_tick, probes[place].links):
            _at(bars, tick.time).ticks.append(tick)
    return found


def _at(bars: Sequence[Bar], time: int | None) -> Bar:
    """The stay under way at `time`, else the first that ends later, else the last."""
    return next((bar for bar in bars if time is None or time < bar.end), bars[-1])


def _name_verdicts(
    stays: Iterable[Bar], told: _Families, probes: Mapping[tuple[str, str], Span]
) -> None:
    """What a verdict came from is said by what ended the stay or the probe before it."""
    for place, bars in told.items():
        said = probes[place].attributes
        opened = {said.get(names.ENDED_SEQ): said.get(names.OUTCOME)}
        opened |= {
            bar.span.attributes.get(names.SEQ): bar.span.attributes.get(names.OUTCOME)
            for bar in bars
        }
        for bar in bars:
            if bar.kind == "resolved":
                seq = bar.span.attributes.get(names.OPENED_SEQ)
                outcome = None if seq is None else opened.get(seq)
                bar.kind = _VERDICTS.get(text(outcome), "resolved")
    for bar in stays:
        if bar.kind == "resolved":
            bar.kind = _held(bar.span)


def _held(span: Span) -> str:
    verdict = span.attributes.get(names.VERDICT)
    return {True: "hit", False: "miss"}[verdict] if isinstance(verdict, bool) else "resolved"


# Arrows


def _draw_arrows(bars: Iterable[Bar], told: _Families) -> None:
    calls: defaultdict[str, list[tuple[int, Bar]]] = defaultdict(list)
    out: list[Bar] = []
    for bar in bars:
        kind = bar.kind.removesuffix("_failed")
        if kind == "batch":
            calls[text(bar.span.attributes.get(names.MANAGER_ID))].append((_posted(bar.span), bar))
        elif kind in ("promotion", "cascade"):
            linked = (told.get((link.trace_id, link.span_id)) for link in bar.span.links)
            bar.arrows = [_at(stays, bar.start) for stays in linked if stays]
        elif kind == "in_flight":
            out.append(bar)
    for asked in calls.values():
        asked.sort(key=lambda call: (call[0], call[1].start))
    for stay in out:
        asked = calls[text(stay.span.attributes.get(names.MANAGER_ID))]
        if call := _call_of(stay, asked):
            call.arrows.append(stay)


def _posted(batch: Span) -> int:
    waited = batch.attributes.get(names.BATCH_QUEUE_TIME)
    if isinstance(waited, int | float) and 0 <= waited < float("inf"):
        return batch.start - round(waited * 1e9)
    return batch.start


def _call_of(stay: Bar, asked: Sequence[tuple[int, Bar]]) -> Bar | None:
    """The call that a question went out with. No span says it: it is the first that was
    handed to the worker when the question was sent, and served one of its requests."""
    first = bisect_left(asked, stay.start - _CLOCK_SLACK, key=lambda call: call[0])
    near = [
        bar for _, bar in asked[first : first + _SAME_FLUSH] if bar.start <= stay.end + _CLOCK_SLACK
    ]
    about = stay.probe or stay.span
    requests = {(about.trace_id, about.parent_id)}
    requests |= {(link.trace_id, link.span_id) for link in about.links}
    for bar in near:
        if any((link.trace_id, link.span_id) in requests for link in bar.span.links):
            return bar
    return near[0] if near else None


# Lanes


def _in_order(lanes: Mapping[tuple[Any, ...], list[Bar]]) -> list[Lane]:
    found = []
    for place, bars in lanes.items():
        bars.sort(key=_when)
        if place == (False, SCHEDULER):
            rank: tuple[Any, ...] = (1,)
            lane = Lane("", "scheduler passes", False, _rows(bars))
        elif place[1] == STEP:
            rank = (4, place[2]) if place[2] else (0,)
            group = "other parts of the state" if place[2] else ""
            lane = Lane(group, place[2] or "what is done", False, _rows(bars))
        elif place[0]:
            _, tier, manager, key, scope = place
            rank = (3, tier, manager, bars[0].start, key)
            name = f"{key or 'key not told'} in {scope}" if scope else key or "key not told"
            lane = Lane(_group(tier, manager), name, True, _rows(bars))
        else:
            _, tier, manager, what = place
            rank = (0 if what == "batch" else 2, what == "cascade", tier, manager)
            plural = {"batch": "calls", "promotion": "promotions", "cascade": "cascades"}[what]
            lane = Lane("", f"{tier} {plural}", False, _rows(bars))
        found.append((rank, lane))
    return [lane for _, lane in sorted(found, key=lambda pair: pair[0])]


def _group(tier: str, manager: str) -> str:
    told = (("tier", tier), ("manager", manager))
    return ", ".join(f"{what} {which}" for what, which in told if which) or "keys"


def _rows(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Every bar in the first row that is free when it starts."""
    rows: list[list[Bar]] = []
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    for bar in bars:
        while taken and taken[0][0] <= bar.start:
            heappush(free, heappop(taken)[1])
        if not free:
            heappush(free, len(rows))
            rows.append([])
        row = heappop(free)
        rows[row].append(bar)
        heappush(taken, (bar.end, row))
    return rows
