"""What a probe is made of, and the copies of it that leave the table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupPhase
from kvtier.request import ReqContext

__all__ = [
    "ABSENTEE",
    "NOTHING_HELD",
    "NO_BATCH",
    "UNMARKED",
    "Batch",
    "Entry",
    "EntryView",
    "LookupCounts",
    "Marks",
    "Question",
    "Snapshot",
]


@dataclass(frozen=True, slots=True)
class Question:
    """What one `batch_lookup` call is about: keys of one scope, `generations` alongside."""

    scope: Hashable
    req_context: ReqContext
    """Context of the request that created the first of these probes."""
    keys: list[OffloadKey]
    generations: list[int]


@dataclass(slots=True)
class LookupCounts:
    """Plain counters, always on. `issued` = `resolved` + `abandoned` + `closed` + open probes."""

    issued: int = 0
    """Generations born, re-asks included."""
    joined: int = 0
    """Lookups by a further request that found a probe or verdict to share."""
    backend_calls: int = 0
    """`batch_lookup` calls handed to the worker."""
    resolved: int = 0
    """Probes that got an answer: yes, no or error, claimed or not."""
    lookup_errors: int = 0
    """Of those: answers that stand for a failed question."""
    abandoned: int = 0
    """Questions taken back before they were sent."""
    closed: int = 0
    """Probes that shutdown ended."""
    unclaimed: int = 0
    """Verdicts swept because nobody took them."""
    discarded: int = 0
    """Answers that had no question (any more)."""
    illegal: int = 0
    """Answers that the table refused."""
    peak_entries: int = 0
    """Most entries at the end of a step."""
    peak_out: int = 0
    """Most probes in flight at once."""


@dataclass(frozen=True, slots=True)
class EntryView:
    """A copy of one entry; field by field what `docs/lifecycle.md` calls its state."""

    generation: int
    phase: LookupPhase
    verdict: bool | None
    waiters: frozenset[str]
    born: float
    resolved_at: float | None
    error: bool
    stored: bool
    excused: frozenset[str]

    @classmethod
    def of(cls, entry: Entry, waiters: Iterable[str]) -> Self:
        """A copy of `entry`, for which these requests wait."""
        return cls(
            entry.generation,
            entry.phase,
            entry.verdict,
            frozenset(waiters),
            entry.born,
            entry.resolved_at,
            *entry.marks,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the whole table, for invariants and comparisons."""

    entries: Mapping[tuple[Hashable, OffloadKey], EntryView]
    held: Mapping[str, frozenset[tuple[Hashable, OffloadKey]]]
    batch: tuple[tuple[Hashable, OffloadKey], ...]
    batches_out: int
    unclaimed: frozenset[tuple[Hashable, OffloadKey]]
    closed: bool


class Batch:
    """One `flush` worth of questions: how many of its probes are still in flight."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


NO_BATCH: Final = Batch(0)


class Marks(NamedTuple):
    """What is remembered about a probe besides its phase. Nearly every probe has none."""

    error: bool = False
    """The verdict stands for a failed question."""
    stored: bool = False
    """The block was stored while the question was out."""
    excused: frozenset[str] = frozenset()
    """They read `False` while the question that failed them is asked again."""


UNMARKED: Final = Marks()
"""Entries without marks share this one, so `is` tells."""


class Entry:
    """One probe. Owned by the table; others may read it.

    `waiters` is a number: who they are is the table's reverse index to say, which
    is the only other place that knows, and a set per probe would be most of its
    size.
    """

    __slots__ = (
        "batch",
        "born",
        "generation",
        "key",
        "marks",
        "phase",
        "req_context",
        "resolved_at",
        "scope",
        "verdict",
        "waiters",
        "wanted",
    )

    scope: Hashable
    key: OffloadKey
    generation: int
    req_context: ReqContext
    born: float
    phase: LookupPhase
    waiters: int
    verdict: bool | None
    resolved_at: float | None
    marks: Marks
    wanted: bool
    batch: Batch


def new_entry(
    scope: Hashable,
    key: OffloadKey,
    generation: int,
    req_context: ReqContext,
    born: float,
    phase: LookupPhase,
    waiters: int,
) -> Entry:
    """A probe without a verdict. A function, since a class takes half as long again to call."""
    entry = Entry()
    entry.scope = scope
    entry.key = key
    entry.generation = generation
    entry.req_context = req_context
    entry.born = born
    entry.phase = phase
    entry.waiters = waiters
    entry.verdict = None
    entry.resolved_at = None
    entry.marks = UNMARKED
    entry.wanted = False
    entry.batch = NO_BATCH
    return entry


ABSENTEE: Final = new_entry(None, OffloadKey(b""), 0, ReqContext(""), 0.0, LookupPhase.ABSENT, 0)
"""Stands in where there is no probe."""

NOTHING_HELD: Final[dict[OffloadKey, Entry]] = {}
"""What a request holds that never asked. Never written to."""
