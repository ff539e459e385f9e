"""The calls of the back end, as vLLM's worker thread makes them.

What is in here runs on the worker's thread and touches nothing of the scheduler's:
an ended call is put into a deque, from which the scheduler's thread takes it.

When has a call ended well? Not when it returned: vLLM 0.30 reads a lazy answer only
afterwards, outside of the `try` that keeps its worker alive. So a call is *settled*,
for better or worse, by what the worker does next: another call, handing results
over, asking for work, or ending.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from kvtier.keys import OffloadKey
from kvtier.log import shown

__all__ = ["WORKER_DIED", "Answers", "Call", "Calls", "Questions", "Triple", "verdict"]

Triple = tuple[OffloadKey, Any, int]
"""Key, vLLM's request context and vLLM's generation of a probe that is asked."""

WORKER_DIED = "worker_died"
"""How the failure of a call begins that ended the worker."""


def verdict(answer: Any) -> bool:
    """What an answer counts as; vLLM believes anything. What has no truth value is a no."""
    try:
        return bool(answer)
    except Exception:
        return False


@dataclass(slots=True)
class Call:
    """One call of `batch_lookup`."""

    keys: list[OffloadKey]
    generations: list[int]
    """Of the probes of `keys`, counted from 1; 0: nobody is known to have asked."""
    req_context: Any
    posted: float
    began: float
    ended: float
    answers: list[Any] | None = None
    """What was read of the answer; once the call is settled, verdicts."""
    failure: str | None = None


class Calls:
    """Stands in front of `batch_lookup` on one manager, and notes what it is asked and answers."""

    def __init__(self, batch_lookup: Callable[..., Iterable[Any]]) -> None:
        self.settled: deque[Call] = deque()
        """Oldest first. Put in here by the worker, taken out by the scheduler."""
        self._batch_lookup = batch_lookup
        self._worker: int | None = None
        self._current: Call | None = None
        self._generations: dict[OffloadKey, int] = {}
        self._posted = 0.0

    def begin(self) -> None:
        """This thread is the worker."""
        self._worker = threading.get_ident()

    def work(self, item: list[Triple] | None, posted: float) -> None:
        """The worker was given its next item."""
        self._posted = posted
        try:
            self._generations = {key: generation + 1 for key, _, generation in item or ()}
        except Exception:  # a subclass may have questions and a worker of its own
            self._generations = {}

    def settle(self, death: BaseException | None = None) -> None:
        """What the last call came to is known now."""
        call, self._current = self._current, None
        if call is not None:
            if death is not None:
                call.failure = f"{WORKER_DIED}: {shown(death)}"
                call.ended = time.monotonic()
            if call.answers is not None:
                call.answers = [verdict(answer) for answer in call.answers[: len(call.keys)]]
            self.settled.append(call)

    def __call__(
        self, keys: list[OffloadKey], req_context: Any, *args: Any, **kwargs: Any
    ) -> Iterable[Any]:
        if threading.get_ident() != self._worker:
            return self._batch_lookup(keys, req_context, *args, **kwargs)
        self.settle()
        generations = [self._generations.get(key, 0) for key in keys]
        now = time.monotonic()
        call = Call(list(keys), generations, req_context, self._posted, now, now)
        self._current = call
        try:
            answer = self._batch_lookup(keys, req_context, *args, **kwargs)
        except BaseException as error:
            call.failure = shown(error)
            raise
        finally:
            call.ended = time.monotonic()
        if isinstance(answer, list | tuple):
            call.answers = list(answer)
            return answer
        return _read(call, answer)


def _read(call: Call, answer: Iterable[Any]) -> Iterator[Any]:
    """A lazy answer, noted as far as vLLM reads it."""
    call.answers = answers = []
    try:
        for one in answer:
            answers.append(one)
            call.ended = time.monotonic()
            yield one
    except GeneratorExit:
        raise
    except BaseException as error:
        call.failure = shown(error)
        raise


class Questions:
    """Stands in front of `_lookup_queue`."""

    def __init__(self, queue: SimpleQueue[list[Triple] | None], calls: Calls) -> None:
        self.queue = queue
        self.sent: list[tuple[float, list[Triple]]] = []
        """When, and what, since the scheduler last looked. The scheduler's."""
        self._calls = calls
        self._posted: deque[float] = deque()

    def put(self, item: list[Triple] | None, *args: Any, **kwargs: Any) -> None:
        now = time.monotonic()
        self._posted.append(now)
        if item is not None:
            self.sent.append((now, item))
        self.queue.put(item, *args, **kwargs)

    def get(self, *args: Any, **kwargs: Any) -> list[Triple] | None:
        self._calls.settle()
        item = self.queue.get(*args, **kwargs)
        self._calls.work(item, self._posted.popleft() if self._posted else time.monotonic())
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)


class Answers:
    """Stands in front of `_pending_results`."""

    def __init__(self, queue: SimpleQueue[list[tuple[OffloadKey, int, Any]]], calls: Calls) -> None:
        self.queue = queue
        self.taken: list[list[tuple[OffloadKey, int, Any]]] = []
        """Since the scheduler last looked. The scheduler's."""
        self._calls = calls

    def put(self, results: list[tuple[OffloadKey, int, Any]], *args: Any, **kwargs: Any) -> None:
        self._calls.settle()
        self.queue.put(results, *args, **kwargs)

    def get_nowait(self) -> list[tuple[OffloadKey, int, Any]]:
        results = self.queue.get_nowait()
        self.taken.append(results)
        return results

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)
