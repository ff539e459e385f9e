"""The files behind `--log`, `--spans` and their like."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from io import TextIOBase
from pathlib import Path
from types import TracebackType
from typing import Self

from kvtier.cli.signals import let_go
from kvtier.errors import BadInput, MissingTool

__all__ = ["LogFile", "refuse_to_overwrite"]


def refuse_to_overwrite(trace: Path, log: Path) -> None:
    """Raises `BadInput` if writing `log` would destroy or change what `trace` names."""
    inside = os.path.isdir(trace) and Path(os.path.realpath(log)).is_relative_to(
        os.path.realpath(trace)
    )
    if inside or (log.exists() and any(os.path.samefile(log, path) for path in _files(trace))):
        raise BadInput(str(log), f"belongs to the workload {trace}", "a file of its own")


def _files(trace: Path) -> Iterator[Path]:
    """What is read from `trace`; nothing that is not there."""
    if not os.path.isdir(trace):
        yield from filter(os.path.exists, [trace])
    for folder, _, names in os.walk(trace):
        yield from filter(os.path.exists, (Path(folder, name) for name in names))


class LogFile(TextIOBase):
    """A text file that is known to be writable before the run, and written only by the run.

    Used as a context manager. What an earlier run left in the file is dropped
    with the first write, or at the end. If the run could not begin, which is to
    say that `BadInput` or `MissingTool` is raised inside, the file is as it was
    before, or not there. A write that fails does not disturb the run: it is kept as `error`.
    Raises `BadInput`, which says `what` it is for, if the file cannot be opened.
    """

    def __init__(self, path: Path, what: str = "the log") -> None:
        self.path = path
        self.error: OSError | None = None
        self._is_new = not os.path.lexists(path)
        self._is_fresh = False
        self._is_finished = False
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadInput(
                str(path), f"cannot be written: {error.strerror}", f"a file for {what}"
            ) from error

    def write(self, text: str) -> int:
        if self._is_finished:
            return 0
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
        if isinstance(exc, KeyboardInterrupt):
            let_go(self._file)
        never_began = isinstance(exc, BadInput | MissingTool)
        if never_began:
            self._is_fresh = True
        self.finish()
        if never_began and self._is_new:
            self.path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Write all of it, and nothing from now on. Idempotent."""
        if self._is_finished:
            return
        self._is_finished = True
        try:
            self._freshen()
            self._file.close()
        except OSError as error:
            self.error = self.error or error
        except KeyboardInterrupt:
            let_go(self._file)
            raise

    def _freshen(self) -> None:
        if not self._is_fresh and stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.truncate(0)
        self._is_fresh = True
