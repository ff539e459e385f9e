"""Two programs timed in turn, so that a busy machine slows both.

A time alone says little on a machine that others use as well. So everything is
measured as a ratio: one round times one, then the other, the next round the
other way round, and each round gives one ratio. What is reported is the median
over the rounds with the quartiles beside it; half of all rounds lie between.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

__all__ = ["Clocks", "Result", "Spread", "in_turn"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, quartiles and extremes of some measurements."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    least: float
    most: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        if len(values) == 1:
            value = values[0]
            return cls(value, value, value, value, value, 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, min(values), max(values), len(values))

    @property
    def noise(self) -> float:
        """Distance of the quartiles as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    def as_json(self) -> dict[str, float]:
        return {
            "median": self.median,
            "q1": self.low,
            "q3": self.high,
            "min": self.least,
            "max": self.most,
            "rounds": self.rounds,
        }


@dataclass(frozen=True, slots=True)
class Clocks:
    """What one sample took, in nanoseconds per operation."""

    cpu: float
    """Processor time of the whole process: every thread counts."""
    wall: float
    caller: float
    """Processor time of the calling thread, which is a scheduler's own."""

    @classmethod
    def around(cls, work: Callable[[], None], operations: int) -> Self:
        """Run `work`, which does so many operations, with no garbage of others left."""
        gc.collect()
        wall, cpu, caller = time.perf_counter(), time.process_time(), time.thread_time()
        work()
        caller, cpu, wall = (
            time.thread_time() - caller,
            time.process_time() - cpu,
            time.perf_counter() - wall,
        )
        return cls(*(seconds / operations * 1e9 for seconds in (cpu, wall, caller)))


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report. `theirs` and `ratio` are missing where nothing is compared."""

    name: str
    unit: str
    ours: Spread
    theirs: Spread | None = None
    ratio: Spread | None = None
    beside: str = ""
    """What `theirs` is."""
    bound: float | None = None
    """What the ratio, or else our own median, may be at most."""
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def paired(
        cls,
        name: str,
        unit: str,
        ours: Sequence[float],
        theirs: Sequence[float],
        beside: str,
        bound: float | None = None,
    ) -> Self:
        """The n-th of `ours` and the n-th of `theirs` were measured in one round."""
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        return cls(name, unit, Spread.of(ours), Spread.of(theirs), Spread.of(ratios), beside, bound)

    @property
    def holds(self) -> bool:
        """Whether the bound, if there is one, was kept."""
        return self.bound is None or (self.ratio or self.ours).median <= self.bound

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours.as_json(),
            "theirs": self.theirs and self.theirs.as_json(),
            "ratio": self.ratio and self.ratio.as_json(),
            "beside": self.beside,
            "bound": self.bound,
            "holds": self.holds,
            **self.details,
        }


def in_turn(
    ours: Callable[[], Clocks], theirs: Callable[[], Clocks] | None, rounds: int
) -> tuple[list[Clocks], list[Clocks]]:
    """`rounds` samples of each, after one of each that does not count."""
    ours()
    if theirs is None:
        return [ours() for _ in range(rounds)], []
    theirs()
    first: list[Clocks] = []
    second: list[Clocks] = []
    for number in range(rounds):
        if number % 2:
            second.append(theirs())
            first.append(ours())
        else:
            first.append(ours())
            second.append(theirs())
    return first, second
