"""The JSON of spans, typed: what of it is read, and a `Span` made of it.

Only what kvtier looks at is named here; msgspec passes over the rest without making
objects of it. Numbers may be written as strings, as OTLP does.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, ValidationError
from msgspec.json import Decoder

__all__ = [
    "PREFIX",
    "Link",
    "Span",
    "Value",
    "console_span",
    "decode_coarse",
    "decode_export",
    "decode_span",
    "otlp_span",
]

PREFIX: Final = "kvtier."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ERROR = (2, "2", "STATUS_CODE_ERROR", "ERROR", "StatusCode.ERROR")

Value: TypeAlias = str | int | float | bool
_Id: TypeAlias = Annotated[str, Meta(min_length=1)]
_Int: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Link(Struct, frozen=True, gc=False):
    """What a span points at."""

    trace_id: str
    span_id: str
    attributes: dict[str, Value]


class Span(Struct, frozen=True, gc=False):
    """One span of kvtier, as it was exported. Attributes that are lists or maps are left out."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start: int
    """Nanoseconds since 1970, like `end`."""
    end: int
    attributes: dict[str, Value]
    links: tuple[Link, ...]
    error: bool
    """Whether its status is ERROR."""
    line: int
    """Where it is in its file; several may share one line."""


class _Value(Struct, gc=False):
    stringValue: str | None = None
    intValue: _Int | None = None
    boolValue: bool | None = None
    doubleValue: float | None = None


class _Pair(Struct, gc=False):
    key: str
    value: _Value | None = None


class _Link(Struct, gc=False):
    traceId: str = ""
    spanId: str = ""
    attributes: list[_Pair] = []


class _Status(Struct, gc=False):
    code: int | str = 0


class OtlpSpan(Struct, gc=False):
    """A span in OTLP's JSON."""

    traceId: _Id
    spanId: _Id
    startTimeUnixNano: _Int
    endTimeUnixNano: _Int
    name: str = ""
    parentSpanId: str | None = None
    attributes: list[_Pair] = []
    links: list[_Link] = []
    status: _Status | None = None


class _Scope(Struct, gc=False):
    spans: list[OtlpSpan] = []


class _Resource(Struct, gc=False):
    scopeSpans: list[_Scope] = []


class _Export(Struct, gc=False):
    resourceSpans: list[_Resource] = []
    context: Raw | UnsetType = UNSET
    """There if it is the console's."""


class _CoarseScope(Struct, gc=False):
    spans: list[Raw] = []


class _CoarseResource(Struct, gc=False):
    scopeSpans: list[_CoarseScope] = []


class _CoarseExport(Struct, gc=False):
    resourceSpans: list[_CoarseResource] = []
    context: Raw | UnsetType = UNSET


class _Context(Struct, gc=False):
    trace_id: _Id
    span_id: _Id


class _ConsoleLink(Struct, gc=False):
    context: _Context
    attributes: dict[str, Any] | None = None


class _ConsoleStatus(Struct, gc=False):
    status_code: str = ""


class _ConsoleSpan(Struct, gc=False):
    context: _Context
    start_time: datetime
    end_time: datetime
    name: str = ""
    parent_id: str | None = None
    attributes: dict[str, Any] | None = None
    links: list[_ConsoleLink] = []
    status: _ConsoleStatus | None = None


decode_export = Decoder(_Export, strict=False).decode
decode_coarse = Decoder(_CoarseExport, strict=False).decode
"""The spans of it not looked at yet."""
decode_span = Decoder(OtlpSpan, strict=False).decode
_decode_console = Decoder(_ConsoleSpan, strict=False).decode


def otlp_span(line: int, span: OtlpSpan) -> Span | None:
    """The span of kvtier that this is, or None."""
    pairs = span.attributes
    for pair in pairs:
        if pair.key.startswith(PREFIX):
            break
    else:
        return None
    status = span.status
    return Span(
        span.name,
        span.traceId,
        span.spanId,
        span.parentSpanId or None,
        span.startTimeUnixNano,
        span.endTimeUnixNano,
        _attributes(pairs),
        tuple(Link(link.traceId, link.spanId, _attributes(link.attributes)) for link in span.links)
        if span.links
        else (),
        status is not None and status.code in _ERROR,
        line,
    )


def _attributes(pairs: Iterable[_Pair]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for pair in pairs:
        value = pair.value
        if value is None:
            continue
        if (string := value.stringValue) is not None:
            found[pair.key] = string
        elif (number := value.intValue) is not None:
            found[pair.key] = number
        elif (flag := value.boolValue) is not None:
            found[pair.key] = flag
        elif (real := value.doubleValue) is not None:
            found[pair.key] = real
    return found


def console_span(line: int, text: bytes) -> Span | None:
    """The same, of an object that the console exporter printed. Raises `ValidationError`."""
    span = _decode_console(text)
    attributes = _scalars(span.attributes)
    if not any(name.startswith(PREFIX) for name in attributes):
        return None
    return Span(
        span.name,
        span.context.trace_id,
        span.context.span_id,
        span.parent_id or None,
        _nanoseconds(span.start_time),
        _nanoseconds(span.end_time),
        attributes,
        tuple(
            Link(link.context.trace_id, link.context.span_id, _scalars(link.attributes))
            for link in span.links
        ),
        span.status is not None and span.status.status_code in _ERROR,
        line,
    )


def _scalars(attributes: dict[str, Any] | None) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in (attributes or {}).items():
        if isinstance(value, str | int | float):
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ValidationError(f"{name} has more than 64 bits")
            found[name] = value
    return found


def _nanoseconds(time: datetime) -> int:
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // _MICROSECOND * 1000
