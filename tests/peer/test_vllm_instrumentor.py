"""Tracing vLLM's own manager: what is told of its probes, and that it is left as it was.

Expected histories are written by hand from the lifecycle's contract and vLLM's source.
A line is `key generation: phase>phase trigger outcome waiters request`.
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum, auto
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from kvtier.check.spans.checking import Checked, check_spans
from kvtier.check.spans.generation import Gap
from kvtier.keys import OffloadKey
from kvtier.lifecycle import BatchReport, Transition
from kvtier.request import ReqContext
from kvtier.telemetry import names
from kvtier.telemetry.recording import RecordingObserver
from kvtier.telemetry.vllm import VllmOffloadInstrumentor, tracing
from kvtier.telemetry.vllm.shape import MODULE
from kvtier.telemetry.vllm.worker import Questions
from tests.peer.conftest import peer
from tests.peer.vllm_wheel import NEWEST, PHASED, UNPHASED, source

pytestmark = pytest.mark.peer

LOGGER = "kvtier.telemetry.vllm"
PATIENCE = 10.0
"""Seconds that a test waits for another thread before it calls that a failure."""

A, B, C = (OffloadKey(name) for name in (b"a", b"b", b"c"))
SAMPLED = {"traceparent": f"00-{7:032x}-{9:016x}-01"}
UNSAMPLED = {"traceparent": f"00-{7:032x}-{9:016x}-00"}

dies = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.0005)


def yes(keys: list[OffloadKey]) -> Any:
    return [True] * len(keys)


class Recorder(RecordingObserver):
    """Notes calls of the back end too."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[BatchReport] = []
        self.told_before: list[int] = []
        """How many transitions came before each batch."""
        self.greeted: list[ReqContext] = []

    def wants(self, req_context: ReqContext, tier: str) -> bool:
        self.greeted.append(req_context)
        return req_context.trace_headers != UNSAMPLED

    def on_batch(self, report: BatchReport) -> None:
        self.batches.append(report)
        self.told_before.append(len(self.transitions))

    @property
    def lines(self) -> list[str]:
        assert [t.seq for t in self.transitions] == [*range(1, len(self.transitions) + 1)]
        times = [t.time for t in self.transitions]
        assert times == sorted(times)
        return [line(t) for t in self.transitions]


def line(t: Transition) -> str:
    phases = f"{t.source.name}>{t.target.name} {t.trigger.name}".lower()
    told = f"{t.key.decode()}{t.generation}: {phases} {t.outcome.value} {t.waiters}"
    return told if t.req_id is None else f"{told} {t.req_id}"


class Lookups:
    """One of vLLM's managers, spoken to by request id."""

    def __init__(self, base: Any, answer: Callable[[list[OffloadKey]], Any] = yes) -> None:
        self.answer = answer
        self.held = threading.Event()
        self.held.set()
        self.calls: list[list[OffloadKey]] = []
        outer = self

        class Manager(base):  # type: ignore[misc]
            def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Any:
                outer.calls.append(keys)
                assert outer.held.wait(PATIENCE)
                return outer.answer(keys)

        self.type = Manager
        self.manager = Manager("1:test")

    def ask(self, req_id: str, *keys: OffloadKey, headers: Any = None) -> list[Any]:
        context = ReqContext(req_id, None, headers)
        return [self.manager.lookup(key, context) for key in keys]

    def answered(self) -> None:
        """Flush, and drain until nothing is in flight."""
        self.manager.flush()

        def done() -> bool:
            self.manager.drain_results()
            states = self.manager._lookup_state.values()
            return all(state.phase.name != "IN_FLIGHT" for state in states)

        until(done)

    def partly_answered(self) -> None:
        """Flush, and drain what the next call brings."""
        self.manager.flush()
        until(lambda: not self.manager._pending_results.empty())
        self.manager.drain_results()

    def dead(self) -> None:
        self.manager.flush()
        self.manager._thread.join(PATIENCE)
        assert not self.manager._thread.is_alive()

    def close(self) -> None:
        self.held.set()
        self.manager.shutdown()


class Traced:
    """An instrumented vLLM and what it tells."""

    def __init__(self, module: ModuleType, folder: Path) -> None:
        self.module = module
        self.file = folder / "spans.jsonl"
        self.instrumentor = VllmOffloadInstrumentor()
        self.recorders: list[Recorder] = []
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._exported = FileSpanExporter(self.file)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exported))

    def _recorder(self) -> Recorder:
        self.recorders.append(Recorder())
        return self.recorders[-1]

    def recorded(self, answer: Callable[[list[OffloadKey]], Any] = yes) -> tuple[Lookups, Recorder]:
        """A manager whose transitions are kept."""
        self.instrumentor.instrument(observer=self._recorder)
        lookups = Lookups(self.module.AsyncLookupManager, answer)
        return lookups, self.recorders[-1]

    def spanned(self, answer: Callable[[list[OffloadKey]], Any] = yes) -> Lookups:
        """A manager whose transitions become spans."""
        self.instrumentor.instrument(tracer_provider=self.provider)
        return Lookups(self.module.AsyncLookupManager, answer)

    @property
    def checked(self) -> Checked:
        """What `kvtier validate` says of the export."""
        return check_spans([self.file])

    @property
    def broken(self) -> list[tuple[str, str]]:
        """Requirements that the export breaks, and with which spans."""
        return [(wrong.requirement, wrong.name) for wrong in self.checked.violations]

    def spans(self, name: str) -> list[ReadableSpan]:
        found = [s for s in self.exporter.get_finished_spans() if s.name.split()[0] == name]
        return sorted(found, key=lambda span: span.start_time or 0)


