"""Rows on their way from the order of the files to the order in which they are judged.

A temporary database of SQLite: it keeps up to `CACHE` bytes in memory and the rest in
a file that has no name, so that nothing is left behind whatever ends the process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from msgspec.msgpack import Decoder, Encoder
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from kvtier.check.spans.rows import Kind, Row
from kvtier.errors import KvtierError

__all__ = ["CACHE", "RowStore"]

CACHE: Final = 16 * 2**20
"""Bytes of rows that are kept in memory."""

_AT_ONCE = 1000
_SETTINGS = "journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", "temp_store=FILE"
_TABLES = (
    "CREATE TABLE spans (place BLOB, generation INT, kind INT, opened INT, id INT,"
    " manager INT, seq INT, born INT, data BLOB)",
    "CREATE TABLE again (id INTEGER PRIMARY KEY)",
    "CREATE TABLE taken (manager INT, seq INT, PRIMARY KEY (manager, seq)) WITHOUT ROWID",
    "CREATE TABLE changed (number INTEGER PRIMARY KEY, data BLOB)",
    "CREATE TABLE gone (number INTEGER PRIMARY KEY)",
)

_pack = Encoder().encode
_unpack = Decoder(Row).decode


class RowStore:
    """Rows are added, then repeats are sorted out, then all are read, key by key."""

    def __init__(self, cache: int = CACHE) -> None:
        self.repeats = 0
        """Spans that came again with the same content, and were left out."""
        self.closed: dict[str, int] = {}
        """The first number with which each manager closed an entry."""
        self._cache = cache
        self._waiting: list[tuple[bytes | int | None, ...]] = []

    def __enter__(self) -> Self:
        self._base = sqlite3.connect("", isolation_level=None)
        for setting in (*_SETTINGS, f"cache_size={-(self._cache // 1024)}"):
            self._base.execute(f"PRAGMA {setting}")
        for table in _TABLES:
            self._base.execute(table)
        self._base.execute("BEGIN")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._base.close()
        if isinstance(exc, sqlite3.Error):
            raise KvtierError(f"cannot keep the spans in a temporary file: {exc}") from exc

    def add(self, row: Row) -> None:
        """One more."""
        if row.kind < Kind.BATCH:
            scope = "" if row.scope is None else f"={row.scope}"
            place = xxh3_128_digest(f"{row.manager}\x00{row.key}\x00{scope}".encode())
        else:
            place = b""
        asked_again = row.kind == Kind.PROBE and row.source != "absent"
        number = None if asked_again else row.seq
        is_birth = row.kind == Kind.PROBE and row.source is not None
        if row.trigger == "close" and row.seq is not None:
            self.closed[row.manager] = min(row.seq, self.closed.get(row.manager, row.seq))
        self._waiting.append(
            (
                place,
                row.generation,
                row.kind,
                -1 if row.opened is None else row.opened,
                _hash(f"{row.trace_id}\x00{row.span_id}"),
                _hash(row.manager),
                number,
                row.seq if is_birth else None,
                _pack(row),
            )
        )
        if len(self._waiting) == _AT_ONCE:
            self._write()

    def _write(self) -> None:
        self._base.executemany(
            "INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", self._waiting
        )
        self._waiting.clear()

    def sort_out(self) -> None:
        """Drop repeats of a span; mark what shares an id or, between places, a number.

        And generations that the counter of their manager cannot have given out (L10).
        """
        self._write()
        self._same_ids()
        self._same_numbers()
        self._generations()

    def _same_ids(self) -> None:
        run = self._base.execute
        run("INSERT INTO again SELECT id FROM spans GROUP BY id HAVING COUNT(*) > 1")
        found = run(
            "SELECT rowid, data FROM spans WHERE id IN (SELECT id FROM again) ORDER BY id, rowid"
        )
        kept: tuple[int, Row] | None = None
        for number, data in found:
            row = _unpack(data)
            if kept is None or _id(row) != _id(kept[1]):
                kept = number, row
            elif row.content == kept[1].content:
                self.repeats += 1
                run("INSERT INTO gone VALUES (?)", (number,))
            else:
                for clashing, one in (kept, (number, row)):
                    one.clash = True
                    run("INSERT OR REPLACE INTO changed VALUES (?, ?)", (clashing, _pack(one)))
        run("DELETE FROM spans WHERE rowid IN (SELECT number FROM gone)")
        self._change()

    def _same_numbers(self) -> None:
        run = self._base.execute
        run(
            "INSERT INTO taken SELECT manager, seq FROM spans WHERE seq IS NOT NULL"
            " GROUP BY manager, seq HAVING MIN(place) <> MAX(place)"
        )
        found = run("SELECT rowid, data FROM spans WHERE (manager, seq) IN taken")
        for number, data in found:
            row = _unpack(data)
            row.taken = True
            run("INSERT INTO changed VALUES (?, ?)", (number, _pack(row)))
        self._change()

    def _generations(self) -> None:
        run = self._base.execute
        found = run(
            "SELECT rowid, data FROM spans WHERE rowid IN (SELECT number FROM"
            " (SELECT rowid AS number, born, generation,"
            " LAG(born) OVER counted AS before, LAG(generation) OVER counted AS last"
            " FROM spans WHERE born IS NOT NULL"
            " WINDOW counted AS (PARTITION BY manager ORDER BY generation, born))"
            " WHERE born <= before OR generation = last)"
        )
        for number, data in found:
            row = _unpack(data)
            row.misnumbered = True
            run("INSERT INTO changed VALUES (?, ?)", (number, _pack(row)))
        self._change()

    def _change(self) -> None:
        run = self._base.execute
        run(
            "UPDATE spans SET data = (SELECT data FROM changed WHERE number = spans.rowid)"
            " WHERE rowid IN (SELECT number FROM changed)"
        )
        run("DELETE FROM changed")

    def __iter__(self) -> Iterator[Row]:
        """First what is no part of a probe; then place by place and generation by generation."""
        found = self._base.execute(
            "SELECT data FROM spans ORDER BY place, generation, kind, opened, rowid"
        )
        for (data,) in found:
            yield _unpack(data)


def _hash(text: str) -> int:
    """For SQLite, whose integers have a sign."""
    return xxh3_64_intdigest(text.encode()) - 2**63


def _id(row: Row) -> tuple[str, str]:
    return row.trace_id, row.span_id
