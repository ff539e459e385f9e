"""`python -m kvtier`, and the program `kvtier`: the command, from its first moment on.

Most of a short run is spent on importing. A signal that comes meanwhile ends the
process at once, with one line; there is nothing to clean up yet.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command with the arguments of this process, and exit as it says."""
    _fill_standard_streams()
    before = {
        number: signal.signal(number, _leave)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    from kvtier.cli import main as command
    from kvtier.cli.signals import PROGRAM

    try:
        for number, handler in before.items():
            signal.signal(number, handler)
        command(obj=PROGRAM)
    except KeyboardInterrupt:
        pass
    _leave(signal.SIGINT, None)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    with suppress(OSError):
        os.write(2, b"kvtier: interrupted\n")
    os._exit(128 + number)


def _fill_standard_streams() -> None:
    """Where one of them is closed, the next file that is opened would become it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    main()
