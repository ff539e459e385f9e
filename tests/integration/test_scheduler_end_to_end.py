"""Scheduler, manager, tiers and probes together, with real bytes, against independent counts."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import shake_128

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.keys import ROOT_HASH, OffloadKey, hash_block
from kvtier.request import ReqContext
from kvtier.results import MissReason
from kvtier.runtime import Runtime, ThreadRuntime, VirtualRuntime
from kvtier.scans import KVGroup
from kvtier.scheduler import Request, Scheduler
from kvtier.tiering import DeferReason, TieringOffloadingManager
from kvtier.tiers.base import LoadStoreSpec, PrimaryView
from kvtier.tiers.host import CPUOffloadingManager
from kvtier.tiers.memory import MemoryStore
from kvtier.tiers.store import StoreTier

BLOCK = 32
"""Bytes in a block of these tests."""

Hashes = tuple[bytes, ...]


class BytesEngine:
    """Stores for each key bytes that only this key has, and insists on reading them back."""

    def __init__(self, view: PrimaryView, rng: random.Random | None = None) -> None:
        self._view = view
        self._rng = rng
        self.loaded = 0

    def load(self, request: Request, spec: LoadStoreSpec) -> None:
        for key, slot in zip(spec.keys, spec.slots, strict=True):
            assert self._view.slot(slot) == self._bytes(key)
        self.loaded += len(spec)

    def compute(self, request: Request) -> bool | None:
        return False if self._rng is not None and self._rng.random() < 0.2 else None

    def store(self, request: Request, spec: LoadStoreSpec) -> bool:
        for key, slot in zip(spec.keys, spec.slots, strict=True):
            self._view.slot(slot)[:] = self._bytes(key)
        return self._rng is None or self._rng.random() < 0.9

    def _bytes(self, key: OffloadKey) -> bytes:
        return shake_128(key).digest(BLOCK)


@dataclass
class Stack:
    """Everything, over `tiers` memory tiers that keep all they are given."""

    slots: int
    runtime: Runtime = field(default_factory=VirtualRuntime)
    windows: Sequence[int | None] = (None,)
    tiers: int = 1
    max_num_seqs: int = 1
    rng: random.Random | None = None
    headroom: int | None = None

    def __post_init__(self) -> None:
        self.primary = CPUOffloadingManager(self.slots, BLOCK)
        self.stores = [MemoryStore() for _ in range(self.tiers)]
        self.secondaries = [
            StoreTier(
                store,
                self.primary.view,
                tier_type="memory",
                label=f"{number}:memory",
                runtime=self.runtime,
            )
            for number, store in enumerate(self.stores, 1)
        ]
        self.manager = TieringOffloadingManager(
            self.primary, self.secondaries, runtime=self.runtime, headroom=self.headroom
        )
        self.engine = BytesEngine(self.primary.view, self.rng)
        self.scheduler = Scheduler(
            self.manager,
            [KVGroup(index, window) for index, window in enumerate(self.windows)],
            self.engine,
            max_num_seqs=self.max_num_seqs,
            runtime=self.runtime,
        )
        self.added = 0

    def add(self, prompt: Hashes) -> str:
        """Queue a request and return its id."""
        req_id = f"r{self.added}"
        self.added += 1
        self.scheduler.add(Request(ReqContext(req_id), prompt))
        return req_id

    def run(self, *prompts: Hashes) -> None:
        """Run these prompts together, to the end."""
        for prompt in prompts:
            self.add(prompt)
        self.settle()

    def step_and_answer(self) -> None:
        """One step, and every answer to it before the next."""
        self.scheduler.step()
        while self.runtime.wait(0.0):
            pass

    def settle(self) -> None:
        """Let everything end, and find everything empty and every block counted."""
        assert self.scheduler.run_until_idle(timeout=30.0)
        assert set(self.manager.table_sizes().values()) == {0}
        assert self.manager.open_promotions == self.manager.open_stores == 0
        assert not self.manager.has_pending_work()
        assert self.primary.available == self.slots
        assert self.primary.awaited == self.primary.references == 0
        assert not any(tier.lookups.snapshot().entries for tier in self.secondaries)
        counts = self.scheduler.counts
        assert counts.blocks == sum(counts.hits.values()) + sum(counts.misses.values())
        assert counts.deferrals == self.manager.counts.deferrals

    def forget_primary(self) -> None:
        """Leave the blocks to the slower tiers alone."""
        assert self.manager.reset_cache()

    def hits(self) -> dict[str, int]:
        return {label: n for label, n in self.scheduler.counts.hits.items() if n}

    def misses(self) -> dict[MissReason, int]:
        return {reason: n for reason, n in self.scheduler.counts.misses.items() if n}


def chain(length: int, *names: object) -> Hashes:
    """A prompt of `length` blocks; equal names, equal prompt."""
    hashes: list[bytes] = []
    for index in range(length):
        parent = hashes[-1] if hashes else ROOT_HASH
        hashes.append(hash_block(parent, repr((*names, index)).encode()))
    return tuple(hashes)


class Conversations:
    """Multi-turn prompts: each turn is what its conversation said before, and some more.

    A turn may take back the end of what was said. Conversations begin with the
    same two blocks. One that would get longer than `longest` begins anew.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._said: dict[int, Hashes] = {}
        self._turns = 0

    def turn(self, conversation: int, more: int, back: int = 0) -> Hashes:
        self._turns += 1
        said = self._said.get(conversation) or chain(2, "system")
        said = said[: max(2, len(said) - back)]
        if len(said) + more > self._longest:
            said = chain(2, "system")
        for index in range(more):
            said += (hash_block(said[-1], b"%d %d" % (self._turns, index)),)
        self._said[conversation] = said
        return said


