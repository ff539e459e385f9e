"""kvtier's lookup manager and vLLM's own: where they agree, and each place where they do not.

The second half is the list of differences in the lifecycle's contract, each shown on
both. What vLLM does there is what kvtier exists to do otherwise, so a test that fails
because vLLM has changed is good news: take it off the list.
"""

from __future__ import annotations

import inspect
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupPhase
from kvtier.lookup import AsyncLookupManager
from kvtier.request import ReqContext

pytestmark = pytest.mark.peer

PATIENCE = 10.0
"""Seconds that a test waits for another thread before it calls that a failure."""

MARKER = b"marker"
"""Keys that begin so are not part of what a test asks."""

A, B, C = KEYS = tuple(OffloadKey(name) for name in (b"a", b"b", b"c"))


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.0005)


def broken(keys: list[OffloadKey]) -> list[bool]:
    raise OSError("unreachable")


class BackEnd:
    """Holds the blocks in `present`, or answers as `answer` says. Notes the questions."""

    def __init__(self) -> None:
        self.present = set(KEYS)
        self.answer: Callable[[list[OffloadKey]], Any] = lambda keys: [
            key in self.present for key in keys
        ]
        self.calls: list[list[OffloadKey]] = []
        self._permits = threading.Semaphore(0)
        self._held = False

    def hold(self) -> None:
        """From now on calls do not return."""
        if not self._held:
            self._held, self._permits = True, threading.Semaphore(0)

    def let_one_go(self) -> None:
        self._permits.release()

    def let_go(self) -> None:
        """Calls return again."""
        self._held = False
        self._permits.release(1000)

    def __call__(self, keys: list[OffloadKey]) -> Any:
        asked = [key for key in keys if not key.startswith(MARKER)]
        answers = []
        if asked:
            self.calls.append(asked)
            if self._held:
                assert self._permits.acquire(timeout=PATIENCE)
            answers = self.answer(asked)
        return [*answers, *[True] * (len(keys) - len(asked))]

    def wait_for(self, calls: int) -> None:
        """Until so many calls have begun."""
        until(lambda: len(self.calls) >= calls)

    @property
    def asked(self) -> list[OffloadKey]:
        return sorted(key for keys in self.calls for key in keys)


class Side:
    """One of the managers, spoken to by request id."""

    def __init__(self, base: Any, **settings: Any) -> None:
        self.back_end = back_end = BackEnd()

        class Manager(base):  # type: ignore[misc]
            def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Any:
                return back_end(keys)

        self.manager = Manager("1:test", **settings)
        self.flush = self.manager.flush
        self.drain = self.manager.drain_results
        self.mark_miss = self.manager.mark_miss
        self.cleanup = self.manager.cleanup
        self._markers = 0

    def lookup(self, req_id: str, key: OffloadKey) -> Any:
        return self.manager.lookup(key, ReqContext(req_id))

    def send(self) -> None:
        """Flush, and wait until the back end has been asked."""
        calls = len(self.back_end.calls)
        self.flush()
        self.back_end.wait_for(calls + 1)

    def settle(self) -> None:
        """Flush, until all that was asked is answered and applied: a last question tells."""
        self._markers += 1
        marker = OffloadKey(b"%s %d" % (MARKER, self._markers))
        self.lookup("marker", marker)

        def arrived() -> bool:
            self.flush()
            self.drain()
            return self.lookup("marker", marker) is not None

        until(arrived)
        self.cleanup("marker")
        self.flush()

    def resolve(self, req_id: str, key: OffloadKey) -> Any:
        """What a request reads when its question has been answered."""
        self.lookup(req_id, key)
        self.settle()
        return self.lookup(req_id, key)

    def close(self) -> None:
        self.back_end.let_go()
        self.manager.shutdown()


@pytest.fixture
def ours() -> Iterator[Side]:
    side = Side(AsyncLookupManager)
    yield side
    side.close()


@pytest.fixture
def theirs(vllm: ModuleType) -> Iterator[Side]:
    side = Side(vllm.AsyncLookupManager)
    yield side
    side.close()


@pytest.fixture(params=["ours", "theirs"])
def either(request: pytest.FixtureRequest) -> Side:
    side: Side = request.getfixturevalue(request.param)
    return side


# -- names -----------------------------------------------------------------------------------


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


def test_every_method_of_vllms_exists_here_and_takes_the_same_arguments(vllm):
    methods = public(vllm.AsyncLookupManager)
    assert {"lookup", "flush", "drain_results", "mark_miss", "cleanup", "shutdown"} < set(methods)
    for name, method in methods.items():
        theirs = list(inspect.signature(method).parameters)
        ours = inspect.signature(getattr(AsyncLookupManager, name)).parameters
        assert list(ours)[: len(theirs)] == theirs, name
        further = list(ours.values())[len(theirs) :]
        assert all(each.default is not inspect.Parameter.empty for each in further), name


