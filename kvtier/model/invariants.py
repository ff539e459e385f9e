"""What must always hold of a state, one predicate for each invariant of `tla/AsyncLookup.tla`.

The names are the same in TLA+, here, in the proof and in `spec/invariants.toml`.
A predicate takes the machine (for its size) and a state. `from_snapshot` makes a
state of a snapshot of the real table, so the same predicates judge the code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from kvtier.model.actions import Machine
from kvtier.model.state import ABSENT, State

__all__ = ["INVARIANTS", "Predicate", "holding", "questions_out"]

Predicate = Callable[[Machine, State], bool]

_BUSY = ("read", "call", "hung")


def questions_out(s: State) -> list[tuple[str, int]]:
    """Every question that is queued, with the worker, or answered and not drained."""
    out = [question for batch in s.queue for question in batch]
    if s.worker[0] in _BUSY:
        out.extend(s.worker[1])
    out.extend((k, gen) for reply in s.results for k, gen, _ in reply)
    return out


def answer_once(m: Machine, s: State) -> bool:
    """No key has two questions out, so no question gets two answers."""
    return all(number == 1 for number in Counter(k for k, _ in questions_out(s)).values())


def conservation(m: Machine, s: State) -> bool:
    """Until the stop flag is set: IN_FLIGHT if and only if one question is out, and that one.

    Nothing is IN_FLIGHT after shutdown.
    """
    in_flight = sorted(
        (k, e.gen) for k, e in zip(m.config.keys, s.entry, strict=True) if e.phase == "IN_FLIGHT"
    )
    if s.shut in ("open", "sentinel"):
        return sorted(questions_out(s)) == in_flight
    return s.shut == "flag" or not in_flight


def verdict(m: Machine, s: State) -> bool:
    """A verdict is held exactly in RESOLVED."""
    return all((e.verdict != "none") == (e.phase == "RESOLVED") for e in s.entry)


def index(m: Machine, s: State) -> bool:
    """Waiters and reverse index agree."""
    forward = {(r, k) for k, e in zip(m.config.keys, s.entry, strict=True) for r in e.waiters}
    reverse = {(r, k) for r, mine in zip(m.config.requests, s.held, strict=True) for k in mine}
    return forward == reverse


def waiter(m: Machine, s: State) -> bool:
    """A question that was not sent has somebody who wants it."""
    return all(e.waiters for e in s.entry if e.phase == "PENDING")


def unclaimed(m: Machine, s: State) -> bool:
    """A verdict without a waiter came since the last flush, and there is none after shutdown."""
    held_by_nobody = any(e.phase == "RESOLVED" and not e.waiters for e in s.entry)
    return not held_by_nobody or (not s.due and s.shut != "closed")


def batch(m: Machine, s: State) -> bool:
    """The batch is exactly the PENDING entries."""
    pending = {k for k, e in zip(m.config.keys, s.entry, strict=True) if e.phase == "PENDING"}
    return s.batch == pending


def bound(m: Machine, s: State) -> bool:
    """No more batches are out than may be, a reply that nobody has read included."""
    return len(s.queue) + (s.worker[0] in _BUSY) + len(s.results) <= m.config.max_out


def closed(m: Machine, s: State) -> bool:
    """After shutdown no question is left."""
    return s.shut != "closed" or all(e.phase in ("ABSENT", "RESOLVED") for e in s.entry)


def marks(m: Machine, s: State) -> bool:
    """`error`, `stored`, `excused` only where they mean something."""
    return all(
        (not e.error or (e.phase == "RESOLVED" and e.verdict == "F"))
        and (not e.stored or e.phase == "IN_FLIGHT")
        and e.excused <= e.waiters
        and not (e.phase == "RESOLVED" and e.excused)
        and (e.phase != "ABSENT" or e == ABSENT)
        for e in s.entry
    )


INVARIANTS: Mapping[str, Predicate] = {
    "AnswerOnceInv": answer_once,
    "ConservationInv": conservation,
    "VerdictInv": verdict,
    "IndexInv": index,
    "WaiterInv": waiter,
    "UnclaimedInv": unclaimed,
    "BatchInv": batch,
    "BoundInv": bound,
    "ClosedInv": closed,
    "MarksInv": marks,
}


def holding(m: Machine, s: State, names: Iterable[str] = INVARIANTS) -> dict[str, bool]:
    """Which invariants hold in `s`."""
    return {name: INVARIANTS[name](m, s) for name in names}
