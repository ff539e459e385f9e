"""What can happen to the lookup machine: one function for each action of `tla/AsyncLookup.tla`.

This is the oracle that the code is held to, so it imports nothing of the code
and is written the other way round: not as a table of rows, but as what each call
means. Every method of `Machine` is pure. The small ones are single decisions; a
known bug is a subclass that decides one of them otherwise (`mutants.py`).

A *label* names an action with its arguments and what it returned:
`Lookup_r1_k1_None`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from kvtier.model.state import ABSENT, Batch, Config, Entry, Reply, State

__all__ = ["Machine"]

_IDLE: tuple[str, Batch] = ("idle", frozenset())
_STOPPED: tuple[str, Batch] = ("stopped", frozenset())
_BUSY = ("read", "call", "hung")
_WORDS = {"none": "None", "T": "True", "F": "False"}


class Machine:
    """The correct machine at the size of `config`."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def initial(self) -> State:
        """Nothing asked, nothing known."""
        return State(
            entry=tuple(ABSENT for _ in self.config.keys),
            held=tuple(frozenset() for _ in self.config.requests),
            batch=frozenset(),
            due=False,
            queue=(),
            worker=_IDLE,
            results=(),
            shut="open",
        )

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        """Every step that can be taken from `s`: its label and the state after it."""
        config = self.config
        calling = s.shut in ("open", "closed")
        if calling:
            for r, k in product(config.requests, config.keys):
                reply, after = self.lookup(s, r, k)
                yield f"Lookup_{r}_{k}_{_WORDS[reply]}", after
            for r, mine in zip(config.requests, s.held, strict=True):
                if mine:
                    yield f"Cleanup_{r}", self.cleanup(s, r)
            if "marks" in config.features:
                for k in config.keys:
                    yield f"MarkMiss_{k}", self.mark_miss(s, k)
                    yield f"MarkHit_{k}", self.mark_hit(s, k)
        if s.shut == "open":
            yield "Flush", self.flush(s)
            if s.results:
                yield "Drain", self.drain(s)
            yield from self.time(s)
            if "shutdown" in config.features:
                yield "ShutdownBegin", s._replace(shut="sentinel")
        if s.shut == "sentinel" and s.worker != _STOPPED:
            yield "ShutdownTimeout", s._replace(shut="flag")
        if s.shut == "flag" or (s.shut == "sentinel" and s.worker == _STOPPED):
            yield "ShutdownEnd", self.shutdown_end(s)
        yield from self.work(s)

    # What a caller can do

    def lookup(self, s: State, r: str, k: str) -> tuple[str, State]:
        """Ask, and be told "T", "F", or "none": ask again."""
        n = self._number(k)
        if s.shut == "closed":
            return ("F" if s.entry[n] == ABSENT else s.entry[n].verdict), s
        before = s.entry[n]
        asks_first_time = r not in before.waiters
        if before != ABSENT:
            s = self._with(s, k, before._replace(waiters=before.waiters | {r}))
        if s.due:
            s = s._replace(entry=self.drained(s), results=(), due=False)
        now = s.entry[n]
        asked: Entry | None = None
        if now == ABSENT:
            asked = Entry("PENDING", self.next_gen(s), waiters=frozenset({r}))
        elif now.phase == "RESOLVED" and self.asks_again(now, asks_first_time):
            others = self.excuses(now, r)
            asked = Entry("PENDING", self.next_gen(s), waiters=now.waiters, excused=others)
        elif self.too_old(now):
            asked = Entry("PENDING", self.next_gen(s), waiters=now.waiters)
        if asked is not None:
            s = self._with(s, k, asked)._replace(batch=s.batch | {k})
            now = asked
        held = tuple(
            mine | {k} if name == r else mine
            for name, mine in zip(self.config.requests, s.held, strict=True)
        )
        return self.reply(now, r), s._replace(held=held)

    def flush(self, s: State) -> State:
        """The end of a step."""
        s = s._replace(
            entry=self.swept(self.flush_drained(s)), results=self.flush_unread(s), due=True
        )
        if not s.batch or self.out(s) >= self.config.max_out:
            return s
        sent = frozenset((k, s.entry[self._number(k)].gen) for k in s.batch)
        entry = tuple(
            e._replace(phase="IN_FLIGHT") if k in s.batch else e
            for k, e in zip(self.config.keys, s.entry, strict=True)
        )
        return s._replace(entry=entry, queue=(*s.queue, sent), batch=self.batch_after_send(s))

    def drain(self, s: State) -> State:
        """Apply what was published."""
        return s._replace(entry=self.drained(s), results=(), due=False)

    def mark_miss(self, s: State, k: str) -> State:
        """A load of `k` failed."""
        return self._with(s, k, self.missed(s.entry[self._number(k)]))

    def mark_hit(self, s: State, k: str) -> State:
        """A store of `k` completed."""
        return self._with(s, k, self.stored(s.entry[self._number(k)]))

    def cleanup(self, s: State, r: str) -> State:
        """`r` lets go of all it joined."""
        mine = s.held[self.config.requests.index(r)]
        entry = tuple(
            self.let_go(e, r) if k in mine else e
            for k, e in zip(self.config.keys, s.entry, strict=True)
        )
        held = tuple(
            self.forgotten(keys) if name == r else keys
            for name, keys in zip(self.config.requests, s.held, strict=True)
        )
        return s._replace(entry=entry, held=held, batch=self._still_pending(s.batch, entry))

    def shutdown_end(self, s: State) -> State:
        """The worker is done, or will not be waited for: what has no answer goes."""
        entry = tuple(ABSENT if self.ends_at_close(e) else e for e in self.swept(self.drained(s)))
        there = {k for k, e in zip(self.config.keys, entry, strict=True) if e != ABSENT}
        return s._replace(
            entry=entry,
            held=tuple(keys & there for keys in s.held),
            batch=self._still_pending(s.batch, entry),
            due=False,
            results=(),
            shut="closed",
        )

    # What the worker and the clock can do

    def work(self, s: State) -> Iterator[tuple[str, State]]:
        """Steps of the worker."""
        doing, batch = s.worker
        flagged = s.shut in ("flag", "closed")
        if doing == "idle" and flagged:
            yield "WorkerTake", s._replace(worker=_STOPPED)
        elif doing == "idle" and s.queue:
            yield "WorkerTake", s._replace(worker=("read", s.queue[0]), queue=s.queue[1:])
        elif doing == "idle" and s.shut == "sentinel":
            yield "WorkerTake", s._replace(worker=_STOPPED)
        elif doing == "read":
            yield "WorkerCall", s._replace(worker=("call", batch))
        elif doing == "call":
            asked = sorted(batch)
            for answers in product("TF", repeat=len(asked)):
                reply = frozenset((k, g, a) for (k, g), a in zip(asked, answers, strict=True))
                name = "_".join(k + a for (k, _), a in zip(asked, answers, strict=True))
                published = (*s.results, self.published(reply))
                yield f"WorkerAnswer_{name}", s._replace(worker=_IDLE, results=published)
            if "errors" in self.config.features:
                yield "WorkerAnswer_Error", self.failed(s)
            if "hang" in self.config.features:
                yield "WorkerHang", s._replace(worker=("hung", batch))

    def time(self, s: State) -> Iterator[tuple[str, State]]:
        """A deadline passes, a verdict gets too old."""
        for k, e in zip(self.config.keys, s.entry, strict=True):
            waits = e.phase in ("PENDING", "IN_FLIGHT")
            if "deadline" in self.config.features and waits and not e.late:
                yield f"DeadlinePasses_{k}", self._with(s, k, e._replace(late=True))
            if "lifetime" in self.config.features and e.age == "young":
                yield f"VerdictAges_{k}", self._with(s, k, e._replace(age="old"))

    # Single decisions

    def reply(self, e: Entry, r: str) -> str:
        """What `r` is told about this entry."""
        if e.phase == "RESOLVED":
            return e.verdict
        return "F" if r in e.excused or e.late else "none"

    def asks_again(self, e: Entry, asks_first_time: bool) -> bool:
        """Whether a held verdict stands for a failed question that somebody new asks about."""
        return e.error and asks_first_time

    def excuses(self, e: Entry, r: str) -> frozenset[str]:
        """Who goes on reading "no" while `r` has the question asked again."""
        return e.waiters - {r}

    def too_old(self, e: Entry) -> bool:
        """Whether a verdict is past its lifetime."""
        return e.phase == "RESOLVED" and e.age == "old"

    def takes(self, e: Entry, gen: int) -> bool:
        """Whether an answer of that generation is for this entry."""
        return e.phase == "IN_FLIGHT" and e.gen == gen

    def drained(self, s: State) -> tuple[Entry, ...]:
        """The entries after every published answer, in the order of publication."""
        entries = dict(zip(self.config.keys, s.entry, strict=True))
        for reply in s.results:
            for k, gen, answer in sorted(reply):
                if self.takes(entries[k], gen):
                    entries[k] = self.resolved(entries[k], answer)
        return tuple(entries.values())

    def resolved(self, e: Entry, answer: str) -> Entry:
        """The entry with its answer. What was stored meanwhile is there, whatever was said."""
        yes = answer == "T" or e.stored
        return Entry(
            "RESOLVED",
            e.gen,
            "T" if yes else "F",
            waiters=e.waiters,
            error=answer == "E" and not yes,
            age=self.youth(),
        )

    def swept(self, entry: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Without the verdicts that nobody holds."""
        return tuple(ABSENT if e.phase == "RESOLVED" and not e.waiters else e for e in entry)

    def flush_drained(self, s: State) -> tuple[Entry, ...]:
        """The entries as a flush finds them."""
        return self.drained(s)

    def flush_unread(self, s: State) -> tuple[Reply, ...]:
        """What a flush leaves undrained."""
        return ()

    def batch_after_send(self, s: State) -> frozenset[str]:
        """What is still to be sent after the batch was sent."""
        return frozenset()

    def missed(self, e: Entry) -> Entry:
        """After a failed load."""
        if e.phase != "RESOLVED":
            return e
        return e._replace(verdict="F", error=False, age=self.forced_age())

    def forced_age(self) -> str:
        """A forced miss has no lifetime."""
        return "never"

    def stored(self, e: Entry) -> Entry:
        """After a completed store."""
        if e.phase == "RESOLVED":
            return e._replace(verdict="T", error=False, age=self.youth())
        return e._replace(stored=True) if e.phase == "IN_FLIGHT" else e

    def let_go(self, e: Entry, r: str) -> Entry:
        """Without `r`; gone if it was the last and the question is not out."""
        left = e._replace(waiters=e.waiters - {r}, excused=e.excused - {r})
        return ABSENT if not left.waiters and self.goes_with_last(left) else left

    def goes_with_last(self, e: Entry) -> bool:
        """Whether the last waiter takes the entry along."""
        return e.phase != "IN_FLIGHT"

    def forgotten(self, keys: frozenset[str]) -> frozenset[str]:
        """What the reverse index keeps of a request that let go."""
        return frozenset()

    def ends_at_close(self, e: Entry) -> bool:
        """Whether shutdown deletes the entry."""
        return e.phase in ("PENDING", "IN_FLIGHT")

    def published(self, reply: Reply) -> Reply:
        """What the worker makes known of a back end's answer."""
        return reply

    def failed(self, s: State) -> State:
        """The back end raised, or answered what cannot be matched with the keys."""
        reply = frozenset((k, gen, "E") for k, gen in s.worker[1])
        return s._replace(worker=_IDLE, results=(*s.results, reply))

    def youth(self) -> str:
        """Age of a verdict when it is new."""
        return "young" if "lifetime" in self.config.features else "never"

    def out(self, s: State) -> int:
        """Batches that are with the worker, when nothing is left to drain."""
        return len(s.queue) + (s.worker[0] in _BUSY)

    def next_gen(self, s: State) -> int:
        """The least generation that nothing refers to: finitely many are enough for a model."""
        used = {e.gen for e in s.entry if e != ABSENT}
        used.update(gen for batch in s.queue for _, gen in batch)
        used.update(gen for reply in s.results for _, gen, _ in reply)
        if s.worker[0] in _BUSY:
            used.update(gen for _, gen in s.worker[1])
        return next(gen for gen in range(1, len(used) + 2) if gen not in used)

    # Parts

    def _number(self, k: str) -> int:
        return self.config.keys.index(k)

    def _with(self, s: State, k: str, e: Entry) -> State:
        n = self._number(k)
        return s._replace(entry=(*s.entry[:n], e, *s.entry[n + 1 :]))

    def _still_pending(self, batch: frozenset[str], entry: tuple[Entry, ...]) -> frozenset[str]:
        phases = {k: e.phase for k, e in zip(self.config.keys, entry, strict=True)}
        return frozenset(k for k in batch if phases[k] == "PENDING")
