"""The real manager driven by the labels of the model, and seen as a state of the model.

The worker is a lane that moves by hand; what it does with a back end's answer is
the real worker's own code. The clock stands still: that a deadline has passed or a
verdict has aged is done to the one entry that the label names.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvtier.keys import OffloadKey
from kvtier.lifecycle import TABLE, LookupPhase, Outcome, Row, Transition, Trigger
from kvtier.lookup import AsyncLookupManager, LookupTable, LookupWorker, Question
from kvtier.lookup.worker import Reply
from kvtier.model.state import Config, Entry, State
from kvtier.request import ReqContext
from kvtier.runtime import Lane, Runtime, Task

__all__ = ["HandMachine", "Table", "canonical", "step"]

DEADLINE, LIFETIME = 1.0, 2.0
WORDS = {"None": None, "True": True, "False": False}

Table = Mapping[tuple[LookupPhase, Trigger], tuple[Row, ...]]


class _Still(Runtime):
    def now(self) -> float:
        return 0.0

    def sleep(self, seconds: float, /) -> None:
        raise AssertionError("nobody sleeps here")

    def lane(self, name: str) -> Lane:
        return _NoLane()

    def wait(self, timeout: float) -> bool:
        raise AssertionError("nobody waits here")


class _NoLane:
    stopping = False

    def post(self, task: Task) -> None:
        raise AssertionError("questions go to the hand, not to a lane")

    def stop(self, timeout: float | None) -> bool:
        return True


class _HandWorker(LookupWorker):
    """Questions wait in `queue` until the test moves them."""

    def __init__(self, batch_lookup: Callable[..., Iterable[bool]], runtime: Runtime) -> None:
        super().__init__("hand", batch_lookup, runtime)
        self.queue: list[Question] = []
        self.doing: tuple[str, Question | None] = ("idle", None)

    def post(self, questions: list[Question]) -> None:
        self.queue.extend(questions)

    def publish(self) -> None:
        question = self.doing[1]
        assert question is not None
        self._replies.append(self._ask(question))
        self.doing = ("idle", None)

    @property
    def published(self) -> list[Reply]:
        return list(self._replies)


class _Lookups(AsyncLookupManager):
    answer: Mapping[OffloadKey, bool] | None = None
    """`None`: the back end fails."""

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        if self.answer is None:
            raise OSError("unreachable")
        return [self.answer[key] for key in keys]


class _Seen:
    """Wants everything, keeps the outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def wants(self, req_context: ReqContext, tier: str) -> bool:
        return True

    def on_transition(self, transition: Transition) -> None:
        self.outcomes.append(transition.outcome)


class HandMachine:
    """One real manager, its worker's hand, and how far shutdown has come."""

    def __init__(self, config: Config, table: Table = TABLE) -> None:
        self.config = config
        self.seen = _Seen()
        features = config.features
        self.manager = _Lookups(
            "0:hand",
            runtime=_Still(),
            max_batches_out=config.max_out,
            deadline=DEADLINE if "deadline" in features else None,
            verdict_lifetime=LIFETIME if "lifetime" in features else None,
            observer=self.seen,
        )
        if table is not TABLE:
            limits = self.manager._limits
            self.manager._table = LookupTable("0:hand", limits, observer=self.seen, table=table)
            self.manager._readable = self.manager._held = {}
            self.manager._quiet = False
        self.worker = _HandWorker(self.manager.batch_lookup, _Still())
        self.manager._worker = self.worker
        self.shut = "open"

    def copy(self) -> HandMachine:
        """Another machine in the same state, that shares nothing that changes."""
        table = self.manager._table
        shared = [table._cells, table._at_once, table.limits, self.config, self.worker._lane]
        return copy.deepcopy(self, {id(thing): thing for thing in shared})

    def do(self, label: str) -> object:
        """Take the step that a label names; what it returned, as the label writes it."""
        action, *words = label.split("_")
        method = getattr(self, f"_{action}", None)
        if method is None:
            return getattr(self, action)(*words)
        return method(*words)

    # Calls

    def _Lookup(self, r: str, k: str, expected: str) -> object:
        return self.manager.lookup(_key(k), ReqContext(r))

    def _Flush(self) -> None:
        self.manager.flush()

    def _Drain(self) -> None:
        self.manager.drain_results()

    def _MarkMiss(self, k: str) -> None:
        self.manager.mark_miss([_key(k)])

    def _MarkHit(self, k: str) -> None:
        self.manager.mark_hit([_key(k)], ReqContext("anybody"))

    def _Cleanup(self, r: str) -> None:
        self.manager.cleanup(r)

    def _ShutdownBegin(self) -> None:
        self.shut = "sentinel"

    def _ShutdownTimeout(self) -> None:
        self.shut = "flag"

    def _ShutdownEnd(self) -> None:
        self.manager.shutdown(0.0)
        self.shut = "closed"

    # The worker and the clock

    def _WorkerTake(self) -> None:
        worker = self.worker
        if worker.queue and self.shut in ("open", "sentinel"):
            worker.doing = ("read", worker.queue.pop(0))
        else:
            worker.doing = ("stopped", None)

    def _WorkerCall(self) -> None:
        self.worker.doing = ("call", self.worker.doing[1])

    def _WorkerHang(self) -> None:
        self.worker.doing = ("hung", self.worker.doing[1])

    def _WorkerAnswer(self, *answers: str) -> None:
        failed = answers == ("Error",)
        said = {_key(word[:-1]): word[-1] == "T" for word in answers}
        self.manager.answer = None if failed else said
        self.worker.publish()

    def _DeadlinePasses(self, k: str) -> None:
        self.manager._table._entries[None][_key(k)].born = -DEADLINE

    def _VerdictAges(self, k: str) -> None:
        self.manager._table._entries[None][_key(k)].resolved_at = -LIFETIME - 1.0

    # As the model sees it

    def state(self) -> State:
        snapshot = self.manager.snapshot()
        entries = {key.decode(): view for (_, key), view in snapshot.entries.items()}
        doing, question = self.worker.doing
        return State(
            entry=tuple(self._entry(entries.get(k)) for k in self.config.keys),
            held=tuple(
                frozenset(key.decode() for _, key in snapshot.held.get(r, ()))
                for r in self.config.requests
            ),
            batch=frozenset(key.decode() for _, key in snapshot.batch),
            due=self.manager._must_drain,
            queue=tuple(_questions(question) for question in self.worker.queue),
            worker=(doing, frozenset() if question is None else _questions(question)),
            results=tuple(_answers(reply) for reply in self.worker.published),
            shut=self.shut,
        )

    def _entry(self, view: Any) -> Entry:
        if view is None:
            return Entry()
        resolved = view.phase is LookupPhase.RESOLVED
        age = "none"
        if resolved:
            age = "young" if "lifetime" in self.config.features else "never"
            if view.resolved_at is None:
                age = "never"
            elif age == "young" and 0.0 - view.resolved_at > LIFETIME:
                age = "old"
        return Entry(
            phase=view.phase.name,
            gen=view.generation,
            verdict={None: "none", True: "T", False: "F"}[view.verdict],
            waiters=view.waiters,
            error=view.error,
            stored=view.stored,
            excused=view.excused,
            late=not resolved and 0.0 - view.born >= DEADLINE,
            age=age,
        )


