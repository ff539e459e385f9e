"""Every error kvtier raises, under one root.

A message says what was wrong and what to do about it. An error that a caller
can cause by calling wrongly is a `UsageError`; one that came from outside (a
file, a flag) is `BadInput`; one that a tier met while moving bytes is a
`TierError`. Nothing else is raised on purpose.
"""

from __future__ import annotations

__all__ = [
    "BadInput",
    "BlockMissing",
    "DamagedBlock",
    "IllegalTransition",
    "KvtierError",
    "MissingTool",
    "TierError",
    "UsageError",
]


class KvtierError(Exception):
    """Root of all errors that kvtier raises."""


class UsageError(KvtierError):
    """A public method was called in a way its contract forbids; nothing changed."""


class IllegalTransition(UsageError):
    """The lifecycle table has no legal row for this (phase, trigger); nothing changed."""


class BadInput(KvtierError):
    """Something read from outside is not what it must be.

    `where` names the file, line or option, so that one line tells the reader
    where to look; `expected` says what would have been right.
    """

    def __init__(self, where: str, problem: str, expected: str | None = None) -> None:
        self.where, self.problem, self.expected = where, problem, expected
        tail = f"; expected {expected}" if expected else ""
        super().__init__(f"{where}: {problem}{tail}")


class MissingTool(KvtierError):
    """An optional tool is not installed; `extra` is the extra that brings it."""

    def __init__(self, tool: str, extra: str) -> None:
        self.tool, self.extra = tool, extra
        super().__init__(f"{tool} is not installed: pip install 'kvtier[{extra}]'")


class TierError(KvtierError):
    """A tier could not read or write a block."""


class BlockMissing(TierError):
    """The block is not in the tier (any more): evicted or removed after a True verdict."""


class DamagedBlock(TierError):
    """What is stored under the key is not the block: truncated, altered or another key's."""
