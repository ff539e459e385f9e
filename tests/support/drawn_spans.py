"""Spans made by hand, for the page that draws them. Times are microseconds after `BEGIN`."""

from __future__ import annotations

import json
from typing import Any

from kvtier.check.spans.reading import Link, Span

BEGIN = 1_700_000_000_000_000_000
TRACE = "0af7651916cd43dd8448eb211c80319c"
MANAGER, TIER = "m1/1:fs", "1:fs"

_P = "kvtier.probe."


def key(number: int) -> str:
    """36 bytes in hex, unlike in their first bytes."""
    return f"{number * 2_654_435_761 % 2**32:08x}" + "5a" * 28 + "00000000"


def at(microseconds: float) -> int:
    return BEGIN + round(microseconds * 1000)


def span(
    name: str,
    start: float,
    end: float,
    said: dict[str, Any],
    *,
    span_id: str,
    parent: str | None = None,
    links: tuple[Link, ...] = (),
    error: bool = False,
) -> Span:
    return Span(name, TRACE, span_id, parent, at(start), at(end), said, links, error, 1)


def joined(request: str, when: float) -> Link:
    """The link of a waiter."""
    return Link(
        TRACE, f"{request:0>16}", {"kvtier.request.id": request, "kvtier.waiter.time": at(when)}
    )


def served(*requests: str) -> tuple[Link, ...]:
    return tuple(Link(TRACE, f"{request:0>16}", {}) for request in requests)


def probe(
    number: int,
    times: tuple[float, ...],
    *,
    outcome: str = "hit",
    verdict: bool = True,
    request: str = "r1",
    waiters: tuple[Link, ...] = (),
    later: tuple[Link, ...] = (),
    generation: int = 1,
    seq: int = 1,
    manager: str = MANAGER,
    tier: str = TIER,
    extra: dict[str, Any] | None = None,
) -> list[Span]:
    """The spans of a probe that was answered: born, sent, answered and let go at `times`."""
    born, sent, answered, gone = times
    common = {
        "kvtier.manager.id": manager,
        "kvtier.tier": tier,
        "kvtier.key": key(number),
        f"{_P}generation": generation,
    } | (extra or {})
    me = f"{number:07x}{generation:02x}"

    def stay(
        name: str, start: float, end: float, opened: int, ended: int, **said: Any
    ) -> dict[str, Any]:
        about = {f"{_P}{what.replace('_', '.')}": value for what, value in said.items()}
        return common | {f"{_P}opened.seq": opened, f"{_P}seq": ended} | about

    return [
        span(
            f"probe {tier}",
            born,
            answered,
            common
            | {
                "kvtier.request.id": request,
                f"{_P}seq": seq,
                f"{_P}phase.from": "absent",
                f"{_P}phase.to": "pending",
                f"{_P}trigger": "join",
                f"{_P}outcome": outcome,
                f"{_P}ended.seq": seq + 2,
                f"{_P}waiters": 1 + len(waiters),
            },
            span_id=f"a{me:0>15}",
            parent=f"{request:0>16}",
            links=waiters,
            error=outcome == "lookup_error",
        ),
        span(
            "probe.pending",
            born,
            sent,
            stay("pending", born, sent, seq, seq + 1, phase_from="pending", phase_to="in_flight",
                 trigger="send", outcome="sent", waiters=1),
            span_id=f"b{me:0>15}",
            parent=f"a{me:0>15}",
        ),
        span(
            "probe.in_flight",
            sent,
            answered,
            stay("in_flight", sent, answered, seq + 1, seq + 2, phase_from="in_flight",
                 phase_to="resolved", trigger="answer", outcome=outcome, waiters=1 + len(waiters)),
            span_id=f"c{me:0>15}",
            parent=f"a{me:0>15}",
        ),
        span(
            "probe.resolved",
            answered,
            gone,
            stay("resolved", answered, gone, seq + 2, seq + 3, phase_from="resolved",
                 phase_to="absent", trigger="release", outcome="released", waiters=0,
                 verdict=verdict),
            span_id=f"d{me:0>15}",
            parent=f"a{me:0>15}",
            links=later,
        ),
    ]  # fmt: skip


