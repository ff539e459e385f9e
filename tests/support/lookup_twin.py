"""Lookups and their oracle, driven call by call; whatever differs fails.

`LookupTwin` makes each call on a real manager (hand-stepped worker, hand-moved clock)
and on `Oracle`. `check` compares everything that can be seen: the table, the
questions that are out, the counters, and the transitions that an observer was shown.
`random_run` drives it with a seed.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import fields
from typing import Any

from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupPhase, Outcome, Transition, Trigger
from kvtier.lookup import EntryView, LookupCounts, LookupTable, Question
from kvtier.request import ReqContext
from tests.support import lookup_invariants as laws
from tests.support.lookup_oracle import Asked, Oracle, Step
from tests.support.lookups import BAD_ANSWERS, HandRuntime, ScriptedLookups, ctx, key, quiet

__all__ = ["KEYS", "LIMITS", "REQ_IDS", "TENANTS", "Fired", "How", "LookupTwin", "random_run"]

TENANTS = ("even", "odd")
REQ_IDS = ("r0", "r1", "r2", "r3", "r4", "r5")
KEYS = tuple(key(number) for number in range(3))

COUNTED = [f.name for f in fields(LookupCounts) if not f.name.startswith("peak_")]

How = int | str
"""What the back end says to its next question: the bits of the answer, or a bad one's name."""

Fired = Counter[tuple[LookupPhase, Trigger, Outcome, LookupPhase]]
"""How often each row of the table was taken, by what sets it apart."""


def tenant_of(req_id: str) -> str:
    return TENANTS[int(req_id[1:]) % 2]


def verdicts(how: How, keys: Collection[OffloadKey]) -> list[bool]:
    assert isinstance(how, int)
    return [bool(how >> KEYS.index(k) & 1) for k in keys]


def _is_refusal(step: Transition | Step) -> bool:
    return step.trigger is Trigger.ANSWER and step.source is step.target


class _Everything:
    def __init__(self) -> None:
        self.seen: list[Transition] = []

    def wants(self, req_context: ReqContext, tier: str) -> bool:
        return True

    def on_transition(self, transition: Transition) -> None:
        self.seen.append(transition)


