"""`MetricsObserver`: counts and durations of probes, through the OpenTelemetry API.

What the scheduler's thread pays for a transition is one increment in a dictionary,
and for a birth and a verdict one more step each: nothing of OpenTelemetry runs
there but one `record` for each call of the back end. Counters are observable: the
reader asks for them, on its own thread and in its own time, and all three are read
off the same dictionary.

A histogram has no such form: the API takes one value at a time and no buckets that
somebody else has counted, and a `record` costs 15 us. So the durations of probes
wait in a bounded queue until a reader collects, and are recorded by its thread,
just before it looks at the histogram. What finds the queue full is dropped, and
that is counted.

No key and no request id is ever an attribute here: a metric has few rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

import kvtier
from kvtier.keys import OffloadKey
from kvtier.lifecycle import BatchReport, LookupPhase, Outcome, Transition, Trigger
from kvtier.request import ReqContext
from kvtier.telemetry import names
from kvtier.telemetry.writer import batch_error

__all__ = ["BUCKET_EDGES", "MetricsObserver"]

BUCKET_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""Seconds. Advice to the SDK; a view may say otherwise.

The edges of vLLM's `vllm:time_to_first_token_seconds` (`vllm/v1/metrics/loggers.py`),
which is what a slow lookup makes worse: with the same edges one can be laid over the
other. Those of its request latencies begin at 0.3 s, above nearly every lookup.
"""

QUEUE_LIMIT = 16_384
"""Durations that wait for the next reader; to record so many takes it a quarter of a second."""

_Row = tuple[str, LookupPhase, LookupPhase, Trigger, Outcome]
"""Tier, source, target, trigger, outcome."""

_RESOLVED = LookupPhase.RESOLVED
_PENDING = LookupPhase.PENDING
_IN_FLIGHT = LookupPhase.IN_FLIGHT


class MetricsObserver:
    """Measures all probes of the managers that it observes, whatever is sampled.

    `meter_provider`: by default the global one. `dropped` says what else has been
    left out of the telemetry, by what it was: functions that read a count which
    only grows, for example

        MetricsObserver(dropped={"record": lambda: spans.lost, "probe": lambda: spans.untraced})

    One observer may serve several managers; those whose tiers have the same label
    are measured as one, so give such managers an observer each.
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        *,
        dropped: Mapping[str, Callable[[], int]] | None = None,
    ) -> None:
        self._rows: dict[_Row, int] = {}
        self._born: dict[tuple[str, Hashable, OffloadKey], float] = {}
        self._durations: deque[tuple[float, str, Outcome]] = deque()
        self._lost = 0
        self._dropped = {"duration": lambda: self._lost, **(dropped or {})}
        meter = get_meter(names.SCOPE, kvtier.__version__, meter_provider, names.SCHEMA_URL)
        self._batch_duration = meter.create_histogram(
            names.BATCH_DURATION,
            unit="s",
            description="Duration of calls of the back end",
            explicit_bucket_boundaries_advisory=BUCKET_EDGES,
        )
        self._probe_duration = meter.create_histogram(
            names.PROBE_DURATION,
            unit="s",
            description="Time from the birth of a probe to its verdict",
            explicit_bucket_boundaries_advisory=BUCKET_EDGES,
        )
        meter.create_observable_counter(
            names.TRANSITIONS,
            [self._transitions],
            unit="{transition}",
            description="Transitions of probes",
        )
        meter.create_observable_up_down_counter(
            names.PROBE_COUNT,
            [self._probe_count],
            unit="{probe}",
            description="Probes that there are now, by phase",
        )
        meter.create_observable_counter(
            names.LOOKUPS,
            [self._lookups],
            unit="{lookup}",
            description="Lookups that more than read a verdict",
        )
        meter.create_observable_counter(
            names.DROPPED,
            [self._drops],
            unit="{item}",
            description="What the telemetry leaves out",
        )

    # -- on the scheduler's thread ---------------------------------------------------------

    def wants(self, req_context: ReqContext, tier: str) -> bool:
        return True

    def on_transition(self, transition: Transition) -> None:
        source, target = transition.source, transition.target
        row = (transition.tier, source, target, transition.trigger, transition.outcome)
        self._rows[row] = self._rows.get(row, 0) + 1
        if source is target:
            return
        if target is _PENDING:
            self._born[transition.tier, transition.scope, transition.key] = transition.time
        elif target is not _IN_FLIGHT:
            born = self._born.pop((transition.tier, transition.scope, transition.key), None)
            if born is not None and target is _RESOLVED:
                if len(self._durations) < QUEUE_LIMIT:
                    seconds = transition.time - born
                    self._durations.append((seconds, transition.tier, transition.outcome))
                else:
                    self._lost += 1

    def on_batch(self, report: BatchReport) -> None:
        attributes = {names.TIER: report.tier}
        if (error := batch_error(report)) is not None:
            attributes[names.ERROR_TYPE] = error
        self._batch_duration.record(report.ended - report.since, attributes)

    # -- on the reader's thread ------------------------------------------------------------

    def _transitions(self, options: CallbackOptions) -> Iterable[Observation]:
        self._record_durations()
        # A copy is made in one go; the scheduler may add a row while this one is read.
        for (tier, source, target, trigger, outcome), count in self._rows.copy().items():
            yield Observation(
                count,
                {
                    names.TIER: tier,
                    names.PHASE_FROM: source.name.lower(),
                    names.PHASE_TO: target.name.lower(),
                    names.TRIGGER: trigger.name.lower(),
                    names.OUTCOME: outcome.value,
                },
            )

    def _record_durations(self) -> None:
        for _ in range(len(self._durations)):
            try:
                seconds, tier, outcome = self._durations.popleft()
            except IndexError:  # another reader took it
                return
            self._probe_duration.record(seconds, {names.TIER: tier, names.OUTCOME: outcome.value})

    def _probe_count(self, options: CallbackOptions) -> Iterable[Observation]:
        there: dict[tuple[str, LookupPhase], int] = {}
        for (tier, source, target, _, _), count in self._rows.copy().items():
            there[tier, source] = there.get((tier, source), 0) - count
            there[tier, target] = there.get((tier, target), 0) + count
        for (tier, phase), count in there.items():
            if phase is not LookupPhase.ABSENT:
                yield Observation(count, {names.TIER: tier, names.PHASE_NOW: phase.name.lower()})

    def _lookups(self, options: CallbackOptions) -> Iterable[Observation]:
        made: dict[tuple[str, Outcome], int] = {}
        for (tier, _, _, trigger, outcome), count in self._rows.copy().items():
            if trigger is Trigger.JOIN:
                made[tier, outcome] = made.get((tier, outcome), 0) + count
        for (tier, outcome), count in made.items():
            yield Observation(count, {names.TIER: tier, names.OUTCOME: outcome.value})

    def _drops(self, options: CallbackOptions) -> Iterable[Observation]:
        for what, count in self._dropped.items():
            yield Observation(count(), {names.DROPPED_ITEM: what})