def call(
    number: int,
    began: float,
    ended: float,
    *,
    queued: float = 0.0,
    keys: int = 1,
    requests: tuple[str, ...] = (),
    failed: bool = False,
    manager: str = MANAGER,
    tier: str = TIER,
) -> Span:
    """One call of the back end, which waited `queued` microseconds."""
    said = {
        "kvtier.manager.id": manager,
        "kvtier.tier": tier,
        "kvtier.lookup_batch.keys": keys,
        "kvtier.lookup_batch.answers": 0 if failed else keys,
        "kvtier.lookup_batch.queue_time": queued / 1e6,
    } | ({"error.type": "lookup_error"} if failed else {})
    return span(
        f"lookup_batch {tier}",
        began,
        ended,
        said,
        span_id=f"e{number:015x}",
        links=served(*requests),
        error=failed,
    )


def job(
    number: int,
    start: float,
    end: float,
    keys: tuple[int, ...],
    *,
    what: str = "promotion",
    outcome: str = "ok",
    request: str = "r1",
) -> Span:
    """A promotion or cascade of blocks whose probes are known, in their first generation."""
    return span(
        f"{what} {TIER}",
        start,
        end,
        {
            "kvtier.tier": TIER,
            "kvtier.job.id": number,
            "kvtier.job.blocks": len(keys),
            "kvtier.job.moved": len(keys),
            "kvtier.job.outcome": outcome,
            "kvtier.request.id": request,
        },
        span_id=f"f{number:015x}",
        parent=f"{request:0>16}",
        links=tuple(Link(TRACE, f"a{f'{n:07x}01':0>15}", {}) for n in keys),
        error=outcome not in ("ok", "open"),
    )


def look(number: int, start: float, end: float, request: str, behind: str | None = None) -> Span:
    """A pass of the scheduler."""
    said: dict[str, Any] = {
        "kvtier.request.id": request,
        "kvtier.lookup.blocks": 4,
        "kvtier.lookup.hit_blocks": 0 if behind else 4,
        "kvtier.lookup.result": "retry" if behind else "admitted",
    } | ({"kvtier.lookup.behind": behind} if behind else {})
    return span("scheduler.lookup", start, end, said, span_id=f"9{number:015x}")


def many(count: int) -> list[Span]:
    """`count` probes, each of its own key, 64 to a call, some with waiters."""
    found: list[Span] = []
    for flush in range(0, count, 64):
        begin = flush * 20.0
        numbers = range(flush, min(flush + 64, count))
        request = f"r{flush // 64}"
        for n in numbers:
            waiters = (joined(f"w{n}", begin + 300),) if n % 8 == 0 else ()
            is_hit = n % 3 > 0
            times = begin + n % 64, begin + 100, begin + 600, begin + 1000
            found += probe(
                n, times, request=request, waiters=waiters, verdict=is_hit, seq=4 * n + 1,
                outcome="hit" if is_hit else "miss",
            )  # fmt: skip
        found.append(
            call(flush, begin + 110, begin + 590, queued=10, keys=len(numbers), requests=(request,))
        )
    return found


def export(spans: list[Span]) -> str:
    """One line of OTLP JSON."""

    def value(one: Any) -> dict[str, Any]:
        if isinstance(one, bool):
            return {"boolValue": one}
        if isinstance(one, int):
            return {"intValue": str(one)}
        return {"doubleValue": one} if isinstance(one, float) else {"stringValue": one}

    def said(attributes: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"key": name, "value": value(one)} for name, one in attributes.items()]

    told = [
        {
            "name": one.name,
            "traceId": one.trace_id,
            "spanId": one.span_id,
            "parentSpanId": one.parent_id or "",
            "startTimeUnixNano": str(one.start),
            "endTimeUnixNano": str(one.end),
            "attributes": said(one.attributes),
            "links": [
                {
                    "traceId": link.trace_id,
                    "spanId": link.span_id,
                    "attributes": said(link.attributes),
                }
                for link in one.links
            ],
            "status": {"code": 2} if one.error else {},
        }
        for one in spans
    ]
    scope = {"scope": {"name": "kvtier"}, "spans": told}
    return json.dumps({"resourceSpans": [{"scopeSpans": [scope]}]}) + "\n"
