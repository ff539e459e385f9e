"""What a proof must remember and the machine does not: written by every step, read by none.

`calls`: how often the back end was called with the question of this key and
number. A number that is given to a new question starts anew; where numbers are
counted this changes nothing, as the conjunct `Numbers` says.

`counter`: the highest number that a question ever had.

`may_be_none`, `may_be_true`, `may_be_false`: what a request may be told about a key
if it asks now. `maybe`: the "no" that it was told had no verdict behind it, so an
answer may yet make it a "yes". `surely`: the block was stored while the question was
out, so the answer will. This is the diary of `tla/Told.tla`, by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

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

    none: Term
    true: Term
    false: Term
    maybe: Term = FALSE
    surely: Term = FALSE


_ANYTHING = _May(TRUE, TRUE, TRUE)
_YES = _May(FALSE, TRUE, FALSE)
_NO = _May(FALSE, FALSE, TRUE)
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
            maybe=lambda r, k: may(r, k).maybe,
            surely=lambda r, k: may(r, k).surely,
        ),
    )


def _may(action: Action) -> Callable[[Term, Term], _May]:
    s, t = NOW, action.after

    def before(r: Term, k: Term) -> _May:
        may_be = (s.may_be_none, s.may_be_true, s.may_be_false, s.maybe, s.surely)
        return _May(*(word(r, k) for word in may_be))

    def still(r: Term, k: Term) -> _May:
        m = before(r, k)
        answered = same(s.phase(k), PHASE("IN_FLIGHT")) & ~same(t.phase(k), PHASE("IN_FLIGHT"))
        late = replace(m, true=m.true | (answered & m.maybe))
        return _either(t.held(r, k), _either(answered & m.surely, _YES, late), _ANYTHING)

    def told(r: Term, k: Term, reply: Term) -> _May:
        m, e = still(r, k), entry(t, k)
        known = e.is_in("RESOLVED") & ~e.error
        no = _either(known, _NO, replace(_NO, maybe=TRUE, surely=m.surely))
        after_no = _either(m.false, no, _NOTHING)
        after_yes = _either(m.true, _YES, _NOTHING)
        after_none = _either(m.none, m, _NOTHING)
        after_bool = _either(same(reply, VERDICT("T")), after_yes, after_no)
        return _either(same(reply, VERDICT("none")), after_none, after_bool)

    def marked(r: Term, k: Term) -> _May:
        m, e = before(r, k), entry(s, k)
        hit = action.name == "MarkHit"
        noted = replace(m, surely=m.surely | e.is_in("IN_FLIGHT")) if hit else m
        return _either(e.is_in("RESOLVED"), _YES if hit else _NO, noted)

    def after(r: Term, k: Term) -> _May:
        if action.name in ("MarkMiss", "MarkHit"):
            return _either(same(k, K) & s.held(r, k), marked(r, k), before(r, k))
        if action.reply is None:
            return still(r, k)
        here = same(r, R) & same(k, K) & t.held(r, k)
        return _either(here, told(r, k, action.reply), still(r, k))

    return after


def _either(test: Term, then: _May, other: _May) -> _May:
    return _May(*(ite(test, getattr(then, f.name), getattr(other, f.name)) for f in fields(_May)))