@pytest.fixture(params=[PHASED, NEWEST])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """vLLM's module, as if it had been imported."""
    return placed(request.param, monkeypatch)


def placed(version: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = peer(version)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def instrumentor() -> Iterator[VllmOffloadInstrumentor]:
    instrumentor = VllmOffloadInstrumentor()
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


@pytest.fixture
def traced(
    module: ModuleType, instrumentor: VllmOffloadInstrumentor, tmp_path: Path
) -> Iterator[Traced]:
    traced = Traced(module, tmp_path)
    yield traced
    traced.provider.shutdown()


@pytest.fixture
def phased(
    monkeypatch: pytest.MonkeyPatch, instrumentor: VllmOffloadInstrumentor, tmp_path: Path
) -> Iterator[Traced]:
    """The older of the two lifecycles."""
    traced = Traced(placed(PHASED, monkeypatch), tmp_path)
    yield traced
    traced.provider.shutdown()


@pytest.fixture
def newest(
    monkeypatch: pytest.MonkeyPatch, instrumentor: VllmOffloadInstrumentor, tmp_path: Path
) -> Iterator[Traced]:
    traced = Traced(placed(NEWEST, monkeypatch), tmp_path)
    yield traced
    traced.provider.shutdown()


def run_through(lookups: Lookups) -> None:
    """Everything that a healthy manager goes through."""
    lookups.answer = lambda keys: [key != B for key in keys]
    lookups.ask("r1", A, B)
    lookups.ask("r2", A)
    lookups.answered()
    assert lookups.ask("r1", A, B) == [True, False]
    lookups.ask("r3", A)
    lookups.manager.mark_miss([A])
    lookups.ask("r3", C)
    lookups.manager.cleanup("r3")
    lookups.manager.cleanup("r2")
    lookups.manager.cleanup("r1")
    lookups.held.clear()
    lookups.ask("r4", A)
    lookups.manager.flush()
    lookups.manager.cleanup("r4")
    lookups.held.set()
    lookups.answered()
    lookups.ask("r5", A)
    lookups.close()


# -- what is told ------------------------------------------------------------------------------


def test_the_life_of_probes_is_told_from_birth_to_release(traced):
    lookups, recorder = traced.recorded()
    lookups.ask("r1", A, B)
    lookups.ask("r2", A)
    lookups.answered()
    lookups.ask("r3", A)
    lookups.manager.cleanup("r1")
    lookups.manager.flush()
    lookups.manager.cleanup("r2")
    lookups.manager.cleanup("r3")
    told = recorder.lines
    lookups.close()
    assert told[:7] == [
        "a1: absent>pending join asked 1 r1",
        "b2: absent>pending join asked 1 r1",
        "a1: pending>pending join joined 2 r2",
        "a1: pending>in_flight send sent 2",
        "b2: pending>in_flight send sent 1",
        "a1: in_flight>resolved answer hit 2",
        "b2: in_flight>resolved answer hit 1",
    ]
    # Who joined is seen late, and what a request lets go of comes in no order.
    assert sorted(told[7:9]) == [
        "a1: resolved>resolved release released 2 r1",
        "b2: resolved>absent release released 0 r1",
    ]
    assert told[9:] == [
        "a1: resolved>resolved join joined 2 r3",
        "a1: resolved>resolved release released 1 r2",
        "a1: resolved>absent release released 0 r3",
    ]


def test_the_call_of_the_back_end_is_told_before_its_answers(traced):
    lookups, recorder = traced.recorded(lambda keys: [key == A for key in keys])
    lookups.ask("r1", A, B)
    lookups.answered()
    [report] = recorder.batches
    assert (report.tier, report.scope, report.req_context.req_id) == ("1:test", None, "r1")
    assert (report.keys, report.generations) == ([A, B], [1, 2])
    assert (report.verdicts, report.failure) == ([True, False], None)
    assert report.posted <= report.began <= report.ended
    assert recorder.told_before == [4]  # two births, two sends
    lookups.close()


def test_the_call_is_told_even_if_the_worker_is_slow_to_go_on(traced, monkeypatch):
    may_go_on = threading.Event()
    may_go_on.set()
    get = Questions.get

    def slow_get(self: Questions) -> Any:
        assert may_go_on.wait(PATIENCE)
        return get(self)

    def answer(keys: list[OffloadKey]) -> list[bool]:
        may_go_on.clear()
        return [True] * len(keys)

    monkeypatch.setattr(Questions, "get", slow_get)
    lookups, recorder = traced.recorded(answer)
    lookups.ask("r1", A)
    lookups.answered()
    assert recorder.told_before == [2]
    may_go_on.set()
    lookups.close()


def test_who_takes_the_place_of_another_is_seen(traced):
    lookups, recorder = traced.recorded()
    lookups.ask("r1", A)
    lookups.ask("r2", A)
    lookups.answered()
    lookups.ask("r1", A)
    lookups.manager.cleanup("r2")
    lookups.ask("r3", A)
    lookups.manager.flush()
    assert recorder.lines[4:] == [
        "a1: resolved>resolved release released 1 r2",
        "a1: resolved>resolved join joined 2 r3",
    ]
    lookups.close()


def test_a_probe_is_pending_from_the_lookup_to_the_flush(traced):
    lookups, recorder = traced.recorded()
    before = time.monotonic()
    lookups.ask("r1", A)
    after = time.monotonic()
    time.sleep(0.01)
    lookups.manager.flush()
    born, sent = recorder.transitions
    assert before <= born.time <= after <= sent.time - 0.01
    lookups.close()


def test_a_probe_that_is_let_go_of_before_the_flush_is_abandoned(traced):
    lookups, recorder = traced.recorded()
    lookups.ask("r1", A)
    lookups.manager.cleanup("r1")
    lookups.ask("r2", A)
    lookups.answered()
    assert recorder.lines == [
        "a1: absent>pending join asked 1 r1",
        "a1: pending>absent release abandoned 0 r1",
        "a2: absent>pending join asked 1 r2",
        "a2: pending>in_flight send sent 1",
        "a2: in_flight>resolved answer hit 1",
    ]
    assert lookups.calls == [[A]]
    lookups.close()


def test_an_answer_that_finds_no_waiter_is_an_answer_and_a_sweep(traced):
    lookups, recorder = traced.recorded()
    lookups.held.clear()
    lookups.ask("r1", A)
    lookups.manager.flush()
    lookups.manager.cleanup("r1")
    lookups.held.set()
    lookups.answered()
    assert recorder.lines[2:] == [
        "a1: in_flight>in_flight release released 0 r1",
        "a1: in_flight>resolved answer hit 0",
        "a1: resolved>absent sweep unclaimed 0",
    ]
    lookups.close()


def test_a_failed_load_ends_one_verdict_and_begins_another(traced):
    lookups, recorder = traced.recorded()
    lookups.ask("r1", A)
    lookups.answered()
    lookups.manager.mark_miss([A, B])
    assert recorder.lines[3:] == ["a1: resolved>resolved mark_miss forced_miss 1"]
    assert lookups.ask("r1", A) == [False]
    lookups.close()


def test_shutdown_closes_what_has_no_answer(traced):
    lookups, recorder = traced.recorded()
    lookups.held.clear()
    lookups.ask("r1", A)
    lookups.manager.flush()
    lookups.ask("r1", B)
    lookups.answer = lambda keys: []
    lookups.close()
    assert recorder.lines[3:] == [
        "a1: in_flight>absent close closed 0",
        "b2: pending>absent close closed 0",
    ]


def test_a_call_that_raises_is_an_error_although_vllm_says_miss(traced):
    def broken(keys: list[OffloadKey]) -> list[bool]:
        raise OSError("unreachable")

    lookups, recorder = traced.recorded(broken)
    lookups.ask("r1", A)
    lookups.answered()
    assert lookups.ask("r1", A) == [False]
    assert recorder.lines[2:] == ["a1: in_flight>resolved answer lookup_error 1"]
    [report] = recorder.batches
    assert (report.verdicts, report.failure) == (None, "OSError('unreachable')")
    lookups.close()


def test_a_lazy_answer_is_read_as_vllm_reads_it(traced):
    lookups, recorder = traced.recorded(lambda keys: (key == A for key in keys))
    lookups.ask("r1", A, B)
    lookups.answered()
    assert lookups.ask("r1", A, B) == [True, False]
    assert recorder.batches[0].verdicts == [True, False]
    lookups.close()


def test_a_lazy_answer_that_vllm_does_not_read_to_its_end_has_not_failed(traced):
    lookups, recorder = traced.recorded(lambda keys: (key == A for key in (*keys, C)))
    lookups.ask("r1", A)
    lookups.ask("r2", B)
    lookups.answered()
    assert [report.failure for report in recorder.batches] == [None, None]
    lookups.close()


class NoTruth:
    def __bool__(self) -> bool:
        raise ValueError


def test_an_answer_without_a_truth_value_is_handed_on_and_told_as_a_no(traced):
    strange = NoTruth()
    lookups, recorder = traced.recorded(lambda keys: [strange])
    lookups.ask("r1", A)
    lookups.answered()
    assert lookups.ask("r1", A) == [strange]
    assert recorder.batches[0].verdicts == [False]
    assert recorder.lines[2:] == ["a1: in_flight>resolved answer miss 1"]
    assert lookups.manager._thread.is_alive()
    lookups.close()


def test_a_call_that_brings_no_answer_is_told_all_the_same(traced):
    lookups, recorder = traced.recorded(lambda keys: [])
    lookups.ask("r1", A)
    lookups.manager.flush()

    def told() -> bool:
        lookups.manager.drain_results()
        return bool(recorder.batches)

    until(told)
    assert (recorder.batches[0].verdicts, recorder.batches[0].failure) == ([], None)
    lookups.close()


def test_more_answers_than_keys_are_not_told(traced):
    lookups, recorder = traced.recorded(lambda keys: iter([True, False, True]))
    lookups.ask("r1", A, B)
    lookups.answered()
    assert recorder.batches[0].verdicts == [True, False]
    lookups.close()


# -- what is wrong with vLLM is named ----------------------------------------------------------


def test_keys_that_a_short_answer_leaves_out_stay_in_flight(traced):
    lookups = traced.spanned(lambda keys: [True])
    lookups.ask("r1", A, B)
    lookups.partly_answered()
    lookups.close()
    [batch] = traced.spans("lookup_batch")
    assert (batch.attributes[names.BATCH_KEYS], batch.attributes[names.BATCH_ANSWERS]) == (2, 1)
    assert names.ERROR_TYPE not in batch.attributes
    ends = {s.attributes[names.KEY]: s.attributes[names.OUTCOME] for s in traced.spans("probe")}
    assert ends == {A.hex(): "hit", B.hex(): "closed"}
    assert traced.broken == [("L107", "lookup_batch 1:test")]


def leaves(keys: list[OffloadKey]) -> list[bool]:
    raise SystemExit


def lazy_failure(keys: list[OffloadKey]) -> Iterator[bool]:
    yield True
    raise OSError("lost")


@dies
def test_a_call_that_ends_the_worker_is_named(traced):
    lookups = traced.spanned(leaves)
    lookups.ask("r1", A)
    lookups.dead()
    lookups.close()
    [batch] = traced.spans("lookup_batch")
    assert batch.attributes[names.ERROR_TYPE] == "worker_died"
    assert batch.status.status_code is StatusCode.ERROR
    [probe] = traced.spans("probe")
    assert probe.attributes[names.OUTCOME] == "closed"
    assert traced.broken == [("L108", "lookup_batch 1:test")]


@dies
def test_a_lazy_answer_that_raises_ends_the_older_worker(phased):
    lookups, recorder = phased.recorded(lazy_failure)
    lookups.ask("r1", A, B)
    lookups.dead()
    lookups.manager.flush()
    [report] = recorder.batches
    assert (report.verdicts, report.failure) == (None, "worker_died: OSError('lost')")
    lookups.close()
    assert recorder.lines[4:] == [
        "a1: in_flight>absent close closed 0",
        "b2: in_flight>absent close closed 0",
    ]


def test_a_lazy_answer_that_raises_is_an_error_to_the_newer_one(newest):
    lookups, recorder = newest.recorded(lazy_failure)
    lookups.ask("r1", A, B)
    lookups.answered()
    assert recorder.batches[0].failure == "OSError('lost')"
    assert recorder.lines[4:] == [
        "a1: in_flight>resolved answer lookup_error 1",
        "b2: in_flight>resolved answer lookup_error 1",
    ]
    lookups.close()


def test_a_miss_forced_on_an_unsent_question_is_told_as_it_is(phased):
    lookups, recorder = phased.recorded()
    lookups.ask("r1", A)
    lookups.manager.mark_miss([A])
    assert recorder.lines[1:] == ["a1: pending>resolved mark_miss forced_miss 1"]
    with pytest.raises(AssertionError):  # as without tracing
        lookups.manager.flush()
    lookups.close()


def test_a_miss_forced_on_a_question_that_is_out_is_named(phased):
    lookups = phased.spanned()
    lookups.held.clear()
    lookups.ask("r1", A)
    lookups.manager.flush()
    lookups.manager.mark_miss([A])
    lookups.manager.cleanup("r1")
    lookups.close()
    assert phased.broken == [("L73", "probe.in_flight")]


def test_the_answer_to_a_question_of_before_is_discarded(phased):
    lookups, recorder = phased.recorded()
    lookups.held.clear()
    lookups.ask("r1", A)
    lookups.manager.flush()
    lookups.manager.mark_miss([A])
    lookups.manager.cleanup("r1")
    lookups.ask("r2", A)
    lookups.manager.flush()
    lookups.held.set()
    lookups.answered()
    assert recorder.lines[2:] == [
        "a1: in_flight>resolved mark_miss forced_miss 1",
        "a1: resolved>absent release released 0 r1",
        "a2: absent>pending join asked 1 r2",
        "a2: pending>in_flight send sent 1",
        "a2: in_flight>in_flight answer discarded 1",
        "a2: in_flight>resolved answer hit 1",
    ]
    lookups.close()


def test_the_newer_one_leaves_an_open_question_alone(newest):
    lookups, recorder = newest.recorded()
    lookups.ask("r1", A)
    lookups.manager.mark_miss([A])
    lookups.answered()
    assert [told.split()[2] for told in recorder.lines] == ["join", "send", "answer"]
    lookups.close()


# -- spans -------------------------------------------------------------------------------------


def test_a_healthy_run_has_every_span_once(traced):
    run_through(traced.spanned())
    count = Counter(span.name for span in traced.exporter.get_finished_spans())
    assert count == {
        "probe 1:test": 5,  # a, b, c; a again, unclaimed; a, closed
        "probe.pending": 5,
        "probe.in_flight": 3,
        "probe.resolved": 4,  # one more: a was forced
        "lookup_batch 1:test": 2,
    }
    outcomes = [span.attributes[names.OUTCOME] for span in traced.spans("probe")]
    assert sorted(outcomes) == ["abandoned", "closed", "hit", "hit", "miss"]
    first = traced.spans("probe")[0]
    assert [link.attributes[names.REQUEST_ID] for link in first.links] == ["r2"]


def test_a_healthy_run_validates(traced):
    run_through(traced.spanned())
    checked = traced.checked
    assert (checked.complete, checked.probes, checked.batches) == (5, 5, 2)
    assert checked.violations == []


def walk(lookups: Lookups, seed: int, *, forces: bool) -> list[Any]:
    """Calls drawn from a seed, and what the lookups said. Ends with nothing held or out."""
    rng = random.Random(seed)
    present: set[OffloadKey] = set()
    lookups.answer = lambda keys: [key in present for key in keys]
    lookups.held.clear()
    said: list[Any] = []
    requests = {f"r{number}": [None, SAMPLED, UNSAMPLED][number % 3] for number in range(4)}
    calls = ["lookup"] * 4 + ["cleanup"] * 3 + ["flush", "answer", "mark_miss", "change"]
    for _ in range(400):
        call = rng.choice(calls)
        req_id, key = rng.choice([*requests]), rng.choice([A, B, C])
        if call == "lookup":
            said += lookups.ask(req_id, key, headers=requests[req_id])
        elif call == "flush":
            lookups.manager.flush()
        elif call == "answer":
            lookups.held.set()
            lookups.answered()
            lookups.held.clear()
        elif call == "mark_miss":
            state = lookups.manager._lookup_state.get(key)
            if forces or (state is not None and state.phase.name == "RESOLVED"):
                lookups.manager.mark_miss([key])
        elif call == "cleanup":
            lookups.manager.cleanup(req_id)
        else:
            present ^= {key}
    lookups.held.set()
    lookups.answered()
    for req_id in requests:
        lookups.manager.cleanup(req_id)
    lookups.close()
    return said


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_called_the_export_validates_and_the_replies_are_vllms(traced, seed):
    # The older one forces what is not answered as well, and fails over it.
    forces = traced.module.__name__.endswith("33_0")
    bare = walk(Lookups(traced.module.AsyncLookupManager), seed, forces=forces)
    assert walk(traced.spanned(), seed, forces=forces) == bare
    checked = traced.checked
    assert checked.complete > 10
    assert checked.violations == []
    assert set(checked.incomplete) <= {Gap.TRUNCATED}


def test_two_managers_of_one_type_are_told_apart(traced):
    traced.instrumentor.instrument(tracer_provider=traced.provider)
    pair = [Lookups(traced.module.AsyncLookupManager) for _ in range(2)]
    for lookups in pair:
        lookups.ask("r1", A)
        lookups.answered()
        lookups.manager.cleanup("r1")
        lookups.close()
    probes = traced.spans("probe")
    assert [span.attributes[names.SEQ] for span in probes] == [1, 1]
    assert len({span.attributes[names.MANAGER_ID] for span in probes}) == 2


def test_a_tier_of_vllms_is_named_by_its_type(traced):
    traced.instrumentor.instrument(tracer_provider=traced.provider)

    class Files(traced.module.AsyncLookupManager):  # type: ignore[name-defined,misc]
        def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Any:
            return yes(keys)

    manager = Files("fs")
    manager.lookup(A, ReqContext("r1"))
    manager.flush()
    manager.shutdown()
    [batch] = traced.spans("lookup_batch")
    assert (batch.name, batch.kind) == ("lookup_batch fs", SpanKind.INTERNAL)


@pytest.mark.parametrize(
    "context",
    [
        ReqContext("r1", None, SAMPLED),
        ReqContext("r1", SAMPLED | {"tenant": 7}),
    ],
    ids=["headers", "parameters"],
)
def test_a_probe_is_in_the_trace_of_its_request(traced, context):
    lookups = traced.spanned()
    lookups.manager.lookup(A, context)
    lookups.close()
    [probe] = traced.spans("probe")
    assert (probe.context.trace_id, probe.parent.span_id) == (7, 9)


def test_requests_that_are_not_sampled_are_not_told_of(traced):
    lookups = traced.spanned()
    lookups.ask("r1", A, headers=UNSAMPLED)
    lookups.answered()
    lookups.manager.cleanup("r1")
    lookups.close()
    assert traced.exporter.get_finished_spans() == ()


def test_who_joins_a_probe_that_is_not_told_of_begins_its_history(traced):
    lookups, recorder = traced.recorded()
    lookups.ask("r1", A, headers=UNSAMPLED)
    lookups.ask("r2", A, B)
    lookups.answered()
    lookups.manager.cleanup("r2")
    lookups.manager.cleanup("r1")
    told = recorder.lines
    assert [one for one in told if one[0] == "a"] == [
        "a1: pending>pending join joined 2 r2",
        "a1: pending>in_flight send sent 2",
        "a1: in_flight>resolved answer hit 2",
        "a1: resolved>resolved release released 1 r2",
        "a1: resolved>absent release released 0 r1",
    ]
    lookups.close()


def test_who_only_joins_is_a_waiter_of_what_is_told_and_no_reason_to_tell_more(traced):
    lookups, recorder = traced.recorded()
    lookups.ask("r1", A, headers=UNSAMPLED)
    lookups.ask("r2", B)
    lookups.ask("r3", A, B)
    lookups.manager.flush()
    assert recorder.lines == [
        "b2: absent>pending join asked 1 r2",
        "b2: pending>pending join joined 2 r3",
        "b2: pending>in_flight send sent 2",
    ]
    lookups.close()


def test_every_request_is_asked_about_once(traced):
    lookups, recorder = traced.recorded()
    for _ in range(3):
        lookups.ask("r1", A, B, headers=SAMPLED)
        lookups.ask("r2", A, headers=SAMPLED)
        lookups.answered()
    # Of r2, which only joins, vLLM keeps the id and nothing else.
    assert recorder.greeted == [ReqContext("r1", None, SAMPLED)]
    lookups.close()


# -- on and off --------------------------------------------------------------------------------


def state(manager: Any) -> dict[str, Any]:
    return dict(vars(manager))


def test_lookup_is_vllms_own_and_no_class_but_the_base_is_touched(traced):
    before = dict(vars(traced.module.AsyncLookupManager))
    lookups = traced.spanned()
    assert lookups.manager.lookup.__func__ is before["lookup"]
    after = dict(vars(traced.module.AsyncLookupManager))
    assert {name for name in after if after[name] is not before[name]} == {"__init__"}
    assert set(vars(lookups.type)) - {"__annotations__"} >= {"batch_lookup"}
    lookups.close()


def test_subclasses_of_before_and_after_are_traced(traced):
    class Before(traced.module.AsyncLookupManager):  # type: ignore[name-defined,misc]
        def __init__(self, tier: str) -> None:
            super().__init__(tier)
            self.flushes = 0

        def flush(self) -> None:
            self.flushes += 1
            super().flush()

        def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Any:
            return yes(keys)

    traced.instrumentor.instrument(observer=traced._recorder)

    class After(Before):
        pass

    for kind in (Before, After):
        manager = kind("1:test")
        manager.lookup(A, ReqContext("r1"))
        manager.flush()
        assert manager.flushes == 1
        manager.shutdown()
        assert [told.split()[2] for told in traced.recorders[-1].lines][:2] == ["join", "send"]


def test_a_worker_with_questions_of_its_own_is_left_to_them(traced):
    traced.instrumentor.instrument(observer=traced._recorder)
    seen: list[Any] = []

    class Own(traced.module.AsyncLookupManager):  # type: ignore[name-defined,misc]
        def _worker(self) -> None:
            while (item := self._lookup_queue.get()) is not None:
                seen.append(item)

        def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Any:
            return yes(keys)

    manager = Own("1:test")
    manager._lookup_queue.put("question")
    manager.shutdown()
    assert seen == ["question"]


def test_uninstrument_puts_everything_back(traced):
    base = traced.module.AsyncLookupManager
    classes = {kind: dict(vars(kind)) for kind in (base, traced.module.LookupState)}
    bare = Lookups(base)
    lookups = traced.spanned()
    classes[lookups.type] = dict(vars(lookups.type))
    lookups.ask("r1", A)
    questions, answers = lookups.manager._lookup_queue, lookups.manager._pending_results
    held = {
        name: getattr(lookups.manager, name) for name in ("_lookup_state", "_req_keys", "_thread")
    }
    traced.instrumentor.uninstrument()
    for kind, before in classes.items():
        after = dict(vars(kind))
        assert [name for name in before if after.get(name) is not before[name]] == []
        assert set(after) == set(before)
    now = state(lookups.manager)
    assert set(now) == set(state(bare.manager))
    assert all(type(now[name]) is type(value) for name, value in state(bare.manager).items())
    assert all(now[name] is value for name, value in held.items())
    assert (now["_lookup_queue"], now["_pending_results"]) == (questions.queue, answers.queue)
    bare.close()
    lookups.close()


def test_what_others_have_put_around_it_stays(traced, monkeypatch):
    base = traced.module.AsyncLookupManager
    lookups = traced.spanned()
    ours, flush = base.__init__, lookups.manager.flush

    def their_init(self: Any, tier_type: str) -> None:
        ours(self, tier_type)

    def their_flush() -> None:
        flush()

    monkeypatch.setattr(base, "__init__", their_init)
    lookups.manager.flush = their_flush
    traced.instrumentor.uninstrument()
    assert (base.__init__, lookups.manager.flush) == (their_init, their_flush)
    lookups.ask("r1", A)
    lookups.answered()
    lookups.close()
    bare = Lookups(base)
    assert set(state(bare.manager)).isdisjoint({"flush", "batch_lookup"})
    bare.close()
    assert traced.exporter.get_finished_spans() == ()


def test_what_others_have_put_around_it_is_traced_once_when_it_is_wanted_again(
    traced, monkeypatch, caplog
):
    base = traced.module.AsyncLookupManager
    original = base.__init__
    traced.instrumentor.instrument(observer=traced._recorder)
    ours = base.__init__
    with monkeypatch.context() as patched:
        patched.setattr(base, "__init__", lambda self, tier_type: ours(self, tier_type))
        traced.instrumentor.uninstrument()
        lookups, recorder = traced.recorded()
        lookups.ask("r1", A)
        lookups.close()
        assert [line[:2] for line in recorder.lines] == ["a1"] * 2
        assert len(traced.recorders) == 1
    assert caplog.records == []
    traced.instrumentor.uninstrument()
    assert base.__init__ is original


def test_what_is_under_way_goes_on_untraced(traced):
    lookups = traced.spanned()
    lookups.held.clear()
    lookups.ask("r1", A)
    lookups.manager.flush()
    lookups.ask("r2", B)
    traced.instrumentor.uninstrument()
    ended = traced.exporter.get_finished_spans()
    assert Counter(span.name for span in ended) == {
        "probe 1:test": 2,
        "probe.pending": 2,
        "probe.in_flight": 1,
    }
    cut = [span for span in ended if span.attributes.get(names.OPEN)]
    assert Counter(span.name for span in cut) == {
        "probe 1:test": 2,
        "probe.pending": 1,
        "probe.in_flight": 1,
    }
    lookups.held.set()
    lookups.answered()
    assert (lookups.ask("r1", A), lookups.ask("r2", B)) == ([True], [True])
    lookups.close()
    assert lookups.calls == [[A], [B]]
    assert traced.exporter.get_finished_spans() == ended


def test_managers_made_after_uninstrument_are_not_traced_and_those_after_that_are(traced):
    _, first = traced.recorded()
    traced.instrumentor.uninstrument()
    bare = Lookups(traced.module.AsyncLookupManager)
    bare.ask("r1", A)
    bare.close()
    assert first.lines == []
    lookups, second = traced.recorded()
    assert second is not first
    lookups.ask("r1", A)
    lookups.close()
    assert len(second.lines) == 2


def test_it_can_be_taken_away_while_vllm_runs(traced, hasty):
    """No question is lost and none is asked twice."""
    for _ in range(20):
        lookups, _ = traced.recorded()
        stop = threading.Event()
        asked: list[OffloadKey] = []

        def work(lookups: Any = lookups, stop: Any = stop, asked: Any = asked) -> None:
            while not stop.is_set():
                for _ in range(50):
                    asked.append(OffloadKey(b"%d" % len(asked)))
                    lookups.ask("r1", asked[-1])
                lookups.manager.flush()

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.005)
        traced.instrumentor.uninstrument()
        stop.set()
        thread.join(PATIENCE)
        lookups.close()
        assert [key for call in lookups.calls for key in call] == asked


