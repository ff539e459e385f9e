"""The step loop against a scripted manager: what is asked, moved, counted, and in which order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.errors import UsageError
from kvtier.keys import OffloadKey, make_offload_key
from kvtier.request import ReqContext
from kvtier.results import MissReason
from kvtier.runtime import VirtualRuntime
from kvtier.scans import KVGroup
from kvtier.scheduler import Request, Scheduler
from kvtier.tiering import DeferReason, TieringOffloadingManager
from kvtier.tiers.base import LoadStoreSpec
from tests.support.fake_manager import Call, FakeManager
from tests.support.scan_oracle import end_of_pass, needed, words

PREFIX = (None,)


class Engine:
    """Does nothing, says so in the manager's record, and can be told to fail or to take long."""

    def __init__(self, fake: FakeManager) -> None:
        self._calls = fake.calls
        self.steps = 1
        """Steps that a computation takes."""
        self.stores = True
        self.raises: str | None = None

    def load(self, request: Request, spec: LoadStoreSpec) -> None:
        self._did("load", request, spec.keys)

    def compute(self, request: Request) -> bool | None:
        self._did("compute", request, ())
        self.steps -= 1
        return False if self.steps > 0 else None

    def store(self, request: Request, spec: LoadStoreSpec) -> bool:
        self._did("store", request, spec.keys)
        return self.stores

    def _did(self, what: str, request: Request, keys: tuple[OffloadKey, ...]) -> None:
        self._calls.append(Call(f"engine.{what}", request.ctx.req_id, keys))
        if self.raises == what:
            raise RuntimeError(f"the engine's {what}")


class CountingRuntime(VirtualRuntime):
    """Counts waits, and lets a test act when the scheduler waits."""

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._on_wait = on_wait

    def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        self._on_wait()
        return super().wait(timeout)


class Bench:
    """A scheduler over a scripted manager. Prompts are named: `"a"` has blocks a0, a1, ..."""

    def __init__(
        self,
        windows: Sequence[int | None] = PREFIX,
        *,
        max_num_seqs: int = 8,
        runtime: VirtualRuntime | None = None,
    ) -> None:
        self.fake = FakeManager()
        self.engine = Engine(self.fake)
        self.groups = [KVGroup(index, window) for index, window in enumerate(windows)]
        self.scheduler = Scheduler(
            self.fake.manager,
            self.groups,
            self.engine,
            max_num_seqs=max_num_seqs,
            runtime=runtime or VirtualRuntime(),
        )

    @property
    def counts(self):
        return self.scheduler.counts

    def add(self, name: str, *rows: str, chunks: int | None = None) -> None:
        """A request whose blocks answer as `rows` say, one row of letters for each group."""
        for group, row in enumerate(rows):
            self.answer(name, row, group)
        hashes = [f"{name}{c}".encode() for c in range(len(rows[0]) if chunks is None else chunks)]
        self.scheduler.add(Request(ReqContext(name), hashes))

    def answer(self, name: str, row: str, group: int = 0) -> None:
        self.fake.answers.update(zip(self.keys(name, len(row), group), row, strict=True))

    def keys(self, name: str, end: int, group: int = 0, start: int = 0) -> list[OffloadKey]:
        return [make_offload_key(f"{name}{c}".encode(), group) for c in range(start, end)]

    def hits(self) -> dict[str, int]:
        return {label: n for label, n in self.counts.hits.items() if n}

    def misses(self) -> dict[str, int]:
        return {reason.value: n for reason, n in self.counts.misses.items() if n}

    def deferrals(self) -> dict[str, int]:
        return {reason.value: n for reason, n in self.counts.deferrals.items() if n}

    def blocks_add_up(self):
        counts = self.counts
        return counts.blocks == sum(counts.hits.values()) + sum(counts.misses.values())


# The step