def expected_hits(
    prompts: Sequence[Hashes], windows: Sequence[int | None], slots: int
) -> dict[str, int]:
    """Reused blocks of each tier, by counting, for one request at a time.

    A block that was ever computed is in the slower tier, so the hit is as long as
    the known part of the prompt. What its groups need of it comes from the
    primary if it is among the `slots` blocks that were used last; else it is
    brought there, in place of the least recently used block that is not needed.
    """
    lru: OrderedDict[tuple[bytes, int], None] = OrderedDict()
    known: set[bytes] = set()
    hits: Counter[str] = Counter()

    def use(place: tuple[bytes, int], keep: set[tuple[bytes, int]]) -> None:
        if place not in lru and len(lru) == slots:
            del lru[next(old for old in lru if old not in keep)]
        lru[place] = None
        lru.move_to_end(place)

    for prompt in prompts:
        end = next((i for i, block in enumerate(prompt) if block not in known), len(prompt))
        need = [
            (prompt[chunk], group)
            for chunk in range(end)
            for group, window in enumerate(windows)
            if window is None or chunk >= end - window
        ]
        brought = [place for place in need if place not in lru]
        hits["1:memory"] += len({block for block, _ in brought})
        hits["0:primary"] += end - len({block for block, _ in brought})
        for place in brought:
            use(place, set(need))
        for place in reversed(need):
            use(place, set())
        for block in prompt[end:]:
            for group in range(len(windows)):
                use((block, group), set(need))
        known.update(prompt)
    return +hits


# One request at a time


def check_counts(prompts: Sequence[Hashes], windows: Sequence[int | None], stack: Stack) -> None:
    known: set[bytes] = set()
    reused = 0
    for prompt in prompts:
        stack.run(prompt)
        reused += sum(block in known for block in prompt)
        known.update(prompt)
    assert sum(stack.hits().values()) == reused
    assert stack.hits() == expected_hits(prompts, windows, stack.slots)
    assert set(stack.misses()) <= {MissReason.ABSENT, MissReason.BEYOND}


turns = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 0, 0, 1, 4])),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60)
@given(turns, st.integers(0, 6), st.integers(0, 99))
def test_hits_and_their_tiers_are_what_an_independent_count_says(said, spare, seed):
    conversations = Conversations(8)
    prompts = [conversations.turn(*turn) for turn in said]
    check_counts(prompts, [None], Stack(9 + spare, VirtualRuntime(seed)))