def test_the_phases_are_vllms_and_one_for_no_probe(vllm):
    theirs = {phase.name for phase in vllm.LookupPhase}
    assert {phase.name for phase in LookupPhase} - theirs == {"ABSENT"}
    assert theirs <= {phase.name for phase in LookupPhase}


# -- where they agree --------------------------------------------------------------------------


@pytest.mark.parametrize("present", [True, False])
def test_a_question_is_asked_once_and_its_answer_is_kept(either, present):
    either.back_end.present = {A} if present else set()
    assert either.lookup("r1", A) is None
    assert either.lookup("r1", A) is None
    either.settle()
    assert either.lookup("r1", A) is present
    assert either.lookup("r2", A) is present
    assert either.back_end.calls == [[A]]


def test_a_request_that_ends_leaves_its_question_to_the_next(either):
    either.back_end.hold()
    either.lookup("r1", A)
    either.send()
    either.cleanup("r1")
    assert either.lookup("r2", A) is None
    either.back_end.let_go()
    either.settle()
    assert either.lookup("r2", A) is True
    assert either.back_end.calls == [[A]]


def test_a_question_that_was_not_sent_is_taken_back(either):
    either.lookup("r1", A)
    either.cleanup("r1")
    either.settle()
    assert either.back_end.calls == []


def test_a_failed_load_is_a_miss_until_everybody_has_let_go(either):
    assert either.resolve("r1", A) is True
    either.mark_miss([A])
    assert either.lookup("r1", A) is False
    assert either.lookup("r2", A) is False
    either.cleanup("r1")
    assert either.lookup("r2", A) is False
    either.cleanup("r2")
    assert either.resolve("r3", A) is True


def test_a_failed_load_leaves_a_newer_question_alone(either):
    either.lookup("r1", A)
    either.mark_miss([A, B])
    either.settle()
    assert either.lookup("r1", A) is True


def test_a_back_end_that_raises_is_a_no(either):
    either.back_end.answer = broken
    assert either.resolve("r1", A) is False


def test_cleanup_of_somebody_unknown_does_nothing(either):
    either.cleanup("nobody")


@pytest.mark.parametrize("seed", range(20))
def test_where_nothing_fails_a_request_cannot_tell_them_apart(vllm, seed):
    sides = [
        Side(AsyncLookupManager, max_batches_out=1000),
        Side(vllm.AsyncLookupManager),
    ]
    rng = random.Random(seed)
    replies: list[list[Any]] = [[], []]
    for _ in range(80):
        draw = rng.random()
        call = rng.choice(["lookup"] * 6 + ["send", "settle", "mark_miss", "cleanup", "change"])
        for side, said in zip(sides, replies, strict=True):
            chance = random.Random(draw)
            req_id, key = chance.choice(["r1", "r2", "r3"]), chance.choice(KEYS)
            if call == "lookup":
                said.append(side.lookup(req_id, key))
            elif call == "send":
                side.back_end.hold()
                side.flush()
            elif call == "settle":
                side.back_end.let_go()
                side.settle()
                said.append(side.back_end.asked)
            elif call == "mark_miss":
                side.mark_miss([key])
            elif call == "cleanup":
                side.cleanup(req_id)
            else:
                side.back_end.present ^= {key}
    for side in sides:
        side.close()
    assert replies[0] == replies[1]


# -- where they differ -------------------------------------------------------------------------


def test_one_call_for_all_requests_of_a_step_not_one_for_each(ours, theirs):
    for side in (ours, theirs):
        for req_id, key in zip(("r1", "r2", "r3"), KEYS, strict=True):
            side.lookup(req_id, key)
        side.settle()
    assert ours.back_end.calls == [[A, B, C]]
    assert theirs.back_end.calls == [[A], [B], [C]]


def test_an_answer_that_arrives_with_no_holder_is_there_for_the_next_asker(ours, theirs):
    for side in (ours, theirs):
        side.back_end.hold()
        side.lookup("r1", A)
        side.send()
        side.cleanup("r1")
        side.lookup("r2", B)
        side.flush()
        side.back_end.let_one_go()
        # First in, first out: when B is asked, the answer about A is published.
        side.back_end.wait_for(2)
    assert ours.lookup("r3", A) is True
    # vLLM drains before it joins, so it throws the answer away and asks again.
    assert theirs.lookup("r3", A) is None
    for side in (ours, theirs):
        side.back_end.let_go()
        side.settle()
    assert ours.back_end.asked == [A, B]
    assert theirs.back_end.asked == [A, A, B]


