"""What the history of a probe is made of: its stays, its waiters, and who is told of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from opentelemetry.trace import SpanContext

from kvtier.lifecycle import LookupPhase, Transition

__all__ = ["Probe", "Sink", "Stay", "Waiter"]


class Waiter(NamedTuple):
    """A request that is in a probe."""

    req_id: str
    time: float
    """When it joined. Who was in a probe that was asked again joins the new question then."""
    origin: SpanContext
    """Its own span, from its headers; invalid if it has none or is not traced."""


@dataclass(slots=True)
class Stay:
    """A probe's time in one phase, or with one verdict."""

    phase: LookupPhase
    began: float
    opened: int | None
    """`seq` of the transition that began it; `None`: it was under way already."""
    verdict: bool | None = None
    ended: float = 0.0
    closed: Transition | None = None
    """What ended it; `None`: it was cut off."""
    deadline_reads: int = 0
    excused_reads: int = 0
    discarded_answers: int = 0
    stored: bool = False
    joiners: list[Waiter] = field(default_factory=list)
    """Who joined while the verdict was held."""


@dataclass(slots=True)
class Probe:
    """One generation of a probe."""

    first: Transition
    """Its birth, or where its truncated history starts."""
    creator: Waiter
    """Who asked or, if that is not known, through whom it became known."""
    truncated: bool
    traced: bool
    """False: the rate bound left it out."""
    waiters: list[Waiter]
    """Who else joined before the verdict."""
    stays: list[Stay] = field(default_factory=list)
    """Those before the verdict."""
    ended: float = 0.0
    last: Transition | None = None
    """What ended it; `None`: cut off, or it had ended when it became known."""
    cut: bool = False
    span: SpanContext | None = None
    """For the sink: the span it made of this probe."""


class Sink(Protocol):
    """Who is told of what is finished."""

    def ended(self, probe: Probe) -> None:
        """A generation got its verdict, or went without one, or was cut off."""

    def left(self, probe: Probe, stay: Stay) -> None:
        """A verdict is held no more, or was changed, or was cut off."""
