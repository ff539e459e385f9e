"""What Ctrl-C, SIGTERM and SIGHUP do to a command that leaves files behind if it just dies.

The handler only takes notes, because an exception that comes at any moment would
also come in the middle of a removal. Who can be stopped asks for the notes. The
exception is raised where nothing can be asked: while input is read, when nothing
has been made yet, and for a signal that comes when the command has hung for so
long that it will not ask any more.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Final, Self

__all__ = ["PROGRAM", "Signals", "let_go"]

PROGRAM: Final = "program"
"""`obj` of a click context where the process ends with the command."""

_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HUNG = 10.0
"""Seconds after the first signal, and after the output began, at which a signal ends the wait."""


class Signals:
    """Context manager that catches the signals which ask a command to end.

    Until `begin` each raises `KeyboardInterrupt` at once; then they are noted.
    `is_last`: the process ends with the command, so that afterwards they are
    ignored, for what was reported is to stay true. SIGHUP stays ignored for a
    command that was started so (`nohup`).
    """

    def __init__(self, *, is_last: bool, now: Callable[[], float] = time.monotonic) -> None:
        self.numbers: list[int] = []
        """The signals so far."""
        self._is_last = is_last
        self._now = now
        self._raise_from: float | None = now()
        self._is_running = False
        self._before: dict[int, Any] = {}

    def begin(self) -> None:
        """From now on signals are noted, for `is_asked` and `is_urged`."""
        self._raise_from, self._is_running = None, True

    def deliver(self) -> None:
        """What was found is written now, and is to arrive, unless nobody takes it."""
        self._raise_from, self._is_running = self._now() + _HUNG, False

    def clean_up(self) -> None:
        """From now on nothing is cut short."""
        self._raise_from, self._is_running = None, False

    def is_asked(self) -> bool:
        """Whether the command is to end."""
        return bool(self.numbers)

    def is_urged(self) -> bool:
        """Whether it is not to wait for anything before that."""
        return len(self.numbers) > 1

    def __enter__(self) -> Self:
        for number in _CAUGHT:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._is_last else before or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.numbers.append(number)
        if self._raise_from is not None and self._now() >= self._raise_from:
            self.clean_up()
            raise KeyboardInterrupt
        if self._is_running and self._raise_from is None:
            self._raise_from = self._now() + _HUNG


def let_go(stream: Any) -> None:
    """Have what is still buffered for `stream` go nowhere, because nobody takes it."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
