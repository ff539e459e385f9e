"""Opening an export: a regular file, a pipe or standard input, gzipped or not."""

from __future__ import annotations

import io
import os
import sys
import zlib
from pathlib import Path
from typing import Final

from kvtier.errors import BadInput

__all__ = ["Gunzip", "open_export"]

BUFFER: Final = 2**18


def open_export(path: Path, expected: str) -> io.BufferedReader:
    """The bytes of `path` (`-`: standard input). Raises `BadInput`, and `OSError` too."""
    if str(path) == "-":
        if sys.stdin is None:
            raise BadInput("-", "standard input is closed", expected)
        return io.BufferedReader(io.FileIO(os.dup(sys.stdin.fileno())), BUFFER)
    try:
        raw = io.FileIO(path)
    except ValueError as error:  # a zero byte in the name
        raise BadInput(str(path), f"is no path: {error}", expected) from error
    return io.BufferedReader(raw, BUFFER)


class Gunzip(io.RawIOBase):
    """What is in a gzip file of one member or more, of which the end may be missing.

    `gzip` of the standard library raises at such an end, and what it had unpacked
    of the last lines is lost.
    """

    MAGIC: Final = b"\x1f\x8b"

    def __init__(self, file: io.BufferedReader, name: str) -> None:
        self._file, self._name = file, name
        self._member = zlib.decompressobj(wbits=31)
        self._packed = b""
        self.position = 0
        """Bytes of the file that were read so far."""
        self.is_cut = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            if self._member.eof:
                rest = (self._member.unused_data or self._more()).lstrip(b"\x00")
                if not rest:
                    return 0
                self._member, self._packed = zlib.decompressobj(wbits=31), rest
            elif not self._packed:
                self._packed = self._more()
                if not self._packed:
                    self.is_cut = True
                    return 0
            try:
                text = self._member.decompress(self._packed, len(buffer))
            except zlib.error as error:
                raise BadInput(self._name, f"is a damaged gzip file: {error}") from error
            self._packed = self._member.unconsumed_tail
            if text:
                buffer[: len(text)] = text
                return len(text)

    def _more(self) -> bytes:
        more = self._file.read1(BUFFER)
        self.position += len(more)
        return more
