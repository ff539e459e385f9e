"""LRU and ARC: against the paper by hand, against its transcription, and with barred blocks."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey
from kvtier.tiers.policies import (
    Admission,
    ARCPolicy,
    CachePolicy,
    LRUPolicy,
    RecencyList,
    make_policy,
)
from tests.support.arc_paper import BarredARC, Lists, PaperARC

BOTH = pytest.mark.parametrize("name", ["lru", "arc"])


def key(number: int) -> OffloadKey:
    return OffloadKey(number.to_bytes(4, "big"))


def named(letters: str) -> list[OffloadKey]:
    return [OffloadKey(letter.encode()) for letter in letters]


def lists(policy: ARCPolicy) -> Lists:
    return list(policy.t1), list(policy.t2), list(policy.b1), list(policy.b2), policy.p


def anyone(key: OffloadKey) -> bool:
    return True


def nobody(key: OffloadKey) -> bool:
    return False


def all_but(letters: str) -> Callable[[OffloadKey], bool]:
    return lambda key: key not in named(letters)


def request(policy: CachePolicy, x: OffloadKey) -> OffloadKey | None:
    """A request for a page, as a page cache sees it; who leaves for it."""
    if x in policy:
        policy.touch(x)
        return None
    admission = policy.admit(x, anyone)
    assert admission is not None
    return admission.victim


# ARC, by hand

# (request, T1, T2, B1, B2, p) after each request; LRU page first.
BY_HAND = {
    "ghosts of both kinds, at c = 2": (
        2,
        [
            ("a", "a", "", "", "", 0),
            ("b", "ab", "", "", "", 0),
            ("a", "b", "a", "", "", 0),  # I
            ("c", "c", "a", "b", "", 0),  # IV.B, REPLACE takes T1: 1 > p
            ("b", "c", "b", "", "a", 1),  # II, p + 1, REPLACE takes T2: 1 > 1 is false
            ("a", "", "ba", "c", "", 0),  # III, p - 1, REPLACE takes T1: 1 > 0
            ("d", "d", "a", "c", "b", 0),  # IV.B, T1 empty: REPLACE takes T2
            ("e", "e", "a", "d", "b", 0),  # IV.A, LRU of B1 goes, then d joins it
            ("e", "", "ae", "d", "b", 0),  # I
            ("f", "f", "e", "d", "a", 0),  # IV.B at 2c in all: LRU of B2 goes
        ],
    ),
    "a step of 2, and |T1| = p, at c = 3": (
        3,
        [
            ("a", "a", "", "", "", 0),
            ("b", "ab", "", "", "", 0),
            ("c", "abc", "", "", "", 0),
            ("a", "bc", "a", "", "", 0),
            ("b", "c", "ab", "", "", 0),
            ("c", "", "abc", "", "", 0),
            ("d", "d", "bc", "", "a", 0),
            ("e", "e", "bc", "d", "a", 0),
            ("e", "", "bce", "d", "a", 0),
            ("f", "f", "ce", "d", "ab", 0),
            ("d", "f", "ed", "", "abc", 2),  # II: |B2| / |B1| = 2
            ("a", "", "eda", "f", "bc", 1),  # III: |T1| = p = 1 and a is in B2, so T1 pays
        ],
    ),
    "T1 fills the cache: no ghost": (
        2,
        [
            ("a", "a", "", "", "", 0),
            ("b", "ab", "", "", "", 0),
            ("c", "bc", "", "", "", 0),  # IV.A with |T1| = c
        ],
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_arc_and_its_transcription_do_what_the_figure_does_by_hand(case):
    c, steps = BY_HAND[case]
    policy, paper = ARCPolicy(c), PaperARC(c)
    for step, (x, t1, t2, b1, b2, p) in enumerate(steps):
        request(policy, named(x)[0])
        paper.request(named(x)[0])
        expected = (named(t1), named(t2), named(b1), named(b2), p)
        assert lists(policy) == expected, step
        assert paper.state == expected, step


# ARC, against the transcription


def assert_equal_step_by_step(c: int, trace: Iterator[int] | list[int]) -> None:
    policy, paper = ARCPolicy(c), PaperARC(c)
    for step, number in enumerate(trace):
        assert request(policy, key(number)) == paper.request(key(number)), step
        assert lists(policy) == paper.state, step


@pytest.mark.parametrize(("c", "keys", "length"), [(1, 4, 7), (2, 5, 6), (3, 4, 7)])
def test_arc_is_the_paper_on_every_short_trace(c, keys, length):
    for trace in product(range(keys), repeat=length):
        assert_equal_step_by_step(c, list(trace))


@settings(max_examples=300)
@given(st.integers(1, 6).flatmap(lambda c: st.tuples(st.just(c), some_trace(3 * c))))
def test_arc_is_the_paper_on_any_trace(case):
    assert_equal_step_by_step(*case)


def some_trace(keys: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, keys), max_size=120)


def mixed_trace(seed: int, c: int, length: int) -> Iterator[int]:
    """Phases of skewed draws, loops a little larger than the cache, and scans of new pages."""
    rng = random.Random(seed)
    unseen = 10 * c
    while length > 0:
        phase = rng.choice(["skewed", "loop", "scan"])
        span = rng.randint(1, 4 * c)
        length -= span
        start = rng.randrange(3 * c)
        for i in range(span):
            if phase == "skewed":
                yield int(rng.paretovariate(0.7)) % (4 * c)
            elif phase == "loop":
                yield start + i % (c + 2)
            else:
                unseen += 1
                yield unseen


@pytest.mark.parametrize(("seed", "c"), [(1, 3), (2, 8), (3, 33), (4, 64)])
def test_arc_is_the_paper_on_long_mixed_traces(seed, c):
    visited = {"b1": 0, "b2": 0}
    policy, paper = ARCPolicy(c), PaperARC(c)
    for step, number in enumerate(mixed_trace(seed, c, 20_000)):
        visited["b1"] += key(number) in policy.b1
        visited["b2"] += key(number) in policy.b2
        assert request(policy, key(number)) == paper.request(key(number)), step
        assert lists(policy) == paper.state, step
    assert min(visited.values()) > 20, "the trace must meet ghosts of both kinds"


# ARC, with blocks that may not leave


def arc_at_2(trace: str = "abac") -> ARCPolicy:
    """T1 = c, T2 = a, B1 = b, p = 0 (fourth row of the first case by hand)."""
    policy = ARCPolicy(2)
    for x in named(trace):
        request(policy, x)
    return policy


def test_arc_takes_from_the_other_list_when_the_preferred_one_is_barred():
    policy = arc_at_2()
    (a, b, c) = named("abc")
    # b is a ghost of B1: p becomes 1 and REPLACE prefers T2, where a is barred.
    assert policy.admit(b, all_but("a")) == Admission(victim=c)
    assert lists(policy) == ([], [a, b], [c], [], 1)


@pytest.mark.parametrize("x", ["b", "d"])
def test_arc_without_room_changes_nothing(x):
    policy = arc_at_2()
    before = lists(policy)
    assert policy.admit(named(x)[0], nobody) is None
    assert lists(policy) == before
    (a, b, c) = named("abc")
    assert before == ([c], [a], [b], [], 0)


def test_arc_evicts_the_first_block_that_may_leave_and_the_others_keep_their_place():
    policy = ARCPolicy(4)
    for x in named("abcd"):
        policy.admit(x, anyone)
    (c, e) = named("ce")
    assert policy.admit(e, all_but("ab")) == Admission(victim=c)
    assert list(policy.t1) == named("abde")


def test_a_removed_block_leaves_no_ghost_and_comes_back_as_a_new_one():
    policy = arc_at_2("aab")
    (a, b, c) = named("abc")
    assert lists(policy) == ([b], [a], [], [], 0)
    policy.remove(a)
    policy.remove(b)
    assert lists(policy) == ([], [], [], [], 0)
    assert policy.admit(a, anyone) == Admission(victim=None)
    assert policy.admit(c, anyone) == Admission(victim=None)
    assert lists(policy) == ([a, c], [], [], [], 0)


def test_a_ghost_that_finds_a_free_place_moves_the_target_and_evicts_nobody():
    policy = arc_at_2()
    (a, b, c) = named("abc")
    policy.remove(a)
    assert policy.admit(b, nobody) == Admission(victim=None)
    assert lists(policy) == ([c], [b], [], [], 1)


# What a policy is asked to do, at random. A number is a key.
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "admit", "touch", "bar", "free", "remove"]),
        st.integers(0, 14),
    ),
    max_size=150,
)


class Driver:
    """Drives one policy and keeps who is barred from leaving."""

    def __init__(self, policy: CachePolicy) -> None:
        self.policy = policy
        self.barred: set[OffloadKey] = set()

    def evictable(self, x: OffloadKey) -> bool:
        return x not in self.barred

    def do(self, action: str, x: OffloadKey) -> Admission | None:
        match action:
            case "admit" if x not in self.policy:
                return self.policy.admit(x, self.evictable)
            case "touch":
                self.policy.touch(x)
            case "bar" if x in self.policy:
                self.barred.add(x)
            case "free" if x in self.barred:
                self.barred.remove(x)
                self.policy.released(x)
            case "remove" if x in self.policy:
                self.policy.remove(x)
                self.barred.discard(x)
        return None


@settings(max_examples=300)
@given(st.integers(1, 6), ACTIONS)
def test_arc_with_barred_blocks_is_its_rule(c, actions):
    policy, rule = ARCPolicy(c), BarredARC(c)
    driver = Driver(policy)
    for action, number in actions:
        x = key(number)
        present = x in policy
        admission = driver.do(action, x)
        if action == "admit" and not present:
            assert (admission is not None, admission and admission.victim) == rule.admit(
                x, driver.evictable
            )
        elif action == "touch":
            rule.touch(x)
        elif action == "remove":
            rule.remove(x)
        assert lists(policy) == rule.state
        assert len(policy.t1) + len(policy.b1) <= c
        assert len(policy) + len(policy.b1) + len(policy.b2) <= 2 * c
        assert 0 <= policy.p <= c


# LRU


class OrderedDictLRU:
    """The oracle: one ordered dictionary, walked from its old end."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.order: OrderedDict[OffloadKey, None] = OrderedDict()

    def do(self, action: str, x: OffloadKey, barred: set[OffloadKey]) -> Admission | None:
        if action == "touch" and x in self.order:
            self.order.move_to_end(x)
        if action == "remove":
            self.order.pop(x, None)
        if action != "admit" or x in self.order:
            return None
        victim = None
        if len(self.order) == self.capacity:
            victim = next((other for other in self.order if other not in barred), None)
            if victim is None:
                return None
            del self.order[victim]
        self.order[x] = None
        return Admission(victim)