def test_a_step_makes_its_calls_in_this_order():
    bench = Bench()
    bench.add("a", "HHM")
    assert bench.scheduler.step()
    assert bench.fake.names() == [
        "on_new_request",
        *["locate"] * 3,
        "touch",
        "prepare_load",
        "engine.load",
        "complete_load",
        "engine.compute",
        "prepare_store",
        "engine.store",
        "complete_store",
        "on_request_finished",
        "on_schedule_end",
    ]
    reused, computed = bench.keys("a", 2), bench.keys("a", 3, start=2)
    assert bench.fake.keys_of("touch") == reused
    assert bench.fake.keys_of("engine.load") == reused
    assert bench.fake.keys_of("engine.store") == computed
    assert bench.scheduler.idle
    assert not bench.fake.taken


def test_every_waiting_request_is_looked_up_before_any_of_them_runs():
    bench = Bench()
    bench.add("a", "HM")
    bench.add("b", "HH")
    bench.scheduler.step()
    names = [(c.name, c.req_id) for c in bench.fake.calls]
    assert names.index(("prepare_load", "b")) < names.index(("engine.load", "a"))
    assert names.index(("on_request_finished", "a")) < names.index(("engine.load", "b"))


def test_requests_are_served_in_the_order_in_which_they_came():
    bench = Bench(max_num_seqs=2)
    for name in "abcd":
        bench.add(name, "M")
    while not bench.scheduler.idle:
        bench.scheduler.step()
    assert [c.req_id for c in bench.fake.calls if c.name == "engine.compute"] == list("abcd")
    assert bench.counts.steps == 2


def test_requests_behind_a_deferred_one_are_looked_up_and_overtake_it():
    bench = Bench()
    bench.add("a", "RM")
    bench.add("b", "HM")
    bench.add("c", "R")
    assert bench.scheduler.step()
    assert set(bench.fake.keys_of("locate")) >= {*bench.keys("a", 2), *bench.keys("c", 1)}
    assert "engine.compute" in bench.fake.names("b")
    assert "engine.compute" not in bench.fake.names("a")


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_requests_in_flight_together_are_bounded_and_waiting_ones_count(limit):
    bench = Bench(max_num_seqs=limit)
    for name in "abcd":
        bench.add(name, "R")
    for _ in range(3):
        assert not bench.scheduler.step()
        assert list(bench.fake.live) == list("abcd"[:limit])
    bench.answer("a", "H")
    assert bench.scheduler.step()
    bench.scheduler.step()
    assert list(bench.fake.live) == list("abcd"[1 : limit + 1])


def test_a_request_without_full_blocks_runs_and_counts_nothing():
    bench = Bench()
    bench.add("a", "")
    assert bench.scheduler.step()
    assert "engine.compute" in bench.fake.names()
    assert "prepare_load" in bench.fake.names()
    assert "engine.load" not in bench.fake.names()
    assert "engine.store" not in bench.fake.names()
    assert bench.counts.blocks == 0
    assert bench.blocks_add_up()


def test_only_what_a_group_needs_is_loaded_and_only_what_is_computed_is_stored():
    bench = Bench([None, 1])
    bench.add("a", "HHHMM", "MMHHM")
    bench.scheduler.step()
    loaded = [*bench.keys("a", 3, 0), *bench.keys("a", 3, 1, start=2)]
    assert bench.fake.keys_of("prepare_load") == sorted(
        loaded, key=lambda key: (key[:2], key)
    )  # prefix order across the groups
    assert bench.fake.keys_of("touch") == bench.fake.keys_of("prepare_load")
    stored = [key for c in (3, 4) for g in (0, 1) for key in bench.keys("a", c + 1, g, start=c)]
    assert bench.fake.keys_of("prepare_store") == stored
    # Chunk 3 of the window group was there already.
    assert bench.fake.keys_of("engine.store") == [stored[0], *stored[2:]]


def test_a_computation_may_take_several_steps():
    bench = Bench()
    bench.engine.steps = 3
    bench.add("a", "HM")
    for _ in range(2):
        assert bench.scheduler.step()
        assert "prepare_store" not in bench.fake.names()
    assert bench.scheduler.step()
    assert bench.scheduler.idle
    assert bench.fake.names().count("engine.load") == 1
    assert bench.fake.names().count("locate") == 2


# The end of a pass


