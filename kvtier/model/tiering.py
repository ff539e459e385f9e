"""What can happen to the tiers: one function for each action of `tla/Tiering.tla`.

This is the executable twin of that module, and the oracle for walks with the real
managers; it imports nothing of them. Every method of `TieringMachine` is pure; the
single decisions are in `tiering_rules.py`.

Where the machine is free to choose (which block goes?) there are several steps of
the same label. A label names an action with its arguments and what it returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations
from typing import NamedTuple, TypeVar

from kvtier.model.tiering_rules import Slots, TieringRules, being_read, joined, names, put
from kvtier.model.tiering_state import BLANK, FREE, Claim, Job, Known, TieringState

__all__ = ["Label", "TieringMachine"]

_LIVE = ("waiting", "found", "running", "storing")
_T = TypeVar("_T")


class Label(NamedTuple):
    """An action, its arguments, what it returned (for a pass: how far the hit reaches)."""

    action: str
    args: tuple[object, ...] = ()
    result: object = None


class _Way(NamedTuple):
    """Slots, and claims on some of them: one outcome of giving slots away."""

    slot: Slots
    claims: frozenset[Claim] = frozenset()


class TieringMachine(TieringRules):
    """The correct machine at the size of `config`."""

    def initial(self) -> TieringState:
        """Nothing in the primary, nobody there."""
        return TieringState(
            slot=(FREE,) * self.config.cap,
            req=(BLANK,) * len(self.config.prompt),
            queue=frozenset(),
            jobs=frozenset(),
            has=self.config.has,
            heard=frozenset(),
            polled=False,
        )

    def steps(self, s: TieringState) -> Iterator[tuple[Label, TieringState]]:
        """Every step that can be taken from `s`: its label and the state after it."""
        can = self.config.features
        for r, me in zip(self.config.requests, s.req, strict=True):
            yield from self._request_steps(s, r, me)
        if not s.polled:
            for job in s.jobs:
                for good in _subsets(job.keys) if "fail" in can else [job.keys]:
                    yield Label("JobReport", (job, good)), self.reported(s, job, good)
        owners = {self.owner(s, claim) for claim in s.queue}
        for refused in _subsets(owners) if "refuse" in can else [frozenset()]:
            yield Label("StepEnd", (refused,)), self.step_end(s, refused)
        used = [block for block in s.slot if block.used and not block.dropped]
        if "reset" in can and not s.polled and not s.queue and used:
            yield Label("Reset"), self.reset(s)
        if "bound" in can:
            for n, block in enumerate(s.slot):
                if block.writing and not block.old:
                    aged = block._replace(old=True)
                    yield Label("WriteOld", (n + 1,)), s._replace(slot=put(s.slot, n + 1, aged))

    def _request_steps(
        self, s: TieringState, r: str, me: Known
    ) -> Iterator[tuple[Label, TieringState]]:
        can = self.config.features
        if me.phase == "new":
            yield Label("Arrive", (r,)), self.arrive(s, r)
        if me.phase == "waiting" and not me.passed:
            for after in self.passes(s, r):
                now = after.req[self.number(r)]
                yield Label("Pass", (r,), now.end if now.phase == "found" else None), after
        if me.phase == "found":
            yield Label("Admit", (r,)), self.admit(s, r)
        if me.reading:
            yield Label("CompleteLoad", (r,)), self.complete_load(s, r)
        if "store" in can and me.phase == "running" and not me.reading:
            for after in self.prepare_store(s, r):
                got = tuple(sorted(c.key for c in after.req[self.number(r)].filling))
                yield Label("PrepareStore", (r,), got), after
        if me.filling:
            for ok in (True, False) if "fail" in can else (True,):
                for refused, after in self.complete_store(s, r, ok):
                    yield Label("CompleteStore", (r, ok, refused)), after
        done = "storing" if "store" in can else "running"
        if me.phase in (_LIVE if "finish" in can else (done,)):
            yield Label("Finish", (r,)), self.finish(s, r)
        if "preempt" in can and not me.preempted and me.phase in _LIVE:
            yield Label("Preempt", (r,)), self.preempt(s, r)
        if "bound" in can and me.phase == "waiting" and not me.late:
            yield Label("RequestLate", (r,)), self.replaced(s, r, me._replace(late=True))

    # A request's way

    def arrive(self, s: TieringState, r: str) -> TieringState:
        """on_new_request."""
        s = self.replaced(s, r, self.known(s, r)._replace(phase="waiting"))
        return s._replace(heard=s.heard - {r})

    def passes(self, s: TieringState, r: str) -> Iterator[TieringState]:
        """One pass: it is found how far the hit reaches, or the request is deferred."""
        me = self.known(s, r)._replace(passed=True)
        if me.busy:
            yield self.replaced(s, r, me)
            return
        s = s._replace(polled=True)
        if me.late:
            s = self.stops_waiting(s, r)
        slots, me, seen = self.scan(s, me, r)
        prompt = self.config.prompt[self.number(r)]
        if any(key in me.asked for key in prompt[: len(seen)]):
            yield self.replaced(s, r, me)._replace(slot=slots)
            return
        for room in self.rooms(slots):
            end = self.reach(slots, prompt, len(seen), room)
            elsewhere = [key for key in prompt[:end] if self.holder(slots, key) is None]
            for way in self.reserved(s, slots, r, elsewhere):
                mine = me
                for claim in way.claims:
                    mine = mine._replace(waits=mine.waits | {(claim.key, claim.write)})
                if self.answers(seen, end):
                    mine = mine._replace(phase="found", end=end)
                yield self.replaced(s, r, mine)._replace(slot=way.slot, queue=s.queue | way.claims)

    def scan(self, s: TieringState, me: Known, r: str) -> tuple[Slots, Known, list[str]]:
        """Locate the keys up to the first miss: slots, the request, the answers before it."""
        slots, seen = s.slot, []
        for key in self.config.prompt[self.number(r)]:
            answer, slots, me = self.locate(s, slots, me, r, key)
            if answer == "MISS":
                break
            seen.append(answer)
        return slots, me, seen

    def locate(
        self, s: TieringState, slots: Slots, me: Known, r: str, key: str
    ) -> tuple[str, Slots, Known]:
        """Where the block is for this request."""
        number = self.holder(slots, key)
        block = FREE if number is None else slots[number - 1]
        if number is not None and block.ready:
            return "HIT", put(slots, number, block._replace(pinned=self.pins())), me
        if me.late or key in me.settled:
            return "MISS", slots, me
        if self.spent(me, key, block.write):
            return "MISS", slots, me._replace(settled=me.settled | {key})
        if number is not None:
            if block.old and (key, block.write) not in me.waits:
                return "MISS", slots, me
            me = me._replace(waits=me.waits | {(key, block.write)})
            return "HIT_PENDING", put(slots, number, joined(block, r)), me
        if key in me.notes:
            return "RETRY", slots, me
        if key in self.config.slow and key not in me.answered:
            return "RETRY", slots, me._replace(asked=me.asked | {key})
        if key in s.has:
            return "RETRY", slots, me._replace(notes=me.notes | {key})
        return "MISS", slots, me._replace(settled=me.settled | {key})

    def reserved(
        self, s: TieringState, slots: Slots, r: str, keys: Sequence[str]
    ) -> Iterator[_Way]:
        """Every way to give slots to these keys so that `r` waits for them."""
        ways = {_Way(slots)}
        for key in keys:
            ways = {
                _Way(put(sl, n, joined(sl[n - 1], r)), way.claims | {Claim(n, key, write)})
                for way in ways
                for n, sl, write in self.taken(s, way.slot, key)
            }
        yield from ways

    def admit(self, s: TieringState, r: str) -> TieringState:
        """prepare_load, also with no keys."""
        me = self.known(s, r)
        claims = set()
        for key in self.config.prompt[self.number(r)][: me.end]:
            number = self.holder(s.slot, key)
            if number is not None:
                claims.add(Claim(number, key, s.slot[number - 1].write))
        s = self.stops_waiting(s, r)
        me = self.forgets(me)._replace(phase="running", reading=frozenset(claims), passed=False)
        return self.replaced(s, r, me)._replace(slot=being_read(s.slot, claims))

    def complete_load(self, s: TieringState, r: str) -> TieringState:
        """The engine has read its hit."""
        me = self.known(s, r)
        slots = self.unread(s.slot, me.reading)
        return self.replaced(s, r, self.gone(me._replace(reading=frozenset())))._replace(slot=slots)

    def prepare_store(self, s: TieringState, r: str) -> Iterator[TieringState]:
        """Slots for what was computed, from the front as far as they fit."""
        me = self.known(s, r)
        ways = {_Way(s.slot)}
        for key in self.config.prompt[self.number(r)][me.end :]:
            ways = {after for way in ways for after in self._filled(s, way, key)}
        for way in ways:
            after = me._replace(phase="storing", end=0, filling=way.claims)
            slots = tuple(
                old if old[:2] == new[:2] else new
                for old, new in zip(s.slot, way.slot, strict=True)
            )
            yield self.replaced(s, r, after)._replace(slot=slots, polled=True)

    def _filled(self, s: TieringState, way: _Way, key: str) -> Iterator[_Way]:
        here = self.holder(way.slot, key)
        if here is not None:
            # It is skipped, and stays for the rest of the call.
            skipped = way.slot[here - 1]._replace(pinned=True)
            yield way._replace(slot=put(way.slot, here, skipped))
            return
        if not self.available(way.slot):
            yield way
            return
        for number, slots, write in self.taken(s, way.slot, key):
            yield _Way(slots, way.claims | {Claim(number, key, write)})

    def complete_store(
        self, s: TieringState, r: str, ok: bool
    ) -> Iterator[tuple[bool, TieringState]]:
        """The engine has filled its slots, or failed to; whether the tier refused the job."""
        me = self.known(s, r)
        keys = frozenset(claim.key for claim in me.filling)
        slots = self.written(s.slot, me.filling, keys if ok else frozenset())
        there = frozenset(claim for claim in me.filling if names(slots, claim))
        me = me._replace(filling=frozenset())
        after = self.replaced(s, r, self.gone(me))
        if self.hears(me):
            after = after._replace(heard=s.heard | {r})
        if there:
            job = Job("store", r, there, late=r in s.heard)
            yield False, after._replace(slot=being_read(slots, there), jobs=s.jobs | {job})
        if not there or "refuse" in self.config.features:
            yield bool(there), after._replace(slot=slots)

    def finish(self, s: TieringState, r: str) -> TieringState:
        """on_request_finished."""
        me = self.forgets(self.known(s, r))
        me = me._replace(phase="leaving", end=0, passed=False, late=False, preempted=False)
        s = self.replaced(self.stops_waiting(s, r), r, self.gone(me))
        return s._replace(heard=s.heard | {r}) if self.hears(me) else s

    def preempt(self, s: TieringState, r: str) -> TieringState:
        """The request starts over, but for how often it was deferred."""
        me = self.forgets(self.known(s, r))
        me = me._replace(phase="waiting", end=0, preempted=True)
        return self.replaced(self.stops_waiting(s, r), r, me)

    # The tier and the step

    def reported(self, s: TieringState, job: Job, good: frozenset[str]) -> TieringState:
        """The tier ends a job; the blocks in `good` made it."""
        s = s._replace(jobs=s.jobs - {job})
        if job.kind == "load":
            return s._replace(slot=self.written(s.slot, job.claims, good))
        return s._replace(slot=self.unread(s.slot, job.claims), has=s.has | good)

    def step_end(self, s: TieringState, refused: frozenset[str]) -> TieringState:
        """on_schedule_end; the jobs of the requests in `refused` are refused."""
        slots, jobs = s.slot, set(s.jobs)
        for r in self.config.requests:
            mine = frozenset(claim for claim in s.queue if self.owner(s, claim) == r)
            if r in refused:
                slots = self.written(slots, mine, frozenset())
            elif mine:
                jobs.add(Job("load", r, mine, late=r in s.heard))
        return s._replace(
            slot=tuple(block._replace(pinned=False) for block in slots),
            req=tuple(_after_step(me) for me in s.req),
            queue=frozenset(),
            jobs=frozenset(jobs),
            polled=False,
        )

    def reset(self, s: TieringState) -> TieringState:
        """reset_cache: a slot that is written or read stays with who does it."""
        return s._replace(
            slot=tuple(
                self.kept(block._replace(dropped=True, pinned=False, waiters=()))
                if block.used
                else FREE
                for block in s.slot
            )
        )


def _after_step(me: Known) -> Known:
    if me.phase == "found":
        me = me._replace(phase="waiting", end=0)
    return me._replace(passed=False, asked=frozenset(), answered=me.answered | me.asked)


def _subsets(items: Iterable[_T]) -> Iterator[frozenset[_T]]:
    members = list(items)
    sizes = range(len(members) + 1)
    return map(frozenset, chain.from_iterable(combinations(members, n) for n in sizes))
