"""Golden vectors: what the model does, written down as a port in another language would do it.

The model leaves time to chance and takes the least unused number for a generation.
A port has a clock and a counter. So a `Walk` steps the model with a counter, and
turns `advance` into the deadlines that pass and the verdicts that age by it; that
the model allows each of those steps, and that none is missing, is checked. Nothing
here looks at the code: it may be as wrong as it likes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kvtier.model.actions import Machine
from kvtier.model.state import ABSENT, Config, Entry, State

__all__ = ["DEADLINE", "LIFETIME", "Line", "Walk", "config_of", "encoded", "replayed", "walked"]

DEADLINE, LIFETIME = 1, 2
"""Seconds, of every walk that has them."""

_ANSWERS = {"T": True, "F": False, "E": None}
_VERDICTS = {"none": None, "T": True, "F": False}
_TOLD = {"None": None, "True": True, "False": False}


class Line(NamedTuple):
    """One line of a file of vectors."""

    op: str
    args: dict[str, Any]
    returns: bool | None
    state: dict[str, Any]


def encoded(lines: Iterable[Line]) -> str:
    """The text of a file of vectors."""
    return "".join(
        json.dumps(line._asdict(), separators=(",", ":"), ensure_ascii=False) + "\n"
        for line in lines
    )


def config_of(new: dict[str, Any], keys: int = 3, requests: int = 3) -> Config:
    """The model for the settings of a `new`, big enough for every walk."""
    without = {"deadline"} if new["deadline"] is None else set()
    without |= {"lifetime"} if new["verdict_lifetime"] is None else set()
    return Config.of(keys, requests, new["max_batches_out"], frozenset(without))


def walked(ops: Iterable[tuple[str, dict[str, Any]]], kind: type[Machine] = Machine) -> list[Walk]:
    """These ops, each `new` with a walk of its own.

    Raises `ValueError` at an op that a machine of this kind does not allow.
    """
    walks: list[Walk] = []
    for op, args in ops:
        if op == "new":
            walks.append(Walk(args, kind))
        else:
            walks[-1].do(op, args)
    return walks


def replayed(
    ops: Iterable[tuple[str, dict[str, Any]]], kind: type[Machine] = Machine
) -> list[Line]:
    """The lines of these ops. Raises `ValueError` as `walked` does."""
    return [line for walk in walked(ops, kind) for line in walk.lines]


class _Clocks(NamedTuple):
    born: int
    since: int | None


class Walk:
    """One machine, from `new` on: the model's state, the clock, and the lines so far."""

    def __init__(self, new: dict[str, Any], kind: type[Machine] = Machine) -> None:
        last = self._last = [0]

        class Counting(kind):  # type: ignore[valid-type, misc]
            def next_gen(self, s: State) -> int:
                return last[0] + 1

        self.config = config_of(new)
        self.machine: Machine = Counting(self.config)
        self.state = self.machine.initial()
        self.now = 0
        self._clocks: dict[str, _Clocks] = {}
        self.lines = [Line("new", new, None, self._shown())]
        self.steps: list[tuple[str, State, State]] = []
        """Label, state before and after, of each step of the model."""

    def do(self, op: str, args: dict[str, Any]) -> bool | None:
        """Take one step; what it returned. Raises `ValueError` if the model does not allow it."""
        if op == "advance":
            self.now += args["seconds"]
            returned, after = None, self.state
            while (label := self._overdue(after)) is not None:
                before, after = after, dict(self.machine.time(after))[label]
                self.steps.append((label, before, after))
        elif op == "stray":
            reply = frozenset(
                (k, gen, "E" if a is None else "FT"[a]) for k, gen, a in args["answers"]
            )
            returned, after = None, self.state._replace(results=(*self.state.results, reply))
        else:
            returned, after = None, self.state
            for label in self._labels(op, args):
                before = after
                step, after = self._step(before, label)
                self.steps.append((step, before, after))
                returned = _TOLD[step.split("_")[3]] if op == "lookup" else None
        self._clocks = dict(self._ticked(op, args, after))
        self.state = after
        self._last[0] = max(self._last[0], *(e.gen for e in after.entry))
        if after.shut == "open" and self._overdue(after) is not None:
            raise ValueError(f"{op} {args}: {self._overdue(after)} is overdue")
        self.lines.append(Line(op, args, returned, self._shown()))
        return returned

    # From ops to labels

    def _step(self, s: State, label: str) -> tuple[str, State]:
        for step, after in self.machine.steps(s):
            if step == label or (label.endswith("_") and step.startswith(label)):
                return step, after
        # Nothing to read, nothing to let go of: no step of the model, but a call all the same.
        if label == "Drain" and s.shut == "open":
            return label, self.machine.drain(s)
        if label.startswith("Cleanup") and s.shut in ("open", "closed"):
            return label, s
        raise ValueError(f"the model allows no {label} in {self.state}")

    def _labels(self, op: str, args: dict[str, Any]) -> list[str]:
        match op:
            case "lookup":
                return [f"Lookup_{args['request']}_{args['key']}_"]
            case "cleanup":
                return [f"Cleanup_{args['request']}"]
            case "mark_miss":
                return [f"MarkMiss_{key}" for key in args["keys"]]
            case "mark_hit":
                return [f"MarkHit_{key}" for key in args["keys"]]
            case "answer" if self._believed(args["answers"]):
                said = dict(zip(self.asked(), args["answers"], strict=True))
                return ["WorkerAnswer_" + "_".join(k + "FT"[said[k]] for k in sorted(said))]
            case _:
                return [_LABELS[op]]

    def asked(self) -> list[str]:
        """The keys that the worker has, in order."""
        return [k for k, _ in _in_order(self.state.worker[1])]

    def _believed(self, answers: Sequence[object]) -> bool:
        return len(answers) == len(self.asked()) and all(type(a) is bool for a in answers)

    # The clock

    def _overdue(self, s: State) -> str | None:
        """A step of time that the clock makes necessary and the model has not taken."""
        if s.shut != "open":
            return None
        features = self.config.features
        for k, e in zip(self.config.keys, s.entry, strict=True):
            clocks = self._clocks.get(k)
            waits = e.phase in ("PENDING", "IN_FLIGHT")
            if clocks is None or e == ABSENT:
                continue
            late = waits and "deadline" in features and self.now - clocks.born >= DEADLINE
            old = (
                e.phase == "RESOLVED"
                and "lifetime" in features
                and clocks.since is not None
                and self.now - clocks.since > LIFETIME
            )
            if late != e.late:
                return f"DeadlinePasses_{k}"
            if old != (e.age == "old"):
                return f"VerdictAges_{k}"
        return None

    def _ticked(self, op: str, args: dict[str, Any], t: State) -> Iterator[tuple[str, _Clocks]]:
        for k, before, after in zip(self.config.keys, self.state.entry, t.entry, strict=True):
            if after == ABSENT:
                continue
            born, since = self._clocks.get(k, (self.now, None))
            if after.gen != before.gen:
                born, since = self.now, None
            if after.phase == "RESOLVED":
                if before.phase != "RESOLVED" or (op == "mark_hit" and k in args["keys"]):
                    since = self.now
                elif op == "mark_miss" and k in args["keys"]:
                    since = None if after.age == "never" else self.now
            yield k, _Clocks(born, since)

    # As a port shows it

    def _shown(self) -> dict[str, Any]:
        s = self.state
        entries = {
            k: self._shown_entry(e, *self._clocks[k])
            for k, e in zip(self.config.keys, s.entry, strict=True)
            if e != ABSENT
        }
        generation = {k: entry["generation"] for k, entry in entries.items()}
        return {
            "entries": entries,
            "held": {
                r: sorted(mine)
                for r, mine in zip(self.config.requests, s.held, strict=True)
                if mine
            },
            "batch": sorted(s.batch, key=lambda k: (generation.get(k, 0), k)),
            "drain_due": s.due,
            "queue": [_in_order(b) for b in s.queue],
            "worker": s.worker[0],
            "taken": _in_order(s.worker[1]),
            "results": [
                [[k, gen, _ANSWERS[a]] for k, gen, a in sorted(reply, key=lambda x: x[1])]
                for reply in s.results
            ],
            "shutdown": s.shut,
        }

    def _shown_entry(self, e: Entry, born: int, since: int | None) -> dict[str, Any]:
        return {
            "generation": e.gen,
            "phase": e.phase,
            "verdict": _VERDICTS[e.verdict],
            "waiters": sorted(e.waiters),
            "born": born,
            "since": since,
            "error": e.error,
            "stored": e.stored,
            "excused": sorted(e.excused),
        }


_LABELS = {
    "flush": "Flush",
    "drain_results": "Drain",
    "take": "WorkerTake",
    "call": "WorkerCall",
    "answer": "WorkerAnswer_Error",
    "fail": "WorkerAnswer_Error",
    "hang": "WorkerHang",
    "shutdown_begins": "ShutdownBegin",
    "shutdown_times_out": "ShutdownTimeout",
    "shutdown_ends": "ShutdownEnd",
}


def _in_order(batch: Iterable[tuple[str, int]]) -> list[list[Any]]:
    return [[k, gen] for k, gen in sorted(batch, key=lambda question: question[1])]