class LookupTwin:
    """Without `watched` nobody observes, and lookups may take shorter ways."""

    def __init__(
        self,
        *,
        table: Callable[..., LookupTable] = LookupTable,
        watched: bool = True,
        **limits: Any,
    ) -> None:
        self.runtime = HandRuntime()
        self.observer = _Everything() if watched else None
        self.script: deque[How] = deque()
        self.manager = ScriptedLookups(
            self.runtime, self._back_end, table=table, observer=self.observer, **limits
        )
        self.oracle = Oracle(tenant_of, **limits)
        self.ageless = limits.get("verdict_lifetime") is None
        self.late = False
        """A call of the back end outlived the shutdown and has not returned."""
        self.fired: Fired = Counter()
        self.forced: set[laws.Asking] = set()
        self._said: dict[tuple[str, OffloadKey], laws.Said] = {}
        self._swept = False
        self._seq = 0
        self._time = 0.0

    # -- calls -----------------------------------------------------------------------------

    def lookup(self, req_id: str, k: OffloadKey) -> bool | None:
        self._swept = False
        reply = self.manager.lookup(k, ctx(req_id, tenant_of(req_id)))
        expected = self.oracle.lookup(req_id, k, self.runtime.time)
        assert reply is expected
        if reply is False:
            reason = self.oracle.why_false(req_id, k, self.runtime.time)
            assert self.manager.why_false(k, ctx(req_id, tenant_of(req_id))) is reason
        self._explain(reply, req_id, k)
        return reply

    def flush(self) -> None:
        self.manager.flush()
        self.oracle.flush(self.runtime.time)
        self._swept = True

    def drain(self) -> None:
        self._swept = False
        self.manager.drain_results()
        self.oracle.drain(self.runtime.time)

    def work(self, how: How) -> None:
        """The worker answers its oldest question."""
        self.script.append(how)
        self.manager.lane.step()
        self._work(how)

    def inject(self, tenant: str, generations: dict[OffloadKey, int], yes: bool | None) -> None:
        """An answer comes that no back end gave (`yes` is `None`: a failed one)."""
        keys = list(generations)
        said = None if yes is None else [yes] * len(keys)
        question = Question(tenant, ctx("forger", tenant), keys, list(generations.values()))
        self.manager.worker.inject(question, said)
        self.oracle.replies.append((Asked(tenant, "forger", generations), said))

    def mark_miss(self, keys: Collection[OffloadKey], tenant: str | None) -> None:
        """`tenant` is `None`: in every scope."""
        self._swept = False
        scopes = TENANTS if tenant is None else [tenant]
        self._force(keys, scopes, hit=False)
        self.manager.mark_miss(keys, None if tenant is None else ctx("loader", tenant))
        self.oracle.mark_miss(keys, scopes)

    def mark_hit(self, keys: Collection[OffloadKey], tenant: str) -> None:
        self._swept = False
        self._force(keys, [tenant], hit=True)
        self.manager.mark_hit(keys, ctx("storer", tenant))
        self.oracle.mark_hit(keys, tenant, self.runtime.time)

    def cleanup(self, req_id: str) -> None:
        self._swept = False
        self.manager.cleanup(req_id)
        self.oracle.cleanup(req_id)
        for req_id_and_key in [held for held in self._said if held[0] == req_id]:
            del self._said[req_id_and_key]

    def advance(self, seconds: float) -> None:
        self.runtime.advance(seconds)

    def shutdown(self, in_time: list[How], hung: How | None, *, begun: bool = True) -> None:
        """A shutdown without a timeout or, if something is `hung`, with one.

        Without, the worker answers all it has. With, it answers as `in_time` says,
        and when the time is over it is inside one more call if that had `begun`.
        """
        self._swept = False
        lane, manager = self.manager.lane, self.manager
        answered: list[How] = []
        if not self.oracle.closed:
            waiting = len(lane.tasks)
            answered = (in_time if hung is not None else [*in_time, *[0] * waiting])[:waiting]
            self.script.extend(answered)
            lane.in_time = None if hung is None else len(answered)
            self.late = begun and hung is not None and len(answered) < waiting
            lane.entered = manager.entered if self.late else None
            if hung is not None and self.late:
                self.script.append(hung)
                calls = len(manager.calls) + len(answered)
                manager.hangs = lambda keys: len(manager.calls) > calls
        manager.shutdown(None if hung is None else 1.0)
        for how in answered:
            self._work(how)
        self.oracle.shutdown(self.runtime.time)
        if not self.late:
            self._begin_nothing()

    def publish_late(self) -> None:
        """The call that outlived the shutdown returns; no question is begun after it."""
        self._swept = False
        self.late = False
        self.manager.let_go.set()
        self.manager.lane.finish()
        self._begin_nothing()
        asked = self.oracle.queue.popleft()
        self.oracle.replies.append((asked, None))
        self.drain()

    @property
    def questions_wait(self) -> bool:
        """Whether the worker has something to answer."""
        return bool(self.manager.lane.tasks) and not self.oracle.closed

    # -- comparing -------------------------------------------------------------------------

    def check(self, *, history: bool = True) -> None:
        """Everything that can be seen is as it must be."""
        self.check_transitions()
        snapshot, oracle = self.manager.snapshot(), self.oracle
        assert snapshot.entries == {
            place: EntryView(
                probe.generation,
                probe.phase,
                probe.verdict,
                frozenset(probe.waiters),
                probe.born,
                probe.since,
                probe.error,
                probe.stored,
                frozenset(probe.excused),
            )
            for place, probe in oracle.probes.items()
        }
        assert {req_id: held for req_id, held in snapshot.held.items() if held} == oracle.held
        assert snapshot.batch == tuple(place for place, _ in oracle.batch)
        assert snapshot.batches_out == oracle.batches_out
        assert snapshot.unclaimed == oracle.unclaimed
        assert snapshot.closed == oracle.closed
        # A verdict that was taken over may count as work until the next flush, not longer.
        if oracle.has_pending_work or self._swept:
            assert self.manager.has_pending_work() == oracle.has_pending_work
        if history:
            assert [
                (q.scope, q.keys, q.req_context.req_id) for q in self.manager.worker.posted
            ] == [(asked.scope, list(asked.keys), asked.asker) for asked in oracle.sent]
        self._check_counts()
        facts = self._facts(history)
        for law in laws.STATE + (laws.HISTORY if history else ()):
            law(facts)

    def check_transitions(self) -> None:
        """An observer saw what happened: for each probe in order, and on one clock.

        A lookup that drains joins first by the prose, last in the code. That shows
        in two places only, which are left out: how many waiters an answer met, and
        whether a forged answer met no probe or a newborn one.
        """
        trail = self.oracle.trail
        self.fired.update((s.source, s.trigger, s.outcome, s.target) for s in trail)
        if self.observer is not None:
            self._compare_transitions(self.observer.seen, trail)
            self.observer.seen.clear()
        trail.clear()

    def wind_down(self) -> None:
        """All requests end, all questions are answered, a step ends: nothing is left."""
        if self.late:
            self.publish_late()
        for req_id in REQ_IDS:
            self.cleanup(req_id)
        self.flush()
        while self.questions_wait:
            self.work(0)
            self.flush()
        self.check()
        snapshot = self.manager.snapshot()
        assert not snapshot.entries
        assert not snapshot.held
        assert not snapshot.batch
        assert snapshot.batches_out == 0
        assert not self.manager.has_pending_work()

    # -- parts -----------------------------------------------------------------------------

    def _back_end(self, keys: list[OffloadKey]) -> Iterable[bool]:
        how = self.script.popleft()
        if isinstance(how, str):
            bad: Iterable[bool] = BAD_ANSWERS[how](keys)
            return bad
        return verdicts(how, keys)

    def _work(self, how: How) -> None:
        self.oracle.work(lambda asked: None if isinstance(how, str) else verdicts(how, asked.keys))

    def _begin_nothing(self) -> None:
        calls = len(self.manager.calls)
        self.manager.step_worker()
        assert len(self.manager.calls) == calls

    def _force(self, keys: Collection[OffloadKey], tenants: Iterable[str], *, hit: bool) -> None:
        for tenant in tenants:
            for k in keys:
                probe = self.oracle.probes.get((tenant, k))
                if probe is not None and (hit or probe.phase is LookupPhase.RESOLVED):
                    self.forced.add((tenant, k, probe.generation))
        for (req_id, k), said in self._said.items():
            if k in keys and tenant_of(req_id) in tenants:
                said.marked_hit |= hit
                said.marked_miss |= not hit

    def _explain(self, reply: bool | None, req_id: str, k: OffloadKey) -> None:
        entry = self.manager.snapshot().entries.get((tenant_of(req_id), k))
        said = laws.Said(reply, entry)
        limit = self.oracle.deadline
        overdue = (
            limit is not None and entry is not None and self.runtime.time - entry.born >= limit
        )
        before = self._said.get((req_id, k)) if self.ageless else None
        laws.reply_is_explained(
            said, req_id, overdue=overdue, closed=self.oracle.closed, before=before
        )
        if entry is not None and req_id in entry.waiters:
            self._said[req_id, k] = said
        else:  # after shutdown a lookup holds nothing
            self._said.pop((req_id, k), None)

    def _compare_transitions(self, seen: list[Transition], trail: list[Step]) -> None:
        for transition in seen:
            self._seq += 1
            assert transition.seq == self._seq
            assert self._time <= transition.time <= self.runtime.time
            self._time = transition.time
        found = [t for t in seen if not _is_refusal(t)]
        found.sort(key=lambda t: repr((t.scope, t.key)))
        expected = [step for step in trail if step.told and not _is_refusal(step)]
        expected.sort(key=lambda step: repr(step.place))
        assert [
            (t.scope, t.key, t.generation, t.source, t.trigger, t.outcome, t.target) for t in found
        ] == [(*s.place, s.generation, s.source, s.trigger, s.outcome, s.target) for s in expected]
        assert [t.waiters for t in found if t.trigger is not Trigger.ANSWER] == [
            s.waiters for s in expected if s.trigger is not Trigger.ANSWER
        ]

    def _check_counts(self) -> None:
        counts = self.manager.counts
        assert {name: getattr(counts, name) for name in COUNTED} == {
            name: self.oracle.counts[name] for name in COUNTED
        }
        ended = counts.resolved + counts.abandoned + counts.closed
        assert counts.issued == ended + self.oracle.open

    def _facts(self, history: bool) -> laws.Facts:
        worker, table = self.manager.worker, self.manager._table
        answers: list[tuple[laws.Asking, bool | None]] = []
        for reply in worker.taken if history else []:
            said: list[Any] = reply.verdicts or [None] * len(reply.question.keys)
            answers += zip(laws.askings(reply.question), said, strict=True)
        return laws.Facts(
            snapshot=self.manager.snapshot(),
            waiters={
                (scope, k): entry.waiters
                for scope, entries in table._entries.items()
                for k, entry in entries.items()
            },
            out=self.manager.out,
            posted=worker.posted,
            calls=self.manager.calls,
            answers=answers,
            forced=self.forced,
            flagged=self.oracle.closed,
            swept=self._swept,
        )


