"""What can happen to the lookup machine, for any number of keys, requests and batches.

Written beside `kvtier/model/actions.py`, method for method: what is a set or a
loop there is a function or a quantifier here. An action is a condition and the
state after it, both as terms over the state before: as a relation between two
states it says that the condition holds, and that each function of the state after
is the one given. A known bug overrides one decision (`mutants.py`). A flush sends a
batch that is nowhere and asks what is to be asked. That there is such a one restricts
nothing: the proof is for every set of batches, those that have it included.

Where the model has one label for two cases (`WorkerTake` takes a batch or stops),
there are two actions. The one difference is the number of a new question: the
model takes the least that is not in use, the code counts. So `lookup` is given the
rule, and is proved for two: any number that is not in use (the least is one of
them), and the next one of a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from kvtier.check.proof.decisions import Decisions
from kvtier.check.proof.logic import (
    FALSE,
    NUMBER,
    TRUE,
    Less,
    Plus,
    Term,
    Var,
    among,
    each,
    ite,
    number,
    same,
    some,
)
from kvtier.check.proof.state import (
    ABSENT,
    AGE,
    ASKS,
    BATCH,
    KEY,
    LANE,
    LIFETIME,
    MAX_OUT,
    NOW,
    NUMBER_OF,
    OLDER,
    PHASE,
    PLACE,
    REQUEST,
    SHUT,
    VERDICT,
    Entry,
    View,
    choose,
    entry,
    is_out,
    with_entries,
)

__all__ = [
    "Action",
    "B",
    "Formulas",
    "G",
    "K",
    "R",
    "Rule",
    "counted",
    "least",
    "unused",
]

K, R, B, G = Var("k", KEY), Var("r", REQUEST), Var("b", BATCH), Var("g", NUMBER)
"""The parameters of actions: a key, a request, a batch, the number of a new question."""
Rule: TypeAlias = Callable[[View, Term], Term]
"""Whether a new question may have this number, in the state in which it is asked."""


def unused(s: View, g: Term) -> Term:
    """Nothing refers to that number."""
    return Less(number(0), g) & ~_in_use(s, g)


def least(s: View, g: Term) -> Term:
    """The least number that nothing refers to: what the model takes."""
    below = each(NUMBER, lambda h: (Less(number(0), h) & Less(h, g)) >> _in_use(s, h))
    return unused(s, g) & below


def counted(s: View, g: Term) -> Term:
    """The next number of a counter: what the code takes."""
    return same(g, Plus(s.counter(), number(1)))


def _in_use(s: View, g: Term) -> Term:
    of_entry = some(KEY, lambda k: ~same(s.phase(k), PHASE("ABSENT")) & same(s.gen(k), g))
    of_batch = some(
        BATCH, lambda b: some(KEY, lambda k: is_out(s, b, k) & same(NUMBER_OF(b, k), g))
    )
    return of_entry | of_batch


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can happen, with its parameters free."""

    name: str
    parameters: tuple[Var, ...]
    guard: Term
    after: View
    reply: Term | None = None
    """What a lookup returns."""


