"""The life of a probe: four phases, eight triggers, one table.

A *probe* asks one slow tier one question: is this block there? It is `PENDING`
from the first lookup until the step's flush, `IN_FLIGHT` while the worker has
it, and `RESOLVED` while a verdict is held. `ABSENT` means that no probe exists.
Asking the same question again is a new *generation* of the probe.

Everything that can happen to a probe is one of the triggers below, and what
happens then is one row of `TABLE`: the rows of a (phase, trigger) cell are read
in order, and the first whose guard holds is taken. The last row of a cell has
no guard, so some row always fits. A row whose outcome is `ILLEGAL` is misuse:
`LookupTable` raises `IllegalTransition` and changes nothing.

What does *not* live here: the entries and what an outcome does to one
(`lookup/table.py`), threads (`lookup/worker.py`), and what an answer means to a
scheduler (`tiering.py`). This module does no I/O, reads no clock, logs nothing.

Two rules explain most rows.

1. A question that is out is never asked twice. Whoever comes while it is out
   joins it; whoever leaves leaves it out; its answer is applied to the
   generation that asked, and to no other.
2. "No" is always a permitted answer; "yes" is only permitted if the tier said
   so or a store completed. So a failed question reads `False`, and an error is
   remembered as such: somebody new may ask again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

from kvtier.keys import OffloadKey
from kvtier.request import ReqContext

__all__ = [
    "TABLE",
    "BatchObserver",
    "BatchReport",
    "Guard",
    "LookupObserver",
    "LookupPhase",
    "Outcome",
    "Row",
    "Transition",
    "Trigger",
]


class LookupPhase(IntEnum):
    """Where a probe is."""

    ABSENT = 0
    """No entry."""
    PENDING = 1
    """Asked for, not yet sent."""
    IN_FLIGHT = 2
    """Handed to the worker, answer not applied."""
    RESOLVED = 3
    """A verdict is held."""


class Trigger(IntEnum):
    """What can happen to a probe."""

    JOIN = 0
    """A request looks it up."""
    SEND = 1
    """The batch it is in goes to the worker."""
    ANSWER = 2
    """The worker published an answer under some generation of it."""
    MARK_MISS = 3
    """A load of the block failed."""
    MARK_HIT = 4
    """A store of the block completed."""
    RELEASE = 5
    """A request that joined lets go."""
    SWEEP = 6
    """A flush looks for verdicts that nobody claimed."""
    CLOSE = 7
    """The tier is shut down."""


class Guard(Enum):
    """A condition on the entry and on what arrived; `LookupTable` evaluates it."""

    FAILED_AND_NEW = "the verdict stands for a failed question and the asker is not yet a waiter"
    AGED = "the verdict is older than the verdict lifetime"
    EXCUSED = "the asker waits through the re-ask of a question that failed it"
    OVERDUE = "the probe has reached its deadline"
    OTHER_GENERATION = "the answer belongs to another generation"
    YES = "the answer is yes"
    STORED = "the block was stored while the question was out"
    FAILED = "the question failed"
    OTHERS_WAIT = "other requests still wait"
    CLAIMED = "a request waits"


class Outcome(Enum):
    """What a row did. The value is the name that telemetry uses."""

    ASKED = "asked"
    """A probe is born."""
    ASKED_AGAIN = "asked_again"
    """A failed question is asked again; its old waiters are excused."""
    EXPIRED = "expired"
    """A verdict outlived its lifetime and is asked again; its waiters stay."""
    JOINED = "joined"
    """The asker is among the waiters and reads the verdict, or waits for it."""
    EXCUSED = "excused"
    """The asker reads False while the question that failed it is asked again."""
    DEADLINE = "deadline"
    """The asker reads False because the probe is past its deadline."""
    SENT = "sent"
    """The question is out."""
    HIT = "hit"
    """The tier has the block."""
    MISS = "miss"
    """The tier does not have the block."""
    LOOKUP_ERROR = "lookup_error"
    """The question failed: it reads False until somebody new asks again."""
    FORCED_HIT = "forced_hit"
    """A completed store overrides what the tier says or said."""
    FORCED_MISS = "forced_miss"
    """A failed load overrides what the tier said."""
    NOTED = "noted"
    """The store is remembered until the answer comes."""
    UNTOUCHED = "untouched"
    """Nothing to do in this phase."""
    DISCARDED = "discarded"
    """An answer that no longer has a question."""
    RELEASED = "released"
    """The request let go; if it was the last, an answered probe goes, an asked one stays."""
    ABANDONED = "abandoned"
    """The last waiter let go before the question was sent: it never is."""
    UNCLAIMED = "unclaimed"
    """A verdict that nobody took before the flush goes."""
    CLOSED = "closed"
    """Shutdown ended the probe without an answer."""
    ILLEGAL = "illegal"
    """Misuse: `IllegalTransition`, and nothing changes."""


class Row(NamedTuple):
    """`guard` (`None`: always), the phase that follows, and the outcome."""

    guard: Guard | None
    target: LookupPhase
    outcome: Outcome


_P, _T, _G, _O = LookupPhase, Trigger, Guard, Outcome


def _illegal(phase: LookupPhase) -> Row:
    return Row(None, phase, _O.ILLEGAL)


def _same(phase: LookupPhase) -> Row:
    return Row(None, phase, _O.UNTOUCHED)


TABLE: dict[tuple[LookupPhase, Trigger], tuple[Row, ...]] = {
    # No entry. Only a lookup makes one; a late answer finds nothing to apply to.
    (_P.ABSENT, _T.JOIN): (Row(None, _P.PENDING, _O.ASKED),),
    (_P.ABSENT, _T.SEND): (_illegal(_P.ABSENT),),
    (_P.ABSENT, _T.ANSWER): (Row(None, _P.ABSENT, _O.DISCARDED),),
    (_P.ABSENT, _T.MARK_MISS): (_same(_P.ABSENT),),
    (_P.ABSENT, _T.MARK_HIT): (_same(_P.ABSENT),),
    (_P.ABSENT, _T.RELEASE): (_illegal(_P.ABSENT),),
    (_P.ABSENT, _T.SWEEP): (_illegal(_P.ABSENT),),
    (_P.ABSENT, _T.CLOSE): (_illegal(_P.ABSENT),),
    # Asked for, not yet sent. A last waiter that leaves takes the question back.
    (_P.PENDING, _T.JOIN): (
        Row(_G.EXCUSED, _P.PENDING, _O.EXCUSED),
        Row(_G.OVERDUE, _P.PENDING, _O.DEADLINE),
        Row(None, _P.PENDING, _O.JOINED),
    ),
    (_P.PENDING, _T.SEND): (Row(None, _P.IN_FLIGHT, _O.SENT),),
    (_P.PENDING, _T.ANSWER): (
        Row(_G.OTHER_GENERATION, _P.PENDING, _O.DISCARDED),
        _illegal(_P.PENDING),
    ),
    (_P.PENDING, _T.MARK_MISS): (_same(_P.PENDING),),
    (_P.PENDING, _T.MARK_HIT): (_same(_P.PENDING),),
    (_P.PENDING, _T.RELEASE): (
        Row(_G.OTHERS_WAIT, _P.PENDING, _O.RELEASED),
        Row(None, _P.ABSENT, _O.ABANDONED),
    ),
    (_P.PENDING, _T.SWEEP): (_illegal(_P.PENDING),),
    (_P.PENDING, _T.CLOSE): (Row(None, _P.ABSENT, _O.CLOSED),),
    # The question is out. It stays out whoever leaves, for whoever comes next.
    (_P.IN_FLIGHT, _T.JOIN): (
        Row(_G.EXCUSED, _P.IN_FLIGHT, _O.EXCUSED),
        Row(_G.OVERDUE, _P.IN_FLIGHT, _O.DEADLINE),
        Row(None, _P.IN_FLIGHT, _O.JOINED),
    ),
    (_P.IN_FLIGHT, _T.SEND): (_illegal(_P.IN_FLIGHT),),
    (_P.IN_FLIGHT, _T.ANSWER): (
        Row(_G.OTHER_GENERATION, _P.IN_FLIGHT, _O.DISCARDED),
        Row(_G.YES, _P.RESOLVED, _O.HIT),
        Row(_G.STORED, _P.RESOLVED, _O.FORCED_HIT),
        Row(_G.FAILED, _P.RESOLVED, _O.LOOKUP_ERROR),
        Row(None, _P.RESOLVED, _O.MISS),
    ),
    (_P.IN_FLIGHT, _T.MARK_MISS): (_same(_P.IN_FLIGHT),),
    (_P.IN_FLIGHT, _T.MARK_HIT): (Row(None, _P.IN_FLIGHT, _O.NOTED),),
    (_P.IN_FLIGHT, _T.RELEASE): (Row(None, _P.IN_FLIGHT, _O.RELEASED),),
    (_P.IN_FLIGHT, _T.SWEEP): (_illegal(_P.IN_FLIGHT),),
    (_P.IN_FLIGHT, _T.CLOSE): (Row(None, _P.ABSENT, _O.CLOSED),),
    # A verdict is held, for as long as somebody holds it.
    (_P.RESOLVED, _T.JOIN): (
        Row(_G.FAILED_AND_NEW, _P.PENDING, _O.ASKED_AGAIN),
        Row(_G.AGED, _P.PENDING, _O.EXPIRED),
        Row(None, _P.RESOLVED, _O.JOINED),
    ),
    (_P.RESOLVED, _T.SEND): (_illegal(_P.RESOLVED),),
    (_P.RESOLVED, _T.ANSWER): (
        Row(_G.OTHER_GENERATION, _P.RESOLVED, _O.DISCARDED),
        _illegal(_P.RESOLVED),
    ),
    (_P.RESOLVED, _T.MARK_MISS): (Row(None, _P.RESOLVED, _O.FORCED_MISS),),
    (_P.RESOLVED, _T.MARK_HIT): (Row(None, _P.RESOLVED, _O.FORCED_HIT),),
    (_P.RESOLVED, _T.RELEASE): (
        Row(_G.OTHERS_WAIT, _P.RESOLVED, _O.RELEASED),
        Row(None, _P.ABSENT, _O.RELEASED),
    ),
    (_P.RESOLVED, _T.SWEEP): (
        Row(_G.CLAIMED, _P.RESOLVED, _O.UNTOUCHED),
        Row(None, _P.ABSENT, _O.UNCLAIMED),
    ),
    (_P.RESOLVED, _T.CLOSE): (_same(_P.RESOLVED),),
}
"""Every (phase, trigger), and for each the rows in the order they are tried."""


class Transition(NamedTuple):
    """One row that fired, as an observer sees it. A tuple: six times quicker to make."""

    seq: int
    """Grows by one with every transition that this manager reports."""
    time: float
    """Seconds on the manager's clock."""
    tier: str
    """Label of the tier, for example `1:fs`."""
    scope: object
    """The probe scope; `None` where all requests share one."""
    key: OffloadKey
    generation: int
    """Generation of the probe after the transition (0 if there never was one)."""
    source: LookupPhase
    target: LookupPhase
    trigger: Trigger
    outcome: Outcome
    waiters: int
    """How many requests wait for the probe, or hold its verdict, after the transition."""
    req_id: str | None
    """The request whose call this was, where one was (JOIN, RELEASE)."""