def outcome(
    windows: Sequence[int | None], rows: Sequence[str], room: int
) -> tuple[int | None, str | None, set[tuple[int, int]], set[tuple[int, int]]]:
    """What the code made of one pass, in the terms of the oracle."""
    bench = Bench(windows)
    bench.fake.space = room
    bench.add("a", *rows)
    place = {
        key: (chunk, group.group_idx)
        for group in bench.groups
        for chunk, key in enumerate(bench.keys("a", len(rows[0]), group.group_idx))
    }
    bench.scheduler.step()
    located = bench.fake.keys_of("locate")
    assert len(located) == len(set(located)), "asked twice in one pass"
    started = "prepare_load" in bench.fake.names()
    (deferred,) = bench.deferrals() or [None]
    assert started == (deferred is None)
    assert sum(bench.counts.deferrals.values()) == bench.fake.names().count("defer")
    end = None
    if started:
        # Everything at or behind the end is computed, in all groups.
        computed = {place[key][0] for key in bench.fake.keys_of("prepare_store")}
        end = min(computed, default=len(rows[0]))
        loaded = {place[key] for key in bench.fake.keys_of("prepare_load")}
        assert loaded == {(c, g) for g, w in enumerate(windows) for c in needed(w, end)}
    return (
        end,
        deferred,
        {place[key] for key in bench.fake.keys_of("promote")},
        {place[key] for key in bench.fake.keys_of("refuse")},
    )


def check_pass(windows: Sequence[int | None], rows: Sequence[str], room: int) -> None:
    want = end_of_pass(list(zip(windows, rows, strict=True)), room)
    got = outcome(windows, rows, room)
    assert got == (want.end, want.deferred, set(want.promoted), set(want.refused)), (rows, room)


@pytest.mark.parametrize(
    ("row", "room", "end", "deferred", "promoted", "refused"),
    [
        ("HHM", 9, 2, None, [], []),
        ("HRM", 9, None, "probe", [], []),
        ("NRM", 9, None, "probe", [], []),  # one open probe: nothing is reserved
        ("HMR", 9, 1, None, [], []),
        ("HNNM", 9, None, "promotion", [1, 2], []),
        ("HNNM", 2, None, "promotion", [1, 2], []),
        ("HNNM", 1, None, "promotion", [1], [2]),  # from the front as far as there is room
        ("HNNH", 0, 1, None, [], [1, 2]),  # no room at all: start with what is here
        ("NPNM", 1, None, "promotion", [0], [2]),
        ("PNM", 0, None, "promotion", [], [1]),
        ("HSM", 9, None, "store", [], []),
        ("SNM", 9, None, "promotion", [1], []),
    ],
)
def test_end_of_pass_by_hand(row, room, end, deferred, promoted, refused):
    places = ({(c, 0) for c in promoted}, {(c, 0) for c in refused})
    assert outcome(PREFIX, [row], room) == (end, deferred, *places)


def test_a_refusal_in_one_group_shortens_the_hit_for_all():
    # Room for 1: chunk 2 of group 1 is given up, and with it chunk 2 of group 0.
    assert outcome([None, None], ["HHH", "NHN"], 1) == (None, "promotion", {(0, 1)}, {(2, 1)})


def test_a_shorter_hit_makes_a_window_group_ask_for_other_chunks():
    # With no room for chunk 2 the window moves to chunk 1, whose probe is open.
    assert outcome([1], ["HRN"], 0) == (None, "probe", set(), {(2, 0)})
    assert outcome([1], ["HHN"], 0) == (2, None, set(), {(2, 0)})


@pytest.mark.parametrize("room", [0, 1, 2])
@pytest.mark.parametrize("window", [None, 1, 2])
def test_end_of_pass_is_its_text_for_every_sequence_up_to_four(window, room):
    for word in words(4, "HNPSRM"):
        check_pass([window], [word], room)


@pytest.mark.parametrize("windows", list(product([None, 1, 2], repeat=2)))
def test_end_of_pass_is_its_text_for_every_pair_of_two(windows):
    for rows in product(map("".join, product("HNPRM", repeat=2)), repeat=2):
        check_pass(windows, rows, 1)


