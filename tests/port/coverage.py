"""What a step of the model shows: the rows of the table it takes, and the situation it is in.

This says by itself, in terms of the model, which rows a step takes; the tests hold
it against the rows that a port finds in `spec/transitions.json`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import product

from kvtier.model.state import ABSENT, Config, Entry, State

__all__ = ["NO_CALL_TAKES", "rows_of", "situations"]

RowName = tuple[str, str, str, str]
"""Phase, trigger, next phase, outcome: different for each row of a cell."""

NO_CALL_TAKES: frozenset[RowName] = frozenset(
    (phase, trigger, phase, "illegal")
    for phase, trigger in [
        *product(["ABSENT"], ["SEND", "RELEASE", "SWEEP", "CLOSE"]),
        *product(["PENDING", "IN_FLIGHT"], ["SWEEP"]),
        *product(["IN_FLIGHT", "RESOLVED"], ["SEND"]),
    ]
)
"""Misuse that no call can commit: a machine would have to do it to itself."""


def rows_of(config: Config, s: State, label: str, t: State) -> Iterator[RowName]:
    """The rows that the step from `s` to `t` takes, in whatever order."""
    action, *words = label.split("_")
    entries = dict(zip(config.keys, s.entry, strict=True))
    if action in ("Flush", "Drain", "ShutdownEnd") or (action == "Lookup" and s.due):
        entries = yield from _drained(s, entries)
    if action == "Lookup" and s.shut == "open":
        yield _joined(entries[words[1]], t.entry[config.keys.index(words[1])], words[0])
    if action in ("Flush", "ShutdownEnd"):
        for k, e in entries.items():
            if e.phase == "RESOLVED":
                claimed = ("RESOLVED", "untouched") if e.waiters else ("ABSENT", "unclaimed")
                yield e.phase, "SWEEP", *claimed
                entries[k] = e if e.waiters else ABSENT
    if action == "Flush" and not t.batch:
        yield from (("PENDING", "SEND", "IN_FLIGHT", "sent") for _ in s.batch)
    if action == "ShutdownEnd":
        for e in entries.values():
            if e != ABSENT:
                held = e.phase == "RESOLVED"
                yield e.phase, "CLOSE", *((e.phase, "untouched") if held else ("ABSENT", "closed"))
    if action == "MarkMiss":
        phase = entries[words[0]].phase
        yield phase, "MARK_MISS", phase, "forced_miss" if phase == "RESOLVED" else "untouched"
    if action == "MarkHit":
        phase = entries[words[0]].phase
        outcomes = {"RESOLVED": "forced_hit", "IN_FLIGHT": "noted"}
        yield phase, "MARK_HIT", phase, outcomes.get(phase, "untouched")
    if action == "Cleanup":
        for k in s.held[config.requests.index(words[0])]:
            e = entries[k]
            goes = e.waiters == {words[0]} and e.phase != "IN_FLIGHT"
            outcome = "abandoned" if goes and e.phase == "PENDING" else "released"
            yield e.phase, "RELEASE", "ABSENT" if goes else e.phase, outcome


def _drained(s: State, entries: dict[str, Entry]) -> Generator[RowName, None, dict[str, Entry]]:
    entries = dict(entries)
    for reply in s.results:
        for k, gen, answer in reply:
            e = entries[k]
            if e.gen != gen or e == ABSENT:
                yield e.phase, "ANSWER", e.phase, "discarded"
            elif e.phase != "IN_FLIGHT":
                yield e.phase, "ANSWER", e.phase, "illegal"
            else:
                no = {"F": "miss", "E": "lookup_error"}
                outcome = "hit" if answer == "T" else "forced_hit" if e.stored else no[answer]
                yield "IN_FLIGHT", "ANSWER", "RESOLVED", outcome
                entries[k] = e._replace(phase="RESOLVED", error=outcome == "lookup_error")
    return entries


def _joined(e: Entry, after: Entry, r: str) -> RowName:
    if e.phase == "ABSENT":
        return e.phase, "JOIN", "PENDING", "asked"
    if e.phase != "RESOLVED":
        late = "deadline" if e.late else "joined"
        return e.phase, "JOIN", e.phase, "excused" if r in e.excused else late
    if after.phase == "RESOLVED":
        return e.phase, "JOIN", e.phase, "joined"
    failed = e.error and r not in e.waiters
    return e.phase, "JOIN", "PENDING", "asked_again" if failed else "expired"


def situations(config: Config, s: State, label: str) -> Iterator[tuple[object, ...]]:
    """What is particular about a step, names and numbers left out."""
    action, *words = label.split("_")
    entry = dict(zip(config.keys, s.entry, strict=True))
    if action == "Lookup":
        r, k, told = words
        yield action, told, s.shut, _to(entry[k], r), *(_unread(s, k, entry[k]) if s.due else ())
    elif action == "Cleanup":
        for k in s.held[config.requests.index(words[0])]:
            yield action, _to(entry[k], words[0])
    elif action in ("MarkMiss", "MarkHit"):
        e = entry[words[0]]
        yield action, e.phase, e.verdict, e.error, e.age, e.stored
    elif action in ("Flush", "Drain", "ShutdownEnd"):
        for k, e in entry.items():
            yield action, e.phase, bool(e.waiters), e.stored, *_unread(s, k, e)
    elif action.startswith("Worker"):
        yield action, s.shut, s.worker[0], len(s.queue)


def _to(e: Entry, r: str) -> tuple[object, ...]:
    """An entry as `r` meets it."""
    others = bool(e.waiters - {r})
    return e.phase, e.verdict, e.error, e.late, e.age, r in e.waiters, others, r in e.excused


def _unread(s: State, k: str, e: Entry) -> list[str]:
    return sorted(a for reply in s.results for j, gen, a in reply if (j, gen) == (k, e.gen))
