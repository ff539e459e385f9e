"""The file behind `--log`."""

from __future__ import annotations

import os
import stat
from io import TextIOBase
from pathlib import Path
from types import TracebackType
from typing import Self

from kvtier.errors import BadInput

__all__ = ["LogFile"]


class LogFile(TextIOBase):
    """A text file that is known to be writable before the run, and written only by the run.

    Used as a context manager. What an earlier run left in the file is dropped
    with the first write, or at the end. If the run could not begin, which is to
    say that `BadInput` is raised inside, the file is as it was before, or not
    there. A write that fails does not disturb the run: it is kept as `error`.
    Raises `BadInput` if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: OSError | None = None
        self._is_new = not os.path.lexists(path)
        self._is_fresh = False
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadInput(
                str(path), f"cannot be written: {error.strerror}", "a file for the log"
            ) from error

    def write(self, text: str) -> int:
        try:
            self._freshen()
            return self._file.write(text)
        except OSError as error:
            self.error = self.error or error
            return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if not isinstance(exc, BadInput):
                self._freshen()
            self._file.close()
        except OSError as error:
            self.error = self.error or error
        if isinstance(exc, BadInput) and self._is_new:
            self.path.unlink()

    def _freshen(self) -> None:
        if not self._is_fresh and stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.truncate(0)
        self._is_fresh = True
