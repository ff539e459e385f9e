"""What became of which probe of one vLLM manager, told as transitions of kvtier's lifecycle.

The ledger is shown the manager between its calls and says what must have happened:

* who asked for what first stands in `_lookup_batch`, with its context;
* who joined is seen by the growth of `_req_keys`, by id only and at the next call
  that is watched, which in vLLM is the flush at the end of the same scheduler pass.
  Whether such a request is wanted is not known before it asks for something itself;
* what a call then did to an entry is seen by looking at the entry.

Only probes that a wanted request asked for or joined have an account here. vLLM's
words become the lifecycle's: an answer that finds no waiter and is dropped is an
answer and a sweep; a batch that failed is an error, although vLLM reads it as a miss;
generations count from 1. What the lifecycle does not allow is told as it happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvtier.keys import OffloadKey
from kvtier.lifecycle import (
    BatchObserver,
    BatchReport,
    LookupObserver,
    LookupPhase,
    Outcome,
    Transition,
    Trigger,
)
from kvtier.request import ReqContext
from kvtier.telemetry.vllm.worker import Call, Triple, verdict

__all__ = ["Ledger"]

_ABSENT, _PENDING, _IN_FLIGHT, _RESOLVED = LookupPhase
_PROPAGATED = ("traceparent", "tracestate")


class _Probe:
    """The account of one generation."""

    __slots__ = ("failed", "generation", "known", "phase", "waiters")

    def __init__(self, generation: int, phase: LookupPhase, known: set[str], waiters: int) -> None:
        self.generation = generation
        """Counted from 1; vLLM's own is one less."""
        self.phase = phase
        self.known = known
        """Waiters whose joining is told, or is past telling."""
        self.waiters = waiters
        self.failed = False
        """Its question failed."""


