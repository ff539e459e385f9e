"""The state of the tiers' model as an immutable value.

The names are those of the variables in `tla/Tiering.tla`, and so are the words
inside. Keys are `k1`, `k2`, ..., requests `r1`, `r2`, ..., slots count from 1. A
state is hashable, and two states are equal exactly if nothing can tell them apart.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "BLANK",
    "FREE",
    "TIERING_FEATURES",
    "Block",
    "Claim",
    "Job",
    "Known",
    "TieringConfig",
    "TieringState",
    "claims_of",
]

_NOTHING: frozenset[str] = frozenset()

TIERING_FEATURES = frozenset(
    {"fail", "refuse", "finish", "store", "again", "preempt", "reset", "bound"}
)
"""What can be switched off: then it never happens."""


class Claim(NamedTuple):
    """What a reader or a writer has in hand."""

    slot: int
    key: str
    write: int


_NO_CLAIMS: frozenset[Claim] = frozenset()


class Block(NamedTuple):
    """What is in a slot. `FREE` is what a slot without a block holds."""

    key: str = "none"
    write: int = 0
    ready: bool = False
    bytes: str = "junk"
    """The key whose bytes really are in the slot; no code could know it."""
    refs: int = 0
    pinned: bool = False
    waiters: tuple[str, ...] = ()
    """Who waits for the write; who has waited longest is in front."""
    dropped: bool = False
    """A reset took its key away while it was written or read."""
    old: bool = False
    """The write takes too long to begin waiting for it."""

    @property
    def used(self) -> bool:
        """Whether there is a block."""
        return self.key != "none"

    @property
    def writing(self) -> bool:
        """Whether it is being written."""
        return self.used and not self.ready


FREE = Block()


class Known(NamedTuple):
    """What is known of one request."""

    phase: str = "new"
    """new, waiting, found, running, storing, leaving or gone."""
    passed: bool = False
    """It made its pass in this step."""
    end: int = 0
    """How far its hit reaches, while it is found or running."""
    asked: frozenset[str] = _NOTHING
    answered: frozenset[str] = _NOTHING
    notes: frozenset[str] = _NOTHING
    waits: frozenset[tuple[str, int]] = frozenset()
    """Key and number of each write that it waited for."""
    settled: frozenset[str] = _NOTHING
    reading: frozenset[Claim] = _NO_CLAIMS
    filling: frozenset[Claim] = _NO_CLAIMS
    late: bool = False
    """It was deferred too often."""
    preempted: bool = False

    @property
    def busy(self) -> bool:
        """Whether the engine reads or fills slots for it."""
        return bool(self.reading or self.filling)


BLANK = Known()


class Job(NamedTuple):
    """A job that the tier has."""

    kind: str
    """load or store."""
    req: str
    claims: frozenset[Claim]
    late: bool
    """The tier had heard that the request finished when it got the job."""

    @property
    def keys(self) -> frozenset[str]:
        """The keys of its blocks."""
        return frozenset(claim.key for claim in self.claims)


class TieringState(NamedTuple):
    """The primary, the requests, the tier."""

    slot: tuple[Block, ...]
    """Of slot 1, 2, ..."""
    req: tuple[Known, ...]
    """Of r1, r2, ..."""
    queue: frozenset[Claim]
    """Promotions that were not handed to the tier yet."""
    jobs: frozenset[Job]
    has: frozenset[str]
    """The keys that the tier has."""
    heard: frozenset[str]
    """The requests of which the tier has heard that they finished."""
    polled: bool
    """In this step the tier's reports were taken in."""


class TieringConfig(NamedTuple):
    """Size of the model and what can happen in it."""

    prompt: tuple[tuple[str, ...], ...]
    """Of r1, r2, ...: the keys of its blocks in the order of the prompt."""
    cap: int
    headroom: int
    has: frozenset[str]
    """The keys that the tier has from the start."""
    slow: frozenset[str]
    """The keys that it answers for one step after the question."""
    features: frozenset[str]

    @property
    def requests(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(f"r{n}" for n in range(1, len(self.prompt) + 1))

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys of all prompts."""
        return tuple(sorted({key for prompt in self.prompt for key in prompt}))

    @property
    def budget(self) -> int:
        """So many slots may be waited for when a promotion has its slot."""
        return self.cap - self.headroom

    @classmethod
    def of(
        cls,
        *prompts: str,
        cap: int,
        headroom: int = 0,
        has: str = "",
        slow: str = "",
        features: str = "",
    ) -> TieringConfig:
        """From words in texts: `of("k1 k2", "k2 k1", cap=2, has="k1", features="fail")`."""
        return cls(
            tuple(tuple(prompt.split()) for prompt in prompts),
            cap,
            headroom,
            frozenset(has.split()),
            frozenset(slow.split()),
            frozenset(features.split()),
        )


def claims_of(jobs: frozenset[Job], kind: str) -> frozenset[Claim]:
    """The claims of all jobs of one kind."""
    return frozenset(claim for job in jobs if job.kind == kind for claim in job.claims)