class LookupObserver(Protocol):
    """Sees the transitions of the probes that it wants.

    Called on the caller's thread, between two changes of the table: it must be
    quick, must not raise, and must not call back into the manager. An observer
    that raises is dropped and reported; the machine goes on without it.
    """

    def wants(self, req_context: ReqContext, tier: str) -> bool:
        """Asked once per request and tier: shall this request's probes be reported?"""

    def on_transition(self, transition: Transition) -> None:
        """One transition of a wanted probe, just after it was made."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One call of `batch_lookup`, or a batch that shutdown found without an answer."""

    tier: str
    scope: object
    req_context: ReqContext
    """The context that the back end was called with."""
    keys: Sequence[OffloadKey]
    generations: Sequence[int]
    """Of the probes of `keys`, alongside."""
    verdicts: Sequence[bool] | None
    """One for each key; `None` if the call failed or never returned."""
    failure: str | None
    """Why there are no verdicts."""
    posted: float
    """When the batch was handed to the worker: seconds on the manager's clock, as below."""
    began: float | None
    """When the back end was called; `None` if shutdown came first or the call never returned."""
    ended: float

    @property
    def since(self) -> float:
        """When the call began, as far as that is known: else when it was handed over."""
        return self.posted if self.began is None else self.began


@runtime_checkable
class BatchObserver(LookupObserver, Protocol):
    """An observer that also sees the calls of the back end, all of them."""

    def on_batch(self, report: BatchReport) -> None:
        """A call has ended; its answers are applied right after this."""
