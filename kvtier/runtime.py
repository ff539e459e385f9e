"""Time and threads as parameters, and their deterministic twin.

Nothing in kvtier reads a clock or starts a thread by itself. It asks a
`Runtime`, of which there are two:

* `ThreadRuntime`: the monotonic clock and named daemon threads.
* `VirtualRuntime`: a clock that moves only when told, and no threads at all.
  Work that a thread would do waits in its lane until `wait()` runs one piece of
  it, from a lane drawn with the seed. Same seed, same run, byte for byte.

A *lane* is one background worker: tasks run one after another, in the order
they were posted. A lane is a daemon, because a back end that never returns must
not keep the process alive, and `stop` is bounded for the same reason.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

__all__ = ["Lane", "Runtime", "Task", "ThreadRuntime", "VirtualRuntime"]

Task = Callable[[], None]
"""One piece of background work. It must not raise; what it has to say it puts in a queue."""


class Lane(Protocol):
    """One background worker."""

    @property
    def stopping(self) -> bool:
        """Set when `stop` gave up waiting: a task that looks must begin nothing new."""

    def post(self, task: Task) -> None:
        """Run `task` after everything posted before it. Does nothing after `stop`."""

    def stop(self, timeout: float | None) -> bool:
        """Let the posted tasks finish, for at most `timeout` seconds (`None`: for ever).

        At the timeout `stopping` is set and the lane is left to itself.
        Returns whether the lane ended. Idempotent.
        """


class Runtime(ABC):
    """Where time comes from and where background work runs."""

    @abstractmethod
    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    @abstractmethod
    def sleep(self, seconds: float, /) -> None:
        """Let a background task take `seconds` (a slow back end in a test or a replay)."""

    @abstractmethod
    def lane(self, name: str) -> Lane:
        """Start a lane; `name` is the thread's name."""

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Sleep until some task has finished since the last `wait`, or `timeout` seconds.

        Returns whether a task finished. This is how a step loop with nothing to
        do waits for a report without spinning.
        """


class _ThreadLane:
    def __init__(self, name: str, on_done: Task) -> None:
        self._inbox: SimpleQueue[Task | None] = SimpleQueue()
        self._on_done = on_done
        self._closed = False
        self.stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, task: Task) -> None:
        if not self._closed:
            self._inbox.put(task)

    def stop(self, timeout: float | None) -> bool:
        if not self._closed:
            self._closed = True
            self._inbox.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.stopping = True
            return False
        return True

    def _run(self) -> None:
        while (task := self._inbox.get()) is not None:
            task()
            self._on_done()


class ThreadRuntime(Runtime):
    """Real time, real threads."""

    def __init__(self) -> None:
        self._done = threading.Event()

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def lane(self, name: str) -> Lane:
        return _ThreadLane(name, self._done.set)

    def wait(self, timeout: float) -> bool:
        done = self._done.wait(timeout)
        self._done.clear()
        return done


class _VirtualLane:
    def __init__(self, runtime: VirtualRuntime) -> None:
        self._runtime = runtime
        self.tasks: deque[Task] = deque()
        self._closed = False
        self.stopping = False

    def post(self, task: Task) -> None:
        if not self._closed:
            self.tasks.append(task)

    def stop(self, timeout: float | None) -> bool:
        self._closed = True
        while self.tasks:
            self.tasks.popleft()()
        self._runtime.forget(self)
        return True


class VirtualRuntime(Runtime):
    """No threads, and a clock that moves only in `wait` and `sleep`.

    `step` is how many seconds one background task takes.
    """

    def __init__(self, seed: int = 0, step: float = 0.001) -> None:
        self._rng = random.Random(seed)
        self._step = step
        self._now = 0.0
        self._lanes: list[_VirtualLane] = []

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float, /) -> None:
        self._now += seconds

    def lane(self, name: str) -> Lane:
        lane = _VirtualLane(self)
        self._lanes.append(lane)
        return lane

    def forget(self, lane: _VirtualLane) -> None:
        """Drop a stopped lane."""
        if lane in self._lanes:
            self._lanes.remove(lane)

    def wait(self, timeout: float) -> bool:
        """Run one task of a lane drawn at random; with no task, let `timeout` pass."""
        ready = [lane for lane in self._lanes if lane.tasks]
        if not ready:
            self._now += timeout
            return False
        self._now += self._step
        self._rng.choice(ready).tasks.popleft()()
        return True