def test_a_question_that_is_asked_while_tracing_ends_is_not_lost(traced, monkeypatch):
    lookups = traced.spanned()
    clock = tracing._clock

    def ending() -> float:
        if traced.instrumentor.is_instrumented_by_opentelemetry:
            traced.instrumentor.uninstrument()
        return clock()

    monkeypatch.setattr(tracing, "_clock", ending)
    lookups.ask("r1", A)
    assert type(lookups.manager._lookup_batch) is list
    lookups.answered()
    assert lookups.ask("r1", A) == [True]
    lookups.close()


def test_a_question_that_was_taken_over_is_not_added_again():
    births = tracing._Births([], threading.RLock())
    triple = (A, ReqContext("r1"), 0)
    births.append(triple)
    successor = births.give_up()
    births.append(triple)  # as if this call had begun before the one above
    assert successor == [triple]


def test_uninstrument_waits_for_a_flush_that_is_under_way(traced, monkeypatch):
    lookups = traced.spanned()
    thread = threading.Thread(target=traced.instrumentor.uninstrument)
    put = Questions.put

    def slow_put(self: Questions, item: Any) -> None:
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        put(self, item)

    monkeypatch.setattr(Questions, "put", slow_put)
    lookups.ask("r1", A)
    lookups.manager.flush()
    thread.join(PATIENCE)
    assert not traced.instrumentor.is_instrumented_by_opentelemetry
    lookups.close()


