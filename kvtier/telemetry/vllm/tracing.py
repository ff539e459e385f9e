"""What is put around one manager while it is traced, and taken away again.

Five methods, `batch_lookup`, the worker's body, its two queues and the list of new
questions are replaced *on the instance*; its class is left alone, and so is
`lookup`. (The instance's `__dict__` is never asked for either: a Python object whose
`__dict__` was looked at finds all its attributes more slowly from then on.)

Threads: the hooks run wherever vLLM calls the methods, one call at a time. `end` may
come from any thread. One lock keeps it out of their way, and is never held while
anything waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Self

from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupObserver
from kvtier.telemetry.vllm.ledger import Ledger
from kvtier.telemetry.vllm.worker import Answers, Calls, Questions, Triple

__all__ = ["ManagerTracing"]

_log = logging.getLogger("kvtier.telemetry.vllm")
_clock = time.monotonic


class _Births(list[Triple]):
    """vLLM's list of new questions, which also notes when each was added.

    It can be given up while vLLM is adding to it on another thread: whoever comes second
    sees what the other did. So `append` needs no lock as long as it is not given up.
    """

    __slots__ = ("_lock", "_read", "_successor", "_times")

    def __init__(self, triples: list[Triple], lock: threading.RLock) -> None:
        super().__init__(triples)
        self._lock = lock
        self._read = 0
        self._successor: list[Triple] | None = None
        self._times = [_clock()] * len(triples)

    def append(self, triple: Triple) -> None:
        self._times.append(_clock())
        list.append(self, triple)
        if self._successor is not None:
            with self._lock:
                if triple not in self._successor:
                    self._successor.append(triple)

    def news(self) -> list[tuple[float, Triple]]:
        """Those that were added since the last call of this, and when."""
        since, self._read = self._read, len(self)
        if self._read == since:
            return []
        # Another thread may have noted a time and be about to add what it belongs to.
        return list(zip(self._times[since:], self[since:], strict=False))

    def give_up(self) -> list[Triple]:
        """A plain list in place of this one. To be called with the lock held."""
        self._successor = successor = list[Triple]()
        successor.extend(self)
        return successor


class ManagerTracing:
    """Traces one manager, from the end of the `with` block in which it is initialized.

    `observer()` is called once. `ended(self)` is called when the tracing is over.
    """

    def __init__(
        self,
        manager: Any,
        observer: Callable[[], LookupObserver],
        ended: Callable[[ManagerTracing], None],
    ) -> None:
        self.attached = False
        self._manager = manager
        self._make_observer = observer
        self._observer: LookupObserver | None = None
        self._ended = ended
        self._lock = threading.RLock()
        self._ready = threading.Event()
        self._own: dict[str, Any] = {}
        """What stood where something of ours stands now."""
        self._ours: dict[str, Any] = {}
        self._refused: Exception | None = None
        """Why nothing can be put on this manager."""

    def __enter__(self) -> Self:
        # The thread that vLLM starts is to find the queues that it will use from then on.
        try:
            self._put("_worker", self._work)
        except Exception as error:
            self._refused = error
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._refused is not None:
                self._give_up(self._refused)
            elif exc_type is None:
                self._attach()
            else:
                self._detach()
        except Exception as error:
            self._give_up(error)
        finally:
            self._ready.set()

    def end(self) -> None:
        """Trace no more and put everything back. What is not over is reported as cut off."""
        with self._lock:
            self._safely(self._last_look)
            self._detach()
        self._ended(self)
        observer, self._observer = self._observer, None
        close = getattr(observer, "close", None)
        if close is not None:
            try:
                close()
            except Exception as error:
                _log.error("the observer of %s failed to close", self._name, exc_info=error)

    # -- on and off --------------------------------------------------------------------------

    def _attach(self) -> None:
        manager = self._manager
        self._observer = self._make_observer()
        self._ledger = Ledger(manager, self._observer, _clock)
        self._calls = Calls(manager.batch_lookup)
        self._questions = Questions(manager._lookup_queue, self._calls)
        self._answers = Answers(manager._pending_results, self._calls)
        self._births = _Births(manager._lookup_batch, self._lock)
        self._put("batch_lookup", self._calls)
        self._put("_lookup_queue", self._questions)
        self._put("_pending_results", self._answers)
        for hook in (self.flush, self.drain_results, self.mark_miss, self.cleanup, self.shutdown):
            self._put(hook.__name__, hook)
        manager._lookup_batch = self._births
        self.attached = True

    def _put(self, name: str, ours: Any) -> None:
        self._own[name] = getattr(self._manager, name)
        setattr(self._manager, name, ours)
        self._ours[name] = ours

    def _detach(self) -> None:
        """Put everything back. There is no moment at which something is missing."""
        self.attached = False
        manager = self._manager
        # First of all: as long as `flush` is ours, nobody else replaces this list meanwhile.
        births = getattr(manager, "_lookup_batch", None)
        if isinstance(births, _Births):
            manager._lookup_batch = births.give_up()
        for name, ours in self._ours.items():
            own = self._own[name]
            if getattr(manager, name) is not ours:
                continue  # somebody else has put theirs around it
            if hasattr(type(manager), name):
                delattr(manager, name)
            if getattr(manager, name) != own:
                setattr(manager, name, own)
        self._ours.clear()

    def _give_up(self, error: Exception) -> None:
        _log.error("the probes of %s are traced no more", self._name, exc_info=error)
        self._detach()

    @property
    def _name(self) -> str:
        return f"{type(self._manager).__name__} {getattr(self._manager, '_tier_type', '')}".rstrip()

    def _safely(self, look: Callable[..., None], *args: Any) -> None:
        if self.attached:
            try:
                look(*args)
            except Exception as error:
                self._give_up(error)

    # -- around vLLM's methods ---------------------------------------------------------------

    def flush(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            try:
                return self._own["flush"](*args, **kwargs)
            finally:
                self._safely(self._flushed)

    def drain_results(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._safely(self._look)
            try:
                return self._own["drain_results"](*args, **kwargs)
            finally:
                self._safely(self._drained)

    def mark_miss(self, keys: Collection[OffloadKey], *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._safely(self._look)
            keys = list(keys)
            try:
                return self._own["mark_miss"](keys, *args, **kwargs)
            finally:
                self._safely(self._marked, keys)

    def cleanup(self, req_id: str, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._safely(self._look, req_id)
            keys = self._manager._req_keys.get(req_id, ())
            try:
                return self._own["cleanup"](req_id, *args, **kwargs)
            finally:
                self._safely(self._released, req_id, keys)

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._own["shutdown"](*args, **kwargs)
        finally:
            with self._lock:
                self._safely(self._shut_down)
            self.end()

    def _work(self) -> None:
        """The body of the worker's thread."""
        self._ready.wait()
        if not self.attached:
            self._own["_worker"]()
            return
        self._calls.begin()
        try:
            self._own["_worker"]()
        except BaseException as error:
            self._calls.settle(error)
            raise
        self._calls.settle()

    # -- looking -----------------------------------------------------------------------------

    def _look(self, req_id: str | None = None) -> None:
        """At what was born, and at who joined: this request, or any."""
        self._ledger.born(self._births.news())
        self._ledger.joined(req_id)

    def _drained(self) -> None:
        settled = self._calls.settled
        while settled:
            self._ledger.called(settled.popleft())
        taken, self._answers.taken = self._answers.taken, []
        for results in taken:
            self._ledger.drained(results)

    def _flushed(self) -> None:
        sent, self._questions.sent = self._questions.sent, []
        for now, batch in sent:
            self._ledger.sent(batch, now)
        if self._manager._lookup_batch is not self._births:
            self._births = _Births(self._manager._lookup_batch, self._lock)
            self._manager._lookup_batch = self._births

    def _marked(self, keys: list[OffloadKey]) -> None:
        self._ledger.marked(keys)

    def _released(self, req_id: str, keys: Collection[OffloadKey]) -> None:
        self._ledger.released(req_id, keys)

    def _shut_down(self) -> None:
        self._look()
        self._drained()
        self._ledger.closed()
        self._detach()

    def _last_look(self) -> None:
        """What can be told on any thread: who joined cannot, because others may be joining."""
        self._ledger.born(self._births.news())
        self._drained()
