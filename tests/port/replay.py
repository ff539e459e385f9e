"""The real manager driven by vectors: the hand-moved machine, with a clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvtier.keys import OffloadKey
from kvtier.lifecycle import TABLE
from kvtier.lookup import EntryView, Question
from kvtier.lookup.worker import Reply
from kvtier.request import ReqContext
from tests.port.vectors import config_of
from tests.support.hand_machine import HandMachine, Table

__all__ = ["Port"]

Json = dict[str, Any]


class Port(HandMachine):
    """A machine of the real code that does ops and shows its state as vectors do."""

    def __init__(self, new: Json, table: Table = TABLE) -> None:
        super().__init__(config_of(new), table)
        self.time = 0
        self.manager._now = lambda: self.time

    def op(self, op: str, args: Json) -> object:
        """Do it; what it returned."""
        match op:
            case "lookup":
                return self.manager.lookup(_key(args["key"]), ReqContext(args["request"]))
            case "mark_miss":
                self.manager.mark_miss([_key(k) for k in args["keys"]])
            case "mark_hit":
                self.manager.mark_hit([_key(k) for k in args["keys"]], ReqContext("anybody"))
            case "cleanup":
                self.manager.cleanup(args["request"])
            case "answer":
                self._publish(args["answers"])
            case "fail":
                self._publish(_raises(args["after"]))
            case "advance":
                self.time += args["seconds"]
            case "stray":
                self._stray(args["answers"])
            case _:
                self.do(_LABELS[op])
        return None

    def _publish(self, answers: Iterable[Any]) -> None:
        self.worker._batch_lookup = lambda keys, req_context: answers
        self.worker.publish()

    def _stray(self, answers: list[Any]) -> None:
        keys, generations, verdicts = zip(*answers, strict=True)
        question = Question(None, ReqContext("nobody"), [_key(k) for k in keys], list(generations))
        self.worker._replies.append(Reply(question, list(verdicts), None))

    def shown(self) -> Json:
        """The state as the vectors show it."""
        snapshot = self.manager.snapshot()
        doing, question = self.worker.doing
        return {
            "entries": {_name(k): _shown(view) for (_, k), view in snapshot.entries.items()},
            "held": {
                request: sorted(_name(k) for _, k in mine)
                for request, mine in snapshot.held.items()
                if mine
            },
            "batch": [_name(k) for _, k in snapshot.batch],
            "drain_due": self.manager._must_drain,
            "queue": [_pairs(asked) for asked in self.worker.queue],
            "worker": doing,
            "taken": [] if question is None else _pairs(question),
            "results": [_answers(reply) for reply in self.worker.published],
            "shutdown": self.shut,
        }


_LABELS = {
    "flush": "Flush",
    "drain_results": "Drain",
    "take": "WorkerTake",
    "call": "WorkerCall",
    "hang": "WorkerHang",
    "shutdown_begins": "ShutdownBegin",
    "shutdown_times_out": "ShutdownTimeout",
    "shutdown_ends": "ShutdownEnd",
}


def _raises(after: int) -> Iterator[bool]:
    for _ in range(after):
        yield True
    raise OSError("unreachable")


def _shown(view: EntryView) -> Json:
    return {
        "generation": view.generation,
        "phase": view.phase.name,
        "verdict": view.verdict,
        "waiters": sorted(view.waiters),
        "born": view.born,
        "since": view.resolved_at,
        "error": view.error,
        "stored": view.stored,
        "excused": sorted(view.excused),
    }


def _key(name: str) -> OffloadKey:
    return OffloadKey(name.encode())


def _name(key: OffloadKey) -> str:
    return key.decode()


def _pairs(question: Question) -> list[list[Any]]:
    pairs = zip(question.keys, question.generations, strict=True)
    return [[_name(key), generation] for key, generation in pairs]


def _answers(reply: Reply) -> list[list[Any]]:
    pairs = _pairs(reply.question)
    verdicts: list[Any] = reply.verdicts or [None] * len(pairs)
    return [[*pair, verdict] for pair, verdict in zip(pairs, verdicts, strict=True)]