def test_an_observer_that_raises_ends_the_tracing_and_nothing_else(traced, caplog):
    class Broken(Recorder):
        def on_transition(self, transition: Transition) -> None:
            raise ZeroDivisionError

    traced.instrumentor.instrument(observer=Broken)
    lookups = Lookups(traced.module.AsyncLookupManager)
    with caplog.at_level(logging.WARNING, LOGGER):
        lookups.ask("r1", A)
        lookups.answered()
        assert lookups.ask("r1", A) == [True]
    assert [record.message for record in caplog.records] == [
        "the probes of Manager 1:test are traced no more"
    ]
    assert "flush" not in vars(lookups.manager)
    lookups.close()


def test_an_observer_that_cannot_be_made_leaves_the_manager_bare(traced, caplog):
    traced.instrumentor.instrument(observer=lambda: 1 / 0)
    lookups = Lookups(traced.module.AsyncLookupManager)
    assert len(caplog.records) == 1
    assert not {"flush", "_worker", "batch_lookup"} & set(vars(lookups.manager))
    lookups.ask("r1", A)
    lookups.answered()
    assert lookups.ask("r1", A) == [True]
    lookups.close()


def test_a_manager_that_takes_no_attributes_of_others_is_left_bare(traced, caplog):
    base = traced.module.AsyncLookupManager
    own = set(vars(Lookups(base).manager))

    class Closed(base):  # type: ignore[misc,valid-type]
        def __setattr__(self, name: str, value: Any) -> None:
            if name not in own:
                raise AttributeError(name)
            super().__setattr__(name, value)

    traced.instrumentor.instrument(observer=traced._recorder)
    lookups = Lookups(Closed)
    assert [record.message for record in caplog.records] == [
        "the probes of Manager 1:test are traced no more"
    ]
    lookups.ask("r1", A)
    lookups.answered()
    assert lookups.ask("r1", A) == [True]
    lookups.close()


