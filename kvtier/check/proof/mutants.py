"""The known bugs of `kvtier/model/mutants.py` as formulas, under the same names.

Each is the correct machine but for one decision, the same one as there. What public
report it stands for is said there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvtier.check.proof.actions import Action, Formulas, K, Rule
from kvtier.check.proof.decisions import Entries
from kvtier.check.proof.logic import FALSE, TRUE, Fn, Plus, Term, ite, number, same, some
from kvtier.check.proof.state import (
    ANSWER,
    ASKS,
    BATCH,
    LANE,
    PLACE,
    Entry,
    View,
    choose,
    entry,
)

__all__ = ["MUTANTS"]


class _NoMarkMiss(Formulas):
    def missed(self, e: Entry) -> Entry:
        return e


class _CleanupDeletesInFlight(Formulas):
    def goes_with_last(self, e: Entry) -> Term:
        return TRUE


class _NoGeneration(_CleanupDeletesInFlight):
    def takes(self, e: Entry, gen: Term) -> Term:
        return e.is_in("IN_FLIGHT")


class _FlushDoesNotDrain(Formulas):
    def flush_drained(self, s: View) -> Entries:
        return lambda k: entry(s, k)

    def flush_read(self, s: View) -> View:
        return s


class _MarkMissForcesUnresolved(Formulas):
    def missed(self, e: Entry) -> Entry:
        forced = replace(self.resolved(e, "F"), age=self.forced_age())
        return choose(e.is_in("PENDING", "IN_FLIGHT"), forced, super().missed(e))


class _LazyAnswerKillsWorker(Formulas):
    def failed(self, s: View) -> View:
        return replace(
            s,
            lane=lambda: LANE("stopped"),
            at=lambda b: ite(same(s.at(b), PLACE("worker")), PLACE("nowhere"), s.at(b)),
            sent=lambda: Plus(s.sent(), number(-1)),
        )


class _ShortAnswer(Formulas):
    """The key without an answer is a parameter: the model takes the last, in its order."""

    def work(self, s: View) -> Iterator[Action]:
        for action in super().work(s):
            if action.name == "WorkerAnswer":
                asked = some(BATCH, lambda b: same(s.at(b), PLACE("worker")) & ASKS(b, K))
                yield replace(action, parameters=(K,), guard=action.guard & asked)
            else:
                yield action

    def published(self, s: View) -> View:
        whole = super().published(s)
        return replace(
            whole,
            answer=lambda b, k: ite(
                same(k, K) & same(s.at(b), PLACE("worker")), ANSWER("none"), whole.answer(b, k)
            ),
        )


class _ShutdownLeavesPending(Formulas):
    def ends_at_close(self, e: Entry) -> Term:
        return FALSE


class _ShutdownWaitsForEver(Formulas):
    def actions(self, rule: Rule, name: str = "Lookup") -> Iterator[Action]:
        return (a for a in super().actions(rule, name) if a.name != "ShutdownTimeout")


class _DrainDropsOrphans(Formulas):
    def drained(self, s: View) -> Entries:
        return self.swept(super().drained(s))


class _BatchSentTwice(Formulas):
    def batch_after_send(self, s: View, k: Term) -> Term:
        return s.batch(k)


class _CleanupKeepsPending(Formulas):
    def goes_with_last(self, e: Entry) -> Term:
        return e.is_in("RESOLVED")


class _CleanupForgetsIndex(Formulas):
    def forgotten(self, held: Term) -> Term:
        return held


class _LateAsksAgain(Formulas):
    def too_old(self, e: Entry) -> Term:
        return super().too_old(e) | (e.is_in("IN_FLIGHT") & e.late)


class _StoreNotNoted(Formulas):
    def stored(self, e: Entry) -> Entry:
        return choose(e.is_in("IN_FLIGHT"), e, super().stored(e))


class _NobodyExcused(Formulas):
    def excuses(self, e: Entry, r: Term) -> Fn:
        return lambda q: FALSE


class _ForcedMissExpires(Formulas):
    def forced_age(self) -> Term:
        return self.youth()


class _ErrorKeptAsAbsent(Formulas):
    def asks_again(self, e: Entry, asks_first_time: Term) -> Term:
        return FALSE


MUTANTS: dict[str, type[Formulas]] = {
    "no_mark_miss": _NoMarkMiss,
    "no_generation": _NoGeneration,
    "cleanup_deletes_in_flight": _CleanupDeletesInFlight,
    "flush_does_not_drain": _FlushDoesNotDrain,
    "mark_miss_forces_unresolved": _MarkMissForcesUnresolved,
    "lazy_answer_kills_worker": _LazyAnswerKillsWorker,
    "short_answer": _ShortAnswer,
    "shutdown_leaves_pending": _ShutdownLeavesPending,
    "shutdown_waits_for_ever": _ShutdownWaitsForEver,
    "drain_drops_orphans": _DrainDropsOrphans,
    "batch_sent_twice": _BatchSentTwice,
    "cleanup_keeps_pending": _CleanupKeepsPending,
    "cleanup_forgets_index": _CleanupForgetsIndex,
    "late_asks_again": _LateAsksAgain,
    "store_not_noted": _StoreNotNoted,
    "nobody_excused": _NobodyExcused,
    "forced_miss_expires": _ForcedMissExpires,
    "error_kept_as_absent": _ErrorKeptAsAbsent,
}
"""By name, in the order of `kvtier/model/mutants.py`."""