class Formulas(Decisions):
    """The correct machine."""

    def actions(self, rule: Rule, name: str = "Lookup") -> Iterator[Action]:
        """Every action; `rule` is for the number of a new question."""
        s = NOW
        yield self.lookup(s, rule, name)
        yield self.lookup_closed(s)
        yield self.flush(s)
        yield self.drain(s)
        calling = is_shut(s, "open", "closed")
        yield Action("MarkMiss", (K,), calling, _with(s, K, self.missed(entry(s, K))))
        yield Action("MarkHit", (K,), calling, _with(s, K, self.stored(entry(s, K))))
        yield self.cleanup(s)
        yield from self.shutdown(s)
        yield from self.work(s)
        yield from self.time(s)

    # What a caller can do

    def lookup(self, s: View, rule: Rule, name: str) -> Action:
        """R asks about K; if that is a new question, it has number G."""
        before = entry(s, K)
        first = ~before.waits(R)
        joins = replace(before, waits=lambda q: before.waits(q) | same(q, R))
        joined = _with(s, K, choose(before.is_in("ABSENT"), before, joins))
        drained = self.drained(joined)
        seen = with_entries(
            self.read(joined, s.due()), lambda j: choose(s.due(), drained(j), entry(joined, j))
        )
        now = entry(seen, K)
        new = now.is_in("ABSENT")
        again = now.is_in("RESOLVED") & self.asks_again(now, first)
        asked = new | again | self.too_old(now)
        excused = self.excuses(now, R)
        question = replace(
            ABSENT,
            phase=PHASE("PENDING"),
            gen=G,
            waits=lambda q: ite(new, same(q, R), now.waits(q)),
            excused=lambda q: ~new & again & excused(q),
        )
        after = choose(asked, question, now)
        return Action(
            name,
            (R, K, G),
            is_shut(s, "open") & (asked >> rule(seen, G)),
            replace(
                _with(seen, K, after),
                batch=lambda k: s.batch(k) | (asked & same(k, K)),
                held=lambda r, k: s.held(r, k) | (same(r, R) & same(k, K)),
                due=lambda: FALSE,
            ),
            self.reply(after, R),
        )

    def lookup_closed(self, s: View) -> Action:
        """After shutdown a lookup is a read."""
        reply = ite(entry(s, K).is_in("ABSENT"), VERDICT("F"), s.verdict(K))
        return Action("LookupClosed", (R, K), is_shut(s, "closed"), s, reply)

    def flush(self, s: View) -> Action:
        """The end of a step; if a batch is sent, it is B."""
        sends = some(KEY, s.batch) & Less(s.sent(), MAX_OUT())
        swept = self.swept(self.flush_drained(s))
        fresh = same(s.at(B), PLACE("nowhere")) & each(
            BATCH, lambda c: ~same(s.at(c), PLACE("nowhere")) >> OLDER(c, B)
        )
        asks = each(
            KEY,
            lambda k: (
                same(ASKS(B, k), s.batch(k)) & (s.batch(k) >> same(NUMBER_OF(B, k), swept(k).gen))
            ),
        )
        entries = with_entries(
            self.flush_read(s),
            lambda k: choose(
                sends & s.batch(k), replace(swept(k), phase=PHASE("IN_FLIGHT")), swept(k)
            ),
        )
        return Action(
            "Flush",
            (B,),
            is_shut(s, "open") & (sends >> (fresh & asks)),
            replace(
                entries,
                due=lambda: TRUE,
                batch=lambda k: ite(sends, self.batch_after_send(s, k), s.batch(k)),
                at=lambda b: ite(sends & same(b, B), PLACE("queue"), entries.at(b)),
                sent=lambda: ite(sends, Plus(s.sent(), number(1)), s.sent()),
            ),
        )

    def drain(self, s: View) -> Action:
        """Apply what was published."""
        unread = some(BATCH, lambda b: same(s.at(b), PLACE("results")))
        after = with_entries(self.read(s, TRUE), self.drained(s))
        return Action("Drain", (), is_shut(s, "open") & unread, replace(after, due=lambda: FALSE))

    def cleanup(self, s: View) -> Action:
        """R lets go of all it joined."""
        after = with_entries(
            s, lambda k: choose(s.held(R, k), self.let_go(entry(s, k), R), entry(s, k))
        )
        return Action(
            "Cleanup",
            (R,),
            is_shut(s, "open", "closed") & some(KEY, lambda k: s.held(R, k)),
            replace(
                after,
                held=lambda r, k: ite(same(r, R), self.forgotten(s.held(R, k)), s.held(r, k)),
                batch=lambda k: s.batch(k) & same(after.phase(k), PHASE("PENDING")),
            ),
        )

    def shutdown(self, s: View) -> Iterator[Action]:
        """A sentinel behind everything queued; a flag if the worker takes too long; the end."""
        stopped = same(s.lane(), LANE("stopped"))
        begun = replace(s, shut=lambda: SHUT("sentinel"))
        yield Action("ShutdownBegin", (), is_shut(s, "open"), begun)
        flagged = replace(s, shut=lambda: SHUT("flag"))
        yield Action("ShutdownTimeout", (), is_shut(s, "sentinel") & ~stopped, flagged)
        swept = self.swept(self.drained(s))
        after = with_entries(
            self.read(s, TRUE), lambda k: choose(self.ends_at_close(swept(k)), ABSENT, swept(k))
        )
        yield Action(
            "ShutdownEnd",
            (),
            is_shut(s, "flag") | (is_shut(s, "sentinel") & stopped),
            replace(
                after,
                held=lambda r, k: s.held(r, k) & ~same(after.phase(k), PHASE("ABSENT")),
                batch=lambda k: s.batch(k) & same(after.phase(k), PHASE("PENDING")),
                due=lambda: FALSE,
                shut=lambda: SHUT("closed"),
            ),
        )

    # What the worker and the clock can do

    def work(self, s: View) -> Iterator[Action]:
        """Steps of the worker."""
        idle, calls = same(s.lane(), LANE("idle")), same(s.lane(), LANE("call"))
        flagged = is_shut(s, "flag", "closed")

        def queued(b: Term) -> Term:
            return same(s.at(b), PLACE("queue"))

        first = queued(B) & each(BATCH, lambda c: queued(c) >> (same(c, B) | OLDER(B, c)))
        yield Action(
            "WorkerTake",
            (B,),
            idle & ~flagged & first,
            replace(
                s,
                lane=lambda: LANE("read"),
                at=lambda b: ite(same(b, B), PLACE("worker"), s.at(b)),
            ),
        )
        ends = is_shut(s, "sentinel") & ~some(BATCH, queued)
        stopped = replace(s, lane=lambda: LANE("stopped"))
        yield Action("WorkerStop", (), idle & (flagged | ends), stopped)
        begun = replace(s, lane=lambda: LANE("call"))
        yield Action("WorkerCall", (), same(s.lane(), LANE("read")), begun)
        yield Action("WorkerAnswer", (), calls, self.published(s))
        yield Action("WorkerFails", (), calls, self.failed(s))
        yield Action("WorkerHang", (), calls, replace(s, lane=lambda: LANE("hung")))

    def time(self, s: View) -> Iterator[Action]:
        """A deadline passes, a verdict gets too old."""
        e, opened = entry(s, K), is_shut(s, "open")
        waits = e.is_in("PENDING", "IN_FLIGHT") & ~e.late
        yield Action("DeadlinePasses", (K,), opened & waits, _with(s, K, replace(e, late=TRUE)))
        young = same(e.age, AGE("young"))
        aged = _with(s, K, replace(e, age=AGE("old")))
        yield Action("VerdictAges", (K,), opened & LIFETIME() & young, aged)


def _with(s: View, k: Term, e: Entry) -> View:
    return with_entries(s, lambda j: choose(same(j, k), e, entry(s, j)))


def is_shut(s: View, *names: str) -> Term:
    """How far shutdown has come."""
    return among(s.shut(), *(SHUT(name) for name in names))