@st.composite
def passes(draw) -> tuple[list[int | None], list[str], int]:
    windows: list[int | None] = draw(
        st.lists(st.none() | st.integers(1, 6), min_size=1, max_size=3)
    )
    chunks = draw(st.integers(0, 24))
    # An open probe anywhere ends a pass, so they are rare, and often there is none at all.
    letter = st.sampled_from(draw(st.sampled_from(["HHHNNN", "HHHHNNNNPSM", "HHHHHHHHNNNNNPSRM"])))
    rows = [draw(st.text(letter, min_size=chunks, max_size=chunks)) for _ in windows]
    return windows, rows, draw(st.integers(0, 12))


@settings(max_examples=400, deadline=None)
@given(passes())
def test_end_of_pass_is_its_text_for_any_hybrid(case):
    check_pass(*case)


def test_a_promoted_block_is_waited_for_and_then_used():
    bench = Bench()
    bench.add("a", "HNM")
    assert not bench.scheduler.step()
    assert bench.fake.keys_of("promote") == bench.keys("a", 2, start=1)
    assert not bench.scheduler.step()
    bench.answer("a", "HHM")
    assert bench.scheduler.step()
    assert bench.fake.keys_of("engine.load") == bench.keys("a", 2)
    assert bench.fake.names().count("promote") == 1
    assert bench.deferrals() == {"promotion": 2}


def test_what_an_earlier_request_took_is_no_room_for_a_later_one():
    bench = Bench()
    bench.fake.space = 3
    bench.add("a", "NN")
    bench.add("b", "NN")
    bench.scheduler.step()
    assert bench.fake.keys_of("promote", "a") == bench.keys("a", 2)
    assert bench.fake.keys_of("promote", "b") == bench.keys("b", 1)
    assert bench.fake.keys_of("refuse", "b") == bench.keys("b", 2, start=1)


def test_a_refusal_holds_for_one_pass_only():
    bench = Bench()
    bench.fake.space = 1
    bench.add("a", "NNM")
    bench.scheduler.step()
    bench.answer("a", "H")
    bench.fake.space = 1
    bench.scheduler.step()
    assert bench.fake.keys_of("promote") == bench.keys("a", 2)


def test_refusing_thousands_of_blocks_takes_no_longer_than_the_prompt():
    bench = Bench([None, 2])
    bench.fake.space = 0
    bench.add("a", "N" * 3000, "H" * 3000)
    bench.scheduler.step()
    assert bench.misses() == {"no_room": 3000}


@pytest.mark.parametrize(
    ("row", "reason"), [("PSR", "probe"), ("SP", "promotion"), ("SN", "promotion"), ("HS", "store")]
)
def test_a_deferred_pass_has_one_reason_and_the_manager_hears_it(row, reason):
    bench = Bench()
    bench.add("a", row)
    bench.scheduler.step()
    assert bench.deferrals() == {reason: 1}
    assert [c.detail for c in bench.fake.calls if c.name == "defer"] == [DeferReason(reason)]


def test_a_request_with_transfers_of_its_own_is_not_looked_up():
    bench = Bench()
    bench.fake.busy = {"a"}
    bench.add("a", "H")
    bench.add("b", "H")
    bench.scheduler.step()
    assert bench.fake.names("a") == ["on_new_request", "defer"]
    assert bench.deferrals() == {"store": 1}
    assert bench.hits() == {"0:primary": 1}
    bench.fake.busy.clear()
    bench.scheduler.step()
    assert bench.hits() == {"0:primary": 2}


# Counting


def test_a_block_is_a_hit_of_the_tier_it_came_from():
    bench = Bench()
    bench.fake.sources = dict(
        zip(bench.keys("a", 3), ["0:primary", "1:near", "2:far"], strict=True)
    )
    bench.add("a", "HHHM")
    bench.scheduler.step()
    assert bench.hits() == {"0:primary": 1, "1:near": 1, "2:far": 1}
    assert bench.misses() == {"absent": 1}


