"""Spans of kvtier, read from the files that exporters write.

Two formats, told apart document by document. *OTLP JSON*, `{"resourceSpans": [...]}`:
one object on a line, as the collector's file exporter and `FileSpanExporter` write it,
or one object over many lines. *Console JSON*, what `ConsoleSpanExporter` prints: one
indented object for each span, without a scope. Either may be gzipped; the first bytes
of the file say so, not its name.

Two rules. What is read is bounded: a file is never held whole, nor a line or an object
longer than `LONGEST`. And nothing is guessed: what is not JSON in the middle of a file
is `BadInput` with file and line, an end that is cut off is noted in `SpanFile.cut`, and
a span that lacks what every span has is noted in `SpanFile.unusable`; the others are
read. What the attributes say is not looked at here.

Ids are compared as they are written, in hex or in base64.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

from msgspec import UNSET, DecodeError, ValidationError

from kvtier.check.spans.packed import BUFFER, Gunzip, open_export
from kvtier.check.spans.wire import (
    PREFIX,
    Link,
    Span,
    Value,
    console_span,
    decode_coarse,
    decode_export,
    decode_span,
    otlp_span,
)
from kvtier.errors import BadInput

__all__ = [
    "EXPECTED",
    "LONGEST",
    "Link",
    "Span",
    "SpanFile",
    "Unusable",
    "Value",
    "no_spans",
    "read_spans",
]

LONGEST: Final = 64 * 2**20
"""Bytes of the longest line, and of the longest object over many lines, that is read."""

KEPT: Final = 100
"""So many unusable spans of a file are kept by line; all are counted."""

_OURS: Final = f'"{PREFIX}'.encode()
"""What stands in the text of a span that has an attribute of kvtier's."""

EXPECTED: Final = "OTLP JSON lines or what the console exporter prints, gzipped or not"


class Unusable(NamedTuple):
    """A span of kvtier's that cannot be used."""

    line: int
    why: str


