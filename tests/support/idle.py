"""Work for a process apart: it tells who it is and which signals it does not hear, and waits."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import Connection

from kvtier.check.apart import apart

__all__ = ["idle"]


def idle(pipe: Connection) -> None:
    pipe.send((os.getpid(), signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    time.sleep(600)


def main(tidily: bool) -> None:
    """Start two of them, and tell what they tell."""
    with apart(idle, 2, tidily=tidily) as pipes:
        for pipe in pipes:
            print(*pipe.recv(), flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main(tidily=sys.argv[1] == "tidily")
