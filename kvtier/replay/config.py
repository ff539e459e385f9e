"""How a replay is to be run: everything about it that is not the workload."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Self

from kvtier.errors import BadInput, UsageError

__all__ = ["LONGEST", "POLICIES", "FaultRates", "ReplayConfig"]

POLICIES = ("lru", "arc")

LONGEST = 86_400.0
"""Seconds that a delay or a deadline may last: a day. What can sleep cannot sleep for ever."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often a back end misbehaves on purpose, each as a share of calls from 0 to 1."""

    corrupt: float = 0.0
    """One byte of what is read is flipped, below the tier's own verification."""
    probe_error: float = 0.0
    """The call that asks which blocks exist raises: all its questions fail."""
    load_error: float = 0.0
    """Reading a block raises."""
    store_error: float = 0.0
    """Writing a block raises."""

    def __post_init__(self) -> None:
        for name, rate in self.items():
            if not 0.0 <= rate <= 1.0:
                raise UsageError(f"{name} is {rate}: give a rate from 0 to 1")

    def items(self) -> list[tuple[str, float]]:
        """Kind of fault and rate, in a fixed order."""
        return [(kind.name, getattr(self, kind.name)) for kind in fields(self)]

    def __bool__(self) -> bool:
        return any(rate for _, rate in self.items())

    @classmethod
    def parse(cls, spec: str) -> Self:
        """Read `corrupt=0.01,probe_error=0.01`. Raises `BadInput`."""
        kinds = ", ".join(kind.name for kind in fields(cls))
        rates: dict[str, float] = {}
        for part in spec.split(","):
            kind, equals, text = (piece.strip() for piece in part.partition("="))
            where = f"faults {spec!r}"
            if kind not in kinds.split(", "):
                raise BadInput(
                    where, f"there is no fault {kind!r}", f"KIND=RATE with one of {kinds}"
                )
            if kind in rates:
                raise BadInput(where, f"{kind} is given twice", "each fault once")
            try:
                rates[kind] = float(text)
            except ValueError:
                rates[kind] = -1.0
            if not 0.0 <= rates[kind] <= 1.0:
                problem = f"the rate of {kind} is {text!r}" if equals else f"{kind} has no rate"
                raise BadInput(where, problem, "a number from 0 to 1")
        return cls(**rates)


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """The machine that a workload is replayed on.

    Raises `UsageError` for values that make no sense.
    """

    host_blocks: int = 512
    """Slots of the primary."""
    block_bytes: int = 8192
    """Size of a block, and so of a slot, in bytes."""
    policy: str = "lru"
    """What leaves the primary when it is full: `lru` or `arc`."""
    tiers: tuple[str, ...] = ()
    """Secondary tiers as `kvtier.tiers.registry` names them, fastest first.

    Empty: one `fs` tier in a temporary directory that goes when the replay ends.
    """
    hybrid: bool = False
    """Two groups, full attention and a sliding window of `WINDOW` blocks, instead of one."""
    concurrency: int = 1
    """Requests in flight together. A request is in flight until its transfers have ended."""
    slow_backend: float = 0.0
    """Seconds by which every question to a back end is delayed, at most `LONGEST`."""
    deadline: float | None = None
    """Seconds after which an unanswered question reads as a miss, at most `LONGEST`."""
    faults: FaultRates = field(default_factory=FaultRates)
    seed: int = 0
    """Of payloads and faults."""

    def __post_init__(self) -> None:
        for name in ("host_blocks", "block_bytes", "concurrency"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.policy not in POLICIES:
            raise UsageError(f"policy is {self.policy!r}: give one of {', '.join(POLICIES)}")
        if not 0.0 <= self.slow_backend <= LONGEST:
            raise UsageError(
                f"slow_backend is {self.slow_backend}: give 0 to {LONGEST:.0f} seconds"
            )
        if self.deadline is not None and not 0.0 < self.deadline <= LONGEST:
            raise UsageError(
                f"deadline is {self.deadline}: give more than 0 and at most {LONGEST:.0f} seconds"
            )