# -- at random -------------------------------------------------------------------------------

LIMITS: tuple[dict[str, float], ...] = (
    {},
    {"deadline": 2.5},
    {"verdict_lifetime": 4.5},
    {"deadline": 2.5, "verdict_lifetime": 4.5},
)
"""The clock moves in whole seconds, so nothing ever happens on the dot."""


def some_how(rng: random.Random) -> How:
    return rng.choice(tuple(BAD_ANSWERS)) if rng.random() < 0.3 else rng.getrandbits(len(KEYS))


class _Walk:
    """Moves drawn with a seed."""

    def __init__(self, twin: LookupTwin, rng: random.Random) -> None:
        self.twin, self.rng = twin, rng

    def ask(self) -> None:
        self.twin.lookup(self.rng.choice(REQ_IDS), self.rng.choice(KEYS))

    def poll(self) -> None:
        """Somebody who waits asks again; rather one who is excused, if there is one."""
        probes = self.twin.oracle.probes.items()
        waiting = [(req_id, k) for (_, k), probe in probes for req_id in sorted(probe.waiters)]
        excused = [(req_id, k) for (_, k), probe in probes for req_id in sorted(probe.excused)]
        if waiting:
            self.twin.lookup(*self.rng.choice(excused or waiting))

    def press(self) -> None:
        """Somebody new asks what failed or grows old."""
        for (tenant, k), probe in list(self.twin.oracle.probes.items()):
            if probe.error or self.twin.oracle._aged(probe, self.twin.runtime.time):
                self._ask_anew(tenant, k)
        if self.rng.random() < 0.5:
            self.twin.flush()
        self.poll()

    def take_over(self) -> None:
        """All who wait for an answer leave, it comes, and somebody asks before the flush."""
        for probe in list(self.twin.oracle.probes.values()):
            if probe.phase is LookupPhase.IN_FLIGHT:
                for req_id in sorted(probe.waiters):
                    self.twin.cleanup(req_id)
                break
        self.work()
        self.twin.drain()
        for tenant, k in sorted(self.twin.oracle.unclaimed, key=repr):
            self._ask_anew(tenant, k)

    def _ask_anew(self, tenant: Hashable, k: OffloadKey) -> None:
        self.twin.lookup(self.rng.choice([r for r in REQ_IDS if tenant_of(r) == tenant]), k)

    def work(self) -> None:
        if self.twin.questions_wait:
            self.twin.work(some_how(self.rng))

    def forge(self) -> None:
        """An older generation's answer, or one that nobody waits for (any more, or yet)."""
        tenant, k, rng = self.rng.choice(TENANTS), self.rng.choice(KEYS), self.rng
        probe = self.twin.oracle.probes.get((tenant, k))
        generation = 0
        if probe is not None:
            own = probe.phase is not LookupPhase.IN_FLIGHT and rng.random() < 0.75
            generation = probe.generation - (0 if own else rng.randint(1, 3))
        self.twin.inject(tenant, {k: generation}, rng.choice((True, False, None)))

    def mark_miss(self) -> None:
        keys = self.rng.sample(KEYS, self.rng.randint(1, 2))
        self.twin.mark_miss(keys, self.rng.choice((*TENANTS, None)))

    def mark_hit(self) -> None:
        keys = self.rng.sample(KEYS, self.rng.randint(1, 2))
        self.twin.mark_hit(keys, self.rng.choice(TENANTS))

    def cleanup(self) -> None:
        self.twin.cleanup(self.rng.choice(REQ_IDS))

    def advance(self) -> None:
        self.twin.advance(self.rng.choice((1.0, 2.0, 5.0)))

    def shutdown(self) -> None:
        in_time = [some_how(self.rng) for _ in range(self.rng.randint(0, 1))]
        hung = some_how(self.rng) if self.rng.random() < 0.7 else None
        # A call that has begun needs a thread: rather seldom.
        self.twin.shutdown(in_time, hung, begun=self.rng.random() < 0.2)

    @property
    def moves(self) -> list[Callable[[], None]]:
        """The worker is quick in one life and slow in the next."""
        return [
            *[self.ask] * 8,
            *[self.poll] * 4,
            *[self.press] * 4,
            *[self.work] * self.rng.randint(1, 6),
            *[self.twin.flush] * 4,
            *[self.cleanup] * 4,
            *[self.advance] * 3,
            self.take_over,
            *[self.forge] * 3,
            *[self.mark_hit] * 2,
            self.mark_miss,
            self.twin.drain,
        ]


