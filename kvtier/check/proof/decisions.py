"""The single decisions of the lookup machine, as formulas; a known bug is one of them otherwise.

They have the names that they have in `kvtier/model/actions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeAlias

from kvtier.check.proof.logic import (
    BOOL,
    FALSE,
    TRUE,
    Fn,
    Plus,
    Symbol,
    Term,
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
    NUMBER_OF,
    PHASE,
    PLACE,
    VERDICT,
    Entry,
    View,
    choose,
    entry,
)

__all__ = ["YES", "Decisions", "Entries"]

YES = Symbol("yes", (KEY,), BOOL, rigid=True)
"""The keys that the back end says are there."""

Entries: TypeAlias = Callable[[Term], Entry]


class Decisions:
    """Those of the correct machine."""

    def reply(self, e: Entry, r: Term) -> Term:
        """What `r` is told about this entry."""
        no = ite(e.excused(r) | e.late, VERDICT("F"), VERDICT("none"))
        return ite(e.is_in("RESOLVED"), e.verdict, no)

    def asks_again(self, e: Entry, asks_first_time: Term) -> Term:
        """Whether a held verdict stands for a failed question that somebody new asks about."""
        return e.error & asks_first_time

    def excuses(self, e: Entry, r: Term) -> Fn:
        """Who goes on reading "no" while `r` has the question asked again."""
        return lambda q: e.waits(q) & ~same(q, r)

    def too_old(self, e: Entry) -> Term:
        """Whether a verdict is past its lifetime."""
        return e.is_in("RESOLVED") & same(e.age, AGE("old"))

    def takes(self, e: Entry, gen: Term) -> Term:
        """Whether an answer of that generation is for this entry."""
        return e.is_in("IN_FLIGHT") & same(e.gen, gen)

    def drained(self, s: View) -> Entries:
        """The entries after every published answer.

        Of two answers to one entry the older would count. This does not say so: it would
        take the question out of the reach of z3, and `AnswerOnceInv` says that there are
        no two.
        """

        def answered(k: Term, e: Entry, answer: str) -> Term:
            return some(
                BATCH,
                lambda b: (
                    same(s.at(b), PLACE("results"))
                    & same(s.answer(b, k), ANSWER(answer))
                    & self.takes(e, NUMBER_OF(b, k))
                ),
            )

        @cache
        def after(k: Term) -> Entry:
            e = entry(s, k)
            for answer in "EFT":
                e = choose(answered(k, entry(s, k), answer), self.resolved(entry(s, k), answer), e)
            return e

        return after

    def read(self, s: View, when: Term) -> View:
        """The state without what was published."""

        def gone(b: Term) -> Term:
            return when & same(s.at(b), PLACE("results"))

        return replace(
            s,
            at=lambda b: ite(gone(b), PLACE("nowhere"), s.at(b)),
            answer=lambda b, k: ite(gone(b), ANSWER("none"), s.answer(b, k)),
            unread=lambda: ite(when, number(0), s.unread()),
        )

    def resolved(self, e: Entry, answer: str) -> Entry:
        """The entry with its answer. What was stored meanwhile is there, whatever was said."""
        yes = TRUE if answer == "T" else e.stored
        return replace(
            ABSENT,
            phase=PHASE("RESOLVED"),
            gen=e.gen,
            verdict=ite(yes, VERDICT("T"), VERDICT("F")),
            waits=e.waits,
            error=~yes if answer == "E" else FALSE,
            age=self.youth(),
        )

    def swept(self, entries: Entries) -> Entries:
        """Without the verdicts that nobody holds."""

        @cache
        def after(k: Term) -> Entry:
            e = entries(k)
            return choose(e.is_in("RESOLVED") & e.unclaimed(), ABSENT, e)

        return after

    def flush_drained(self, s: View) -> Entries:
        """The entries as a flush finds them."""
        return self.drained(s)

    def flush_read(self, s: View) -> View:
        """The state without what a flush has read."""
        return self.read(s, TRUE)

    def batch_after_send(self, s: View, k: Term) -> Term:
        """What is still to be sent after the batch was sent."""
        return FALSE

    def missed(self, e: Entry) -> Entry:
        """After a failed load."""
        forced = replace(e, verdict=VERDICT("F"), error=FALSE, age=self.forced_age())
        return choose(e.is_in("RESOLVED"), forced, e)

    def forced_age(self) -> Term:
        """A forced miss has no lifetime."""
        return AGE("never")

    def stored(self, e: Entry) -> Entry:
        """After a completed store."""
        there = replace(e, verdict=VERDICT("T"), error=FALSE, age=self.youth())
        noted = choose(e.is_in("IN_FLIGHT"), replace(e, stored=TRUE), e)
        return choose(e.is_in("RESOLVED"), there, noted)

    def let_go(self, e: Entry, r: Term) -> Entry:
        """Without `r`; gone if it was the last and the question is not out."""
        left = replace(
            e,
            waits=lambda q: e.waits(q) & ~same(q, r),
            excused=lambda q: e.excused(q) & ~same(q, r),
        )
        return choose(left.unclaimed() & self.goes_with_last(left), ABSENT, left)

    def goes_with_last(self, e: Entry) -> Term:
        """Whether the last waiter takes the entry along."""
        return ~e.is_in("IN_FLIGHT")

    def forgotten(self, held: Term) -> Term:
        """What the reverse index keeps of what a request held that let go."""
        return FALSE

    def ends_at_close(self, e: Entry) -> Term:
        """Whether shutdown deletes the entry."""
        return e.is_in("PENDING", "IN_FLIGHT")

    def published(self, s: View) -> View:
        """What the worker makes known of a back end's answer."""
        return self._replied(s, lambda k: ite(YES(k), ANSWER("T"), ANSWER("F")))

    def failed(self, s: View) -> View:
        """The back end raised, or answered what cannot be matched with the keys."""
        return self._replied(s, lambda k: ANSWER("E"))

    def youth(self) -> Term:
        """Age of a verdict when it is new."""
        return ite(LIFETIME(), AGE("young"), AGE("never"))

    def _replied(self, s: View, answer: Fn) -> View:
        def taken(b: Term) -> Term:
            return same(s.at(b), PLACE("worker"))

        return replace(
            s,
            lane=lambda: LANE("idle"),
            at=lambda b: ite(taken(b), PLACE("results"), s.at(b)),
            answer=lambda b, k: ite(taken(b) & ASKS(b, k), answer(k), s.answer(b, k)),
            sent=lambda: Plus(s.sent(), number(-1)),
            unread=lambda: Plus(s.unread(), number(1)),
        )
