"""Transitions become histories: what each probe went through, one generation at a time.

`Histories` is told what one manager reported, in order, and hands on what is
finished: a generation with its stays when the verdict or its discard ends it, and
each holding of a verdict when that ends. It makes no spans and reads no clock.

Two rules.

1. A history is told only if it is known. A probe counts from the moment that a
   request which was greeted creates or joins it; if that is after its birth, the
   history is *truncated* and starts there. Where records are missing, everything that was
   under way is *cut off*, because nobody can say what became of it, and the
   generations that were cut off are not taken up again.
2. The lifecycle table is not consulted. A producer that breaks it is recorded as it
   is: naming the fault is the business of whoever checks the spans.

What is forgotten when: a probe when it goes, a request when it is in no probe any
more. So nothing here grows beyond what is alive in the manager.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext

from kvtier.keys import OffloadKey
from kvtier.lifecycle import BatchReport, LookupPhase, Outcome, Transition, Trigger
from kvtier.telemetry.probes import Probe, Sink, Stay, Waiter

__all__ = ["BatchView", "Histories"]

_ABSENT, _PENDING, _IN_FLIGHT, _RESOLVED = LookupPhase

_VERDICTS: Final = {
    Outcome.HIT: True,
    Outcome.FORCED_HIT: True,
    Outcome.MISS: False,
    Outcome.LOOKUP_ERROR: False,
    Outcome.FORCED_MISS: False,
}


class BatchView(NamedTuple):
    """What is known of the probes of one call of the back end."""

    requests: dict[str, SpanContext]
    """Who is in those that are traced, first come first."""
    traced: int
    untraced: int


@dataclass(slots=True)
class _Request:
    origin: SpanContext
    probes: int = 0
    """How many known probes it is in."""


@dataclass(slots=True)
class _History:
    probe: Probe
    stay: Stay
    present: dict[str, _Request | None]
    """Who is in it; `None`: a request that was not greeted."""


class Histories:
    """The histories of one manager, whose transitions must come in order.

    `admit(time)` is asked for each generation whether it may be traced.
    """

    def __init__(self, sink: Sink, admit: Callable[[float], bool]) -> None:
        self.untraced = 0
        """Generations that `admit` left out."""
        self._sink = sink
        self._admit = admit
        self._requests: dict[str, _Request] = {}
        self._live: dict[OffloadKey, dict[Hashable, _History]] = {}
        self._next = 1
        self._now = 0.0
        self._newest = 0
        self._cut_up_to = 0
        """No generation up to here is taken up: it may have been cut off."""

    def __len__(self) -> int:
        """Keys and requests that are remembered."""
        return len(self._requests) + len(self._live)

    def greet(self, req_id: str, origin: SpanContext) -> None:
        """The probes of this request count from now on."""
        self._requests[req_id] = _Request(origin)

    def apply(self, transition: Transition) -> None:
        """What the manager reported next."""
        if transition.seq != self._next:
            self._lost_before(transition)
        self._next = transition.seq + 1
        self._now = transition.time
        self._newest = max(self._newest, transition.generation)
        history = self._find(transition.key, transition.scope)
        if history is not None and not _fits(history, transition):
            self._cut(history)
            self._cut_up_to = self._newest
            history = None
        if transition.trigger is Trigger.JOIN and transition.req_id is not None:
            self._join(history, transition, transition.req_id)
        elif transition.trigger is Trigger.RELEASE and transition.req_id is not None:
            self._release(history, transition.req_id)
        if history is not None and not _is_birth(transition):
            self._note(history.stay, transition)
            if transition.source is not transition.target or transition.outcome in _VERDICTS:
                self._move(history, transition)

    def cut_off(self) -> None:
        """Hand on everything as it stands, and forget it."""
        for history in list(self._histories()):
            self._cut(history)
        self._requests.clear()
        self._cut_up_to = self._newest

    def batch(self, report: BatchReport) -> BatchView:
        """Which requests and probes a call of the back end was for."""
        requests: dict[str, SpanContext] = {}
        traced = untraced = 0
        for key, generation in zip(report.keys, report.generations, strict=True):
            history = self._find(key, report.scope)
            if history is None or history.probe.first.generation != generation:
                continue
            if not history.probe.traced:
                untraced += 1
                continue
            traced += 1
            for waiter in (history.probe.creator, *history.probe.waiters):
                requests.setdefault(waiter.req_id, waiter.origin)
        return BatchView(requests, traced, untraced)

    def spans_of(self, key: OffloadKey, req_id: str) -> Iterator[SpanContext]:
        """Of the probes of `key` that this request is in, or that all requests share."""
        for scope, history in self._live.get(key, {}).items():
            span = history.probe.span
            if span is not None and (scope is None or req_id in history.present):
                yield span

    # -- parts -----------------------------------------------------------------------------

    def _find(self, key: OffloadKey, scope: object) -> _History | None:
        scopes = self._live.get(key)
        return None if scopes is None else scopes.get(scope)

    def _histories(self) -> Iterator[_History]:
        for scopes in self._live.values():
            yield from scopes.values()

    def _lost_before(self, transition: Transition) -> None:
        """Records are missing. Who was greeted just before this one is new, and stays known."""
        asker = self._requests.get(transition.req_id or "")
        self.cut_off()
        if asker is not None and asker.probes == 0 and transition.req_id is not None:
            self._requests[transition.req_id] = asker

    def _join(self, history: _History | None, t: Transition, req_id: str) -> None:
        asker = self._requests.get(req_id)
        waiter = Waiter(req_id, t.time, INVALID_SPAN_CONTEXT if asker is None else asker.origin)
        if _is_birth(t):
            present = {} if history is None else history.present
            if history is not None:
                self._close(history, t)
                del self._live[t.key][t.scope]
            self._enter(present, req_id, asker)
            if any(request is not None for request in present.values()):
                others = [
                    Waiter(other, t.time, INVALID_SPAN_CONTEXT if r is None else r.origin)
                    for other, r in present.items()
                    if other != req_id
                ]
                self._start(t, waiter, others, present)
            else:
                self._drop_empty(t.key)
        elif history is None:
            if asker is not None and t.generation > self._cut_up_to:
                present = {}
                self._enter(present, req_id, asker)
                self._start(t, waiter, [], present)
        elif req_id not in history.present:
            # Of a truncated history nobody knows who was in it before: a read past the deadline
            # may be one of those.
            if history.probe.truncated and asker is None and t.outcome is not Outcome.JOINED:
                return
            self._enter(history.present, req_id, asker)
            resolved = history.stay.phase is _RESOLVED
            (history.stay.joiners if resolved else history.probe.waiters).append(waiter)

    def _enter(
        self, present: dict[str, _Request | None], req_id: str, asker: _Request | None
    ) -> None:
        if req_id not in present:
            present[req_id] = asker
            if asker is not None:
                asker.probes += 1

    def _start(
        self,
        t: Transition,
        creator: Waiter,
        others: list[Waiter],
        present: dict[str, _Request | None],
    ) -> None:
        truncated = not _is_birth(t)
        traced = self._admit(t.time)
        self.untraced += not traced
        probe = Probe(t, creator, truncated, traced, others)
        stay = Stay(t.target, t.time, None if truncated else t.seq)
        history = _History(probe, stay, present)
        self._live.setdefault(t.key, {})[t.scope] = history
        if truncated:
            self._note(stay, t)
            if t.target is _RESOLVED:
                self._end(probe, t.time, None)

    def _release(self, history: _History | None, req_id: str) -> None:
        if history is not None:
            self._leave(history, req_id)
        asker = self._requests.get(req_id)
        if asker is not None and asker.probes == 0:
            del self._requests[req_id]

    def _leave(self, history: _History, req_id: str) -> None:
        asker = history.present.pop(req_id, None)
        if asker is not None:
            asker.probes -= 1
            if asker.probes == 0 and self._requests.get(req_id) is asker:
                del self._requests[req_id]

    def _note(self, stay: Stay, t: Transition) -> None:
        if t.outcome is Outcome.DEADLINE:
            stay.deadline_reads += 1
        elif t.outcome is Outcome.EXCUSED:
            stay.excused_reads += 1
        elif t.outcome is Outcome.DISCARDED:
            stay.discarded_answers += 1
        elif t.outcome is Outcome.NOTED:
            stay.stored = True

    def _move(self, history: _History, t: Transition) -> None:
        self._close(history, t)
        if t.target is _ABSENT:
            self._forget(history)
        else:
            history.stay = Stay(t.target, t.time, t.seq, _VERDICTS.get(t.outcome))

    def _close(self, history: _History, t: Transition) -> None:
        """The stay ends by `t`, and the probe with it, unless it goes on to the next phase."""
        probe, stay = history.probe, history.stay
        stay.closed, stay.ended = t, t.time
        if stay.phase is _RESOLVED:
            if probe.traced:
                self._sink.left(probe, stay)
            return
        probe.stays.append(stay)
        if t.target is _RESOLVED or t.target is _ABSENT:
            self._end(probe, t.time, t)

    def _end(self, probe: Probe, ended: float, last: Transition | None) -> None:
        probe.ended, probe.last = ended, last
        if probe.traced:
            self._sink.ended(probe)

    def _cut(self, history: _History) -> None:
        probe, stay = history.probe, history.stay
        stay.ended = self._now
        self._forget(history)
        if stay.phase is not _RESOLVED:
            probe.stays.append(stay)
            probe.cut = True
            self._end(probe, self._now, None)
        elif probe.traced:
            self._sink.left(probe, stay)

    def _forget(self, history: _History) -> None:
        for req_id in list(history.present):
            self._leave(history, req_id)
        first = history.probe.first
        del self._live[first.key][first.scope]
        self._drop_empty(first.key)

    def _drop_empty(self, key: OffloadKey) -> None:
        if not self._live.get(key, True):
            del self._live[key]


def _is_birth(t: Transition) -> bool:
    return t.target is _PENDING and t.source is not _PENDING


def _fits(history: _History, t: Transition) -> bool:
    """Whether this transition can be the next one of that history."""
    same = t.generation == history.probe.first.generation
    return t.source is history.stay.phase and same is not _is_birth(t)
