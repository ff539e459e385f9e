"""What a proof must remember and the machine does not: written by every step, read by none.

`calls`: how often the back end was called with the question of this key and
number. A number that is given to a new question starts anew; where numbers are
counted this changes nothing, as the conjunct `Numbers` says.

`counter`: the highest number that a question ever had.

`may_be_none`, `may_be_true`, `may_be_false`: what a request may be told about a key
if it asks now, and `till_answered`: a "no" that it was told had no verdict behind
it. This is the diary of `tla/Told.tla`, written by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvtier.check.proof.actions import Action, K, R
from kvtier.check.proof.logic import FALSE, TRUE, Less, Plus, Term, ite, number, same, some
from kvtier.check.proof.state import (
    ASKS,
    BATCH,
    LANE,
    NOW,
    NUMBER_OF,
    PHASE,
    PLACE,
    VERDICT,
    entry,
)

__all__ = ["remembering"]


@dataclass(frozen=True, slots=True)
class _May:
    """What one request may be told about one key."""

    none: Term = TRUE
    true: Term = TRUE
    false: Term = TRUE
    till_answered: Term = FALSE


_ANYTHING = _May()
_NOTHING = _May(FALSE, FALSE, FALSE)


def remembering(action: Action) -> Action:
    """The action with its line in the diary."""
    s, t = NOW, action.after
    asks = K in action.parameters and action.name.startswith("Lookup")

    def born(k: Term) -> Term:
        return same(t.phase(k), PHASE("PENDING")) & ~same(s.phase(k), PHASE("PENDING"))

    def called(k: Term, g: Term) -> Term:
        begun = same(s.lane(), LANE("read")) & same(t.lane(), LANE("call"))
        return begun & some(
            BATCH,
            lambda b: same(s.at(b), PLACE("worker")) & ASKS(b, k) & same(NUMBER_OF(b, k), g),
        )

    def calls(k: Term, g: Term) -> Term:
        kept = ite(called(k, g), Plus(s.calls(k, g), number(1)), s.calls(k, g))
        return ite(born(k) & same(g, t.gen(k)), number(0), kept)

    def counter() -> Term:
        higher = born(K) & Less(s.counter(), t.gen(K)) if asks else FALSE
        return ite(higher, t.gen(K), s.counter())

    may = _may(action)
    return replace(
        action,
        after=replace(
            t,
            calls=calls,
            counter=counter,
            may_be_none=lambda r, k: may(r, k).none,
            may_be_true=lambda r, k: may(r, k).true,
            may_be_false=lambda r, k: may(r, k).false,
            till_answered=lambda r, k: may(r, k).till_answered,
        ),
    )


def _may(action: Action) -> Callable[[Term, Term], _May]:
    s, t = NOW, action.after

    def before(r: Term, k: Term) -> _May:
        return _May(
            s.may_be_none(r, k), s.may_be_true(r, k), s.may_be_false(r, k), s.till_answered(r, k)
        )

    def still(r: Term, k: Term) -> _May:
        m = before(r, k)
        answered = same(s.phase(k), PHASE("IN_FLIGHT")) & ~same(t.phase(k), PHASE("IN_FLIGHT"))
        late = replace(m, true=m.true | (answered & m.till_answered))
        return _either(t.held(r, k), late, _ANYTHING)

    def told(r: Term, k: Term, reply: Term) -> _May:
        m, e = still(r, k), entry(t, k)
        known = e.is_in("RESOLVED") & ~e.error
        no = _May(FALSE, FALSE, TRUE, ~known)
        after_no = _either(m.false, no, _NOTHING)
        after_yes = _either(m.true, _May(FALSE, TRUE, FALSE), _NOTHING)
        after_none = _either(m.none, _ANYTHING, _NOTHING)
        answered = _either(same(reply, VERDICT("T")), after_yes, after_no)
        return _either(same(reply, VERDICT("none")), after_none, answered)

    def marked(r: Term, k: Term) -> _May:
        m = before(r, k)
        some_bool = m.true | m.false
        if action.name == "MarkHit":
            return replace(m, true=some_bool)
        return replace(m, false=some_bool)

    def after(r: Term, k: Term) -> _May:
        if action.name in ("MarkMiss", "MarkHit"):
            return _either(same(k, K), marked(r, k), before(r, k))
        if action.reply is None:
            return still(r, k)
        here = same(r, R) & same(k, K) & t.held(r, k)
        return _either(here, told(r, k, action.reply), still(r, k))

    return after


def _either(test: Term, then: _May, other: _May) -> _May:
    return _May(
        ite(test, then.none, other.none),
        ite(test, then.true, other.true),
        ite(test, then.false, other.false),
        ite(test, then.till_answered, other.till_answered),
    )
