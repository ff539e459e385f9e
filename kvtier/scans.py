"""How far does a prompt's cached prefix reach? Pure functions of a `lookup`.

A prompt is cut into *chunks*, one block each. A model's layers form *groups*: a
*prefix* group (full attention) needs every chunk from the start, a *window*
group (sliding window attention) only the last `window` chunks before the place
where computing goes on. A *hit of length e* means: computing starts at chunk e.

What lives here: the two scans of a lone group, with the answers and the
questions of vLLM 0.33.0, and `longest_hit`, which is right for any mix of
groups. What does not: where a block is (`tiering.py`), and what to do about a
block that is not there yet (`scheduler.py`).

Two rules explain the details.

1. `MISS` is final for this pass and shortens the hit. `RETRY` and `HIT_PENDING`
   are not: they make the answer `None`, ask again, but only where it matters.
   The prefix scan lets a pending chunk defer it only in front of the first
   miss; the window scan ignores a pending block outside the window it chose
   (vllm 46363, 56486).
2. Every question costs a tier something. Nothing is asked twice, nothing that
   an earlier answer has ruled out is asked at all, and only what was asked may
   be loaded (vllm 56701).

Why not the minimum of the groups' separate answers: with a prefix group that
reads `HHHM` and a window-1 group that reads `HHMH` that is 3, where the window
group lacks chunk 2. The longest hit that serves both is 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey
from kvtier.results import LookupResult

__all__ = [
    "InvalidWindow",
    "KVGroup",
    "longest_hit",
    "maximal_prefix_lookup",
    "sliding_window_lookup",
]


class InvalidWindow(UsageError, ValueError):
    """A sliding window must cover at least one block."""

    def __init__(self, window: int) -> None:
        super().__init__(f"a window of {window} blocks: give 1 or more (None: prefix group)")


@dataclass(frozen=True, slots=True)
class KVGroup:
    """One group of layers that share a KV cache layout.

    `group_idx` is the index packed into the group's keys. `window` is in
    blocks; `None` means full attention. Raises `InvalidWindow` (a `ValueError`)
    for a window below 1.
    """

    group_idx: int
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise InvalidWindow(self.window)

    def need(self, end: int) -> range:
        """The chunks that this group must have for a hit of length `end`."""
        return range(0 if self.window is None else max(0, end - self.window), end)


def maximal_prefix_lookup(
    keys: Sequence[OffloadKey], lookup: Callable[[OffloadKey], LookupResult]
) -> int | None:
    """Length of the longest prefix of `keys` without a `MISS`, or `None`: ask again.

    `None` if a key of that prefix is `RETRY` or `HIT_PENDING`. Neither stops the
    scan, so that all questions go out at once; the first `MISS` does.
    """
    deferred = False
    for index, key in enumerate(keys):
        match lookup(key):
            case LookupResult.HIT:
                pass
            case LookupResult.HIT_PENDING | LookupResult.RETRY:
                deferred = True
            case LookupResult.MISS:
                return None if deferred else index
            case other:
                assert_never(other)
    return None if deferred else len(keys)


def sliding_window_lookup(
    keys: Sequence[OffloadKey], window: int, lookup: Callable[[OffloadKey], LookupResult]
) -> int | None:
    """End of the last run of `window` keys that are here or coming, or `None`: ask again.

    Asks from the end and stops at that run. Without one, every key has been
    asked and the answer is the length of the run at the very start (it may be
    0): there the window is cut off by the start of the prompt. A `RETRY` breaks
    a run. `None` if any key asked is `RETRY`, or one of the chosen run is
    `HIT_PENDING`. Raises `InvalidWindow` (a `ValueError`) if `window` < 1.
    """
    if window < 1:
        raise InvalidWindow(window)
    run = 0
    run_pending = open_probe = False
    for index in range(len(keys) - 1, -1, -1):
        match lookup(keys[index]):
            case LookupResult.HIT:
                run += 1
            case LookupResult.HIT_PENDING:
                run, run_pending = run + 1, True
            case LookupResult.RETRY:
                run, open_probe = 0, True
            case LookupResult.MISS:
                run, run_pending = 0, False
            case other:
                assert_never(other)
        if run == window:
            return None if open_probe or run_pending else index + window
    return None if open_probe or run_pending else run


def longest_hit(
    groups: Sequence[KVGroup], num_chunks: int, result: Callable[[KVGroup, int], LookupResult]
) -> int:
    """E*: the greatest hit length at which no chunk that a group needs is `MISS`.

    The hit is there if every chunk of `group.need(E*)` is `HIT` for every group;
    all of them have been asked. `result(group, chunk)` is called at most once
    per pair.

    Each group in turn lowers the length to the greatest one that it can live
    with, until none lowers it. A length that one group rejects is no common
    length, so lowering never passes E*. Prefix groups come first, because one
    early miss of theirs rules out the most questions, and only once: a prefix
    without a miss is still one when it gets shorter.
    """
    known: dict[tuple[KVGroup, int], LookupResult] = {}

    def missing(group: KVGroup, chunk: int) -> bool:
        if (group, chunk) not in known:
            known[group, chunk] = result(group, chunk)
        return known[group, chunk] is LookupResult.MISS

    end = num_chunks
    for group in groups:
        if group.window is None:
            end = next((chunk for chunk in group.need(end) if missing(group, chunk)), end)
    lowered = True
    while lowered:
        before = end
        for group in groups:
            if group.window is not None:
                chunk = end - 1
                while chunk in group.need(end):
                    if missing(group, chunk):
                        end = chunk
                    chunk -= 1
        lowered = end < before
    return end