@pytest.mark.parametrize("params", [[1], "traceparent", 5, {"traceparent": 5}])
def test_parameters_of_a_request_that_are_none_stop_nothing(traced, params):
    lookups, recorder = traced.recorded()
    lookups.manager.lookup(A, ReqContext("r1", params))
    lookups.manager.cleanup("r1")
    lookups.close()
    assert recorder.greeted[0].trace_headers is None
    assert len(recorder.lines) == 2


def test_a_manager_that_cannot_be_made_is_not_traced(traced):
    traced.instrumentor.instrument(observer=traced._recorder)

    class Picky(traced.module.AsyncLookupManager):  # type: ignore[name-defined,misc]
        def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Any:
            return yes(keys)

    with pytest.raises(TypeError):
        Picky()
    assert traced.recorders == []


# -- what is not traced ------------------------------------------------------------------------


def test_a_vllm_without_phases_is_refused_with_one_warning(monkeypatch, instrumentor, caplog):
    module = placed(UNPHASED, monkeypatch)
    before = dict(vars(module.AsyncLookupManager))
    instrumentor.instrument()
    [record] = caplog.records
    assert (record.name, record.levelname) == (LOGGER, "WARNING")
    assert "its probes have no phases (no LookupPhase)" in record.message
    assert "LookupState has the fields result, request_ids" in record.message
    assert "PENDING, IN_FLIGHT and RESOLVED, as in vLLM 0.30 to 0.33" in record.message
    after = dict(vars(module.AsyncLookupManager))
    assert all(after[name] is value for name, value in before.items())
    lookups = Lookups(module.AsyncLookupManager)
    assert set(state(lookups.manager)).isdisjoint({"flush", "batch_lookup"})
    lookups.close()
    assert len(caplog.records) == 1


