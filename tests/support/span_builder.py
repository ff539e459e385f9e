"""Spans of probes written down by hand, and an export of them as OTLP JSON lines.

Nothing here knows the lifecycle's table, or the observer that makes spans: which
numbers a span carries stands in the story (`span_stories.py`). Number n happens n
milliseconds after `EPOCH`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

EPOCH = 1_790_000_000_000_000_000
MANAGER = "a1/1:fs"
NO_CONTEXT = "0" * 32, "0" * 16

Attributes = dict[str, Any]


def at(seq: float) -> int:
    return EPOCH + round(seq * 1_000_000)


@dataclass
class Told:
    """One span. Attributes stand without `kvtier.` in front, but for `error.type`."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start: int
    end: int
    attributes: Attributes
    links: list[tuple[tuple[str, str], Attributes]] = field(default_factory=list)
    error: bool = False

    def without(self, *names: str) -> Told:
        """Takes attributes away, in place."""
        for name in names:
            del self.attributes[name]
        return self

    def otlp(self) -> dict[str, Any]:
        """As `opentelemetry-exporter-otlp-json-file` writes it."""
        parent = {} if self.parent_id is None else {"parentSpanId": self.parent_id}
        links = [
            {"traceId": trace, "spanId": span, "attributes": _pairs(attributes), "flags": 256}
            for (trace, span), attributes in self.links
        ]
        return {
            "traceId": self.trace_id,
            "spanId": self.span_id,
            **parent,
            "flags": 256,
            "name": self.name,
            "kind": 1,
            "startTimeUnixNano": str(self.start),
            "endTimeUnixNano": str(self.end),
            "attributes": _pairs(self.attributes),
            **({"links": links} if links else {}),
            "status": {"code": 2} if self.error else {},
        }


def _pairs(attributes: Attributes) -> list[dict[str, Any]]:
    return [
        {"key": name if name == "error.type" else f"kvtier.{name}", "value": _value(value)}
        for name, value in attributes.items()
        if value is not None
    ]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}


def export_line(*spans: dict[str, Any], scope: str = "kvtier") -> str:
    """One line of a file."""
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "engine"}}]}
    scopes = [{"scope": {"name": scope, "version": "0.1.0"}, "spans": list(spans)}]
    whole = {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}
    return json.dumps(whole, separators=(",", ":"))


def export(spans: Iterable[Told]) -> str:
    """A file with a line for each span."""
    return "".join(f"{export_line(span.otlp())}\n" for span in spans)


def waiters(*joined: tuple[str, float]) -> list[tuple[tuple[str, str], Attributes]]:
    return [
        (NO_CONTEXT, {"request.id": request, "waiter.time": at(time)}) for request, time in joined
    ]


Ended = tuple[int, str, str, str]
"""Number, trigger, outcome and next phase of what ended a stay."""


class Life:
    """One generation of a probe, told stay by stay; `spans` is what an exporter gets.

    The defaults are those of a story that needs to say nothing special.
    """

    def __init__(
        self,
        key: str = "aa",
        generation: int = 1,
        born: int = 1,
        *,
        again: str | None = None,
        request: str = "r1",
        joined: Sequence[tuple[str, float]] = (),
        manager: str = MANAGER,
        scope: str | None = None,
    ) -> None:
        digest = sha256(f"{manager} {key} {scope} {generation}".encode()).hexdigest()
        self._ids, self._trace = digest[:12], digest[-32:]
        self._common: Attributes = {
            "manager.id": manager,
            "tier": manager.partition("/")[2],
            "key": key,
            "scope": scope,
            "probe.generation": generation,
        }
        self.probe = Told(
            f"probe {self._common['tier']}",
            self._trace,
            f"{self._ids}0000",
            None,
            at(born),
            at(born),
            self._common
            | {
                "request.id": request,
                "probe.seq": born,
                "probe.phase.from": "resolved" if again else "absent",
                "probe.birth": again or "asked",
                "probe.phase.to": "pending",
                "probe.trigger": "join",
            },
            waiters(*joined),
        )
        self.stays: list[Told] = []
        self._opened = born

    @property
    def spans(self) -> list[Told]:
        """In the order in which they end."""
        first = [stay for stay in self.stays if stay.name != "probe.resolved"]
        return [self.probe, *first, *(stay for stay in self.stays if stay not in first)]

    def stay(self, phase: str, ended: Ended, **more: Any) -> Life:
        """One stay that begins as the last one ended. In `more` `_` stands for a dot."""
        seq, trigger, outcome, to = ended
        attributes = {
            "probe.opened.seq": self._opened,
            "probe.seq": seq,
            "probe.phase.from": phase,
            "probe.phase.to": to,
            "probe.trigger": trigger,
            "probe.outcome": outcome,
            "probe.waiters": 0 if to == "absent" else 1,
        }
        links = more.pop("links", [])
        told = Told(
            f"probe.{phase}",
            self._trace,
            f"{self._ids}{len(self.stays) + 1:04x}",
            self.probe.span_id,
            at(self._opened),
            at(seq),
            self._common | attributes | {f"probe.{name}": value for name, value in more.items()},
            links,
        )
        self.stays.append(told)
        self._opened = seq
        if phase != "resolved":
            self.probe.end = at(seq)
            if to in ("resolved", "absent"):
                self.probe.attributes |= {
                    "probe.outcome": outcome,
                    "probe.ended.seq": seq,
                    "probe.waiters": told.attributes["probe.waiters"],
                }
            if outcome == "lookup_error":
                self.probe.error = True
                self.probe.attributes["error.type"] = "lookup_error"
        return self

    def sent(self, seq: int, **more: Any) -> Life:
        return self.stay("pending", (seq, "send", "sent", "in_flight"), **more)

    def answered(self, seq: int, outcome: str, **more: Any) -> Life:
        return self.stay("in_flight", (seq, "answer", outcome, "resolved"), **more)

    def held(self, verdict: bool, ended: Ended, **more: Any) -> Life:
        return self.stay("resolved", ended, verdict=verdict, **more)

    def released(self, seq: int, verdict: bool = True, **more: Any) -> Life:
        return self.held(verdict, (seq, "release", "released", "absent"), **more)

    def opened_only(self, phase: str, until: float, **more: Any) -> Life:
        """A stay that was cut off by the closing of the observer."""
        self.stay(phase, (self._opened + 1, "", "", ""), **more)
        stay = self.stays[-1]
        stay.without("probe.seq", "probe.phase.to", "probe.trigger", "probe.outcome")
        stay.without("probe.waiters").attributes["probe.open"] = True
        stay.end = at(until)
        if phase != "resolved":
            self.probe.attributes["probe.open"] = True
            self.probe.end = at(until)
        return self


def call(
    keys: int,
    answers: int,
    *,
    began: float = 2.1,
    error: str | None = None,
    number: int = 1,
    hits: int = 0,
) -> Told:
    """A call of the back end."""
    return Told(
        "lookup_batch 1:fs",
        f"{number:032x}",
        f"{number:016x}",
        None,
        at(began),
        at(began + 0.5),
        {
            "manager.id": MANAGER,
            "tier": "1:fs",
            "lookup_batch.keys": keys,
            "lookup_batch.answers": answers,
            "lookup_batch.hits": hits,
            "lookup_batch.untraced": 0,
            "lookup_batch.queue_time": 0.0001,
            "error.type": error,
        },
        [(NO_CONTEXT, {"request.id": "r1"})],
        error is not None,
    )