class SpanFile:
    """One export. Iterating reads it, once; what was noted on the way is here afterwards."""

    def __init__(self, path: Path, *, longest: int = LONGEST) -> None:
        self.path = path
        self.name = "standard input" if str(path) == "-" else str(path)
        self.size = 0
        """Bytes of the file as it lies on the disk; 0 for a pipe."""
        self.position = 0
        """Bytes of them that were read so far."""
        self.spans = 0
        """Of kvtier."""
        self.foreign = 0
        """Spans of other libraries, passed over."""
        self.unusable_count = 0
        self.unusable: list[Unusable] = []
        """The first of them, at most `KEPT`."""
        self.cut: str | None = None
        """What is missing at the end, if it is cut off."""
        self._longest = longest

    def note(self, line: int, why: str) -> None:
        """A span of kvtier's in this line cannot be used."""
        self.unusable_count += 1
        if len(self.unusable) < KEPT:
            self.unusable.append(Unusable(line, why))

    def __iter__(self) -> Iterator[Span]:
        """The spans of kvtier, in the order of the file. Raises `BadInput`."""
        try:
            with open_export(self.path, EXPECTED) as file:
                self.size = os.fstat(file.fileno()).st_size
                yield from self._read(file)
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
            raise BadInput(self.name, problem, EXPECTED) from error

    def _read(self, file: io.BufferedReader) -> Iterator[Span]:
        packed = Gunzip(file, self.name) if file.peek(2).startswith(Gunzip.MAGIC) else None
        text = file if packed is None else io.BufferedReader(packed, BUFFER)
        read = 0
        for line, document, is_last in self._documents(text):
            read += len(document)
            for span in self._decode(line, document, is_last):
                if span is None:
                    self.foreign += 1
                else:
                    self.spans += 1
                    yield span
            self.position = read if packed is None else packed.position
        if packed is not None and packed.is_cut:
            self.cut = "the compressed data end early"

    def _documents(self, text: IO[bytes]) -> Iterator[tuple[int, bytes, bool]]:
        """The line each begins in, its bytes, and whether the file ends in it."""
        number = begun = size = 0
        parts: list[bytes] = []
        while line := text.readline(self._longest + 1):
            number += 1
            size = len(line) + (size if parts else 0)
            if size > self._longest:
                what = "the object that begins here" if parts else "this line"
                raise self._bad(begun if parts else number, f"{what} is too long", self._bound())
            stripped = line.strip()
            if parts:
                if line.startswith(b"{"):
                    raise self._bad(begun, "the object that begins here has no end")
                parts.append(line)
                if stripped == b"}" and line.startswith(b"}"):
                    yield begun, b"".join(parts), False
                    parts = []
            elif stripped == b"{":
                begun, parts = number, [line]
            elif stripped:
                if not stripped.startswith(b"{"):
                    binary = number == 1 and b"\x00" in line
                    raise self._bad(number, "is binary" if binary else "is not a JSON object")
                yield number, line, not line.endswith(b"\n")
        if parts:
            self.cut = f"the object that begins in line {begun} has no end"
        elif not number:
            raise BadInput(self.name, "is empty", EXPECTED)

    def _bound(self) -> str:
        return f"at most {self._longest:,} bytes"

    def _bad(self, line: int, problem: str, expected: str = EXPECTED) -> BadInput:
        return BadInput(f"{self.name}:{line}", problem, expected)

    def _decode(self, line: int, text: bytes, is_last: bool) -> Iterator[Span | None]:
        """The spans of one document; `None` for one of another library."""
        try:
            if text.find(b"\n", 0, -1) >= 0:
                yield from self._slowly(line, text)
                return
            try:
                export = decode_export(text)
            except ValidationError:
                yield from self._slowly(line, text)
                return
            if export.context is not UNSET:
                yield from self._slowly(line, text)
                return
            for resource in export.resourceSpans:
                for scope in resource.scopeSpans:
                    for span in scope.spans:
                        yield otlp_span(line, span)
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            if _is_foreign(text):
                yield None
            elif not is_last or isinstance(error, ValidationError):
                raise self._bad(line, f"is not JSON of spans: {error}") from error
            else:
                self.cut = f"line {line} is cut off"

    def _slowly(self, line: int, text: bytes) -> Iterator[Span | None]:
        """Span by span: finds the line that each is in, and passes over those that cannot be read.

        Raises `DecodeError`.
        """
        export = decode_coarse(text)
        if export.context is not UNSET:
            yield from self._try(line, text, console_span)
            return
        at = counted = 0
        for resource in export.resourceSpans:
            for scope in resource.scopeSpans:
                for raw in scope.spans:
                    found = text.index(raw, at)
                    line += text.count(b"\n", counted, found)
                    counted, at = found, found + len(bytes(raw))
                    yield from self._try(line, bytes(raw), _one_otlp_span)

    def _try(
        self, line: int, text: bytes, read: Callable[[int, bytes], Span | None]
    ) -> Iterator[Span | None]:
        try:
            yield read(line, text)
        except ValidationError as error:
            if _OURS in text:
                self.note(line, f"is not a span: {error}")
            else:
                yield None


def _is_foreign(text: bytes) -> bool:
    """Whether this is a span of another library as the console exporter prints it.

    Python writes what JSON does not have, NaN and halves of surrogate pairs, and reads it.
    """
    if text.find(b"\n", 0, -1) < 0 or _OURS in text:
        return False
    try:
        return "context" in json.loads(text)
    except (ValueError, RecursionError):
        return False


def _one_otlp_span(line: int, text: bytes) -> Span | None:
    return otlp_span(line, decode_span(text))


def read_spans(path: Path) -> Iterator[Span]:
    """The spans of kvtier in one file. Raises `BadInput`, at the end too if there is none.

    What is to be said of a cut end or of unusable spans, `SpanFile` knows.
    """
    file = SpanFile(path)
    yield from file
    if not file.spans:
        raise no_spans([file])


def no_spans(files: Sequence[SpanFile]) -> BadInput:
    """None of these files has a span that can be used."""
    where = ", ".join(file.name for file in files)
    notes = [f"{file.foreign:,} of other libraries" for file in files if file.foreign]
    notes += [f"line {bad.line} {bad.why}" for file in files for bad in file.unusable[:1]]
    notes += [file.cut for file in files if file.cut]
    told = f" ({'; '.join(notes)})" if notes else ""
    return BadInput(where, f"has no kvtier spans{told}", EXPECTED)
