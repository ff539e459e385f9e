"""What must hold of every step, one predicate for each action property of `tla/`.

The names are those of `tla/AsyncLookupProps.tla`. An invariant looks at one state
and cannot see, for instance, that a flush left a reply unread; these look at a state,
the label of the step, and the state after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvtier.model.actions import Machine
from kvtier.model.state import Entry, State

__all__ = ["PROPERTIES", "StepPredicate"]

StepPredicate = Callable[[Machine, State, str, State], bool]


class _Key(NamedTuple):
    """One key's part in a step."""

    k: str
    before: Entry
    after: Entry
    answers: frozenset[str]
    """Those to its present question that came and were not read before the step."""


def _keys(m: Machine, s: State, t: State) -> list[_Key]:
    out = []
    for k, before, after in zip(m.config.keys, s.entry, t.entry, strict=True):
        unread = frozenset(
            a for reply in s.results for j, gen, a in reply if (j, gen) == (k, before.gen)
        )
        out.append(_Key(k, before, after, unread))
    return out


def _says(e: Entry, answer: str) -> tuple[str, bool]:
    """Verdict and error mark that an answer to this question must give."""
    if answer == "T" or e.stored:
        return "T", False
    return "F", answer == "E"


def generation(m: Machine, s: State, label: str, t: State) -> bool:
    """A question ends by an answer to it (or by shutdown), and the verdict is what that says."""
    for _, before, after, answers in _keys(m, s, t):
        if before.phase != "IN_FLIGHT" or after.phase == "IN_FLIGHT":
            continue
        verdicts = {_says(before, a) for a in answers}
        if after.phase == "RESOLVED":
            ok = after.gen == before.gen and (after.verdict, after.error) in verdicts
        elif after.phase == "PENDING":
            ok = ("F", True) in verdicts
        else:
            ok = bool(answers) or t.shut == "closed"
        if not ok:
            return False
    return True


_ANSWER = {("IN_FLIGHT", "RESOLVED")}
_ASK = {("ABSENT", "PENDING"), ("RESOLVED", "PENDING")}
_BY_ACTION = {
    "Lookup": _ANSWER | {("IN_FLIGHT", "PENDING")},
    "Drain": _ANSWER,
    "Flush": _ANSWER | {("IN_FLIGHT", "ABSENT"), ("RESOLVED", "ABSENT"), ("PENDING", "IN_FLIGHT")},
    "Cleanup": {("PENDING", "ABSENT"), ("RESOLVED", "ABSENT")},
    "ShutdownEnd": _ANSWER
    | {("IN_FLIGHT", "ABSENT"), ("RESOLVED", "ABSENT"), ("PENDING", "ABSENT")},
}


def phase(m: Machine, s: State, label: str, t: State) -> bool:
    """Phases move only as the action may move them, and a generation ends only with its probe."""
    action, *words = label.split("_")
    for k, before, after, _ in _keys(m, s, t):
        if before.phase != after.phase:
            allowed = _BY_ACTION.get(action, set())
            if action == "Lookup":
                allowed = allowed | _ASK if words[1] == k else _ANSWER
            if (before.phase, after.phase) not in allowed:
                return False
        if before.gen != after.gen:
            wanted = "ABSENT" if after.gen == 0 else "PENDING"
            if after.phase != wanted:
                return False
    return True


def verdict(m: Machine, s: State, label: str, t: State) -> bool:
    """Inside a generation a verdict changes only by a mark."""
    return all(
        (before.verdict, before.error) == (after.verdict, after.error)
        or (label == f"MarkMiss_{k}" and after.verdict == "F")
        or (label == f"MarkHit_{k}" and after.verdict == "T")
        for k, before, after, _ in _keys(m, s, t)
        if before.phase == "RESOLVED" and before.gen == after.gen
    )


def flush_drains(m: Machine, s: State, label: str, t: State) -> bool:
    """A flush leaves nothing unread, and no answered question out."""
    return label != "Flush" or (
        not t.results and all(x.after.phase != "IN_FLIGHT" for x in _keys(m, s, t) if x.answers)
    )


def flush_sweeps(m: Machine, s: State, label: str, t: State) -> bool:
    """A flush leaves no verdict that nobody holds."""
    return label != "Flush" or all(e.waiters for e in t.entry if e.phase == "RESOLVED")


