"""Traces in Mooncake's format: which prompts arrived, by the ids of their blocks.

An id is already the id of a whole prefix: 7 means "this block after exactly
these blocks", so a block's hash is a hash of its id, and the ids of one file
mean nothing in another.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

from kvtier.errors import BadInput
from kvtier.keys import ROOT_HASH, hash_block
from kvtier.workload.base import EXPECTED, Prompt, Workload, reason

__all__ = ["MAX_LINE_BYTES", "TraceWorkload", "read_trace"]

MAX_LINE_BYTES = 16 * 2**20
"""Longest line of a trace that is read: about a million block ids."""

_ID_LIMIT = 2**64


class TraceWorkload(Workload):
    """The requests of one trace file. Ids mean something only within their file.

    `digest` stands for the content of that file: traces of one name need not be one trace.
    """

    def __init__(self, name: str, digest: str, ids: array[int], ends: array[int]) -> None:
        self.name = name
        self.model = f"trace:{name}:{digest}"
        self._ids = ids
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[Prompt]:
        start = 0
        for number, end in enumerate(self._ends, 1):
            ids = self._ids[start:end]
            yield Prompt(str(number), tuple(_hash_of_id(block_id) for block_id in ids))
            start = end


def _hash_of_id(block_id: int) -> bytes:
    return hash_block(ROOT_HASH, block_id.to_bytes(8, "big"))


def read_trace(path: Path, *, limit: int | None = None) -> TraceWorkload:
    """Read a trace in Mooncake's format, all of it, and keep the first `limit` requests.

    One JSON object a line: `timestamp` (milliseconds, a finite number, 0 or
    more), `input_length` and `output_length` (tokens, 0 or more), `hash_ids` (a
    list of distinct block ids, 0 to 2**64 - 1). Other fields and blank lines are
    passed over. Raises `BadInput` naming the file, the line and what was expected.
    """
    ids, ends = array("Q"), array("Q")
    content = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(path, file), 1):
                content.update(line)
                if not line.strip():
                    continue
                found = _hash_ids(f"{path}:{number}", line)
                if limit is None or len(ends) < limit:
                    ids.extend(found)
                    ends.append(len(ids))
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {reason(error)}", EXPECTED) from error
    if not ends:
        raise BadInput(str(path), "holds no request", "one JSON object per line")
    return TraceWorkload(path.name, content.hexdigest(), ids, ends)


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
        if len(line) > MAX_LINE_BYTES:
            raise BadInput(
                f"{path}:{number}", "the line is too long", f"at most {MAX_LINE_BYTES} bytes a line"
            )
        yield line


def _hash_ids(where: str, line: bytes) -> list[int]:
    """The block ids of one line of a trace, after every field of it has been checked."""
    try:
        record = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadInput(where, "not UTF-8 text", "one JSON object") from error
    except json.JSONDecodeError as error:
        problem = f"not JSON: {error.msg} at column {error.colno}"
        raise BadInput(where, problem, "one JSON object") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(where, f"not JSON: {_short(str(error))}", "one JSON object") from error
    if not isinstance(record, dict):
        raise BadInput(where, f"{_short(repr(record))} is no JSON object", "one JSON object")
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        if name not in record:
            raise BadInput(where, f"{name} is missing", f'an object with "{name}"')
    time = record["timestamp"]
    if not _is_finite(time) or time < 0:
        _wrong(where, "timestamp", time, "milliseconds, a finite number, 0 or more")
    for name in ("input_length", "output_length"):
        if not _is_int(record[name]) or record[name] < 0:
            _wrong(where, name, record[name], "a number of tokens, an integer, 0 or more")
    found: list[int] = record["hash_ids"]
    if not isinstance(found, list):
        _wrong(where, "hash_ids", found, "a list of block ids")
    for index, block_id in enumerate(found):
        if not _is_int(block_id) or not 0 <= block_id < _ID_LIMIT:
            _wrong(where, f"hash_ids[{index}]", block_id, "an integer from 0 to 2**64 - 1")
    if len(set(found)) != len(found):
        twice = next(block_id for block_id, times in Counter(found).items() if times > 1)
        raise BadInput(where, f"hash_ids has {twice} twice", "distinct block ids within a line")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _wrong(where: str, name: str, value: object, expected: str) -> NoReturn:
    raise BadInput(where, f"{name} is {_short(json.dumps(value))}", expected)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
