"""The state of the lookup machine as functions, for any number of keys, requests and batches.

The names are those of `kvtier/model/state.py`. A set is a function to truth values
(`held(r, k)`), and a queue is a place where batches are: `at(b)` says where batch
`b` is, and `older(b, c)` which was sent first. What a batch asks never changes, so
`asks` and `number_of` belong to no state; a batch that is nowhere was not sent yet
or is done with. Two batches may ask the same: that this does not happen is a theorem.

`View` is a state: for each name a function. `NOW` is the state before a step, and a
step is a function from a view to a view, as it is in the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache

from kvtier.check.proof.logic import (
    BOOL,
    FALSE,
    NUMBER,
    TRUE,
    Fn,
    Sort,
    Symbol,
    Term,
    among,
    each,
    ite,
    number,
    same,
)

__all__ = [
    "ABSENT",
    "AGE",
    "ANSWER",
    "ASKS",
    "BATCH",
    "HISTORY",
    "INITIAL",
    "KEY",
    "LANE",
    "LIFETIME",
    "MAX_OUT",
    "NOW",
    "NUMBER_OF",
    "OLDER",
    "PHASE",
    "PLACE",
    "REQUEST",
    "RIGID",
    "SHUT",
    "SYMBOLS",
    "VERDICT",
    "Entry",
    "View",
    "choose",
    "entry",
    "is_out",
    "with_entries",
]

KEY = Sort("Key")
REQUEST = Sort("Request")
BATCH = Sort("Batch")
PHASE = Sort("Phase", ("ABSENT", "PENDING", "IN_FLIGHT", "RESOLVED"))
VERDICT = Sort("Verdict", ("none", "T", "F"))
AGE = Sort("Age", ("none", "young", "old", "never"))
ANSWER = Sort("Answer", ("none", "T", "F", "E"))
PLACE = Sort("Place", ("nowhere", "queue", "worker", "results"))
LANE = Sort("Lane", ("idle", "read", "call", "hung", "stopped"))
SHUT = Sort("Shut", ("open", "sentinel", "flag", "closed"))

ASKS = Symbol("asks", (BATCH, KEY), BOOL, rigid=True)
NUMBER_OF = Symbol("number_of", (BATCH, KEY), NUMBER, rigid=True)
"""Generation of the question about this key in this batch."""
OLDER = Symbol("older", (BATCH, BATCH), BOOL, rigid=True)
MAX_OUT = Symbol("max_out", (), NUMBER, rigid=True)
LIFETIME = Symbol("lifetime", (), BOOL, rigid=True)
"""Whether verdicts have a lifetime."""
RIGID = (ASKS, NUMBER_OF, OLDER, MAX_OUT, LIFETIME)

_DOMAINS: dict[str, tuple[tuple[Sort, ...], Sort]] = {
    "phase": ((KEY,), PHASE),
    "gen": ((KEY,), NUMBER),
    "verdict": ((KEY,), VERDICT),
    "waits": ((KEY, REQUEST), BOOL),
    "error": ((KEY,), BOOL),
    "stored": ((KEY,), BOOL),
    "excused": ((KEY, REQUEST), BOOL),
    "late": ((KEY,), BOOL),
    "age": ((KEY,), AGE),
    "held": ((REQUEST, KEY), BOOL),
    "batch": ((KEY,), BOOL),
    "due": ((), BOOL),
    "at": ((BATCH,), PLACE),
    "answer": ((BATCH, KEY), ANSWER),
    "lane": ((), LANE),
    "shut": ((), SHUT),
    "sent": ((), NUMBER),
    "unread": ((), NUMBER),
    "calls": ((KEY, NUMBER), NUMBER),
    "counter": ((), NUMBER),
    "may_be_none": ((REQUEST, KEY), BOOL),
    "may_be_true": ((REQUEST, KEY), BOOL),
    "may_be_false": ((REQUEST, KEY), BOOL),
    "maybe": ((REQUEST, KEY), BOOL),
    "surely": ((REQUEST, KEY), BOOL),
}
SYMBOLS = {name: Symbol(name, *domain) for name, domain in _DOMAINS.items()}
"""What a state consists of."""
HISTORY = (
    "calls",
    "counter",
    "may_be_none",
    "may_be_true",
    "may_be_false",
    "maybe",
    "surely",
)
"""What a proof must remember and the machine does not: see `history.py`."""


@dataclass(frozen=True, slots=True)
class View:
    """A state, or what a step makes of it."""

    phase: Fn
    gen: Fn
    verdict: Fn
    waits: Fn
    error: Fn
    stored: Fn
    excused: Fn
    late: Fn
    age: Fn
    held: Fn
    """The keys that a request joined: the reverse index."""
    batch: Fn
    due: Fn
    at: Fn
    answer: Fn
    """Of a batch in `results`; "none" elsewhere."""
    lane: Fn
    """What the worker does."""
    shut: Fn
    sent: Fn
    """How many batches are with the worker: queued, or taken and not answered."""
    unread: Fn
    """How many replies are in `results`."""
    calls: Fn
    counter: Fn
    may_be_none: Fn
    may_be_true: Fn
    may_be_false: Fn
    maybe: Fn
    surely: Fn


NOW = View(**SYMBOLS)


@dataclass(frozen=True, slots=True)
class Entry:
    """One probe, as terms; `waits` and `excused` say of a request whether it does, or is."""

    phase: Term
    gen: Term
    verdict: Term
    waits: Fn
    error: Term
    stored: Term
    excused: Fn
    late: Term
    age: Term

    def is_in(self, *phases: str) -> Term:
        """Whether its phase is one of these."""
        return among(self.phase, *(PHASE(name) for name in phases))

    def unclaimed(self) -> Term:
        """Whether nobody waits for it."""
        return each(REQUEST, lambda r: ~self.waits(r))


ABSENT = Entry(
    phase=PHASE("ABSENT"),
    gen=number(0),
    verdict=VERDICT("none"),
    waits=lambda r: FALSE,
    error=FALSE,
    stored=FALSE,
    excused=lambda r: FALSE,
    late=FALSE,
    age=AGE("none"),
)
_SETS = ("waits", "excused")


def entry(s: View, k: Term) -> Entry:
    """The entry of a key."""
    plain = {f.name: getattr(s, f.name)(k) for f in fields(Entry) if f.name not in _SETS}
    return Entry(**plain, waits=lambda r: s.waits(k, r), excused=lambda r: s.excused(k, r))


def choose(test: Term, then: Entry, other: Entry) -> Entry:
    """`then` if `test`, else `other`."""
    plain = {
        f.name: ite(test, getattr(then, f.name), getattr(other, f.name))
        for f in fields(Entry)
        if f.name not in _SETS
    }
    return Entry(
        **plain,
        waits=lambda r: ite(test, then.waits(r), other.waits(r)),
        excused=lambda r: ite(test, then.excused(r), other.excused(r)),
    )


def with_entries(s: View, of: Callable[[Term], Entry]) -> View:
    """The state with these entries."""
    of = cache(of)
    plain = {f.name: _part(of, f.name) for f in fields(Entry) if f.name not in _SETS}
    return replace(
        s,
        **plain,
        waits=lambda k, r: of(k).waits(r),
        excused=lambda k, r: of(k).excused(r),
    )


def _part(of: Callable[[Term], Entry], name: str) -> Fn:
    return lambda k: getattr(of(k), name)


def is_out(s: View, b: Term, k: Term) -> Term:
    """Whether a question about the key is out in this batch: sent, or answered and not read."""
    sent = among(s.at(b), PLACE("queue"), PLACE("worker")) & ASKS(b, k)
    return sent | (same(s.at(b), PLACE("results")) & ~same(s.answer(b, k), ANSWER("none")))


INITIAL = replace(
    with_entries(NOW, lambda k: ABSENT),
    held=lambda r, k: FALSE,
    batch=lambda k: FALSE,
    due=lambda: FALSE,
    at=lambda b: PLACE("nowhere"),
    answer=lambda b, k: ANSWER("none"),
    lane=lambda: LANE("idle"),
    shut=lambda: SHUT("open"),
    sent=lambda: number(0),
    unread=lambda: number(0),
    calls=lambda k, g: number(0),
    counter=lambda: number(0),
    may_be_none=lambda r, k: TRUE,
    may_be_true=lambda r, k: TRUE,
    may_be_false=lambda r, k: TRUE,
    maybe=lambda r, k: FALSE,
    surely=lambda r, k: FALSE,
)
"""Nothing asked, nothing known."""
