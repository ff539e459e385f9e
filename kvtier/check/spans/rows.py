"""A span as the check keeps it: what is judged, in a row that packs into some 250 bytes.

What a span must have depends on what it is and on its flags (L110 to L114). One that
lacks something, or has it in the wrong type, becomes a row that says why it cannot be
used; if not even its place is known, no row at all.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.msgpack import Encoder
from xxhash import xxh3_64_intdigest

from kvtier.check.spans.wire import Span, Value
from kvtier.telemetry import names

__all__ = ["Kind", "Row", "row_of"]


class Kind(IntEnum):
    """What a span stands for. Those of one generation are judged in this order."""

    PROBE = 0
    PENDING = 1
    IN_FLIGHT = 2
    RESOLVED = 3
    BATCH = 4
    OTHER = 5
    """A promotion, a cascade, a pass: nothing is required of it but an id of its own."""


class Row(Struct, array_like=True, gc=False):
    """One span."""

    kind: int
    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start: int
    end: int
    file: int
    line: int
    content: int
    """Hash of all that the span says."""
    manager: str = ""
    scope: str | None = None
    key: str = ""
    generation: int = 0
    opened: int | None = None
    seq: int | None = None
    ended: int | None = None
    source: str | None = None
    target: str | None = None
    trigger: str | None = None
    outcome: str | None = None
    verdict: bool | None = None
    waiters: int = 0
    stored: bool = False
    truncated: bool = False
    open: bool = False
    birth: str | None = None
    keys: int = 0
    answers: int = 0
    error: str | None = None
    """`error.type`."""
    failed: bool = False
    """Its status is an error."""
    why: str | None = None
    """It cannot be used, because."""
    clash: bool = False
    """Another span has its id and says something else."""
    taken: bool = False
    """A transition of another place has its number."""
    misnumbered: bool = False
    """Its generation is not the next one that the manager gave out."""


_KINDS: Final = {
    names.PROBE: Kind.PROBE,
    names.PENDING: Kind.PENDING,
    names.IN_FLIGHT: Kind.IN_FLIGHT,
    names.RESOLVED: Kind.RESOLVED,
    names.LOOKUP_BATCH: Kind.BATCH,
}
_TYPES: Final[dict[type, str]] = {str: "a string", int: "a whole number", bool: "true or false"}

Needs = tuple[tuple[str, type], ...]

_PLACE: Needs = ((names.MANAGER_ID, str), (names.KEY, str), (names.GENERATION, int))
_PROBE: Needs = ((names.TIER, str), (names.REQUEST_ID, str), (names.SEQ, int))
_STAY: Needs = ((names.TIER, str), (names.PHASE_FROM, str))
_MOVE: Needs = ((names.PHASE_FROM, str), (names.PHASE_TO, str), (names.TRIGGER, str))
_BIRTH: Needs = (*_MOVE, (names.BIRTH, str))
_PROBE_END: Needs = ((names.OUTCOME, str), (names.ENDED_SEQ, int), (names.WAITERS, int))
_STAY_END: Needs = (
    (names.SEQ, int),
    *_MOVE,
    (names.OUTCOME, str),
    (names.WAITERS, int),
)
_ERROR: Needs = ((names.ERROR_TYPE, str),)
_OPENED: Needs = ((names.OPENED_SEQ, int),)
_VERDICT: Needs = ((names.VERDICT, bool),)
_BATCH: Needs = (
    (names.MANAGER_ID, str),
    (names.TIER, str),
    (names.BATCH_KEYS, int),
    (names.BATCH_ANSWERS, int),
    (names.BATCH_HITS, int),
)
_COUNTS: Final = {names.WAITERS, names.BATCH_KEYS, names.BATCH_ANSWERS, names.BATCH_HITS}


def _needs(kind: Kind, truncated: bool, is_open: bool) -> Needs:
    if kind is Kind.BATCH:
        return _BATCH
    if kind is Kind.OTHER:
        return ()
    if kind is Kind.PROBE:
        end = () if truncated or is_open else _PROBE_END
        return (*_PROBE, *(() if truncated else _BIRTH), *end)
    opened = () if truncated else _OPENED
    verdict = _VERDICT if kind is Kind.RESOLVED and not truncated else ()
    return (*_STAY, *opened, *verdict, *(() if is_open else _STAY_END))


_NEEDS: Final = {
    (kind, truncated, is_open): _needs(kind, truncated, is_open)
    for kind in Kind
    for truncated in (False, True)
    for is_open in (False, True)
}

_packed = Encoder(order="deterministic").encode


def row_of(span: Span, file: int) -> Row:
    """The row of one span of file number `file`.

    If `why` is set the rest of the row says nothing, but for the place of a stay or a
    probe; and a `generation` of 0 means that not even that is known.
    """
    attributes = span.attributes
    get = attributes.get
    kind = _KINDS.get(span.name.partition(" ")[0], Kind.OTHER)
    said = (span.name, span.parent_id, span.start, span.end, attributes, span.links, span.error)
    row = Row(
        kind,
        span.name,
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.start,
        span.end,
        file,
        span.line,
        xxh3_64_intdigest(_packed(said)),
    )
    if kind < Kind.BATCH:
        row.why = _lacks(attributes, _PLACE)
        if row.why is None:
            row.why = _place(row, attributes)
    if row.why is None:
        row.truncated, row.open = get(names.TRUNCATED) is True, get(names.OPEN) is True
        row.why = _lacks(attributes, _NEEDS[kind, row.truncated, row.open])
    if row.why is None:
        row.why = _fill[kind](row, span)
    return row


def _lacks(attributes: dict[str, Value], needs: Needs) -> str | None:
    for name, kind in needs:
        if type(value := attributes.get(name)) is not kind:
            return f"{name} is not {_TYPES[kind]}" if name in attributes else f"has no {name}"
        if name in _COUNTS and cast(int, value) < 0:
            return f"{name} is {value}, and it is a count"
    return None


def _place(row: Row, attributes: dict[str, Any]) -> str | None:
    scope, generation = attributes.get(names.SCOPE_OF), attributes[names.GENERATION]
    if scope is not None and type(scope) is not str:
        return f"{names.SCOPE_OF} is not a string"
    if generation < 1:
        return f"{names.GENERATION} is {generation}, and the first is 1"
    row.manager, row.scope = attributes[names.MANAGER_ID], scope
    row.key, row.generation = attributes[names.KEY], generation
    return None


def _flags(attributes: dict[str, Any]) -> str | None:
    for flag in (names.TRUNCATED, names.OPEN, names.STORED):
        if flag in attributes and type(attributes[flag]) is not bool:
            return f"{flag} is not true or false"
    return None


def _fill_probe(row: Row, span: Span) -> str | None:
    get: Callable[[str], Any] = span.attributes.get
    row.seq = get(names.SEQ)
    if not row.truncated:
        row.source, row.target = get(names.PHASE_FROM), get(names.PHASE_TO)
        row.trigger, row.birth = get(names.TRIGGER), get(names.BIRTH)
    if not (row.truncated or row.open) or _lacks(span.attributes, _PROBE_END) is None:
        row.outcome, row.ended = get(names.OUTCOME), get(names.ENDED_SEQ)
        row.waiters = get(names.WAITERS)
    if row.outcome == "lookup_error" and (why := _lacks(span.attributes, _ERROR)) is not None:
        return why
    row.failed = span.error
    return _flags(span.attributes)


def _fill_stay(row: Row, span: Span) -> str | None:
    get: Callable[[str], Any] = span.attributes.get
    if not row.truncated:
        row.opened = get(names.OPENED_SEQ)
    if row.kind == Kind.RESOLVED and type(verdict := get(names.VERDICT)) is bool:
        row.verdict = verdict
    if not row.open:
        row.seq, row.waiters = get(names.SEQ), get(names.WAITERS)
        row.source, row.target = get(names.PHASE_FROM), get(names.PHASE_TO)
        row.trigger, row.outcome = get(names.TRIGGER), get(names.OUTCOME)
    row.stored = get(names.STORED) is True
    return _flags(span.attributes)


def _fill_batch(row: Row, span: Span) -> str | None:
    get: Callable[[str], Any] = span.attributes.get
    row.keys, row.answers = get(names.BATCH_KEYS), get(names.BATCH_ANSWERS)
    error = get(names.ERROR_TYPE)
    row.error = None if error is None else str(error)
    return None


def _fill_other(row: Row, span: Span) -> str | None:
    return None


_fill: Final[dict[Kind, Callable[[Row, Span], str | None]]] = {
    Kind.PROBE: _fill_probe,
    Kind.PENDING: _fill_stay,
    Kind.IN_FLIGHT: _fill_stay,
    Kind.RESOLVED: _fill_stay,
    Kind.BATCH: _fill_batch,
    Kind.OTHER: _fill_other,
}
