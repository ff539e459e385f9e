"""What must hold of every step: the action properties of `tla/AsyncLookupProps.tla` as formulas.

They have the names that they have there. A property takes an action and says
something of the state before (`NOW`) and the state after; of an action that is none
of its business it is `TRUE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TypeAlias

from kvtier.check.proof.actions import Action, K, R
from kvtier.check.proof.logic import (
    FALSE,
    TRUE,
    Less,
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
    AGE,
    ANSWER,
    BATCH,
    KEY,
    LANE,
    LIFETIME,
    MAX_OUT,
    NOW,
    NUMBER_OF,
    PHASE,
    PLACE,
    REQUEST,
    SHUT,
    VERDICT,
    Entry,
    choose,
    entry,
)

__all__ = ["STEPS", "StepProperty"]

StepProperty: TypeAlias = Callable[[Action], Term]

_s = NOW


def _answered(k: Term, answer: str) -> Term:
    """That answer to the present question of `k` came and was not read."""
    return some(
        BATCH,
        lambda b: (
            same(_s.at(b), PLACE("results"))
            & same(_s.answer(b, k), ANSWER(answer))
            & same(NUMBER_OF(b, k), _s.gen(k))
        ),
    )


def _any_answer(k: Term) -> Term:
    return _answered(k, "T") | _answered(k, "F") | _answered(k, "E")


def _nothing_read(a: Action) -> Term:
    return each(BATCH, lambda b: ~same(a.after.at(b), PLACE("results")))


def _alike(left: Entry, right: Entry) -> Term:
    plain = [
        same(getattr(left, f.name), getattr(right, f.name))
        for f in fields(Entry)
        if f.name not in ("waits", "excused")
    ]
    sets = each(
        REQUEST,
        lambda r: same(left.waits(r), right.waits(r)) & same(left.excused(r), right.excused(r)),
    )
    return both(plain) & sets


def _joins(before: Entry, after: Entry, r: Term) -> Term:
    return each(REQUEST, lambda q: same(after.waits(q), before.waits(q) | same(q, r)))


def generation(a: Action) -> Term:
    """1. A verdict is applied only to the generation that asked, and is what the answer says."""

    def of(k: Term) -> Term:
        e, after = entry(_s, k), entry(a.after, k)
        yes = _answered(k, "T") | (e.stored & _any_answer(k))
        says = {
            "T": yes & same(after.verdict, VERDICT("T")) & ~after.error,
            "F": _answered(k, "F") & ~e.stored & same(after.verdict, VERDICT("F")) & ~after.error,
            "E": _answered(k, "E") & ~e.stored & same(after.verdict, VERDICT("F")) & after.error,
        }
        resolved = same(after.gen, e.gen) & (says["T"] | says["F"] | says["E"])
        asked_again = _answered(k, "E") & ~e.stored
        gone = _any_answer(k) | same(a.after.shut(), SHUT("closed"))
        left = ite(
            after.is_in("RESOLVED"), resolved, ite(after.is_in("PENDING"), asked_again, gone)
        )
        return (e.is_in("IN_FLIGHT") & ~after.is_in("IN_FLIGHT")) >> left

    return each(KEY, of)


_Moves: TypeAlias = frozenset[tuple[str, str]]
_ASK: _Moves = frozenset({("ABSENT", "PENDING"), ("RESOLVED", "PENDING")})
_SEND: _Moves = frozenset({("PENDING", "IN_FLIGHT")})
_ANSWER: _Moves = frozenset({("IN_FLIGHT", "RESOLVED")})
_RELEASE: _Moves = frozenset({("PENDING", "ABSENT"), ("RESOLVED", "ABSENT")})
_SWEEP: _Moves = frozenset({("RESOLVED", "ABSENT")})
_CLOSE: _Moves = frozenset({("PENDING", "ABSENT"), ("IN_FLIGHT", "ABSENT")})


def _then(first: _Moves, second: _Moves) -> _Moves:
    return first | second | {(x, z) for x, y in first for y2, z in second if y == y2}


_ALLOWED: Mapping[str, _Moves] = {
    "Drain": _ANSWER,
    "Flush": _then(_ANSWER, _SWEEP) | _SEND,
    "Cleanup": _RELEASE,
    "ShutdownEnd": _then(_ANSWER, _SWEEP) | _CLOSE,
}


def phases(a: Action) -> Term:
    """Phases move as the table says; a generation ends where its entry does or is asked again."""

    def moves(k: Term, allowed: _Moves) -> Term:
        return ~both(
            ~(same(_s.phase(k), PHASE(x)) & same(a.after.phase(k), PHASE(y))) for x, y in allowed
        )

    def of(k: Term) -> Term:
        here = moves(k, _ALLOWED.get(a.name, frozenset()))
        if a.name.startswith("Lookup"):
            here = ite(same(k, K), moves(k, _then(_ANSWER, _ASK)), moves(k, _ANSWER))
        ends = ite(same(a.after.gen(k), number(0)), PHASE("ABSENT"), PHASE("PENDING"))
        return (~same(_s.phase(k), a.after.phase(k)) >> here) & (
            ~same(_s.gen(k), a.after.gen(k)) >> same(a.after.phase(k), ends)
        )

    return each(KEY, of)


def verdicts(a: Action) -> Term:
    """Inside a generation a verdict changes only by a mark."""

    def of(k: Term) -> Term:
        e, after = entry(_s, k), entry(a.after, k)
        forced = {"MarkMiss": VERDICT("F"), "MarkHit": VERDICT("T")}.get(a.name)
        marked = FALSE if forced is None else same(k, K) & same(after.verdict, forced)
        stays = same(e.verdict, after.verdict) & same(e.error, after.error)
        return (e.is_in("RESOLVED") & same(e.gen, after.gen)) >> (stays | marked)

    return each(KEY, of)


def flush_drains(a: Action) -> Term:
    """A flush leaves nothing unread, and no question that was answered is still out."""
    if a.name != "Flush":
        return TRUE
    return _nothing_read(a) & each(
        KEY, lambda k: _any_answer(k) >> ~entry(a.after, k).is_in("IN_FLIGHT")
    )


def flush_sweeps(a: Action) -> Term:
    """A flush leaves no verdict that nobody holds."""
    if a.name != "Flush":
        return TRUE
    return each(
        KEY, lambda k: entry(a.after, k).is_in("RESOLVED") >> ~entry(a.after, k).unclaimed()
    )


def flush_sends(a: Action) -> Term:
    """A flush sends the whole batch, or none of it if as many are out as may be."""
    if a.name != "Flush":
        return TRUE
    return each(
        KEY,
        lambda k: ite(
            Less(_s.sent(), MAX_OUT()), ~a.after.batch(k), same(a.after.batch(k), _s.batch(k))
        ),
    )


def mark_miss(a: Action) -> Term:
    """A failed load makes a held verdict a miss without a lifetime, and changes nothing else."""
    if a.name != "MarkMiss":
        return TRUE
    e = entry(_s, K)
    forced = replace(e, verdict=VERDICT("F"), error=FALSE, age=AGE("never"))
    return _alike(entry(a.after, K), choose(e.is_in("RESOLVED"), forced, e))


def mark_hit(a: Action) -> Term:
    """A completed store makes a held verdict a hit, and is remembered of a question that is out."""
    if a.name != "MarkHit":
        return TRUE
    e = entry(_s, K)
    youth = ite(LIFETIME(), AGE("young"), AGE("never"))
    there = replace(e, verdict=VERDICT("T"), error=FALSE, age=youth)
    noted = choose(e.is_in("IN_FLIGHT"), replace(e, stored=TRUE), e)
    return _alike(entry(a.after, K), choose(e.is_in("RESOLVED"), there, noted))


def reuse(a: Action) -> Term:
    """An answer that came with no waiter can be taken until the next flush."""

    def kept(k: Term) -> Term:
        after = entry(a.after, k)
        read = entry(_s, k).is_in("IN_FLIGHT") & _any_answer(k) & _nothing_read(a)
        asked_again = after.is_in("PENDING") & _answered(k, "E")
        return (read & ~same(a.after.shut(), SHUT("closed"))) >> (
            after.is_in("RESOLVED") | asked_again
        )

    keeps = TRUE if a.name == "Flush" else each(KEY, kept)
    if a.reply is None:
        return keeps
    e = entry(_s, K)
    free = e.is_in("RESOLVED") & e.unclaimed() & ~e.error & ~same(e.age, AGE("old"))
    mine = replace(e, waits=lambda r: same(r, R))
    return keeps & (free >> (same(a.reply, e.verdict) & _alike(entry(a.after, K), mine)))


def reask(a: Action) -> Term:
    """An error is asked again for a new request, an aged verdict for anybody; nothing else is."""

    def again(k: Term) -> Term:
        return entry(_s, k).is_in("RESOLVED") & entry(a.after, k).is_in("PENDING")

    def of(k: Term) -> Term:
        e, after = entry(_s, k), entry(a.after, k)

        def for_whom(r: Term) -> Term:
            by_error = e.error & ~e.waits(r)
            old = same(e.age, AGE("old")) & ~by_error
            all_of_them = each(REQUEST, lambda q: same(after.excused(q), e.waits(q)))
            none = each(REQUEST, lambda q: ~after.excused(q))
            return _joins(e, after, r) & ((by_error & all_of_them) | (old & none))

        def late(r: Term) -> Term:
            excused = each(REQUEST, lambda q: same(after.excused(q), e.waits(q)))
            return ~e.waits(r) & _joins(e, after, r) & excused

        at_once = e.is_in("IN_FLIGHT") & after.is_in("PENDING")
        return (again(k) >> some(REQUEST, for_whom)) & (at_once >> some(REQUEST, late))

    holds = each(KEY, of)
    if a.reply is None or a.name == "LookupClosed":
        return holds
    e = entry(_s, K)
    old = same(e.age, AGE("old"))
    due = e.is_in("RESOLVED") & (e.error | old) & (~e.waits(R) | old)
    return holds & (due >> again(K))


def reply(a: Action) -> Term:
    """11. What lookup returns is the verdict, or "F" by excuse, deadline or shutdown, or "none"."""
    if a.reply is None:
        return TRUE
    after = entry(a.after, K)
    waits = after.is_in("PENDING", "IN_FLIGHT")
    no = (
        same(after.verdict, VERDICT("F"))
        | (waits & (after.excused(R) | after.late))
        | (same(a.after.shut(), SHUT("closed")) & after.is_in("ABSENT"))
    )
    return both(
        [
            same(a.reply, VERDICT("none")) >> (waits & same(a.after.shut(), SHUT("open"))),
            same(a.reply, VERDICT("T")) >> same(after.verdict, VERDICT("T")),
            same(a.reply, VERDICT("F")) >> no,
        ]
    )


def stop(a: Action) -> Term:
    """Once the stop flag is set no batch is taken up."""
    taken = same(_s.lane(), LANE("idle")) & same(a.after.lane(), LANE("read"))
    return taken >> among(_s.shut(), SHUT("open"), SHUT("sentinel"))


STEPS: Mapping[str, StepProperty] = {
    "GenerationProp": generation,
    "PhaseProp": phases,
    "VerdictProp": verdicts,
    "FlushDrainsProp": flush_drains,
    "FlushSweepsProp": flush_sweeps,
    "FlushSendsProp": flush_sends,
    "MarkMissProp": mark_miss,
    "MarkHitProp": mark_hit,
    "ReuseProp": reuse,
    "ReaskProp": reask,
    "ReplyProp": reply,
    "StopProp": stop,
}
