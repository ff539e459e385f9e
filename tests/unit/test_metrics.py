"""What the metrics say of lookups whose every step is known."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.resources import Resource

import kvtier
from kvtier.lifecycle import BatchObserver, BatchReport, LookupPhase, Outcome, Transition, Trigger
from kvtier.resources import resource_folder
from kvtier.telemetry import metrics, names
from kvtier.telemetry.metrics import BUCKET_EDGES, MetricsObserver
from tests.support.lookups import HandRuntime, ScriptedLookups, ctx, key, quiet

K, OTHER = key(1), key(2)
A, B, C = ctx("a"), ctx("b"), ctx("c")
T = "1:test"


class Measured:
    """An observer, the lookups that it observes, and a reader to collect from by hand."""

    def __init__(
        self,
        answer: Callable[..., Any] | None = None,
        *,
        dropped: dict[str, Callable[[], int]] | None = None,
        **settings: Any,
    ) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], resource=Resource({}), shutdown_on_exit=False)
        self.observer = MetricsObserver(self.provider, dropped=dropped)
        self.lookups = ScriptedLookups(HandRuntime(), answer, observer=self.observer, **settings)

    def round(self, *asked: tuple[Any, Any], seconds: float = 0.0) -> None:
        """Lookups, a flush, the answers, and a drain; `seconds` pass while the question is out."""
        for k, context in asked:
            self.lookups.lookup(k, context)
        self.lookups.flush()
        self.lookups.runtime.advance(seconds)
        self.lookups.step_worker()
        self.lookups.drain_results()

    def collect(self) -> dict[str, dict[tuple[str, ...], Any]]:
        """Data points by metric and by the values of their attributes, sorted by name."""
        data = self.reader.get_metrics_data()
        assert isinstance(data, MetricsData)
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        assert (scope.scope.name, scope.scope.version) == ("kvtier", kvtier.__version__)
        assert scope.scope.schema_url == names.SCHEMA_URL
        return {
            metric.name: {
                tuple(str(value) for _, value in sorted((point.attributes or {}).items())): point
                for point in metric.data.data_points
            }
            for metric in scope.metrics
        }

    def values(self, name: str) -> dict[tuple[str, ...], Any]:
        return {labels: point.value for labels, point in self.collect()[name].items()}


def no(keys: list[Any]) -> list[bool]:
    return [False] * len(keys)


def fails(keys: list[Any]) -> list[bool]:
    raise OSError("unreachable")


# -- counts ------------------------------------------------------------------------------------


def test_it_sees_the_calls_of_the_back_end_and_wants_every_request() -> None:
    observer = Measured().observer
    assert isinstance(observer, BatchObserver)
    assert observer.wants(A, T)


def test_transitions_are_counted_by_what_they_were() -> None:
    measured = Measured()
    measured.round((K, A), (OTHER, A), (K, B))
    for name in ("a", "b"):
        measured.lookups.cleanup(name)
    # Attributes sorted by name: outcome, phase.from, phase.to, trigger, tier.
    assert measured.values(names.TRANSITIONS) == {
        ("asked", "absent", "pending", "join", T): 2,
        ("joined", "pending", "pending", "join", T): 1,
        ("sent", "pending", "in_flight", "send", T): 2,
        ("hit", "in_flight", "resolved", "answer", T): 2,
        ("released", "resolved", "resolved", "release", T): 1,
        ("released", "resolved", "absent", "release", T): 2,
    }


def test_probes_are_counted_where_they_are_now() -> None:
    measured = Measured()
    measured.round((K, A))
    measured.lookups.lookup(OTHER, A)
    measured.lookups.flush()
    measured.lookups.lookup(key(3), A)
    measured.lookups.lookup(key(4), A)
    assert measured.values(names.PROBE_COUNT) == {
        ("pending", T): 2,
        ("in_flight", T): 1,
        ("resolved", T): 1,
    }


def test_no_probe_is_left_when_everybody_let_go() -> None:
    measured = Measured()
    measured.round((K, A), (K, B))
    for name in ("a", "b"):
        measured.lookups.cleanup(name)
    assert set(measured.values(names.PROBE_COUNT).values()) == {0}


def test_lookups_are_counted_by_outcome_and_reads_are_not() -> None:
    measured = Measured(deadline=10.0)
    lookups = measured.lookups
    for context in (A, B, C):
        lookups.lookup(K, context)
    lookups.lookup(K, A)  # reads, no more
    lookups.flush()
    lookups.runtime.advance(10.0)
    assert lookups.lookup(K, A) is False
    assert lookups.lookup(K, B) is False
    assert measured.values(names.LOOKUPS) == {
        ("asked", T): 1,
        ("joined", T): 2,
        ("deadline", T): 2,
    }


def test_a_failed_question_that_is_asked_again_is_issued_twice() -> None:
    with quiet():
        measured = Measured(fails)
        measured.round((K, A))
        measured.round((K, B))
        assert measured.lookups.lookup(K, A) is False
    assert measured.values(names.LOOKUPS) == {("asked", T): 1, ("asked_again", T): 1}


@pytest.mark.parametrize("answer", [None, no, fails], ids=["yes", "no", "fails"])
def test_counts_are_those_of_the_manager(answer: Callable[..., Any] | None) -> None:
    measured = Measured(answer, verdict_lifetime=5.0)
    lookups = measured.lookups
    with quiet():
        measured.round((K, A), (OTHER, A), (K, B))
        measured.round((K, C), (key(3), B))
        lookups.runtime.advance(6.0)
        measured.round((K, A), (OTHER, B), (key(4), C))
        lookups.lookup(key(5), B)
        lookups.cleanup("b")  # abandons key 5
        lookups.lookup(key(6), A)
        lookups.flush()
        lookups.cleanup("a")
        lookups.step_worker()
        lookups.drain_results()
        lookups.flush()  # nobody claimed the answer for key 6
        lookups.lookup(key(7), C)
        lookups.shutdown(0.0)  # closes key 7
    counts = lookups.counts
    rows = measured.values(names.TRANSITIONS)

    def total(*outcomes: str, trigger: str | None = None) -> int:
        return sum(
            count
            for (outcome, _, _, made_by, _), count in rows.items()
            if outcome in outcomes and trigger in (None, made_by)
        )

    assert counts.issued == total("asked", "asked_again", "expired") > 6
    assert counts.joined == total("joined") > 0
    assert counts.resolved == total("hit", "miss", "lookup_error", trigger="answer")
    assert (
        counts.lookup_errors == total("lookup_error") == (counts.resolved if answer is fails else 0)
    )
    assert (counts.abandoned, counts.closed, counts.unclaimed) == (1, 1, 1)
    assert (total("abandoned"), total("closed"), total("unclaimed")) == (1, 1, 1)
    made = measured.values(names.LOOKUPS)
    assert sum(n for (what, _), n in made.items() if what != "joined") == counts.issued
    there = measured.values(names.PROBE_COUNT)
    now = lookups.snapshot().entries.values()
    for phase in LookupPhase:
        if phase is not LookupPhase.ABSENT:
            assert there.get((phase.name.lower(), T), 0) == sum(e.phase is phase for e in now)


def test_tiers_are_counted_apart() -> None:
    reader = InMemoryMetricReader()
    measured = Measured()
    observer = MetricsObserver(MeterProvider([reader], shutdown_on_exit=False))
    first = ScriptedLookups(HandRuntime(), observer=observer)
    second = ScriptedLookups(HandRuntime(), observer=observer)
    first.lookup(K, A)
    observer.on_transition(
        Transition(
            *(1, 0.0, "2:other", None, K, 1, LookupPhase.ABSENT, LookupPhase.PENDING),
            *(Trigger.JOIN, Outcome.ASKED, 1, "a"),
        )
    )
    second.lookup(OTHER, A)
    measured.reader = reader
    assert measured.values(names.PROBE_COUNT) == {("pending", T): 2, ("pending", "2:other"): 1}


# -- durations ---------------------------------------------------------------------------------


def counted(point: Any) -> dict[float, int]:
    """How many values a histogram has, by the upper edge of their bucket."""
    edges = [*point.explicit_bounds, float("inf")]
    return {edge: n for edge, n in zip(edges, point.bucket_counts, strict=True) if n}


def test_a_probe_lasts_from_its_birth_to_its_verdict() -> None:
    measured = Measured()
    measured.lookups.lookup(K, A)
    measured.lookups.runtime.advance(0.125)
    measured.round((OTHER, A), seconds=0.25)
    ((labels, point),) = measured.collect()[names.PROBE_DURATION].items()
    assert labels == ("hit", T)
    assert (point.count, point.sum, point.min, point.max) == (2, 0.625, 0.25, 0.375)
    assert counted(point) == {0.25: 1, 0.5: 1}


def test_who_joins_does_not_make_a_probe_younger() -> None:
    measured = Measured()
    measured.lookups.lookup(K, A)
    measured.lookups.runtime.advance(0.5)
    measured.lookups.lookup(K, B)
    measured.round(seconds=0.25)
    (point,) = measured.collect()[names.PROBE_DURATION].values()
    assert (point.count, point.sum) == (1, 0.75)


def test_outcomes_have_durations_of_their_own_and_a_question_asked_again_another() -> None:
    with quiet():
        measured = Measured(fails)
        measured.round((K, A), seconds=2.0)
        measured.lookups.answer = no
        measured.round((K, B), seconds=0.5)
    points = measured.collect()[names.PROBE_DURATION]
    assert {labels: (p.count, p.sum) for labels, p in points.items()} == {
        ("lookup_error", T): (1, 2.0),
        ("miss", T): (1, 0.5),
    }


def test_a_probe_without_a_verdict_has_no_duration() -> None:
    measured = Measured()
    lookups = measured.lookups
    lookups.lookup(K, A)
    lookups.cleanup("a")
    lookups.lookup(OTHER, B)
    lookups.shutdown(0.0)
    assert names.PROBE_DURATION not in measured.collect()
    assert measured.observer._born == {}


def test_a_forced_verdict_is_not_a_second_one() -> None:
    measured = Measured()
    measured.round((K, A))
    measured.lookups.mark_miss([K])
    measured.lookups.mark_hit([K], A)
    (point,) = measured.collect()[names.PROBE_DURATION].values()
    assert point.count == 1


def test_a_duration_is_recorded_once_however_often_it_is_collected() -> None:
    measured = Measured()
    measured.round((K, A))
    for _ in range(2):
        (point,) = measured.collect()[names.PROBE_DURATION].values()
        assert point.count == 1


def test_a_call_of_the_back_end_has_a_duration_without_its_time_in_the_queue() -> None:
    measured = Measured()
    lookups = measured.lookups

    def slow(keys: list[Any]) -> list[bool]:
        lookups.runtime.advance(0.03)
        return [True] * len(keys)

    lookups.answer = slow
    measured.round((K, A), (OTHER, A), seconds=5.0)
    ((labels, point),) = measured.collect()[names.BATCH_DURATION].items()
    assert labels == (T,)
    assert point.count == 1
    assert point.sum == pytest.approx(0.03)


def test_a_call_that_fails_or_does_not_end_says_so() -> None:
    with quiet():
        measured = Measured(fails)
        measured.round((K, A))
        lookups = measured.lookups
        lookups.hangs = lambda keys: True
        lookups.lookup(OTHER, A)
        lookups.flush()
        lookups.lane.in_time = 0
        lookups.runtime.advance(3.0)
        lookups.shutdown(0.0)
        lookups.let_go.set()
        lookups.lane.finish()
    points = measured.collect()[names.BATCH_DURATION]
    assert {labels: (p.count, p.sum) for labels, p in points.items()} == {
        ("lookup_error", T): (1, 0.0),
        ("shutdown", T): (1, 3.0),
    }


def test_a_call_that_ended_a_worker_has_the_error_of_its_span() -> None:
    measured = Measured()
    report = BatchReport(T, None, A, [K], [1], None, "worker_died: OSError()", 1.0, 2.0, 4.0)
    measured.observer.on_batch(report)
    points = measured.collect()[names.BATCH_DURATION]
    assert {labels: p.sum for labels, p in points.items()} == {("worker_died", T): 2.0}


def test_both_histograms_have_the_edges_of_time_to_first_token() -> None:
    measured = Measured()
    measured.round((K, A))
    points = measured.collect()
    for name in (names.PROBE_DURATION, names.BATCH_DURATION):
        (point,) = points[name].values()
        assert point.explicit_bounds == BUCKET_EDGES
    assert list(BUCKET_EDGES) == sorted(BUCKET_EDGES)
    assert (BUCKET_EDGES[0], BUCKET_EDGES[-1], len(BUCKET_EDGES)) == (0.001, 2560.0, 22)


# -- what is left out ---------------------------------------------------------------------------


def test_durations_that_find_the_queue_full_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "QUEUE_LIMIT", 2)
    measured = Measured()
    measured.round(*((key(n), A) for n in range(5)))
    assert measured.values(names.DROPPED) == {("duration",): 3}
    (point,) = measured.collect()[names.PROBE_DURATION].values()
    assert point.count == 2
    measured.round((key(9), A))
    (point,) = measured.collect()[names.PROBE_DURATION].values()
    assert point.count == 3


def test_what_others_left_out_is_read_when_it_is_collected() -> None:
    lost = [4]
    measured = Measured(dropped={"record": lambda: lost[0], "probe": lambda: 0})
    assert measured.values(names.DROPPED) == {("duration",): 0, ("record",): 4, ("probe",): 0}
    lost[0] = 6
    assert measured.values(names.DROPPED)["record",] == 6


# -- with the SDK and without --------------------------------------------------------------------


def test_what_is_measured_is_what_the_registry_says() -> None:
    with quiet():
        measured = Measured(fails)
        measured.round((K, A))
    data = measured.reader.get_metrics_data()
    assert isinstance(data, MetricsData)
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    text = (resource_folder("spec") / "telemetry" / "metrics.yaml").read_text()
    groups = {group["metric_name"]: group for group in yaml.safe_load(text)["groups"]}
    assert found.keys() == groups.keys()
    kinds = {"counter": True, "updowncounter": False, "histogram": None}
    for name, group in groups.items():
        metric = found[name]
        assert (metric.unit, metric.description) == (group["unit"], group["brief"])
        assert getattr(metric.data, "is_monotonic", None) is kinds[group["instrument"]]
        wanted = {one["ref"] for one in group["attributes"]}
        for point in metric.data.data_points:
            assert set(point.attributes or {}) == wanted, name


def test_without_an_sdk_nothing_is_measured_and_nothing_fails() -> None:
    observer = MetricsObserver(api.NoOpMeterProvider())
    with ScriptedLookups(HandRuntime(), observer=observer) as lookups:
        lookups.lookup(K, A)


def test_a_reader_may_collect_while_lookups_go_on() -> None:
    measured = Measured()
    stop = threading.Event()
    failures: list[BaseException] = []

    def collect() -> None:
        try:
            while not stop.is_set():
                measured.collect()
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=collect)
    reader.start()
    for n in range(300):
        measured.round((key(n), A))
    stop.set()
    reader.join()
    assert failures == []
    (point,) = measured.collect()[names.PROBE_DURATION].values()
    assert point.count == 300


def test_a_row_that_comes_up_while_rows_are_read_is_no_trouble() -> None:
    measured = Measured()
    measured.round((K, A))
    observer = measured.observer
    for read in (observer._transitions, observer._probe_count, observer._lookups):
        rows = iter(read(api.CallbackOptions()))
        next(rows)
        before = len(observer._rows)
        observer.on_transition(
            Transition(
                *(1, 0.0, f"{before}:new", None, K, 1, LookupPhase.ABSENT, LookupPhase.PENDING),
                *(Trigger.JOIN, Outcome.ASKED, 1, "a"),
            )
        )
        assert len(observer._rows) == before + 1
        list(rows)