def test_of_several_groups_the_slowest_tier_counts_and_a_block_nobody_needs_is_the_primarys():
    bench = Bench([2, 1])
    near, far = bench.keys("a", 4, 0), bench.keys("a", 4, 1)
    bench.fake.sources = {near[2]: "2:far", near[3]: "1:near", far[3]: "2:far"}
    bench.add("a", "MMHH", "MMMH")
    bench.scheduler.step()
    # Chunks 0 and 1 lie in front of both windows; chunk 3 is needed by both groups.
    assert bench.hits() == {"0:primary": 2, "2:far": 2}


def test_labels_are_compared_by_their_place_not_as_text():
    bench = Bench([1, 1])
    bench.fake.labels = tuple(f"{n}:x" for n in range(11))
    bench.scheduler.counts.hits.update(dict.fromkeys(bench.fake.labels, 0))
    (first,), (second,) = bench.keys("a", 1, 0), bench.keys("a", 1, 1)
    bench.fake.sources = {first: "9:x", second: "10:x"}
    bench.add("a", "H", "H")
    bench.scheduler.step()
    assert bench.hits() == {"10:x": 1}


def test_a_miss_has_the_reason_of_the_first_group_that_read_one():
    bench = Bench([1, None])
    window, prefix = bench.keys("a", 5, 0), bench.keys("a", 5, 1)
    bench.fake.reasons = {
        prefix[3]: MissReason.LOAD_FAILED,
        window[2]: MissReason.DEADLINE,
        window[1]: MissReason.LOST,
        prefix[1]: MissReason.BOUND,
    }
    bench.add("a", "HMMHH", "HHHMM")
    bench.scheduler.step()
    # The prefix group rules out 3; the window group then reads 2, 1 and 0. Chunk 4 nobody read.
    assert bench.hits() == {"0:primary": 1}
    assert bench.misses() == {"lost": 1, "deadline": 1, "load_failed": 1, "beyond": 1}


def test_a_block_behind_the_end_that_nobody_read_as_a_miss_is_beyond():
    bench = Bench()
    bench.add("a", "MHH")
    bench.scheduler.step()
    assert bench.misses() == {"absent": 1, "beyond": 2}
    bench = Bench([2])
    bench.add("a", "HMMH")  # chunk 3 was read, and is readable
    bench.scheduler.step()
    assert bench.hits() == {"0:primary": 1}
    assert bench.misses() == {"absent": 2, "beyond": 1}


def test_what_was_refused_is_a_miss_for_lack_of_room():
    bench = Bench()
    bench.fake.space = 0
    bench.add("a", "HNNM")
    bench.scheduler.step()
    assert bench.hits() == {"0:primary": 1}
    assert bench.misses() == {"no_room": 2, "absent": 1}


def test_polling_counts_no_block_twice():
    bench = Bench()
    bench.add("a", "HRM")
    for _ in range(5):
        bench.scheduler.step()
        assert not bench.hits()
        assert not bench.misses()
    bench.answer("a", "HHM")
    bench.scheduler.step()
    assert bench.hits() == {"0:primary": 2}
    assert bench.misses() == {"absent": 1}
    assert (bench.counts.requests, bench.counts.blocks) == (1, 3)
    assert bench.deferrals() == {"probe": 5}


# Ending early


def aborted_in(phase: str) -> Bench:
    """A bench whose request `a` of four blocks has been aborted in `phase`."""
    rows = {"probe": "HRMM", "promotion": "HNMM", "store": "HSMM"}
    bench = Bench(max_num_seqs=1)
    if phase == "queued":
        bench.add("z", "R")
    bench.engine.steps = 9
    bench.add("a", rows.get(phase, "HHMM"))
    if phase != "new":
        bench.scheduler.step()
    assert bench.scheduler.abort("a")
    if phase == "queued":
        assert bench.scheduler.abort("z")
    return bench


@pytest.mark.parametrize("phase", ["new", "queued", "probe", "promotion", "store", "computing"])
def test_f33_abort_in_every_phase_leaves_nothing_behind(phase):
    bench = aborted_in(phase)
    assert not bench.fake.live
    assert not bench.fake.taken
    assert bench.scheduler.idle
    assert not bench.scheduler.step()
    assert not bench.scheduler.abort("a")
    finished = bench.fake.names("a").count("on_request_finished")
    assert finished == (0 if phase in ("new", "queued") else 1)
    assert "engine.store" not in bench.fake.names()


