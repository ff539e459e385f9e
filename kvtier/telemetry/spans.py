"""`SpanObserver`: a span for every stay of every probe, paid for off the scheduler's thread.

On the thread of whoever calls the manager, a record is put into a bounded queue and
nothing else happens. A thread of the observer (or `pump()`) takes the records out in
order and makes the spans, after the fact and with explicit times. What is where:

* here: the queue, the thread, whom to listen to;
* `sampling.py`: which requests are traced at all, and the bound on probes per second;
* `histories.py`, `probes.py`: transitions put together to the history of a probe;
* `writer.py`: histories, batches, jobs and passes as spans.

    with SpanObserver() as spans, MyLookups("1:mine", observer=spans) as lookups:
        ...

Close it after the managers and before the SDK. It uses the tracer provider of the
application and never configures one; without an SDK it makes nothing. A forked child
begins anew, under another name: what was under way is its parent's to tell.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from opentelemetry.trace import TracerProvider, get_tracer

import kvtier
from kvtier.errors import UsageError
from kvtier.lifecycle import BatchReport, Transition
from kvtier.log import Log, shown
from kvtier.request import ReqContext
from kvtier.telemetry import names
from kvtier.telemetry.histories import Histories
from kvtier.telemetry.sampling import TokenBucket, origin, unsampled
from kvtier.telemetry.writer import ManagerWriter, SpanWriter
from kvtier.tiering.reports import JobReport, PassReport

__all__ = ["SpanObserver"]

_log = Log("kvtier.telemetry")

PAUSE = 0.05
"""Seconds between two looks of the thread into the queue."""
SLICE, BREATH = 0.001, 0.0001
"""Seconds for which the thread works and then lets go of the interpreter. It would be made to
after 5 ms, and so long a scheduler that comes back from its engine would stand still."""


class SpanObserver:
    """Makes spans of lookups, and of jobs and scheduler passes if it is told of them.

    One observer serves the tiers of one tiering manager: their labels tell them apart.
    `observer_id` names it in `kvtier.manager.id` (default: 8 random hex digits).
    `epoch_ns` is the wall-clock time, in nanoseconds since 1970, at which the manager's
    clock stood at 0 (default: as measured now for `time.monotonic`). The queue holds
    `limit` records; what finds it full is lost, and counted in `lost`. At most
    `max_probes_per_second` generations are traced, counted on the manager's clock
    (`None`: all); the others are counted in `untraced` and on their batch's span. The
    default is what the queue of the SDK's batch processor takes in one burst: 2,048
    spans. With `thread=False` nothing happens until `pump()` or `close()`. Raises
    `UsageError` for bounds that make no sense.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        observer_id: str | None = None,
        epoch_ns: int | None = None,
        limit: int = 65536,
        max_probes_per_second: float | None = 500.0,
        thread: bool = True,
    ) -> None:
        if limit < 1:
            raise UsageError(f"a queue of {limit} records: give 1 or more")
        tracer = get_tracer(names.SCOPE, kvtier.__version__, tracer_provider, names.SCHEMA_URL)
        if epoch_ns is None:
            epoch_ns = time.time_ns() - time.monotonic_ns()
        self.lost = 0
        """Records that found the queue full or the observer closed, or that broke the SDK."""
        self._id = secrets.token_hex(4) if observer_id is None else observer_id
        self._writer = SpanWriter(tracer, epoch_ns)
        self._bucket = TokenBucket(max_probes_per_second)
        self._managers: dict[str, Histories] = {}
        self._limit = limit
        self._queue: deque[Transition | tuple[Callable[[Any], None], Any]] = deque()
        self._draining = threading.Lock()
        self._closing = threading.Event()
        self._given_up = False
        self._told = False
        self._threaded = thread
        self._thread: threading.Thread | None = None
        _all.add(self)

    @property
    def untraced(self) -> int:
        """Generations that the bound on probes per second left without spans."""
        return sum(histories.untraced for histories in list(self._managers.values()))

    # -- on the scheduler's thread ---------------------------------------------------------

    def wants(self, req_context: ReqContext, tier: str) -> bool:
        """Whether the request's own trace is recorded, or it has none that says."""
        if unsampled(req_context.trace_headers):
            return False
        return self._put(self._greet, (req_context, tier))

    def on_transition(self, transition: Transition) -> None:
        if len(self._queue) < self._limit:
            self._queue.append(transition)
        else:
            self.lost += 1

    def on_batch(self, report: BatchReport) -> None:
        self._put(self._batch, report)

    def on_job(self, report: JobReport) -> None:
        self._put(self._job, report)

    def on_pass(self, report: PassReport) -> None:
        self._put(self._pass, report)

    def _put(self, how: Callable[[Any], None], what: object) -> bool:
        if self._threaded and self._thread is None and not self._closing.is_set():
            # Before the queue is looked at: others may have filled it, and nobody empties it.
            thread = threading.Thread(target=self._run, name="kvtier-spans", daemon=True)
            thread.start()
            self._thread = thread
        if len(self._queue) >= self._limit:
            self.lost += 1
            return False
        self._queue.append((how, what))
        return True

    # -- off it ----------------------------------------------------------------------------

    def pump(self) -> None:
        """Make the spans of everything that is in the queue now, on this thread."""
        with self._draining:
            self._drain()

    def close(self, timeout: float = 5.0) -> None:
        """Make the spans of what is left, cut off where something is still open. Idempotent.

        Returns within `timeout` seconds if there is a thread, whatever the exporter
        does; then what is left is lost. Records that come later are lost too.
        """
        self._limit = 0
        self._closing.set()
        thread = self._thread
        if thread is None:
            self._finish()
            return
        thread.join(timeout)
        if thread.is_alive() and not self._given_up:
            self._given_up = True
            self.lost += len(self._queue)
            _log.warning("spans_given_up", records=len(self._queue), timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _begin_anew(self) -> None:
        """In a forked child: there is no thread, and all that is known belongs to the parent."""
        self._id = f"{self._id}-{os.getpid()}"
        self.lost = 0
        self._managers = {}
        self._queue = deque()
        self._draining = threading.Lock()
        if self._thread is not None:
            self._thread, self._closing = None, threading.Event()
            if self._limit == 0:
                self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(PAUSE):
            while self._queue and not self._closing.wait(BREATH):
                with self._draining:
                    self._drain(time.perf_counter() + SLICE)
        self._finish()

    def _finish(self) -> None:
        with self._draining:
            self._drain()
            if not self._given_up:
                for histories in self._managers.values():
                    self._try(Histories.cut_off, histories)

    def _drain(self, until: float = inf) -> None:
        for _ in range(len(self._queue)):
            if self._given_up or time.perf_counter() > until:
                return
            record = self._queue.popleft()
            if type(record) is Transition:
                self._try(self._transition, record)
            else:
                self._try(*record)

    def _try(self, how: Callable[[Any], None], what: Any) -> None:
        """A record that cannot be made a span of must not stop those behind it."""
        try:
            how(what)
        except Exception as error:
            self.lost += 1
            if not self._told:
                self._told = True
                _log.error("span_failed", error=shown(error), exc_info=error)

    def _histories(self, tier: str) -> Histories:
        histories = self._managers.get(tier)
        if histories is None:
            sink = ManagerWriter(self._writer, self._manager_id(tier), tier)
            histories = self._managers[tier] = Histories(sink, self._bucket.admit)
        return histories

    def _manager_id(self, tier: str) -> str:
        return f"{self._id}/{tier}"

    def _greet(self, asker: tuple[ReqContext, str]) -> None:
        req_context, tier = asker
        self._histories(tier).greet(req_context.req_id, origin(req_context.trace_headers))

    def _transition(self, transition: Transition) -> None:
        self._histories(transition.tier).apply(transition)

    def _batch(self, report: BatchReport) -> None:
        view = self._histories(report.tier).batch(report)
        if view.traced or view.untraced:
            self._writer.batch(self._manager_id(report.tier), report, view)

    def _job(self, report: JobReport) -> None:
        req_context = report.job.req_context
        if not unsampled(req_context.trace_headers):
            histories = self._histories(report.tier)
            probes = (
                span
                for key in report.job.keys
                for span in histories.spans_of(key, req_context.req_id)
            )
            self._writer.job(report, origin(req_context.trace_headers), probes)

    def _pass(self, report: PassReport) -> None:
        headers = report.req_context.trace_headers
        if not unsampled(headers):
            self._writer.scheduler_pass(report, origin(headers))


_all: WeakSet[SpanObserver] = WeakSet()
"""Those that a fork has to tell."""


def _in_child() -> None:
    for observer in list(_all):
        observer._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
