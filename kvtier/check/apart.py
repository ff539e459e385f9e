"""Work in processes of its own, which do not outlive who asked for it.

Ctrl-C is not theirs: it is kept from them, and who asked for the work ends them.
They are ended with `with`, and leave by themselves when their parent is gone,
however it went.

They are started afresh (`spawn`), so a program that gets here must not do so while
it is imported (`if __name__ == "__main__":`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection

__all__ = ["apart"]

_PATIENCE_S = 20.0
"""For what a process does on its way out."""


@contextmanager
def apart(
    work: Callable[[Connection], None], number: int = 1, *, tidily: bool
) -> Iterator[list[Connection]]:
    """So many processes that do `work`, a function of a module; a pipe to each.

    `tidily`: on the way out they raise `SystemExit` where they are, so that what
    they have begun is undone. Otherwise they just end.
    """
    context = get_context("spawn")
    resource_tracker.ensure_running()  # or the first start does it, and unblocks Ctrl-C
    started = []
    try:
        with _no_ctrl_c():
            for n in range(number):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_work, args=(work, theirs, tidily), name=f"kvtier-{n}", daemon=True
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
    """Ctrl-C waits, and is blocked for good in what is started meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(work: Callable[[Connection], None], pipe: Connection, tidily: bool) -> None:
    if tidily:
        signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_leave_with_parent, name="kvtier-parent", daemon=True).start()
    work(pipe)


def _leave(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the way out is not to be disturbed
    sys.exit(128 + number)


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
