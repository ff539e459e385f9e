"""What a replay asks for: prompts cut into blocks, and the bytes those blocks stand for.

Two kinds of workload, one shape. A *trace* (`trace.py`) is a file in Mooncake's
format, one JSON object a line. *Text sessions* (`sessions.py`) are made from
real text, hash-chained as a prefix cache does it and asked in turns.

Everything is read and checked before a workload object exists, so bad input is
found before a run has touched anything. What is kept is small: eight bytes for
a block of a trace, 32 for a block of text; hashes and prompts are made while
iterating, which may be done as often as one likes.

The bytes of a block are a `PayloadStream` (`payload.py`).
"""

from __future__ import annotations

import os
from pathlib import Path

from kvtier.workload.base import Prompt, Workload
from kvtier.workload.payload import PayloadStream
from kvtier.workload.sessions import (
    TEXT_BLOCK_BYTES,
    SessionWorkload,
    python_topics,
    read_directory,
)
from kvtier.workload.trace import MAX_LINE_BYTES, TraceWorkload, read_trace

__all__ = [
    "MAX_LINE_BYTES",
    "TEXT_BLOCK_BYTES",
    "PayloadStream",
    "Prompt",
    "SessionWorkload",
    "TraceWorkload",
    "Workload",
    "open_workload",
    "python_topics",
    "read_directory",
    "read_trace",
]


def open_workload(path: Path | None, *, seed: int = 0, limit: int | None = None) -> Workload:
    """The workload at `path`: a trace, a directory of texts, or (`None`) Python's own topics.

    `seed` decides how text sessions are cut into turns and interleaved; `limit`
    keeps the first so many requests. Raises `BadInput`.
    """
    if path is None:
        return python_topics(seed=seed, limit=limit)
    if os.path.isdir(path):  # also answers for what cannot be a path
        return read_directory(path, seed=seed, limit=limit)
    return read_trace(path, limit=limit)
