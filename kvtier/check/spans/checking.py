"""Files of spans in, a verdict out.

The files are read once, each span becomes a row, the rows are brought into the order
of places and numbers (`store.py`), and each generation of a probe is judged
(`judging.py`). Files are one export: the spans of a probe may lie in several.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvtier.check.spans.generation import Gap, Step, Wrong
from kvtier.check.spans.judging import Judge
from kvtier.check.spans.reading import LONGEST, SpanFile, no_spans
from kvtier.check.spans.rows import Kind, row_of
from kvtier.check.spans.store import CACHE, RowStore

__all__ = ["KEPT", "Checked", "Violation", "Watch", "check_spans"]

KEPT: Final = 10_000
"""So many violations are told one by one, the first by file and line; all are counted."""

Watch = Callable[[SpanFile | None], None]
"""Told now and then how a file is being read; at last `None`: they are read, and are judged."""

_OFTEN = 2**20
"""Bytes between two times."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A span that breaks a requirement."""

    requirement: str
    """A paragraph of spec/lifecycle.md."""
    says: str
    """What is wrong, in a few words."""
    name: str
    span_id: str
    file: str
    line: int
    history: tuple[Step, ...]
    """The shortest that shows it; empty for a call of a back end."""


@dataclass(slots=True)
class Checked:
    """What an export says about the probes in it."""

    files: list[SpanFile]
    complete: int = 0
    wrong: int = 0
    incomplete: Counter[Gap] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    """At most `KEPT`, in the order of files and lines."""
    violation_count: int = 0
    batches: int = 0
    others: int = 0
    """Spans of promotions, cascades and passes."""
    repeats: int = 0
    """Spans that were exported again, unchanged."""

    @property
    def probes(self) -> int:
        """Generations of probes, whatever they are."""
        return self.complete + self.wrong + self.incomplete.total()

    @property
    def is_complete(self) -> bool:
        """Whether probes are told, and nothing is missing as far as the export can tell."""
        cut = any(file.cut or file.unusable_count for file in self.files)
        return self.probes > 0 and not self.incomplete and not cut


class _Violations:
    """The first by file and line, whatever the order in which they are found."""

    def __init__(self) -> None:
        self.count = 0
        self._heap: list[tuple[tuple[int, int, int], Wrong]] = []

    def add(self, wrong: Wrong) -> None:
        self.count += 1
        row = wrong.row
        entry = (-row.file, -row.line, -self.count), wrong
        if len(self._heap) < KEPT:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def told(self, files: Sequence[SpanFile]) -> list[Violation]:
        found = [wrong for _, wrong in sorted(self._heap, key=lambda entry: entry[0], reverse=True)]
        return [
            Violation(
                wrong.requirement,
                wrong.says,
                wrong.row.name,
                wrong.row.span_id,
                files[wrong.row.file].name,
                wrong.row.line,
                wrong.history,
            )
            for wrong in found
        ]


def check_spans(
    paths: Sequence[Path],
    *,
    watch: Watch | None = None,
    longest: int = LONGEST,
    cache: int = CACHE,
) -> Checked:
    """Judge the export in these files. Raises `BadInput`."""
    files = [SpanFile(path, longest=longest) for path in paths]
    found = _Violations()
    with RowStore(cache) as store:
        judge = Judge(found.add, store.closed)
        for number, file in enumerate(files):
            _read(file, number, store, watch)
        if not any(file.spans for file in files):
            raise no_spans(files)
        if watch is not None:
            watch(None)
        store.sort_out()
        for row in store:
            judge.add(row)
        judge.finish()
    return Checked(
        files,
        judge.complete,
        judge.wrong,
        judge.incomplete,
        found.told(files),
        found.count,
        judge.batches,
        judge.others,
        store.repeats,
    )


def _read(file: SpanFile, number: int, store: RowStore, watch: Watch | None) -> None:
    told = 0
    for span in file:
        row = row_of(span, number)
        if row.why is not None:
            file.note(span.line, f"{span.name}: {row.why}")
        elif span.end < span.start:
            file.note(span.line, f"{span.name}: ends before it begins")
        if row.generation or row.kind >= Kind.BATCH:
            store.add(row)
        if watch is not None and file.position - told >= _OFTEN:
            told = file.position
            watch(file)