@settings(max_examples=40)
@given(turns, st.sampled_from([(None, 2), (1,), (3, None), (2, 1)]), st.integers(0, 6))
def test_hits_and_their_tiers_with_window_groups(said, windows, spare):
    conversations = Conversations(8)
    prompts = [conversations.turn(*turn) for turn in said]
    check_counts(prompts, windows, Stack(17 + spare, windows=windows))


@pytest.mark.parametrize("seed", range(6))
def test_hits_and_their_tiers_over_longer_runs(seed):
    rng = random.Random(seed)
    conversations = Conversations(24)
    prompts = [
        conversations.turn(rng.randrange(8), rng.randint(0, 5), rng.choice([0, 0, 0, 2, 9]))
        for _ in range(120)
    ]
    slots = rng.randint(25, 90)
    stack = Stack(slots, VirtualRuntime(seed))
    check_counts(prompts, [None], stack)
    assert set(stack.hits()) == {"0:primary", "1:memory"}


def test_hits_and_their_tiers_on_real_threads():
    rng = random.Random(1)
    conversations = Conversations(12)
    prompts = [conversations.turn(rng.randrange(5), rng.randint(1, 4)) for _ in range(40)]
    stack = Stack(16, ThreadRuntime())
    check_counts(prompts, [None], stack)
    stack.manager.shutdown()


def test_the_first_tier_that_has_a_block_is_its_source():
    stack = Stack(8, tiers=2)
    prompt = chain(4, "a")
    stack.run(prompt)
    stack.forget_primary()
    frames = stack.stores[0].frames
    del frames[max(frames)]
    stack.add(prompt)
    stack.step_and_answer()
    stack.settle()
    assert stack.hits() == {"1:memory": 3, "2:memory": 1}


# Little room


def stack_that_knows(prompts: Sequence[Hashes], slots: int, max_num_seqs: int = 1) -> Stack:
    """A stack whose slower tier has these prompts whole, and whose primary is empty."""
    writer = Stack(64)
    for prompt in prompts:
        writer.run(prompt)
    stack = Stack(slots, max_num_seqs=max_num_seqs)
    stack.stores[0].frames.update(writer.stores[0].frames)
    return stack


def test_f21_a_prefix_longer_than_the_primary_resolves_as_far_as_there_is_room():
    prompt = chain(5, "long")
    stack = stack_that_knows([prompt], slots=4)
    stack.run(prompt)
    # Room for 4 - 1: one slot is kept free of blocks that are waited for.
    assert stack.hits() == {"1:memory": 3}
    assert stack.misses() == {MissReason.NO_ROOM: 2}
    assert stack.manager.counts.promotions.submitted == 1
    assert stack.scheduler.counts.steps < 30


def test_f21_two_requests_of_three_blocks_and_four_slots():
    prompts = [chain(3, "a"), chain(3, "b")]
    stack = stack_that_knows(prompts, slots=4, max_num_seqs=2)
    for prompt in prompts:
        stack.add(prompt)
    stack.step_and_answer()
    stack.settle()
    # The first takes all the room there is for waiting; the second starts with what is left.
    assert stack.hits() == {"1:memory": 3}
    assert stack.misses() == {MissReason.NO_ROOM: 3}
    assert stack.scheduler.counts.steps < 30


@pytest.mark.parametrize("length", range(1, 7))
@pytest.mark.parametrize("requests", [2, 3, 5])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_f21_requests_that_want_more_than_there_is_room_for_all_end(slots, requests, length):
    prompts = [chain(length, number) for number in range(requests)]
    stack = stack_that_knows(prompts, slots, max_num_seqs=requests)
    stack.run(*prompts)
    assert stack.scheduler.counts.steps < 30 * requests
    assert stack.manager.counts.promotions.submitted <= requests * length
    assert sum(stack.hits().values()) > 0