@pytest.mark.parametrize("phase", ["new", "probe", "promotion", "store"])
def test_a_request_that_ends_before_its_admission_has_all_its_blocks_aborted(phase):
    bench = aborted_in(phase)
    assert bench.misses() == {"aborted": 4}
    assert bench.blocks_add_up()


def test_a_request_that_ends_after_its_admission_was_counted_then():
    bench = aborted_in("computing")
    assert bench.hits() == {"0:primary": 2}
    assert bench.misses() == {"absent": 1, "beyond": 1}


def test_an_id_is_free_again_after_an_abort():
    bench = aborted_in("probe")
    bench.add("a", "HHHH")
    assert bench.scheduler.step()
    assert bench.hits() == {"0:primary": 4}
    assert bench.blocks_add_up()


def test_a_preempted_request_starts_over_and_is_not_counted_again():
    bench = Bench()
    bench.engine.steps = 9
    bench.add("a", "HMM")
    bench.scheduler.step()
    assert bench.scheduler.preempt("a")
    assert bench.fake.names("a")[-1] == "forget"
    bench.answer("a", "HHM")
    bench.engine.steps = 1
    bench.scheduler.step()
    assert bench.fake.names("a").count("on_new_request") == 1
    assert [len(c.keys) for c in bench.fake.calls if c.name == "engine.load"] == [1, 2]
    assert bench.hits() == {"0:primary": 1}
    assert bench.misses() == {"absent": 1, "beyond": 1}
    assert bench.scheduler.idle


def test_a_request_aborted_after_a_preemption_is_not_counted_again():
    bench = Bench()
    bench.engine.steps = 9
    bench.add("a", "HM")
    bench.scheduler.step()
    bench.scheduler.preempt("a")
    bench.answer("a", "RM")
    bench.scheduler.step()
    assert bench.scheduler.abort("a")
    assert bench.hits() == {"0:primary": 1}
    assert bench.misses() == {"absent": 1}
    assert not bench.fake.live


def test_a_preempted_request_keeps_its_place_in_front_of_later_ones():
    bench = Bench(max_num_seqs=2)
    bench.engine.steps = 9
    bench.add("a", "M")
    bench.add("b", "R")
    bench.scheduler.step()
    bench.scheduler.preempt("a")
    bench.fake.calls.clear()
    bench.scheduler.step()
    assert [c.req_id for c in bench.fake.calls if c.name == "locate"] == ["a", "b"]


def test_a_waiting_request_can_be_preempted_and_others_cannot():
    bench = Bench(max_num_seqs=1)
    bench.add("a", "R")
    bench.add("b", "R")
    bench.scheduler.step()
    assert bench.scheduler.preempt("a")
    assert bench.fake.names("a")[-1] == "forget"
    assert not bench.scheduler.preempt("b")  # still queued: there is nothing to forget
    assert not bench.scheduler.preempt("nobody")
    assert not bench.scheduler.abort("nobody")


# An engine that fails


def test_a_failed_store_is_completed_as_failed():
    bench = Bench()
    bench.engine.stores = False
    bench.add("a", "MM")
    bench.scheduler.step()
    assert [c.detail for c in bench.fake.calls if c.name == "complete_store"] == [False]
    assert bench.scheduler.idle


@pytest.mark.parametrize("raises", ["load", "compute", "store"])
@pytest.mark.parametrize("then", ["abort", "preempt", "again"])
def test_an_engine_that_raises_leaves_no_reference_behind(raises, then):
    bench = Bench()
    bench.add("a", "HM")
    bench.add("b", "HM")
    bench.engine.raises = raises
    with pytest.raises(RuntimeError, match=f"the engine's {raises}"):
        bench.scheduler.step()
    bench.engine.raises = None
    completed = [c.detail for c in bench.fake.calls if c.name == "complete_store"]
    assert completed == ([False] if raises == "store" else [])
    # b was admitted in the same step and holds its reference until it runs or ends.
    assert [(what, req_id) for what, req_id, _ in bench.fake.taken] == [("load", "b")]
    for req_id in "ab":
        if then != "again":
            assert getattr(bench.scheduler, then)(req_id)
    if then != "again":
        assert not bench.fake.taken
    bench.scheduler.step()
    assert bench.scheduler.idle
    assert not bench.fake.taken
    assert bench.blocks_add_up()
    assert bench.hits() == {"0:primary": 2}


