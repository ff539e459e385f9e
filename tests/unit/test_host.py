"""The primary tier: what each call does, and what it must refuse.

Every situation in which a slot must not be taken is varied over what holds it
(`HOLDS`) and over both policies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.results import LookupResult
from kvtier.tiers.base import LoadStoreSpec
from kvtier.tiers.host import BlockStatus, CPUOffloadingManager

A = ReqContext("a")
BOTH = pytest.mark.parametrize("policy", ["lru", "arc"])


def k(number: int) -> OffloadKey:
    return OffloadKey(number.to_bytes(4, "big"))


def ks(*numbers: int) -> list[OffloadKey]:
    return [k(number) for number in numbers]


def filled(*numbers: int, cap: int | None = None, policy: str = "lru") -> CPUOffloadingManager:
    """A primary in which these blocks are ready, stored in this order."""
    host = CPUOffloadingManager(cap or len(numbers), 8, policy)
    host.complete_store(host.prepare_store(ks(*numbers), A).store_spec, A)
    return host


def status(host: CPUOffloadingManager, number: int) -> BlockStatus:
    block = host.block(k(number))
    assert block is not None
    return block


def state(host: CPUOffloadingManager, keys: Iterable[OffloadKey] | None = None) -> object:
    """All that can be seen of a primary, with the blocks of `keys` (default 0 to 19)."""
    blocks = []
    for key in keys or map(k, range(20)):
        b = host.block(key)
        if b is None:
            continue
        written = b.slot, b.write_id, b.written_since_step, b.ready
        blocks.append((key, *written, b.ref_count, b.step_pinned, tuple(b.waiters)))
    counts = (host.available, host.awaited, host.holding, host.references, host.step)
    return blocks, counts, len(host)


class Hold:
    """One way to keep a block, begun on block 0 of `host` and ended by `end`."""

    def __init__(self, kind: str, host: CPUOffloadingManager) -> None:
        self.kind, self.host = kind, host
        if kind in ("read", "two reads"):
            self.spec = host.prepare_load(ks(0), A)
        if kind == "two reads":
            host.prepare_load(ks(0), A)
        if kind == "pin":
            host.pin(k(0))
        if kind == "waiter":
            host.wait(k(0), "a")

    def end(self) -> None:
        if self.kind == "pin":
            self.host.on_schedule_end()
        elif self.kind == "waiter":
            self.host.unwait(k(0), "a")
        else:
            self.host.complete_load(self.spec, A)
            if self.kind == "two reads":
                self.host.complete_load(self.spec, A)


HOLDS = pytest.mark.parametrize("kind", ["read", "two reads", "pin", "waiter"])


# Stores


def test_a_block_is_pending_while_it_is_written_and_a_hit_after():
    host = CPUOffloadingManager(2, 8)
    assert host.lookup(k(0), A) is LookupResult.MISS
    spec = host.prepare_store(ks(0), A).store_spec
    assert host.lookup(k(0), A) is LookupResult.HIT_PENDING
    host.complete_store(spec, A)
    assert host.lookup(k(0), A) is LookupResult.HIT


@BOTH
@pytest.mark.parametrize("cap", [1, 2, 3, 5])
def test_a_store_takes_keys_from_the_front_as_far_as_they_fit(cap, policy):
    host = CPUOffloadingManager(cap, 8, policy)
    output = host.prepare_store(ks(0, 1, 2, 3), A)
    fit = min(cap, 4)
    assert output.store_spec.keys == tuple(ks(0, 1, 2, 3)[:fit])
    assert output.no_room == tuple(ks(0, 1, 2, 3)[fit:])
    assert output.evicted_keys == ()
    assert sorted(output.store_spec.slots) == list(range(fit))
    assert host.available == cap - fit


def test_a_store_skips_keys_that_are_ready_or_being_written():
    host = filled(0, cap=4)
    host.prepare_store(ks(1), A)
    output = host.prepare_store(ks(0, 1, 2), A)
    assert output.store_spec.keys == (k(2),)
    assert output.no_room == output.evicted_keys == ()


@BOTH
def test_a_store_evicts_the_oldest_and_says_so(policy):
    host = filled(0, 1, 2, policy=policy)
    output = host.prepare_store(ks(3, 4), A)
    assert output.evicted_keys == tuple(ks(0, 1))
    assert host.lookup(k(0), A) is host.lookup(k(1), A) is LookupResult.MISS
    assert len(host) == 3


@BOTH
def test_a_block_does_not_push_out_the_front_of_its_own_prefix(policy):
    host = filled(0, policy=policy)
    output = host.prepare_store(ks(0, 1), A)
    assert output.no_room == (k(1),)
    assert host.lookup(k(0), A) is LookupResult.HIT
    assert host.available == 1, "and only this call kept it"
    assert host.prepare_store(ks(1), A).evicted_keys == (k(0),)


@BOTH
def test_the_front_of_a_prefix_may_push_out_what_follows_it(policy):
    host = filled(1, policy=policy)
    output = host.prepare_store(ks(0, 1), A)
    assert output.store_spec.keys == (k(0),)
    assert output.evicted_keys == output.no_room == (k(1),)


def test_each_filling_has_its_own_growing_write_id_and_the_step_it_began_in():
    host = CPUOffloadingManager(2, 8)
    seen: list[int] = []
    for step in range(4):
        spec = host.prepare_store(ks(step, step + 10), A).store_spec
        assert status(host, step).written_since_step == step
        seen += spec.write_ids
        host.complete_store(spec, A, success=step % 2 == 0)
        host.on_schedule_end()
    assert seen == sorted(set(seen))


def test_slots_are_views_of_one_buffer():
    host = CPUOffloadingManager(3, 8)
    spec = host.prepare_store(ks(0, 1, 2), A).store_spec
    for slot in spec.slots:
        host.view.slot(slot)[:] = bytes([slot]) * 8
    assert [bytes(host.view.slot(slot)) for slot in range(3)] == [bytes([i]) * 8 for i in range(3)]


# Order


@BOTH
def test_touch_makes_the_head_of_a_prefix_the_most_recent(policy):
    host = filled(0, 1, 2, 3, policy=policy)
    host.touch(ks(0, 1, 9, 2), A)
    # Block 3 was not touched and goes first. What one call stores is being written and stays,
    # so then the touched blocks go, the last of the prefix first.
    assert host.prepare_store(ks(10, 11, 12), A).evicted_keys == tuple(ks(3, 2, 1))


@BOTH
def test_reading_pinning_and_waiting_change_nothing_in_the_order(policy):
    host = filled(0, 1, 2, policy=policy)
    for kind in ("read", "two reads", "pin", "waiter"):
        Hold(kind, host).end()
    assert host.prepare_store(ks(3, 4), A).evicted_keys == tuple(ks(0, 1))


@BOTH
def test_a_block_that_was_kept_leaves_in_its_old_turn(policy):
    host = filled(0, 1, 2, policy=policy)
    hold = Hold("read", host)
    assert host.prepare_store(ks(3), A).evicted_keys == (k(1),)
    hold.end()
    assert host.prepare_store(ks(4), A).evicted_keys == (k(0),)


# What is kept: F22, F29


@BOTH
@HOLDS
@pytest.mark.parametrize("cap", [1, 2, 4])
def test_f22_a_found_block_is_not_promoted_over(kind, policy, cap):
    host = filled(*range(cap), policy=policy)
    host.pin(k(0))  # the lookup said HIT
    Hold(kind, host)
    output = host.prepare_store(ks(*range(10, 10 + cap)), A)
    assert output.no_room == (k(10 + cap - 1),)
    assert output.evicted_keys == tuple(ks(*range(1, cap)))
    assert host.lookup(k(0), A) is LookupResult.HIT
    assert host.prepare_load(ks(0), A).keys == (k(0),)


@BOTH
@HOLDS
def test_f29_no_room_is_said_and_changes_nothing(kind, policy):
    host = filled(0, policy=policy)
    hold = Hold(kind, host)
    before = state(host)
    for _ in range(3):
        output = host.prepare_store(ks(1, 2), A)
        assert (len(output.store_spec), output.no_room) == (0, tuple(ks(1, 2)))
    assert state(host) == before
    hold.end()
    assert host.available == 1
    assert host.prepare_store(ks(1), A).evicted_keys == (k(0),)


@BOTH
def test_f29_a_block_being_written_is_no_room_either(policy):
    host = CPUOffloadingManager(1, 8, policy)
    spec = host.prepare_store(ks(0), A).store_spec
    assert host.available == 0
    assert host.prepare_store(ks(1), A).no_room == (k(1),)
    host.complete_store(spec, A)
    assert host.available == 1


@BOTH
@pytest.mark.parametrize("ended", [0, 1, 2, 3])
def test_a_block_is_kept_until_its_last_hold_ends(policy, ended):
    host = filled(0, policy=policy)
    holds = [Hold(kind, host) for kind in ("read", "pin", "waiter", "read")]
    holds = holds[ended:] + holds[:ended]
    for hold in holds:
        assert host.prepare_store(ks(1), A).no_room == (k(1),)
        hold.end()
    assert host.prepare_store(ks(1), A).evicted_keys == (k(0),)


def test_a_step_pin_is_one_pin_and_ends_with_the_step():
    host = filled(0)
    host.pin(k(0))
    host.pin(k(0))
    assert status(host, 0).step_pinned
    host.on_schedule_end()
    assert not status(host, 0).step_pinned
    assert host.available == 1
    assert host.step == 1


def test_awaited_counts_slots_and_waiters_keep_their_order():
    host = CPUOffloadingManager(3, 8)
    spec = host.prepare_store(ks(0, 1), A).store_spec
    for req_id in ("late", "early", "late", "x"):
        host.wait(k(0), req_id)
    host.wait(k(1), "x")
    assert host.awaited == 2
    assert list(status(host, 0).waiters) == ["late", "early", "x"]
    host.complete_store(spec, A)
    assert host.awaited == 2, "they wait on until they say that they do not"
    assert host.available == 1
    for req_id in ("late", "early", "nobody"):
        host.unwait(k(0), req_id)
    assert host.awaited == 2
    host.unwait(k(0), "x")
    host.unwait(k(0), "x")
    host.unwait(k(9), "x")
    assert (host.awaited, host.available) == (1, 2)


@pytest.mark.parametrize("phase", ["writing", "ready", "pinned", "read", "failed", "reset"])
@BOTH
def test_f33_a_request_that_ends_in_any_phase_leaves_nothing_behind(phase, policy):
    host = CPUOffloadingManager(1, 8, policy)
    write = host.prepare_store(ks(0), A).store_spec
    host.wait(k(0), "a")
    read: LoadStoreSpec | None = None
    if phase in ("ready", "pinned", "read"):
        host.complete_store(write, A)
    if phase in ("pinned", "read"):
        host.pin(k(0))
    if phase == "read":
        read = host.prepare_load(ks(0), A)
    if phase == "failed":
        host.complete_store(write, A, success=False)
    if phase == "reset":
        host.reset_cache()
    # The request ends here: it waits no longer, and what runs for it runs on.
    host.unwait(k(0), "a")
    host.on_request_finished(A)
    if phase in ("writing", "reset"):
        host.complete_store(write, A)
    if read:
        host.complete_load(read, A)
    host.on_schedule_end()
    assert (host.available, host.awaited, host.references, host.holding) == (1, 0, 0, 0)
    assert not host.has_pending_work()
    assert host.prepare_store(ks(1), A).store_spec.keys == (k(1),)


# Failed and late writes: F34, F35


@BOTH
@pytest.mark.parametrize("failed", [(0,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("failures_first", [True, False])
def test_f34_failed_write_never_becomes_readable(policy, failed, failures_first):
    host = CPUOffloadingManager(3, 8, policy)
    write = host.prepare_store(ks(0, 1, 2), A).store_spec
    for number in range(3):
        host.wait(k(number), "a")
    bad = write.only(ks(*failed))
    good = write.only([key for key in write.keys if key not in bad.keys])
    for part in (bad, good) if failures_first else (good, bad):
        host.complete_store(part, A, success=part is good)
    for number in range(3):
        if number in failed:
            assert host.lookup(k(number), A) is LookupResult.MISS
            assert host.block(k(number)) is None
            with pytest.raises(UsageError):
                host.prepare_load(ks(number), A)
            with pytest.raises(UsageError):
                host.pin(k(number))
        else:
            assert host.lookup(k(number), A) is LookupResult.HIT
    assert host.awaited == 3 - len(failed), "waiters of a failed write are gone"
    assert host.available == len(failed)
    before = state(host)
    for success in (True, False):
        with pytest.raises(UsageError):
            host.complete_store(bad, A, success=success)
    assert state(host) == before


@BOTH
def test_f34_a_failed_write_leaves_no_ghost(policy):
    """A ghost would bring the block back as one used twice, and ARC would keep it."""
    host = CPUOffloadingManager(2, 8, policy)
    host.complete_store(host.prepare_store(ks(0), A).store_spec, A, success=False)
    host.complete_store(host.prepare_store(ks(0, 1), A).store_spec, A)
    assert host.prepare_store(ks(2, 3), A).evicted_keys == tuple(ks(0, 1))


@BOTH
def test_f34_success_of_a_failed_write_does_not_pass_for_the_next_write(policy):
    host = CPUOffloadingManager(1, 8, policy)
    first = host.prepare_store(ks(0), A).store_spec
    host.complete_store(first, A, success=False)
    second = host.prepare_store(ks(0), A).store_spec
    assert (first.keys, first.slots) == (second.keys, second.slots)
    with pytest.raises(UsageError):
        host.complete_store(first, A)
    assert host.lookup(k(0), A) is LookupResult.HIT_PENDING
    host.complete_store(second, A)
    assert host.lookup(k(0), A) is LookupResult.HIT


@BOTH
@pytest.mark.parametrize("moment", ["finished", "not waiting", "steps later", "reset", "reset 2"])
@pytest.mark.parametrize("success", [True, False])
def test_f35_a_slot_is_free_only_after_its_own_writer_is_done(policy, moment, success):
    host = CPUOffloadingManager(2, 8, policy)
    write = host.prepare_store(ks(0), A).store_spec
    host.wait(k(0), "a")
    if moment in ("not waiting", "finished", "steps later"):
        host.unwait(k(0), "a")
        host.on_request_finished(A)
    if moment == "steps later":
        for _ in range(10):
            host.on_schedule_end()
    if moment == "reset":
        host.reset_cache()
    if moment == "reset 2":
        host.reset_cache()
        host.complete_store(host.prepare_store(ks(0, 5), A).store_spec, A)
        host.reset_cache()
    taken = host.prepare_store(ks(10, 11, 12), A)
    assert len(taken.store_spec) == 1
    assert set(taken.store_spec.slots).isdisjoint(write.slots)
    host.complete_store(taken.store_spec, A)
    again = host.prepare_store(ks(13, 14), A)
    assert set(again.store_spec.slots).isdisjoint(write.slots)
    host.complete_store(write, A, success=success)
    host.complete_store(again.store_spec, A)
    final = host.prepare_store(ks(15, 16), A)
    assert sorted(final.store_spec.slots) == [0, 1]


# Misuse


def broken(spec: LoadStoreSpec) -> dict[str, LoadStoreSpec]:
    """Completions that name something else than `spec` of blocks 0 and 1, block 0 first."""
    (key0, key1), (slot0, slot1), (id0, id1) = spec.keys, spec.slots, spec.write_ids
    return {
        "other key": replace(spec, keys=(key0, k(7))),
        "keys swapped": replace(spec, keys=(key1, key0)),
        "slots swapped": replace(spec, slots=(slot1, slot0)),
        "slot too high": replace(spec, slots=(slot0, 3)),
        "slot below 0": replace(spec, slots=(slot0, slot1 - 3)),
        "free slot": replace(spec, slots=(slot0, 2)),
        "older write": replace(spec, write_ids=(id0, id1 - 1)),
        "newer write": replace(spec, write_ids=(id0, id1 + 1)),
        "twice": LoadStoreSpec((key0, key0), (slot0, slot0), (id0, id0)),
        "too few slots": replace(spec, slots=(slot0,)),
        "too many ids": replace(spec, write_ids=(id0, id1, id1)),
    }


HOW = pytest.mark.parametrize("how", list(broken(LoadStoreSpec((k(0), k(1)), (0, 1), (1, 2)))))


@HOW
def test_complete_load_that_names_another_filling_is_refused_and_changes_nothing(how):
    host = filled(0, 1, cap=3)
    spec = host.prepare_load(ks(0, 1), A)
    before = state(host)
    with pytest.raises(UsageError):
        host.complete_load(broken(spec)[how], A)
    assert state(host) == before
    host.complete_load(spec, A)
    assert host.references == 0


@HOW
@pytest.mark.parametrize("success", [True, False])
def test_complete_store_that_names_another_write_is_refused_and_changes_nothing(how, success):
    host = CPUOffloadingManager(3, 8)
    spec = host.prepare_store(ks(0, 1), A).store_spec
    before = state(host)
    with pytest.raises(UsageError):
        host.complete_store(broken(spec)[how], A, success=success)
    assert state(host) == before
    host.complete_store(spec, A)
    assert host.lookup(k(1), A) is LookupResult.HIT


def test_completing_what_is_not_under_way_is_refused_and_changes_nothing():
    host = CPUOffloadingManager(2, 8)
    write = host.prepare_store(ks(0, 1), A).store_spec
    with pytest.raises(UsageError, match="not being read"):
        host.complete_load(write, A)
    host.complete_store(write, A)
    read = host.prepare_load(ks(0), A)
    before = state(host)
    for success in (True, False):
        with pytest.raises(UsageError, match="not being written"):
            host.complete_store(write, A, success=success)
    with pytest.raises(UsageError, match="not being read"):
        host.complete_load(write, A)  # block 0 is being read, block 1 is not
    assert state(host) == before
    host.complete_load(read, A)
    with pytest.raises(UsageError, match="not being read"):
        host.complete_load(read, A)


@pytest.mark.parametrize("bad", [1, 2])
def test_reading_takes_no_reference_if_one_block_is_not_readable(bad):
    host = filled(0, cap=3)
    host.prepare_store(ks(1), A)  # 1 is being written, 2 is absent
    before = state(host)
    with pytest.raises(UsageError):
        host.prepare_load(ks(0, bad), A)
    with pytest.raises(UsageError):
        host.pin(k(bad))
    assert state(host) == before


def test_nobody_waits_for_a_block_that_is_not_there():
    host = CPUOffloadingManager(1, 8)
    with pytest.raises(UsageError):
        host.wait(k(0), "a")
    assert host.awaited == 0


def test_a_key_that_comes_twice_in_one_call_is_refused_and_changes_nothing():
    host = filled(0, 1, 2)
    before = state(host)
    for call in (host.prepare_load, host.prepare_store, host.touch):
        with pytest.raises(UsageError, match="twice"):
            call(ks(0, 7, 0), A)
    assert state(host) == before
    assert host.prepare_store(ks(3), A).evicted_keys == (k(0),), "the order too"


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 8),
        (-1, 8),
        (2.0, 8),
        ("2", 8),
        (True, 8),
        (2, 0),
        (2, -8),
        (2, None),
        (2, 8, "fifo"),
        (2, 8, ""),
    ],
)
def test_nonsense_is_refused_at_construction(arguments):
    with pytest.raises(UsageError):
        CPUOffloadingManager(*arguments)


def test_calls_without_keys_do_nothing():
    host = filled(0, 1)
    before = state(host)
    host.complete_load(host.prepare_load([], A), A)
    output = host.prepare_store([], A)
    host.complete_store(output.store_spec, A)
    host.touch([], A)
    assert output == type(output)(LoadStoreSpec((), (), ()), (), ())
    assert state(host) == before


# Reset


@BOTH
def test_reset_drops_ready_blocks_at_once_and_the_others_when_they_end(policy):
    host = filled(0, 1, 2, cap=4, policy=policy)
    read = host.prepare_load(ks(1), A)
    read_too = host.prepare_load(ks(1), A)
    host.pin(k(2))
    write = host.prepare_store(ks(3), A).store_spec
    host.wait(k(3), "a")
    host.wait(k(0), "a")
    host.reset_cache()
    assert all(host.lookup(k(i), A) is LookupResult.MISS for i in range(4))
    assert (len(host), host.holding, host.available, host.awaited) == (0, 2, 2, 0)
    assert host.references == 2
    host.complete_load(read, A)
    assert host.holding == 2, "one reader is left"
    host.complete_load(read_too, A)
    assert (host.holding, host.references) == (1, 0)
    host.complete_store(write, A)
    assert (host.holding, host.available) == (0, 4)
    assert host.lookup(k(3), A) is LookupResult.MISS, "a write begun before the reset"
    host.on_schedule_end()
    assert host.available == 4


@BOTH
def test_after_a_reset_a_dropped_block_is_stored_anew_beside_its_old_self(policy):
    host = CPUOffloadingManager(2, 8, policy)
    old = host.prepare_store(ks(0), A).store_spec
    host.reset_cache()
    new = host.prepare_store(ks(0), A).store_spec
    assert new.slots != old.slots
    host.wait(k(0), "a")
    host.complete_store(old, A)
    assert host.lookup(k(0), A) is LookupResult.HIT_PENDING
    assert host.awaited == 1
    host.complete_store(new, A)
    assert host.lookup(k(0), A) is LookupResult.HIT


@BOTH
def test_reset_shrinks_the_room_and_gives_it_back(policy):
    host = filled(0, 1, 2, policy=policy)
    reads = [host.prepare_load(ks(i), A) for i in range(3)]
    host.reset_cache()
    for left in (3, 2, 1):
        assert (host.holding, host.available) == (left, 3 - left)
        output = host.prepare_store(ks(10, 11, 12), A)
        assert len(output.no_room) == left
        host.complete_store(output.store_spec, A)
        host.complete_load(reads[left - 1], A)
    host.complete_store(host.prepare_store(ks(10, 11, 12), A).store_spec, A)
    assert len(host) == host.available == 3


def test_reset_forgets_what_arc_remembered():
    host = filled(0, 1, policy="arc")
    host.touch(ks(0), A)
    host.complete_store(host.prepare_store(ks(2), A).store_spec, A)  # 1 is a ghost now
    host.reset_cache()
    host.complete_store(host.prepare_store(ks(1, 5), A).store_spec, A)
    # As a ghost, 1 would be one used twice, and 5 would go before it.
    assert host.prepare_store(ks(6), A).evicted_keys == (k(1),)


# The counts are right, and cheap

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "store",
                "written",
                "failed",
                "read",
                "end-read",
                "pin",
                "wait",
                "unwait",
                "touch",
                "step",
                "reset",
            ]
        ),
        st.integers(0, 7),
    ),
    max_size=80,
)


def recount(host: CPUOffloadingManager, cap: int, holding: int) -> tuple[int, int, int]:
    """`available`, `awaited` and the references of present blocks, by looking at every block."""
    blocks = [b for b in (host.block(k(i)) for i in range(10)) if b]
    free = cap - holding - len(blocks)
    evictable = sum(
        b.ready and not b.ref_count and not b.step_pinned and not b.waiters for b in blocks
    )
    return free + evictable, sum(bool(b.waiters) for b in blocks), sum(b.ref_count for b in blocks)


@BOTH
@settings(max_examples=300)
@given(cap=st.integers(1, 5), steps=STEPS)
def test_available_and_awaited_equal_a_full_recount(policy, cap, steps):
    host = CPUOffloadingManager(cap, 8, policy)
    writes: list[LoadStoreSpec] = []
    reads: list[LoadStoreSpec] = []
    held: list[int] = []  # slots of reads and writes that a reset has cut off
    for action, number in steps:
        block = host.block(k(number))
        match action:
            case "store":
                writes.append(host.prepare_store(ks(number, number + 1), A).store_spec)
            case "written" | "failed" if writes:
                spec = writes.pop(number % len(writes))
                host.complete_store(spec, A, success=action == "written")
                held = [slot for slot in held if slot not in spec.slots]
            case "read" if block and block.ready:
                reads.append(host.prepare_load(ks(number), A))
            case "end-read" if reads:
                spec = reads.pop(number % len(reads))
                host.complete_load(spec, A)
                if spec.slots[0] in held and spec not in reads:
                    held.remove(spec.slots[0])
            case "pin" if block and block.ready:
                host.pin(k(number))
            case "wait" if block:
                host.wait(k(number), f"r{len(steps) % 3}")
            case "unwait":
                host.unwait(k(number), f"r{len(steps) % 3}")
            case "touch":
                host.touch(ks(number, number + 1), A)
            case "step":
                host.on_schedule_end()
            case "reset":
                host.reset_cache()
                held = list({slot for spec in writes + reads for slot in spec.slots})
        available, awaited, references = recount(host, cap, len(held))
        assert (host.available, host.awaited) == (available, awaited)
        assert host.holding == len(held)
        assert host.references == len(reads) >= references


def test_the_counts_do_not_look_at_every_block():
    host = filled(*range(20_000))
    started = time.process_time()
    for _ in range(20_000):
        assert host.available == 20_000
        assert host.awaited == host.holding == 0
    # A look at each block each time would be 4e8 looks: minutes.
    assert time.process_time() - started < 5


@BOTH
def test_eviction_does_not_walk_past_pinned_blocks_each_time(policy):
    n = 10_000
    host = filled(*range(2 * n), policy=policy)
    for number in range(n):
        host.pin(k(number))
    started = time.process_time()
    for number in range(n):
        output = host.prepare_store(ks(2 * n + number), A)
        assert output.evicted_keys == (k(n + number),)
    # Past n pinned blocks n times would be 1e8 looks: minutes.
    assert time.process_time() - started < 5
