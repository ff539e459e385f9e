"""Log lines that cannot stop what they are about, and do not print where they are not wanted.

A log may stand on the disk that is full, or end in a pipe that is broken. The
machine logs in the middle of its work, so a line that cannot be written is given up.

Lines go to structlog if the application has configured it. If not, they go to the
standard library's `logging`, because structlog's own default is standard output,
which belongs to the application.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import structlog

__all__ = ["Log", "shown"]


class Log:
    """The logger called `name`, whose calls never raise."""

    def __init__(self, name: str) -> None:
        self._name = name

    def warning(self, event: str, **fields: Any) -> None:
        """Something went wrong outside, and was dealt with."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        """Something broke its contract, and was dealt with; `exc_info`: with this traceback."""
        self._write(logging.ERROR, event, fields, exc_info)

    def _write(
        self,
        level: int,
        event: str,
        fields: dict[str, Any],
        exc_info: BaseException | None = None,
    ) -> None:
        with suppress(Exception):
            if structlog.is_configured():
                traceback = {} if exc_info is None else {"exc_info": exc_info}
                structlog.get_logger(self._name).log(level, event, **fields, **traceback)
            else:
                told = " ".join(f"{name}={value}" for name, value in fields.items())
                log = logging.getLogger(self._name)
                log.log(level, "%s %s", event, told, exc_info=exc_info)


def shown(thing: object) -> str:
    """`repr(thing)`, or its type's name: code that broke its word may break it there too."""
    try:
        return repr(thing)
    except BaseException:
        return f"<{type(thing).__name__}>"