def no_class(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delattr(module, "AsyncLookupManager")
    return "there is no class AsyncLookupManager"


def another_phase(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> str:
    class LookupPhase(Enum):
        PENDING = auto()
        IN_FLIGHT = auto()
        EXPIRED = auto()
        RESOLVED = auto()

    monkeypatch.setattr(module, "LookupPhase", LookupPhase)
    return "LookupPhase has PENDING, IN_FLIGHT, EXPIRED, RESOLVED"


def no_entry(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "LookupState", dict)
    return "there is no dataclass LookupState"


def no_drain(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delattr(module.AsyncLookupManager, "drain_results")
    return "AsyncLookupManager has no method drain_results"


def other_drain(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module.AsyncLookupManager, "drain_results", lambda self: self.results)
    return "drain_results does not use _lookup_state, _pending_results, get_nowait"


def other_attributes(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> str:
    def __init__(self: Any, tier_type: str) -> None:
        self._tier_type = tier_type
        self._lookup_state = self._req_keys = self._lookup_batch = self._need_to_drain = None
        self._lookup_queue = self._next_generation = self._thread = None

    monkeypatch.setattr(module.AsyncLookupManager, "__init__", __init__)
    return "AsyncLookupManager sets no _pending_results"


@pytest.mark.parametrize(
    "change", [no_class, another_phase, no_entry, no_drain, other_drain, other_attributes]
)
def test_other_shapes_are_refused(traced, change, monkeypatch, caplog):
    told = change(traced.module, monkeypatch)
    kind = getattr(traced.module, "AsyncLookupManager", None)
    before = None if kind is None else dict(vars(kind))
    traced.instrumentor.instrument()
    [record] = caplog.records
    assert f"are not traced: {told}. Supported" in record.message
    assert before is None or dict(vars(kind)) == before


def test_without_vllm_nothing_happens(instrumentor, caplog):
    assert MODULE not in sys.modules
    instrumentor.instrument()
    instrumentor.uninstrument()
    assert caplog.records == []
    assert instrumentor.instrumentation_dependencies() == ("vllm",)


# -- from outside ------------------------------------------------------------------------------

SCRIPT = """
import multiprocessing, sys, time

def serve(shut_down, linger=0.0):
    from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
    from vllm.v1.kv_offload.base import ReqContext

    class Files(AsyncLookupManager):
        def batch_lookup(self, keys, req_context):
            return [True] * len(keys)

    manager = Files("fs")
    manager.lookup(b"a", ReqContext("r1"))
    manager.flush()
    while manager.lookup(b"a", ReqContext("r1")) is None:
        manager.flush()
    manager.cleanup("r1")
    if shut_down:
        manager.shutdown()
    time.sleep(linger)

if __name__ == "__main__":
    how = sys.argv[1]
    if how in ("spawn", "fork"):
        # A process that was forked leaves without a last export.
        linger = 1.0 if how == "fork" else 0.0
        core = multiprocessing.get_context(how).Process(target=serve, args=(True, linger))
        core.start()
        core.join()
        sys.exit(core.exitcode)
    serve(how == "shut down")
"""


def stand_in(folder: Path, version: str) -> None:
    """A package `vllm` whose lookup module is the file in the cache, where it is."""
    package = folder / "vllm"
    tiering = package / "v1" / "kv_offload" / "tiering"
    tiering.mkdir(parents=True)
    for inner in (package, package / "v1", package / "v1" / "kv_offload"):
        (inner / "__init__.py").touch()
    (tiering / "__init__.py").write_text(f"__path__ = [{str(source(version).parent)!r}]\n")
    (package / "logger.py").write_text("from logging import getLogger as init_logger\n")
    (package / "v1" / "kv_offload" / "base.py").write_text(
        "from kvtier.keys import OffloadKey\nfrom kvtier.request import ReqContext\n"
    )


def instrumented(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    script = folder / "serve.py"
    script.write_text(SCRIPT)
    command = Path(sys.executable).with_name("opentelemetry-instrument")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OTEL_TRACES_EXPORTER": "otlp_json_file",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    return subprocess.run(
        [command, sys.executable, str(script), how],
        env=environment,
        capture_output=True,
        text=True,
        timeout=40,
    )


@pytest.mark.parametrize(
    ("version", "how"),
    [
        (PHASED, "shut down"),
        (NEWEST, "shut down"),
        (NEWEST, "just ended"),
        (NEWEST, "spawn"),
        (NEWEST, "fork"),
    ],
)
def test_it_works_under_opentelemetry_instrument(tmp_path, version, how):
    """vLLM's engine, which has the managers, is a process of its own, by default spawned."""
    peer(version)
    stand_in(tmp_path, version)
    done = instrumented(tmp_path, how)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("probe fs", "probe.pending", "probe.in_flight", "probe.resolved"):
        assert done.stdout.count(f'"name":"{name}"') == 1
    assert '"name":"lookup_batch fs"' in done.stdout
    assert f'"{names.OPEN}"' not in done.stdout


def test_under_opentelemetry_instrument_another_vllm_is_warned_of_and_runs(tmp_path):
    peer(UNPHASED)
    stand_in(tmp_path, UNPHASED)
    done = instrumented(tmp_path, "shut down")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("are not traced: its probes have no phases") == 1
