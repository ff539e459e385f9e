"""The primary tier against a model of it that is all plain lists and no counters.

The model knows each filling of each slot and what keeps it. It predicts, call by
call, what is stored, who is evicted and what finds no room; only which free slot
and which write id are the primary's own choice, and these it checks. The bytes
are real: each writer signs its slot, and nobody else may ever write there while
the filling lives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.results import LookupResult
from kvtier.tiers.base import LoadStoreSpec
from kvtier.tiers.host import CPUOffloadingManager
from tests.support.arc_paper import BarredARC, without

A = ReqContext("a")
KEYS = [OffloadKey(bytes([number])) for number in range(10)]
BLOCK_BYTES = 8

some_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True)
one_key = st.sampled_from(KEYS)
picks = st.integers(0, 2**10 - 1)
req_ids = st.sampled_from(["r1", "r2", "r3"])

T = TypeVar("T")


class Order(Protocol):
    c: int

    def touch(self, x: OffloadKey) -> None: ...
    def remove(self, x: OffloadKey) -> None: ...
    def admit(
        self, x: OffloadKey, evictable: Callable[[OffloadKey], bool]
    ) -> tuple[bool, OffloadKey | None]: ...


class ListLRU:
    def __init__(self, c: int) -> None:
        self.c = c
        self.order: list[OffloadKey] = []

    def touch(self, x: OffloadKey) -> None:
        if x in self.order:
            self.order = [*without(self.order, x), x]

    def remove(self, x: OffloadKey) -> None:
        self.order = without(self.order, x)

    def admit(
        self, x: OffloadKey, evictable: Callable[[OffloadKey], bool]
    ) -> tuple[bool, OffloadKey | None]:
        victim = None
        if len(self.order) == self.c:
            may_leave = [key for key in self.order if evictable(key)]
            if not may_leave:
                return False, None
            victim = may_leave[0]
            self.remove(victim)
        self.order.append(x)
        return True, victim


@dataclass(eq=False)
class Filling:
    """One filling of one slot, from the start of its write until the slot is free."""

    key: OffloadKey
    since_step: int
    slot: int = -1
    write_id: int = -1
    writing: bool = True
    readers: int = 0
    pinned: bool = False
    waiters: list[str] = field(default_factory=list)

    @property
    def may_leave(self) -> bool:
        return not (self.writing or self.readers or self.pinned or self.waiters)


def spec_of(fillings: list[Filling]) -> LoadStoreSpec:
    return LoadStoreSpec(
        tuple(f.key for f in fillings),
        tuple(f.slot for f in fillings),
        tuple(f.write_id for f in fillings),
    )


def distinct(fillings: list[Filling]) -> list[Filling]:
    """The first of each key: after a reset one key may have two fillings."""
    return list({f.key: f for f in reversed(fillings)}.values())


def one_of(items: list[T], pick: int) -> T:
    return items[pick % len(items)]


def some_of(items: list[T], pick: int) -> list[T]:
    """At least one, the last first: the bits of `pick` say which."""
    return [f for i, f in enumerate(items) if pick >> i & 1][::-1] or [one_of(items, pick)]


class HostMachine(RuleBasedStateMachine):
    policy: str
    order_of: Callable[[int], Order]

    @initialize(cap=st.integers(1, 5))
    def build(self, cap: int) -> None:
        self.cap, self.step, self.last_write_id = cap, 0, 0
        self.host = CPUOffloadingManager(cap, BLOCK_BYTES, self.policy)
        self.order = type(self).order_of(cap)
        self.present: dict[OffloadKey, Filling] = {}
        self.dropped: list[Filling] = []
        self.past: list[Filling] = []

    # The model's own reading of its state

    @property
    def fillings(self) -> list[Filling]:
        return [*self.present.values(), *self.dropped]

    def written(self) -> list[Filling]:
        return [f for f in self.fillings if f.writing]

    def ready(self) -> list[Filling]:
        return [f for f in self.present.values() if not f.writing]

    def unread(self) -> list[Filling]:
        return [f for f in [*self.past, *self.fillings] if not f.readers]

    def end_if_dropped(self, filling: Filling) -> None:
        if filling in self.dropped and not filling.writing and not filling.readers:
            self.dropped.remove(filling)
            self.past.append(filling)
            self.order.c += 1

    # Stores

    @rule(keys=some_keys, at_once=st.sampled_from([True, True, False]))
    def store(self, keys: list[OffloadKey], at_once: bool) -> None:
        begun, evicted, no_room = [], [], []
        front: set[OffloadKey] = set()
        for key in keys:
            if key in self.present:
                front.add(key)
                continue
            room, victim = self.order.admit(
                key, lambda other: other not in front and self.present[other].may_leave
            )
            if not room:
                no_room.append(key)
                continue
            if victim is not None:
                evicted.append(victim)
                self.past.append(self.present.pop(victim))
            self.present[key] = Filling(key, self.step)
            begun.append(self.present[key])

        output = self.host.prepare_store(keys, A)
        spec = output.store_spec
        assert spec.keys == tuple(f.key for f in begun)
        assert output.evicted_keys == tuple(evicted)
        assert output.no_room == tuple(no_room)
        assert len(spec.slots) == len(spec.write_ids) == len(spec.keys)
        taken = {f.slot for f in self.fillings}
        for filling, slot, write_id in zip(begun, spec.slots, spec.write_ids, strict=True):
            assert 0 <= slot < self.cap
            assert slot not in taken, "somebody reads or writes there"
            assert write_id > self.last_write_id
            taken.add(slot)
            filling.slot, filling.write_id, self.last_write_id = slot, write_id, write_id
            self.host.view.slot(slot)[:] = write_id.to_bytes(BLOCK_BYTES, "big")
        if at_once:
            self.end(begun, success=True)

    @precondition(lambda self: self.written())
    @rule(pick=picks, success=st.booleans())
    def end_writes(self, pick: int, success: bool) -> None:
        self.end(distinct(some_of(self.written(), pick)), success)

    def end(self, ending: list[Filling], success: bool) -> None:
        self.host.complete_store(spec_of(ending), A, success)
        for filling in ending:
            filling.writing = False
            if filling in self.dropped:
                self.end_if_dropped(filling)
            elif not success:
                self.past.append(self.present.pop(filling.key))
                self.order.remove(filling.key)

    # Reads

    @precondition(lambda self: self.ready())
    @rule(pick=picks)
    def read(self, pick: int) -> None:
        reading = some_of(self.ready(), pick)
        assert self.host.prepare_load([f.key for f in reading], A) == spec_of(reading)
        for filling in reading:
            filling.readers += 1

    @precondition(lambda self: any(f.readers for f in self.fillings))
    @rule(pick=picks)
    def end_reads(self, pick: int) -> None:
        read = [f for f in self.fillings if f.readers]
        ending = distinct(some_of(read, pick))
        self.host.complete_load(spec_of(ending), A)
        for filling in ending:
            filling.readers -= 1
            self.end_if_dropped(filling)

    @rule(keys=some_keys)
    def touch(self, keys: list[OffloadKey]) -> None:
        self.host.touch(keys, A)
        for key in reversed(keys):
            self.order.touch(key)

    @precondition(lambda self: self.ready())
    @rule(pick=picks)
    def touch_what_is_here(self, pick: int) -> None:
        self.touch([f.key for f in some_of(self.ready(), pick)])

    # Pins, waiters, steps, resets

    @precondition(lambda self: self.ready())
    @rule(pick=picks)
    def pin(self, pick: int) -> None:
        filling = one_of(self.ready(), pick)
        self.host.pin(filling.key)
        filling.pinned = True

    @precondition(lambda self: self.present)
    @rule(pick=picks, req_id=req_ids)
    def wait(self, pick: int, req_id: str) -> None:
        key = one_of(list(self.present), pick)
        self.host.wait(key, req_id)
        if req_id not in self.present[key].waiters:
            self.present[key].waiters.append(req_id)

    @rule(key=one_key, req_id=req_ids)
    def unwait(self, key: OffloadKey, req_id: str) -> None:
        self.host.unwait(key, req_id)
        if key in self.present and req_id in self.present[key].waiters:
            self.present[key].waiters.remove(req_id)

    @rule(calm=st.booleans())
    def end_step(self, calm: bool) -> None:
        """The step ends; after a calm one nobody reads or waits any more."""
        if calm:
            self.end_reads_and_waits()
        self.host.on_schedule_end()
        self.step += 1
        for filling in self.fillings:
            filling.pinned = False

    def end_reads_and_waits(self) -> None:
        for filling in self.fillings:
            while filling.readers:
                self.host.complete_load(spec_of([filling]), A)
                filling.readers -= 1
                self.end_if_dropped(filling)
            while filling.waiters:
                self.host.unwait(filling.key, filling.waiters.pop())

    @rule(sure=st.sampled_from([False, False, True]))
    def reset(self, sure: bool) -> None:
        if not sure:
            return
        self.host.reset_cache()
        for filling in self.present.values():
            in_use = filling.writing or filling.readers
            (self.dropped if in_use else self.past).append(filling)
        self.present.clear()
        self.order = type(self).order_of(self.cap - len(self.dropped))

    # What must be refused. That nothing changed is what the invariants then see.

    @precondition(lambda self: self.past or self.ready())
    @rule(pick=picks, success=st.booleans())
    def end_a_write_that_ended(self, pick: int, success: bool) -> None:
        stale = one_of([*self.past, *self.ready()], pick)
        good = [f for f in self.written() if f.key != stale.key]
        for spec in (spec_of([stale]), spec_of(distinct([*good, stale]))):
            with pytest.raises(UsageError):
                self.host.complete_store(spec, A, success)

    @precondition(lambda self: self.unread())
    @rule(pick=picks)
    def end_a_read_that_is_not_there(self, pick: int) -> None:
        stale = one_of(self.unread(), pick)
        good = [f for f in self.fillings if f.readers and f.key != stale.key]
        for spec in (spec_of([stale]), spec_of(distinct([*good, stale]))):
            with pytest.raises(UsageError):
                self.host.complete_load(spec, A)

    @rule(key=one_key)
    def use_what_is_not_readable(self, key: OffloadKey) -> None:
        filling = self.present.get(key)
        if filling is not None and not filling.writing:
            return
        good = [f.key for f in self.ready()]
        with pytest.raises(UsageError):
            self.host.prepare_load([*good, key], A)
        with pytest.raises(UsageError):
            self.host.pin(key)
        if filling is None:
            with pytest.raises(UsageError):
                self.host.wait(key, "r1")

    @rule(keys=some_keys)
    def give_a_key_twice(self, keys: list[OffloadKey]) -> None:
        for call in (self.host.prepare_load, self.host.prepare_store, self.host.touch):
            with pytest.raises(UsageError):
                call([*keys, keys[0]], A)

    # What must always hold

    @invariant()
    def every_block_is_as_the_model_says(self) -> None:
        for key in KEYS:
            block, filling = self.host.block(key), self.present.get(key)
            if filling is None:
                assert block is None
                assert self.host.lookup(key, A) is LookupResult.MISS
                continue
            assert block is not None
            assert (block.slot, block.write_id) == (filling.slot, filling.write_id)
            assert block.written_since_step == filling.since_step
            assert block.ready is not filling.writing
            assert block.ref_count == filling.readers
            assert block.step_pinned is filling.pinned
            assert list(block.waiters) == filling.waiters
            pending, hit = LookupResult.HIT_PENDING, LookupResult.HIT
            assert self.host.lookup(key, A) is (pending if filling.writing else hit)

    @invariant()
    def counts_are_the_models(self) -> None:
        host, present = self.host, list(self.present.values())
        free = self.cap - len(self.fillings)
        assert host.available == free + sum(f.may_leave for f in present)
        assert host.awaited == sum(bool(f.waiters) for f in present)
        assert host.references == sum(f.readers for f in self.fillings)
        assert host.holding == len(self.dropped)
        assert len(host) == len(present)
        assert host.step == self.step

    @invariant()
    def every_filling_still_has_its_own_bytes(self) -> None:
        slots = [f.slot for f in self.fillings]
        assert len(set(slots)) == len(slots) <= self.cap
        for f in self.fillings:
            assert int.from_bytes(self.host.view.slot(f.slot), "big") == f.write_id

    def teardown(self) -> None:
        """Whatever happened, when everything has ended all slots can be had again."""
        if not hasattr(self, "host"):
            return
        for filling in self.written():
            self.end([filling], success=True)
        self.end_reads_and_waits()
        self.host.on_schedule_end()
        counts = (self.host.available, self.host.awaited, self.host.references, self.host.holding)
        assert counts == (self.cap, 0, 0, 0)
        fresh = [OffloadKey(bytes([100 + number])) for number in range(self.cap)]
        assert self.host.prepare_store(fresh, A).no_room == ()


class LRUMachine(HostMachine):
    policy, order_of = "lru", ListLRU


class ARCMachine(HostMachine):
    policy, order_of = "arc", BarredARC


BOTH = pytest.mark.parametrize("machine", [LRUMachine, ARCMachine])


@BOTH
def test_the_primary_does_what_its_model_does(machine):
    run_state_machine_as_test(
        machine, settings=settings(max_examples=100, stateful_step_count=50, deadline=None)
    )


@BOTH
@pytest.mark.parametrize("cap", [2, 4, 6])
def test_the_primary_does_what_its_model_does_on_a_long_walk(machine, cap):
    """Far from the start, where ARC has ghosts of both kinds and slots have had many owners."""
    rng = random.Random(cap)
    m = machine()
    m.build(cap)

    def keys() -> list[OffloadKey]:
        return rng.sample(KEYS, rng.randint(1, 4))

    def pick() -> int:
        return rng.getrandbits(10)

    def req_id() -> str:
        return rng.choice(["r1", "r2", "r3"])

    moves: list[tuple[int, Callable[[], object], Callable[[], object]]] = [
        (30, lambda: True, lambda: m.store(keys(), rng.random() < 0.7)),
        (8, m.written, lambda: m.end_writes(pick(), rng.random() < 0.7)),
        (8, m.ready, lambda: m.read(pick())),
        (8, lambda: m.host.references, lambda: m.end_reads(pick())),
        (5, lambda: True, lambda: m.touch(keys())),
        (12, m.ready, lambda: m.touch_what_is_here(pick())),
        (5, m.ready, lambda: m.pin(pick())),
        (4, lambda: m.present, lambda: m.wait(pick(), req_id())),
        (4, lambda: True, lambda: m.unwait(rng.choice(KEYS), req_id())),
        (8, lambda: True, lambda: m.end_step(rng.random() < 0.5)),
        (1, lambda: rng.random() < 0.1, lambda: m.reset(True)),
        (2, lambda: m.past, lambda: m.end_a_write_that_ended(pick(), True)),
        (2, m.unread, lambda: m.end_a_read_that_is_not_there(pick())),
        (2, lambda: True, lambda: m.use_what_is_not_readable(rng.choice(KEYS))),
    ]
    weights = [weight for weight, _, _ in moves]
    for _ in range(2_000):
        _, possible, move = rng.choices(moves, weights)[0]
        if possible():
            move()
        m.every_block_is_as_the_model_says()
        m.counts_are_the_models()
        m.every_filling_still_has_its_own_bytes()
    m.teardown()