def _key(k: str) -> OffloadKey:
    return OffloadKey(k.encode())


def _questions(question: Question) -> frozenset[tuple[str, int]]:
    pairs = zip(question.keys, question.generations, strict=True)
    return frozenset((key.decode(), generation) for key, generation in pairs)


def _answers(reply: Reply) -> frozenset[tuple[str, int, str]]:
    asked = sorted(_questions(reply.question))
    told = reply.verdicts
    said: dict[bytes, bool | None] = dict.fromkeys(reply.question.keys)
    if told is not None:
        said = dict(zip(reply.question.keys, told, strict=True))
    words = {None: "E", True: "T", False: "F"}
    return frozenset((k, gen, words[said[k.encode()]]) for k, gen in asked)


def canonical(state: State) -> State:
    """The state with generations numbered as they are met: only their sameness counts."""
    numbers: dict[int, int] = {0: 0}

    def of(gen: int) -> int:
        return numbers.setdefault(gen, len(numbers))

    entry = tuple(e._replace(gen=of(e.gen)) for e in state.entry)
    queue = tuple(frozenset((k, of(g)) for k, g in sorted(b)) for b in state.queue)
    worker = (state.worker[0], frozenset((k, of(g)) for k, g in sorted(state.worker[1])))
    results = tuple(frozenset((k, of(g), a) for k, g, a in sorted(r)) for r in state.results)
    return state._replace(entry=entry, queue=queue, worker=worker, results=results)


# -- one step, compared -----------------------------------------------------------------------


def step(machine: HandMachine, before: State, label: str, after: State) -> str | None:
    """Take one step with the real manager; how it differs from the model's, or `None`."""
    machine.seen.outcomes.clear()
    try:
        returned = machine.do(label)
    except Exception as error:
        return f"{label} in {before}: {error!r}"
    got = canonical(machine.state())
    if got != canonical(after):
        return f"{label} in {before}\n  expected {canonical(after)}\n  got      {got}"
    answered = [o for o in machine.seen.outcomes if o in ANSWERS] if drains(before, label) else []
    if Counter(answered) != Counter(answers_due(machine.config, before, label)):
        return f"{label} in {before} was reported as {machine.seen.outcomes}"
    if label.startswith("Lookup_"):
        _, r, k, word = label.split("_")
        if returned is not WORDS[word]:
            return f"{label} in {before} returned {returned!r}"
        expected = told_as(machine.config, before, after, r, k)
        if expected is not None and machine.seen.outcomes[-1:] != [expected]:
            return f"{label} in {before} was reported as {machine.seen.outcomes}, not {expected}"
    return None


ANSWERS = (Outcome.HIT, Outcome.FORCED_HIT, Outcome.LOOKUP_ERROR, Outcome.MISS)


def drains(before: State, label: str) -> bool:
    action = label.partition("_")[0]
    by_lookup = action == "Lookup" and before.due and before.shut == "open"
    return by_lookup or action in ("Flush", "Drain", "ShutdownEnd")


def answers_due(config: Config, before: State, label: str) -> list[Outcome]:
    """How the answers that a step applies must be reported: a yes is a yes, whatever was stored."""
    due = []
    for reply in before.results if drains(before, label) else ():
        for k, gen, answer in reply:
            entry = before.entry[config.keys.index(k)]
            if (entry.phase, entry.gen) == ("IN_FLIGHT", gen):
                no = {"F": Outcome.MISS, "E": Outcome.LOOKUP_ERROR}
                stored = Outcome.FORCED_HIT if entry.stored else None
                due.append(Outcome.HIT if answer == "T" else stored or no[answer])
    return due


def told_as(config: Config, before: State, after: State, r: str, k: str) -> Outcome | None:
    """How a lookup that reads "no" without a verdict must be reported."""
    entry = after.entry[config.keys.index(k)]
    if after.shut != "open" or entry.phase not in ("PENDING", "IN_FLIGHT"):
        return None
    if r in entry.excused:
        return Outcome.EXCUSED
    return Outcome.DEADLINE if entry.late else None