class Ledger:
    """Tells `observer` of the probes of `manager`. `clock`: seconds, that of all times here."""

    def __init__(self, manager: Any, observer: LookupObserver, clock: Callable[[], float]) -> None:
        self._manager = manager
        self._observer = observer
        self._batches = observer if isinstance(observer, BatchObserver) else None
        self._tier = str(manager._tier_type)
        self._clock = clock
        self._seq = 0
        self._probes: dict[OffloadKey, _Probe] = {}
        self._wanted: dict[str, bool] = {}
        """Requests that have asked for something that nobody else had asked for."""
        self._sizes: list[int] = []
        self._held: dict[str, int] = {}
        """How many keys each request was last seen with."""

    # -- seen between two calls --------------------------------------------------------------

    def born(self, births: Iterable[tuple[float, Triple]]) -> None:
        """These probes were asked for, at these times."""
        known = self._wanted
        for now, (key, context, generation) in births:
            req_id = context.req_id
            wanted = known.get(req_id)
            if wanted is None:
                wanted = known[req_id] = self._observer.wants(_adapted(context), self._tier)
            if wanted:
                probe = self._probes[key] = _Probe(generation + 1, _ABSENT, {req_id}, 1)
                self._tell(key, probe, Trigger.JOIN, _PENDING, Outcome.ASKED, now, req_id)

    def joined(self, req_id: str | None = None) -> None:
        """This request, or any, may have joined probes since the last look."""
        req_keys: dict[str, set[OffloadKey]] = self._manager._req_keys
        held = self._held
        if req_id is not None:
            keys = req_keys.get(req_id, set())
            grown = [req_id] if keys and len(keys) != held.get(req_id) else []
        else:
            sizes = list(map(len, req_keys.values()))
            if sizes == self._sizes:
                return
            self._sizes = sizes
            grown = [one for one, keys in req_keys.items() if len(keys) != held.get(one)]
        now = self._clock() if grown else 0.0
        later = set(grown)
        for one in grown:
            later.discard(one)
            keys = req_keys[one]
            held[one] = len(keys)
            if self._wanted.get(one):
                for key in keys:
                    self._join(key, one, later, now)
            elif self._probes:
                for key in keys & self._probes.keys():
                    self._join(key, one, later, now)

    # -- seen of a call ----------------------------------------------------------------------

    def sent(self, batch: Iterable[Triple], now: float) -> None:
        """A flush handed this to the worker."""
        if not self._probes:
            return
        for key, _, generation in batch:
            probe = self._probes.get(key)
            if probe is not None and probe.generation == generation + 1:
                self._tell(key, probe, Trigger.SEND, _IN_FLIGHT, Outcome.SENT, now)

    def called(self, call: Call) -> None:
        """A call of the back end has ended. To be told before what was drained."""
        if call.failure is not None:
            for key, generation in zip(call.keys, call.generations, strict=True):
                probe = self._probes.get(key)
                if probe is not None and probe.generation == generation:
                    probe.failed = True
        if self._batches is not None:
            self._batches.on_batch(self._report(call))

    def drained(self, results: Iterable[tuple[OffloadKey, int, Any]]) -> None:
        """A drain took these answers: key, generation, verdict."""
        if self._probes:
            now = self._clock()
            for key, generation, found in results:
                probe = self._probes.get(key)
                if probe is not None:
                    self._answer(key, probe, generation, verdict(found), now)

    def marked(self, keys: Iterable[OffloadKey]) -> None:
        """`mark_miss` was called with these. It may have forced what was not answered yet."""
        now = self._clock()
        for key in keys:
            probe = self._probes.get(key)
            if probe is not None and self._phase(key, probe) is _RESOLVED:
                self._tell(key, probe, Trigger.MARK_MISS, _RESOLVED, Outcome.FORCED_MISS, now)

    def released(self, req_id: str, keys: Iterable[OffloadKey]) -> None:
        """This request let go of these."""
        self._wanted.pop(req_id, None)
        self._held.pop(req_id, None)
        self._sizes = []
        if self._probes:
            now = self._clock()
            for key in keys:
                probe = self._probes.get(key)
                if probe is not None:
                    self._release(key, probe, req_id, now)

    def closed(self) -> None:
        """The manager was shut down: what is not answered never will be."""
        now = self._clock()
        for key, probe in list(self._probes.items()):
            if probe.phase is not _RESOLVED:
                probe.waiters = 0
                self._tell(key, probe, Trigger.CLOSE, _ABSENT, Outcome.CLOSED, now)

    # -- parts -------------------------------------------------------------------------------

    def _join(self, key: OffloadKey, req_id: str, later: set[str], now: float) -> None:
        probe = self._probes.get(key)
        if probe is not None and req_id in probe.known:
            return
        state = self._manager._lookup_state.get(key)
        if state is None:
            return
        if probe is None:
            # Nobody wanted asked for it, so nothing of it is told yet.
            phase = LookupPhase[state.phase.name]
            known = state.request_ids - later
            probe = _Probe(state.generation + 1, phase, known, len(known) - 1)
            self._probes[key] = probe
        probe.known.add(req_id)
        probe.waiters = min(probe.waiters + 1, len(state.request_ids))
        self._tell(key, probe, Trigger.JOIN, probe.phase, Outcome.JOINED, now, req_id)

    def _answer(
        self, key: OffloadKey, probe: _Probe, generation: int, found: bool, now: float
    ) -> None:
        phase = self._phase(key, probe)
        if probe.generation != generation + 1 or probe.phase is not _IN_FLIGHT:
            self._tell(key, probe, Trigger.ANSWER, probe.phase, Outcome.DISCARDED, now)
        elif phase is not _IN_FLIGHT:
            if found:
                outcome = Outcome.HIT
            else:
                outcome = Outcome.LOOKUP_ERROR if probe.failed else Outcome.MISS
            if phase is _ABSENT:
                probe.waiters = 0
            self._tell(key, probe, Trigger.ANSWER, _RESOLVED, outcome, now)
            if phase is _ABSENT:
                self._tell(key, probe, Trigger.SWEEP, _ABSENT, Outcome.UNCLAIMED, now)

    def _release(self, key: OffloadKey, probe: _Probe, req_id: str, now: float) -> None:
        phase = self._phase(key, probe)
        if phase is not _ABSENT and req_id not in probe.known:
            return
        probe.known.discard(req_id)
        if phase is _ABSENT:
            probe.waiters = 0
        else:
            probe.waiters = len(self._manager._lookup_state[key].request_ids)
        abandoned = phase is _ABSENT and probe.phase is _PENDING
        outcome = Outcome.ABANDONED if abandoned else Outcome.RELEASED
        target = _ABSENT if phase is _ABSENT else probe.phase
        self._tell(key, probe, Trigger.RELEASE, target, outcome, now, req_id)

    def _phase(self, key: OffloadKey, probe: _Probe) -> LookupPhase:
        """Where this generation is in the manager."""
        state = self._manager._lookup_state.get(key)
        if state is None or state.generation + 1 != probe.generation:
            return _ABSENT
        return LookupPhase[state.phase.name]

    def _tell(
        self,
        key: OffloadKey,
        probe: _Probe,
        trigger: Trigger,
        target: LookupPhase,
        outcome: Outcome,
        now: float,
        req_id: str | None = None,
    ) -> None:
        source, probe.phase = probe.phase, target
        if target is _ABSENT:
            del self._probes[key]
        self._seq += 1
        self._observer.on_transition(
            Transition(
                self._seq,
                now,
                self._tier,
                None,
                key,
                probe.generation,
                source,
                target,
                trigger,
                outcome,
                probe.waiters,
                req_id,
            )
        )

    def _report(self, call: Call) -> BatchReport:
        return BatchReport(
            self._tier,
            None,
            _adapted(call.req_context),
            call.keys,
            call.generations,
            call.answers if call.failure is None else None,
            call.failure,
            call.posted,
            call.began,
            call.ended,
        )


def _adapted(context: Any) -> ReqContext:
    """vLLM's request context as kvtier's.

    vLLM 0.33 has no trace headers in it, so they are also looked for where a client can
    put them: `traceparent` and `tracestate` among its `kv_transfer_params`.
    """
    params = getattr(context, "kv_transfer_params", None)
    headers = getattr(context, "trace_headers", None)
    if not headers and isinstance(params, Mapping):
        headers = {name: params[name] for name in _PROPAGATED if isinstance(params.get(name), str)}
    return ReqContext(context.req_id, params, headers or None)