def flush_sends(m: Machine, s: State, label: str, t: State) -> bool:
    """A flush sends the whole batch, or none of it while enough batches are out."""
    if label != "Flush":
        return True
    busy = s.worker[0] in ("read", "call", "hung")
    room = len(s.queue) + busy < m.config.max_out
    return t.batch == (frozenset() if room else s.batch)


def _youth(m: Machine) -> str:
    return "young" if "lifetime" in m.config.features else "never"


def mark_miss(m: Machine, s: State, label: str, t: State) -> bool:
    """A failed load makes a held verdict a miss without a lifetime, and changes nothing else."""
    for k, before, after, _ in _keys(m, s, t):
        if label == f"MarkMiss_{k}":
            forced = before._replace(verdict="F", error=False, age="never")
            if after != (forced if before.phase == "RESOLVED" else before):
                return False
    return True


def mark_hit(m: Machine, s: State, label: str, t: State) -> bool:
    """A completed store makes a verdict a hit, and is remembered while the question is out."""
    for k, before, after, _ in _keys(m, s, t):
        if label == f"MarkHit_{k}":
            wanted = before
            if before.phase == "RESOLVED":
                wanted = before._replace(verdict="T", error=False, age=_youth(m))
            elif before.phase == "IN_FLIGHT":
                wanted = before._replace(stored=True)
            if after != wanted:
                return False
    return True


def reuse(m: Machine, s: State, label: str, t: State) -> bool:
    """An answer that came with no waiter can be taken until the next flush."""
    action, *words = label.split("_")
    for k, before, after, answers in _keys(m, s, t):
        came = before.phase == "IN_FLIGHT" and answers and not t.results
        if came and action != "Flush" and t.shut != "closed":
            asked_again = after.phase == "PENDING" and "E" in answers
            if after.phase != "RESOLVED" and not asked_again:
                return False
        unclaimed = before.phase == "RESOLVED" and not before.waiters
        good = unclaimed and not before.error and before.age != "old"
        if good and action == "Lookup" and words[1] == k and s.shut == "open":
            taken = before._replace(waiters=frozenset({words[0]}))
            told = {"T": "True", "F": "False"}[before.verdict]
            if after != taken or words[2] != told:
                return False
    return True


def reask(m: Machine, s: State, label: str, t: State) -> bool:
    """An error is asked again for a new request only, a verdict past its lifetime for anybody."""
    action, *words = label.split("_")
    for k, before, after, _ in _keys(m, s, t):
        mine = action == "Lookup" and words[1] == k and s.shut == "open"
        r = words[0] if mine else ""
        new = mine and r not in before.waiters
        if before.phase == "RESOLVED":
            due = mine and ((before.error and new) or before.age == "old")
            if due != (after.phase == "PENDING"):
                return False
            excused = before.waiters if before.error and new else frozenset()
            if due and (after.waiters, after.excused) != (before.waiters | {r}, excused):
                return False
        elif before.phase == "IN_FLIGHT" and after.phase == "PENDING":
            joined = before.waiters | {r}
            if not new or (after.waiters, after.excused) != (joined, before.waiters):
                return False
    return True


def reply(m: Machine, s: State, label: str, t: State) -> bool:
    """What lookup returns is the verdict, or "no" by excuse, deadline or shutdown."""
    action, *words = label.split("_")
    if action != "Lookup":
        return True
    r, k, told = words
    e = t.entry[m.config.keys.index(k)]
    waits = e.phase in ("PENDING", "IN_FLIGHT")
    if told == "None":
        return waits and t.shut == "open"
    if told == "True":
        return e.verdict == "T"
    by_wait = waits and (r in e.excused or e.late)
    return e.verdict == "F" or by_wait or (t.shut == "closed" and e.phase == "ABSENT")


def stop(m: Machine, s: State, label: str, t: State) -> bool:
    """Once the stop flag is set no batch is taken up."""
    begun = s.worker[0] == "idle" and t.worker[0] == "read"
    return not begun or s.shut in ("open", "sentinel")


PROPERTIES: Mapping[str, StepPredicate] = {
    "GenerationProp": generation,
    "PhaseProp": phase,
    "VerdictProp": verdict,
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