@settings(max_examples=300)
@given(st.integers(1, 8), ACTIONS)
def test_lru_is_an_ordered_dictionary(capacity, actions):
    policy, oracle = LRUPolicy(capacity), OrderedDictLRU(capacity)
    driver = Driver(policy)
    for action, number in actions:
        barred = set(driver.barred)
        assert driver.do(action, key(number)) == oracle.do(action, key(number), barred)
        assert list(policy.order) == list(oracle.order)
        assert len(policy) == len(oracle.order)


# Both


@BOTH
def test_an_eviction_looks_at_each_barred_block_once_per_hold(name):
    n, looks = 1_000, 0
    policy = make_policy(name, 2 * n)
    old = [key(i) for i in range(n)]
    for x in [*old, *map(key, range(n, 2 * n))]:
        policy.admit(x, anyone)
    barred = set(old)

    def evictable(x: OffloadKey) -> bool:
        nonlocal looks
        looks += 1
        return x not in barred

    victims = [policy.admit(key(i), evictable) for i in range(2 * n, 3 * n)]
    assert victims == [Admission(key(i)) for i in range(n, 2 * n)]
    # Each of the n barred blocks once, each victim once or, at a border, twice.
    assert looks <= 3 * n
    looks = 0
    for x in reversed(old):
        barred.remove(x)
        policy.released(x)
    victims = [policy.admit(key(i), evictable) for i in range(3 * n, 4 * n)]
    assert victims == [Admission(x) for x in old], "released, they go in their old order"
    assert looks <= 2 * n


