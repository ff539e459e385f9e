"""Log lines that cannot stop what they are about.

A log may stand on the disk that is full, or end in a pipe that is broken. The
machine logs in the middle of its work, so a line that cannot be written is given up.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import structlog

__all__ = ["Log", "shown"]


class Log:
    """The structlog logger called `name`, whose calls never raise."""

    def __init__(self, name: str) -> None:
        self._logger = structlog.get_logger(name)

    def warning(self, event: str, **fields: Any) -> None:
        """Something went wrong outside, and was dealt with."""
        with suppress(Exception):
            self._logger.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something broke its contract, and was dealt with."""
        with suppress(Exception):
            self._logger.error(event, **fields)


def shown(thing: object) -> str:
    """`repr(thing)`, or its type's name: code that broke its word may break it there too."""
    try:
        return repr(thing)
    except BaseException:
        return f"<{type(thing).__name__}>"
