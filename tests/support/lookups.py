"""A back end, a worker and a clock that a test moves by hand, and a guard on who enters the table.

`HandRuntime` runs nothing by itself: `lane.step()` lets the worker answer one
question, `lane.begin()` leaves it inside `batch_lookup` until the test lets go, and
the clock moves in `advance` only. `ScriptedLookups` is a manager over a back end
that answers as the test says; its worker notes every question, so that a test can
say where each of them is. `OwnerGuard` is a table that refuses a second caller.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import structlog

from kvtier.keys import OffloadKey
from kvtier.lookup import AsyncLookupManager, LookupTable, LookupWorker, Question
from kvtier.lookup import manager as manager_module
from kvtier.lookup.worker import Reply
from kvtier.request import ReqContext
from kvtier.runtime import Lane, Runtime, Task
from tests.support.lookup_invariants import Asking, askings

__all__ = [
    "BAD_ANSWERS",
    "PATIENCE",
    "CountingKey",
    "HandLane",
    "HandRuntime",
    "OwnerGuard",
    "ScriptedLookups",
    "TwoOwners",
    "Unprintable",
    "counting_key",
    "ctx",
    "key",
    "quiet",
]

PATIENCE = 10.0
"""Seconds that a test waits for another thread before it calls that a failure."""


def key(number: int) -> OffloadKey:
    return OffloadKey(b"key %d" % number)


class CountingKey(bytes):
    """A key that counts how often any of its kind is looked for in a dictionary."""

    hashed = 0

    def __hash__(self) -> int:
        CountingKey.hashed += 1
        return super().__hash__()


def counting_key(number: int) -> OffloadKey:
    return OffloadKey(CountingKey(b"key %d" % number))


def ctx(req_id: str, tenant: Any = None) -> ReqContext:
    return ReqContext(req_id, {"tenant": tenant})


# -- back ends that break their word ---------------------------------------------------------


class Unprintable(Exception):
    """An error, and a thing, that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def _raise(error: BaseException) -> Iterator[bool]:
    raise error


def _breaks_at_last(keys: list[OffloadKey]) -> Iterator[bool]:
    for _ in keys[1:]:
        yield True
    raise OSError("lost the connection at the last key")


def _endless() -> Iterator[bool]:
    while True:
        yield True


BAD_ANSWERS: dict[str, Callable[[list[OffloadKey]], Any]] = {
    "raises": lambda keys: _raise(OSError("unreachable")),
    "raises SystemExit": lambda keys: _raise(SystemExit(3)),
    "raises KeyboardInterrupt": lambda keys: _raise(KeyboardInterrupt()),
    "raises what has no words": lambda keys: _raise(Unprintable()),
    "nothing": lambda keys: [],
    "one short": lambda keys: [True] * (len(keys) - 1),
    "one too many": lambda keys: [True] * (len(keys) + 1),
    "endless": lambda keys: _endless(),
    "breaks at the last": _breaks_at_last,
    "None for an answer": lambda keys: None,
    "a None among them": lambda keys: [*[True] * (len(keys) - 1), None],
    "ones and zeros": lambda keys: [1] * len(keys),
    "a word each": lambda keys: ["yes"] * len(keys),
    "what has no words": lambda keys: [Unprintable()] * len(keys),
}
"""What a broken back end answers to a list of keys, by what is wrong with it."""


# -- time and the worker, by hand ------------------------------------------------------------