def test_requests_for_the_same_blocks_share_one_load():
    stack = Stack(8, max_num_seqs=3)
    prompt = chain(4, "shared")
    stack.run(prompt)
    stack.forget_primary()
    stack.run(prompt, prompt, prompt)
    assert stack.hits() == {"1:memory": 12}
    assert stack.manager.counts.promotions.submitted == 1
    assert stack.secondaries[0].lookups.counts.issued == 8  # 4 when they were new, 4 shared


def test_a_request_behind_a_waiting_one_asks_its_questions_in_the_same_step():
    stack = Stack(8, max_num_seqs=2)
    stack.add(chain(2, "a"))
    stack.add(chain(2, "b"))
    stack.scheduler.step()
    assert stack.secondaries[0].lookups.counts.issued == 4
    stack.settle()


# Ending early, and hostile runs


def step_until(stack: Stack, reason: DeferReason) -> None:
    for _ in range(50):
        before = stack.scheduler.counts.deferrals[reason]
        stack.scheduler.step()
        if stack.scheduler.counts.deferrals[reason] > before:
            return
        stack.runtime.wait(0.01)
    raise AssertionError(f"never deferred for a {reason}")


@pytest.mark.parametrize("end", ["abort", "preempt"])
@pytest.mark.parametrize("reason", [None, DeferReason.PROBE, DeferReason.PROMOTION])
@pytest.mark.parametrize("others", [0, 1])
def test_f33_a_request_that_ends_in_any_phase_leaves_nothing_behind(end, reason, others):
    stack = Stack(8, max_num_seqs=2)
    prompt = chain(4, "a")
    stack.run(prompt)
    stack.forget_primary()
    req_id = stack.add(prompt)
    for _ in range(others):
        stack.add(prompt)
    if reason is not None:
        step_until(stack, reason)
    assert getattr(stack.scheduler, end)(req_id) == (end == "abort" or reason is not None)
    stack.settle()
    ended = 4 if end == "abort" else 0
    assert stack.misses().get(MissReason.ABORTED, 0) == ended
    assert sum(stack.hits().values()) == 4 * (1 + others) - ended


def hostile(seed: int) -> tuple[Stack, Counter[str]]:
    """Many requests in little room, with aborts, preemptions, failing stores, lost frames."""
    rng = random.Random(seed)
    windows = rng.choice([(None,), (None, 2), (1,), (3, None, 1)])
    stack = Stack(
        rng.randint(2, 14),
        VirtualRuntime(seed),
        windows=windows,
        tiers=rng.randint(1, 2),
        max_num_seqs=rng.randint(1, 5),
        rng=rng,
    )
    conversations = Conversations(9)
    live: list[str] = []
    did: Counter[str] = Counter()
    for _ in range(400):
        match rng.randrange(10):
            case 0 | 1 | 2:
                live.append(stack.add(conversations.turn(rng.randrange(4), rng.randint(1, 4))))
            case 3 if rng.random() < 0.3:
                did["abort"] += any(map(stack.scheduler.abort, rng.sample(live, len(live))))
            case 4:
                did["preempt"] += any(map(stack.scheduler.preempt, rng.sample(live, len(live))))
            case 5:
                frames = rng.choice(stack.stores).frames
                if frames:
                    frames[rng.choice(list(frames))] = b"damaged"
                    did["damage"] += 1
            case 6:
                stack.runtime.wait(0.01)
            case _:
                stack.scheduler.step()
    stack.settle()
    return stack, did


@pytest.mark.parametrize("seed", range(30))
def test_hostile_runs_end_with_the_right_bytes_and_nothing_left(seed):
    stack, did = hostile(seed)
    assert min(did["abort"], did["preempt"], did["damage"]) > 0
    assert sum(stack.hits().values()) > 0


def test_the_same_seed_makes_the_same_run():
    (first, _), (second, _) = hostile(7), hostile(7)
    assert first.scheduler.counts == second.scheduler.counts
    assert first.manager.counts == second.manager.counts
    assert first.stores[0].frames == second.stores[0].frames