def _live(walk: _Walk, length: int, glance: int) -> None:
    """From a new manager to an empty one, half of the times through a shutdown in mid-flight."""
    twin, rng, moves = walk.twin, walk.rng, walk.moves
    for number in range(length):
        rng.choice(moves)()
        if number % glance:
            twin.check_transitions()
        else:
            twin.check(history=False)
    if rng.random() < 0.8:
        walk.shutdown()
        twin.check()
        for _ in range(5):
            rng.choice(moves)()
            twin.check()
    twin.wind_down()


def random_run(
    seed: int,
    operations: int,
    *,
    table: Callable[..., LookupTable] = LookupTable,
    glance: int = 1,
) -> Fired:
    """`operations` calls on short-lived managers with settings of their own; how rows fired.

    Each call's reply and transitions are checked, the whole table at every `glance`
    calls and at each life's end.
    """
    rng = random.Random(seed)
    fired: Fired = Counter()
    with quiet():
        while operations > 0:
            limits = rng.choice(LIMITS)
            twin = LookupTwin(
                table=table,
                watched=rng.random() < 0.7,
                max_batches_out=rng.randint(1, 3),
                **limits,
            )
            length = min(operations, rng.randint(20, 100))
            _live(_Walk(twin, rng), length, glance)
            operations -= length
            fired += twin.fired
    return fired