def test_a_short_answer_fails_the_question_instead_of_leaving_it_out_for_ever(ours, theirs):
    for side in (ours, theirs):
        side.back_end.answer = lambda keys: [True]
        side.lookup("r1", A)
        side.lookup("r1", B)
        side.settle()
    assert [ours.lookup("r1", key) for key in (A, B)] == [False, False]
    assert [theirs.lookup("r1", key) for key in (A, B)] == [True, None]
    for side in (ours, theirs):
        side.back_end.answer = lambda keys: [True] * len(keys)
        side.cleanup("r1")
    assert ours.resolve("r2", B) is True
    assert theirs.resolve("r2", B) is None
    assert theirs.back_end.asked == [A, B]


def test_an_answer_that_is_no_bool_is_not_handed_on(ours, theirs):
    for side in (ours, theirs):
        side.back_end.answer = lambda keys: ["perhaps"] * len(keys)
    assert ours.resolve("r1", A) is False
    assert theirs.resolve("r1", A) == "perhaps"


def test_a_failed_question_is_asked_again_for_somebody_new(ours, theirs):
    for side in (ours, theirs):
        side.back_end.answer = broken
        assert side.resolve("r1", A) is False
        side.back_end.answer = lambda keys: [True] * len(keys)
        side.lookup("r2", A)
        side.settle()
    assert ours.lookup("r2", A) is True
    assert theirs.lookup("r2", A) is False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_worker_outlives_whatever_is_raised(ours, theirs):
    def leave(keys: list[OffloadKey]) -> list[bool]:
        raise SystemExit

    for side in (ours, theirs):
        side.back_end.answer = leave
        side.lookup("r1", A)
        side.send()
        side.back_end.answer = lambda keys: [True] * len(keys)
    assert ours.resolve("r2", B) is True
    theirs.manager._thread.join(PATIENCE)
    assert not theirs.manager._thread.is_alive()


def test_a_completed_store_turns_no_into_yes(ours, theirs):
    for side in (ours, theirs):
        side.back_end.present = set()
        assert side.resolve("r1", A) is False
    ours.manager.mark_hit([A], ReqContext("r1"))
    assert ours.lookup("r1", A) is True
    assert not hasattr(theirs.manager, "mark_hit")


def test_a_slow_back_end_is_not_asked_for_requests_that_have_ended(ours, theirs):
    for side in (ours, theirs):
        side.back_end.hold()
        side.lookup("r0", OffloadKey(b"0"))
        side.send()
        for number in range(1, 6):
            side.lookup(f"r{number}", OffloadKey(b"%d" % number))
            side.flush()
        for number in range(1, 6):
            side.cleanup(f"r{number}")
        side.back_end.let_go()
        side.settle()
    # Two batches out, then the window is shut: what is pending can be taken back.
    assert ours.back_end.asked == [b"0", b"1"]
    assert theirs.back_end.asked == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_one_tenants_answer_can_be_kept_from_another(vllm):
    def lookups(base: Any) -> Any:
        class Manager(base):  # type: ignore[misc]
            def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> list[bool]:
                return [req_context.req_id == "owner"] * len(keys)

            def probe_scope(self, req_context: ReqContext) -> str:
                return req_context.req_id

        return Manager("1:test")

    seen = []
    for base in (AsyncLookupManager, vllm.AsyncLookupManager):
        manager = lookups(base)
        for req_id in ("owner", "stranger"):
            manager.lookup(A, ReqContext(req_id))
        manager.flush()

        def answered(manager: Any = manager) -> bool:
            manager.drain_results()
            return all(
                manager.lookup(A, ReqContext(req_id)) is not None
                for req_id in ("owner", "stranger")
            )

        until(answered)
        seen.append([manager.lookup(A, ReqContext(req_id)) for req_id in ("owner", "stranger")])
        manager.shutdown()
    assert seen == [[True, False], [True, True]]


def test_shutdown_ends_whatever_the_back_end_does(ours, theirs):
    for side in (ours, theirs):
        side.back_end.hold()
        side.lookup("r1", A)
        side.send()
    began = time.monotonic()
    ours.manager.shutdown(timeout=0.05)
    assert time.monotonic() - began < PATIENCE / 2
    assert ours.lookup("r1", A) is False

    ending = threading.Thread(target=theirs.manager.shutdown, daemon=True)
    ending.start()
    ending.join(0.3)
    assert ending.is_alive()
    theirs.back_end.let_go()
    ending.join(PATIENCE)
    assert not ending.is_alive()