def test_where_no_slot_is_granted_the_engine_stores_nothing():
    bench = Bench()
    bench.fake.slots = 0
    bench.add("a", "MM")
    bench.scheduler.step()
    assert "prepare_store" in bench.fake.names()
    assert "engine.store" not in bench.fake.names()
    assert bench.scheduler.idle


# Running until idle


def test_a_loop_with_nothing_to_do_waits_and_does_not_spin():
    bench = Bench(runtime=(runtime := CountingRuntime()))
    bench.add("a", "RM")
    assert not bench.scheduler.run_until_idle(poll=0.25, timeout=2.0)
    assert runtime.waits == [0.25] * 8
    assert bench.counts.steps == 8


def test_a_report_wakes_the_loop():
    def report() -> None:
        if len(runtime.waits) == 3:
            bench.answer("a", "HM")

    runtime = CountingRuntime(report)
    bench = Bench(runtime=runtime)
    bench.add("a", "RM")
    assert bench.scheduler.run_until_idle()
    assert len(runtime.waits) == 3
    assert bench.deferrals() == {"probe": 3}


def test_requests_that_need_no_report_are_run_without_waiting():
    bench = Bench(max_num_seqs=1, runtime=(runtime := CountingRuntime()))
    for name in "abc":
        bench.add(name, "HM")
    assert bench.scheduler.run_until_idle()
    assert runtime.waits == []
    assert bench.counts.steps == 3


def test_a_tier_with_work_under_way_is_stepped_until_it_is_done():
    bench = Bench(runtime=(runtime := CountingRuntime()))
    bench.fake.pending = 3
    assert not bench.scheduler.idle
    assert bench.scheduler.run_until_idle()
    assert bench.fake.names() == ["on_schedule_end"] * 3
    assert len(runtime.waits) == 3


# Misuse


@pytest.mark.parametrize("indices", [[], [0, 0], [1, 2, 1]])
def test_groups_must_be_told_apart_by_their_index(indices):
    groups = [KVGroup(index) for index in indices]
    fake = FakeManager()
    with pytest.raises(UsageError, match="distinct indices"):
        Scheduler(fake.manager, groups, Engine(fake), max_num_seqs=1, runtime=VirtualRuntime())


@pytest.mark.parametrize("limit", [0, -1])
def test_somebody_must_be_allowed_in_flight(limit):
    with pytest.raises(UsageError, match="max_num_seqs"):
        Bench(max_num_seqs=limit)


@pytest.mark.parametrize("steps", [0, 1])
def test_an_id_is_live_until_its_request_ends(steps):
    bench = Bench()
    bench.add("a", "R")
    for _ in range(steps):
        bench.scheduler.step()
    with pytest.raises(UsageError, match="'a' is live"):
        bench.add("a", "R")
    assert (bench.counts.requests, bench.counts.blocks) == (1, 1)


def test_a_prompt_whose_hashes_are_not_chained_is_refused():
    bench = Bench()
    with pytest.raises(UsageError, match="twice"):
        bench.scheduler.add(Request(ReqContext("a"), [b"x", b"y", b"x"]))
    assert bench.scheduler.idle


# The fake is the manager's interface, or this file tests nothing


def test_the_fake_has_the_real_managers_interface():
    stand_ins = {
        name: member
        for name, member in vars(FakeManager).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }
    for name in ("names", "keys_of"):
        del stand_ins[name]
    assert len(stand_ins) > 15
    for name, member in stand_ins.items():
        real = inspect.signature(getattr(TieringOffloadingManager, name))
        assert inspect.signature(member) == real, name