class HandLane:
    """Tasks wait until the test runs them."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.stopping = False
        self.in_time: int | None = None
        """How many more tasks `stop` waits for; `None`: all, however long it takes."""
        self.entered: threading.Event | None = None
        """Set by the back end when a call has begun (for `begin`)."""
        self._closed = False
        self._call: threading.Thread | None = None

    def post(self, task: Task) -> None:
        if not self._closed:
            self.tasks.append(task)

    def step(self) -> None:
        """Run the oldest task."""
        assert self._call is None, "the worker is busy"
        self.tasks.popleft()()

    def begin(self) -> None:
        """Run the oldest task up to where the back end blocks."""
        assert self._call is None, "the worker is busy"
        assert self.entered is not None
        self.entered.clear()
        self._call = threading.Thread(target=self.tasks.popleft(), daemon=True)
        self._call.start()
        assert self.entered.wait(PATIENCE)

    def finish(self) -> None:
        """Wait for the call that `begin` began; the test has let the back end go."""
        assert self._call is not None
        self._call.join(PATIENCE)
        assert not self._call.is_alive()
        self._call = None

    def stop(self, timeout: float | None) -> bool:
        self._closed = True
        if self.in_time is None:
            assert self._call is None, "would wait for ever"
        for _ in range(len(self.tasks) if self.in_time is None else self.in_time):
            if self.tasks and self._call is None:
                self.step()
        if self._call is None and not self.tasks:
            return True
        if self._call is None and self.entered is not None:
            self.begin()
        self.stopping = True
        return False


class HandRuntime(Runtime):
    """A clock that moves in `advance` and `sleep`, and lanes that a test steps."""

    def __init__(self) -> None:
        self.time = 0.0
        self.reads = 0
        self.lanes: list[HandLane] = []

    def now(self) -> float:
        self.reads += 1
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds

    sleep = advance

    def lane(self, name: str) -> Lane:
        lane = HandLane()
        self.lanes.append(lane)
        return lane

    def wait(self, timeout: float) -> bool:
        raise AssertionError("nothing here waits")


class _Injected(Reply):
    pass


class _NotingWorker(LookupWorker):
    """Notes what was posted and what was taken."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.posted: list[Question] = []
        self.taken: list[Reply] = []

    def post(self, questions: list[Question]) -> None:
        self.posted += questions
        super().post(questions)

    def take(self) -> Reply | None:
        reply = super().take()
        if reply is not None and not isinstance(reply, _Injected):
            self.taken.append(reply)
        return reply

    def inject(self, question: Question, verdicts: list[bool] | None) -> None:
        """Publish a reply that no back end gave."""
        self._replies.append(_Injected(question, verdicts, None if verdicts else "injected"))


class ScriptedLookups(AsyncLookupManager):
    """Lookups over a back end that does as it is told, and notes what it is asked.

    `answer` is the back end: a function of the keys. Requests share answers within
    a tenant (see `ctx`). A call for which `hangs` holds blocks until `let_go` is set.
    """

    def __init__(
        self,
        runtime: Runtime,
        answer: Callable[[list[OffloadKey]], Iterable[bool]] | None = None,
        *,
        table: Callable[..., LookupTable] = LookupTable,
        **settings: Any,
    ) -> None:
        self.answer = answer if answer is not None else lambda keys: [True] * len(keys)
        self.calls: list[tuple[list[OffloadKey], ReqContext]] = []
        self.hangs: Callable[[list[OffloadKey]], bool] = lambda keys: False
        self.entered = threading.Event()
        self.let_go = threading.Event()
        with (
            mock.patch.object(manager_module, "LookupTable", table),
            mock.patch.object(manager_module, "LookupWorker", _NotingWorker),
        ):
            super().__init__("1:test", runtime=runtime, **settings)
        assert isinstance(self._worker, _NotingWorker)
        self.worker = self._worker
        self.runtime: Any = runtime
        if isinstance(runtime, HandRuntime):
            self.lane = runtime.lanes[-1]
            self.lane.entered = self.entered

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        self.calls.append((list(keys), req_context))
        self.entered.set()
        if self.hangs(keys):
            assert self.let_go.wait(PATIENCE)
        return self.answer(keys)

    def probe_scope(self, req_context: ReqContext) -> Hashable:
        return (req_context.kv_transfer_params or {}).get("tenant")

    def step_worker(self) -> None:
        """Let the worker answer everything that it has."""
        while self.lane.tasks:
            self.lane.step()

    @property
    def out(self) -> list[Asking]:
        """The questions that are out: with the worker, or answered and not yet applied.

        The worker answers first in, first out, so these are the last ones posted.
        """
        posted = self.worker.posted[len(self.worker.taken) :]
        return [asking for question in posted for asking in askings(question)]


def quiet() -> AbstractContextManager[object]:
    """No log lines, for runs in which back ends fail by the thousand."""
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    return mock.patch.object(
        manager_module, "_log", structlog.wrap_logger(None, wrapper_class=silent)
    )


# -- one owner at a time ---------------------------------------------------------------------


class TwoOwners(Exception):
    """A second caller entered the table while the first was still in it."""


def _alone(name: str) -> Callable[..., Any]:
    method = getattr(LookupTable, name)

    def entered(self: OwnerGuard, *args: Any, **kwargs: Any) -> Any:
        if not self.door.acquire(blocking=False):
            raise TwoOwners(f"{name} while another call is in the table")
        try:
            return method(self, *args, **kwargs)
        finally:
            self.door.release()

    return entered


class OwnerGuard(LookupTable):
    """A table that raises `TwoOwners` when two calls overlap, from whatever threads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.door = threading.Lock()

    lookup = _alone("lookup")
    take_batch = _alone("take_batch")
    answer = _alone("answer")
    sweep = _alone("sweep")
    mark_miss = _alone("mark_miss")
    mark_hit = _alone("mark_hit")
    release = _alone("release")
    close = _alone("close")
    snapshot = _alone("snapshot")
    peek = _alone("peek")
