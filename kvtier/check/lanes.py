"""Several models at a time: each lane is a process that runs one model after the other.

A lane is a process and not a thread because a TLC run can only be ended by who
waits for it. A lane that is told to end leaves its wait, ends its Java and removes
its files on the way out; so does one whose parent is gone, however it went.

The lanes are started afresh (`spawn`), so a program that calls `run_models` must
not do so while it is imported (`if __name__ == "__main__":`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path

from kvtier.check.models import Model, Row, run_model
from kvtier.check.tlc import Progress, find_tools
from kvtier.errors import KvtierError

__all__ = ["Watch", "run_models"]

_PATIENCE_S = 20.0
"""For a lane to end its Java and remove its files."""

Watch = Callable[[Model, Progress | Row | None], None]
"""Is told of a model that it began (`None`), how far it is, and what came of it."""


def run_models(
    folder: Path,
    models: Sequence[Model],
    *,
    lanes: int = 2,
    timeout: float | None = None,
    watch: Watch | None = None,
) -> list[Row]:
    """Run models of `folder`, so many at a time, and return a row for each, in their order.

    `timeout` is in seconds, for each model. Whatever ends this, no Java and no file
    is left. Raises `MissingTool` without Java or TLC, before anything is run.
    """
    find_tools()
    waiting = deque(enumerate(models))
    rows: dict[int, Row] = {}
    with _lanes(min(lanes, len(models))) as pipes:
        idle = deque(pipes)
        busy: dict[Connection, tuple[int, Model]] = {}
        while waiting or busy:
            while waiting and idle:
                pipe, (n, model) = idle.popleft(), waiting.popleft()
                pipe.send((folder, model, timeout))
                busy[pipe] = n, model
                if watch is not None:
                    watch(model, None)
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                n, model = busy[pipe]
                told = _told(pipe, model)
                if isinstance(told, Row):
                    rows[n] = told
                    del busy[pipe]
                    idle.append(pipe)
                if watch is not None:
                    watch(model, told)
    return [rows[n] for n in range(len(models))]


def _told(pipe: Connection, model: Model) -> Row | Progress:
    try:
        told: Row | Progress | str = pipe.recv()
    except (EOFError, OSError):
        told = "its process was ended from outside"
    if isinstance(told, str):
        raise KvtierError(f"{model.name} could not be run: {told}")
    return told


@contextmanager
def _lanes(number: int) -> Iterator[list[Connection]]:
    context = get_context("spawn")
    started = []
    try:
        with _no_ctrl_c():
            for n in range(number):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_lane, args=(theirs,), name=f"kvtier-lane-{n}", daemon=True
                )
                process.start()
                theirs.close()
                started.append((process, ours))
        yield [pipe for _, pipe in started]
    finally:
        for process, _ in started:
            process.terminate()
        for process, pipe in started:
            process.join(_PATIENCE_S)
            process.kill()
            process.join()
            process.close()
            pipe.close()


@contextmanager
def _no_ctrl_c() -> Iterator[None]:
    """Ctrl-C waits, here and in what is started meanwhile, until that has its own handler."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _lane(pipe: Connection) -> None:
    """Run what comes in. Ctrl-C stays blocked: it is the parent's, who ends us."""
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_leave_with_parent, name="kvtier-lane-parent", daemon=True).start()
    while True:
        try:
            folder, model, timeout = pipe.recv()
        except EOFError:
            return
        try:
            told: Row | str = run_model(folder, model, timeout=timeout, progress=pipe.send)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        pipe.send(told)


def _leave(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the way out is not to be disturbed
    sys.exit(128 + number)


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