def test_a_list_does_not_grow_with_the_holds_placed_and_ended():
    order = RecencyList()
    for x in named("abc"):
        order.append(x)
    for _ in range(100):
        assert order.first(nobody) is None
        for x in named("cab"):
            order.released(x)
            order.released(x)
        order.discard(named("b")[0])
        order.append(named("b")[0])
    assert list(order) == named("acb")
    assert len(order._back_heap) <= 3


@BOTH
def test_a_block_that_is_present_is_not_admitted_again(name):
    policy = make_policy(name, 2)
    policy.admit(key(1), anyone)
    with pytest.raises(UsageError, match="present"):
        policy.admit(key(1), anyone)
    assert len(policy) == 1


@BOTH
def test_a_block_that_is_not_present_is_not_touched_or_removed(name):
    policy = make_policy(name, 1)
    policy.admit(key(1), anyone)
    policy.admit(key(2), anyone)
    policy.touch(key(1))
    policy.remove(key(1))
    policy.released(key(1))
    assert key(1) not in policy
    assert len(policy) == 1


@BOTH
def test_a_policy_of_no_place_admits_nobody_until_it_grows(name):
    policy = make_policy(name, 0)
    assert policy.admit(key(1), anyone) is None
    policy.capacity += 1
    assert policy.admit(key(1), anyone) == Admission(None)
    assert policy.admit(key(2), anyone) == Admission(key(1))


def test_a_policy_that_does_not_exist_is_refused_by_name():
    with pytest.raises(UsageError, match=r"'fifo'.*lru, arc"):
        make_policy("fifo", 1)
    with pytest.raises(UsageError, match="capacity"):
        make_policy("lru", -1)
