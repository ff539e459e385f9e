"""Several models at a time: each lane is a process that runs one model after the other.

A lane is a process and not a thread because a TLC run can only be ended by who
waits for it. A lane that is told to end leaves its wait, ends its Java and removes
its files on the way out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from kvtier.check.apart import apart
from kvtier.check.models import Model, Row, run_model
from kvtier.check.tlc import Progress, find_tools
from kvtier.errors import KvtierError

__all__ = ["Watch", "run_models"]

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
    with apart(_lane, min(lanes, len(models)), tidily=True) as pipes:
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


def _lane(pipe: Connection) -> None:
    """Run what comes in."""
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
