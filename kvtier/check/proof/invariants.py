"""What the proof shows: of every state, and of every step.

The invariants of `kvtier/model/invariants.py` as formulas, under their names; two
that only `tla/AsyncLookup.tla` has, `UnclaimedInv` and `BoundInv`; `CallOnceInv`,
which needs a memory (`calls`); and, by names of its own, what must be known of a
state besides so that each of them follows from all of them one step earlier.

Each conjunct is a function of a view, so it is asked of the state before and of
the state after alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TypeAlias

from kvtier.check.proof.logic import (
    NUMBER,
    Less,
    Plus,
    Term,
    among,
    both,
    each,
    ite,
    number,
    same,
    some,
)
from kvtier.check.proof.state import (
    ABSENT,
    AGE,
    ANSWER,
    ASKS,
    BATCH,
    KEY,
    LANE,
    LIFETIME,
    MAX_OUT,
    NUMBER_OF,
    PHASE,
    PLACE,
    REQUEST,
    SHUT,
    VERDICT,
    View,
    entry,
    is_out,
)

__all__ = ["INVARIANTS", "STRENGTHENING", "Conjunct"]

Conjunct: TypeAlias = Callable[[View], Term]


def _is_in(s: View, k: Term, *phases: str) -> Term:
    return among(s.phase(k), *(PHASE(name) for name in phases))


def _is_at(s: View, b: Term, *places: str) -> Term:
    return among(s.at(b), *(PLACE(name) for name in places))


def answer_once(s: View) -> Term:
    """No key has two questions out."""
    return each(
        KEY,
        lambda k: each(
            BATCH,
            lambda b: each(BATCH, lambda c: (is_out(s, b, k) & is_out(s, c, k)) >> same(b, c)),
        ),
    )


def _only_in_flight(s: View) -> Term:
    return each(
        KEY,
        lambda k: each(
            BATCH,
            lambda b: (
                is_out(s, b, k) >> (_is_in(s, k, "IN_FLIGHT") & same(NUMBER_OF(b, k), s.gen(k)))
            ),
        ),
    )


def conservation(s: View) -> Term:
    """Until the stop flag is set: IN_FLIGHT if and only if one question is out, and that one.

    That it is one and not two is `AnswerOnceInv`. Nothing is IN_FLIGHT after shutdown.
    """
    asked = each(
        KEY,
        lambda k: (
            _is_in(s, k, "IN_FLIGHT")
            >> some(BATCH, lambda b: is_out(s, b, k) & same(NUMBER_OF(b, k), s.gen(k)))
        ),
    )
    over = each(KEY, lambda k: ~_is_in(s, k, "IN_FLIGHT"))
    waiting = among(s.shut(), SHUT("open"), SHUT("sentinel"))
    return (waiting >> (asked & _only_in_flight(s))) & (same(s.shut(), SHUT("closed")) >> over)


def verdict(s: View) -> Term:
    """A verdict is held exactly in RESOLVED."""
    return each(KEY, lambda k: same(~same(s.verdict(k), VERDICT("none")), _is_in(s, k, "RESOLVED")))


def index(s: View) -> Term:
    """Waiters and reverse index agree."""
    return each(KEY, lambda k: each(REQUEST, lambda r: same(s.waits(k, r), s.held(r, k))))


def waiter(s: View) -> Term:
    """A question that was not sent has somebody who wants it."""
    return each(KEY, lambda k: _is_in(s, k, "PENDING") >> ~entry(s, k).unclaimed())


def unclaimed(s: View) -> Term:
    """A verdict without a waiter came since the last flush, and is gone after shutdown."""
    return each(
        KEY,
        lambda k: (
            (_is_in(s, k, "RESOLVED") & entry(s, k).unclaimed())
            >> ~(s.due() | same(s.shut(), SHUT("closed")))
        ),
    )


def batch(s: View) -> Term:
    """The batch is exactly the PENDING entries."""
    return each(KEY, lambda k: same(s.batch(k), _is_in(s, k, "PENDING")))


def call_once(s: View) -> Term:
    """The back end was called at most once with each question."""
    return each(KEY, lambda k: each(NUMBER, lambda g: Less(s.calls(k, g), number(2))))


def closed(s: View) -> Term:
    """After shutdown no question is left."""
    return same(s.shut(), SHUT("closed")) >> each(KEY, lambda k: _is_in(s, k, "ABSENT", "RESOLVED"))


def bound(s: View) -> Term:
    """No more batches are out, the answered ones that nobody has read included, than may be."""
    return ~Less(MAX_OUT(), Plus(s.sent(), s.unread()))


def marks(s: View) -> Term:
    """`error`, `stored`, `excused` only where they mean something; nothing of an absent entry."""

    def of(k: Term) -> Term:
        e = entry(s, k)
        blank = [
            same(getattr(e, f.name), getattr(ABSENT, f.name))
            for f in fields(e)
            if f.name not in ("waits", "excused")
        ]
        return both(
            [
                e.error >> (e.is_in("RESOLVED") & same(e.verdict, VERDICT("F"))),
                e.stored >> e.is_in("IN_FLIGHT"),
                each(REQUEST, lambda r: e.excused(r) >> (e.waits(r) & ~e.is_in("RESOLVED"))),
                e.is_in("ABSENT") >> (both(blank) & e.unclaimed()),
            ]
        )

    return each(KEY, of)


def guarantee(s: View) -> Term:
    """Without a lifetime no request was told what it could not rely on not being told."""
    may = (s.may_be_none, s.may_be_true, s.may_be_false)
    something = each(
        REQUEST, lambda r: each(KEY, lambda k: ~both(~allowed(r, k) for allowed in may))
    )
    return ~LIFETIME() >> something


INVARIANTS: Mapping[str, Conjunct] = {
    "AnswerOnceInv": answer_once,
    "ConservationInv": conservation,
    "VerdictInv": verdict,
    "IndexInv": index,
    "WaiterInv": waiter,
    "UnclaimedInv": unclaimed,
    "BatchInv": batch,
    "CallOnceInv": call_once,
    "ClosedInv": closed,
    "BoundInv": bound,
    "MarksInv": marks,
    "GuaranteeInv": guarantee,
}


def last_call(s: View) -> Term:
    """While the flag is set, what is out is still what is IN_FLIGHT: only the end lets go of it."""
    return same(s.shut(), SHUT("flag")) >> _only_in_flight(s)


def lane(s: View) -> Term:
    """The worker has one batch while it is busy, and else none."""
    busy = among(s.lane(), LANE("read"), LANE("call"), LANE("hung"))
    one = each(
        BATCH,
        lambda b: each(
            BATCH, lambda c: (_is_at(s, b, "worker") & _is_at(s, c, "worker")) >> same(b, c)
        ),
    )
    return same(busy, some(BATCH, lambda b: _is_at(s, b, "worker"))) & one


def replies(s: View) -> Term:
    """A batch has answers if it is in the results, to all that it asks and to nothing else."""
    return each(
        BATCH,
        lambda b: each(
            KEY,
            lambda k: same(
                ~same(s.answer(b, k), ANSWER("none")), _is_at(s, b, "results") & ASKS(b, k)
            ),
        ),
    )


def counts(s: View) -> Term:
    """The count of replies is not negative."""
    return ~Less(s.unread(), number(0))


def numbers(s: View) -> Term:
    """What is asked has a number, and no number above the counter is known to anything."""
    above = each(
        KEY,
        lambda k: each(NUMBER, lambda g: Less(s.counter(), g) >> same(s.calls(k, g), number(0))),
    )
    asked = each(
        KEY,
        lambda k: (
            ~Less(s.counter(), s.gen(k)) & (_is_in(s, k, "ABSENT") | Less(number(0), s.gen(k)))
        ),
    )
    out = each(
        BATCH, lambda b: each(KEY, lambda k: is_out(s, b, k) >> ~Less(s.counter(), NUMBER_OF(b, k)))
    )
    return above & asked & out & ~Less(s.counter(), number(0))


def uncalled(s: View) -> Term:
    """The back end was not called with what is not sent, or waits, or is about to be called."""
    pending = each(KEY, lambda k: _is_in(s, k, "PENDING") >> same(s.calls(k, s.gen(k)), number(0)))
    sent = each(
        BATCH,
        lambda b: each(
            KEY,
            lambda k: (
                (
                    ASKS(b, k)
                    & (
                        _is_at(s, b, "queue")
                        | (_is_at(s, b, "worker") & same(s.lane(), LANE("read")))
                    )
                )
                >> same(s.calls(k, NUMBER_OF(b, k)), number(0))
            ),
        ),
    )
    return pending & sent


def clocks(s: View) -> Term:
    """A deadline is for questions and an age for verdicts, without a lifetime that of no age."""

    def of(k: Term) -> Term:
        e = entry(s, k)
        ageless = among(e.age, AGE("none"), AGE("never"))
        return both(
            [
                e.late >> e.is_in("PENDING", "IN_FLIGHT"),
                same(~same(e.age, AGE("none")), e.is_in("RESOLVED")),
                ~LIFETIME() >> ageless,
            ]
        )

    return each(KEY, of)


def told(s: View) -> Term:
    """What an entry would say now may be said; who holds nothing may be told anything."""

    def of(r: Term, k: Term) -> Term:
        e = entry(s, k)
        none, true, false = s.may_be_none(r, k), s.may_be_true(r, k), s.may_be_false(r, k)
        maybe, surely = s.maybe(r, k), s.surely(r, k)
        told_no = false & maybe & (e.late | e.excused(r))
        return both(
            [
                ~s.held(r, k) >> (none & ~maybe & ~surely),
                none >> (true & false),
                e.is_in("RESOLVED") >> ite(same(e.verdict, VERDICT("T")), true, false),
                (e.is_in("PENDING", "IN_FLIGHT") & ~none) >> told_no,
                (e.error & ~none) >> maybe,
                surely >> e.stored,
            ]
        )

    return ~LIFETIME() >> each(REQUEST, lambda r: each(KEY, lambda k: of(r, k)))


STRENGTHENING: Mapping[str, Conjunct] = {
    "LastCall": last_call,
    "Lane": lane,
    "Replies": replies,
    "Counts": counts,
    "Numbers": numbers,
    "Uncalled": uncalled,
    "Clocks": clocks,
    "Told": told,
}
