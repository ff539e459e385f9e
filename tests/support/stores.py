"""Back ends that do what a test tells them, a driver for one tier, and what every back end owes."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from kvtier.errors import BlockMissing
from kvtier.keys import OffloadKey, make_offload_key
from kvtier.request import ReqContext
from kvtier.results import LookupResult
from kvtier.runtime import Runtime
from kvtier.tiers.base import JobResult, PrimaryView, TransferJob
from kvtier.tiers.frame import Frame, Raw, decode, encode
from kvtier.tiers.memory import MemoryStore
from kvtier.tiers.store import BlockStore, StoreTier

__all__ = [
    "BLOCK",
    "Hold",
    "ScriptedStore",
    "StoreContract",
    "TenantStore",
    "TierDriver",
    "block",
    "ctx",
    "key",
]

BLOCK = 96
"""Bytes in a block of these tests."""


def key(n: int, group: int = 0) -> OffloadKey:
    """Block number `n`."""
    return make_offload_key(hashlib.sha256(b"key %d" % n).digest(), group)


def block(n: int, size: int = BLOCK) -> bytes:
    """The bytes of block number `n`."""
    return hashlib.shake_256(b"block %d" % n).digest(size)


def ctx(req_id: str = "a", tenant: str | None = None) -> ReqContext:
    return ReqContext(req_id, None if tenant is None else {"tenant": tenant})


class Hold:
    """A call that does not return: `entered` is set once it is in, `free` lets it go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._free = threading.Event()

    def wait(self) -> None:
        self.entered.set()
        self._free.wait(30)

    def free(self) -> None:
        self._free.set()


class ScriptedStore(MemoryStore):
    """A `MemoryStore` that counts, fails, alters, blocks and dawdles on demand.

    An operation is `contains`, `get`, `put`, `delete` or `close`.
    """

    def __init__(self, runtime: Runtime | None = None) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[OffloadKey, ...], str]] = []
        """(operation, keys, request) in order."""
        self.answers: Callable[[Sequence[OffloadKey]], Iterable[Any]] | None = None
        """Instead of the truth."""
        self.alter: dict[OffloadKey, Callable[[bytes], bytes]] = {}
        """What `get` does to the frame of a key."""
        self.latency: Callable[[], float] = lambda: 0.0
        """Seconds that a call takes."""
        self.runtime = runtime
        self._errors: dict[tuple[str, OffloadKey | None], BaseException] = {}
        self._holds: dict[tuple[str, OffloadKey | None], Hold] = {}

    def fail(self, op: str, error: BaseException, at: OffloadKey | None = None) -> None:
        """From now on `op` (of `at` only) raises `error`."""
        self._errors[op, at] = error

    def heal(self) -> None:
        self._errors.clear()

    def hold(self, op: str, at: OffloadKey | None = None) -> Hold:
        """From now on `op` (of `at` only) does not return until the hold is freed."""
        return self._holds.setdefault((op, at), Hold())

    def free_all(self) -> None:
        for hold in self._holds.values():
            hold.free()

    def count(self, op: str) -> int:
        return sum(call[0] == op for call in self.calls)

    def contains(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> Iterable[Any]:
        self._enter("contains", keys, req_context.req_id)
        if self.answers is not None:
            return self.answers(keys)
        return super().contains(keys, req_context)

    def get(self, key: OffloadKey, req_context: ReqContext) -> bytes:
        self._enter("get", (key,), req_context.req_id)
        raw = super().get(key, req_context)
        return self.alter[key](raw) if key in self.alter else raw

    def put(self, key: OffloadKey, frame: Frame, req_context: ReqContext) -> None:
        self._enter("put", (key,), req_context.req_id)
        super().put(key, frame, req_context)

    def delete(self, key: OffloadKey, req_context: ReqContext) -> None:
        self._enter("delete", (key,), req_context.req_id)
        super().delete(key, req_context)

    def close(self) -> None:
        self._enter("close", (), "")

    def _enter(self, op: str, keys: Sequence[OffloadKey], req_id: str) -> None:
        self.calls.append((op, tuple(keys), req_id))
        if self.runtime is not None and (seconds := self.latency()):
            self.runtime.sleep(seconds)
        for at in (None, *keys):
            if (op, at) in self._holds:
                self._holds[op, at].wait()
            if (op, at) in self._errors:
                raise self._errors[op, at]


class TenantStore(BlockStore):
    """A store per tenant: what one tenant stored does not exist for another."""

    def __init__(self) -> None:
        self.of: dict[Hashable, ScriptedStore] = {}

    def scope(self, req_context: ReqContext) -> Hashable:
        return (req_context.kv_transfer_params or {}).get("tenant")

    def tenant(self, req_context: ReqContext) -> ScriptedStore:
        return self.of.setdefault(self.scope(req_context), ScriptedStore())

    def contains(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self.tenant(req_context).contains(keys, req_context)

    def get(self, key: OffloadKey, req_context: ReqContext) -> Raw:
        return self.tenant(req_context).get(key, req_context)

    def put(self, key: OffloadKey, frame: Frame, req_context: ReqContext) -> None:
        self.tenant(req_context).put(key, frame, req_context)

    def delete(self, key: OffloadKey, req_context: ReqContext) -> None:
        self.tenant(req_context).delete(key, req_context)


class TierDriver:
    """One tier and its primary: block number n is moved through slot n."""

    def __init__(
        self,
        store: BlockStore,
        runtime: Runtime,
        *,
        num_blocks: int = 32,
        size: int = BLOCK,
        label: str = "1:test",
        **options: Any,
    ) -> None:
        self.view = PrimaryView(num_blocks, size)
        self.runtime = runtime
        self.size = size
        self.tier = StoreTier(
            store, self.view, tier_type="test", label=label, runtime=runtime, **options
        )
        self._job_id = 0

    def submit_store(self, numbers: Iterable[int], who: ReqContext | None = None) -> TransferJob:
        """Fill the slots of these blocks and start to store them."""
        numbers = tuple(numbers)
        for n in numbers:
            self.view.slot(n)[:] = block(n, self.size)
        job = self._job(numbers, False, who)
        self.tier.submit_store(job)
        return job

    def submit_load(self, numbers: Iterable[int], who: ReqContext | None = None) -> TransferJob:
        """Wipe the slots of these blocks and start to load them."""
        numbers = tuple(numbers)
        for n in numbers:
            self.view.slot(n)[:] = bytes(self.size)
        job = self._job(numbers, True, who)
        self.tier.submit_load(job)
        return job

    def store(self, numbers: Iterable[int], who: ReqContext | None = None) -> JobResult:
        return self.result(self.submit_store(numbers, who))

    def load(self, numbers: Iterable[int], who: ReqContext | None = None) -> JobResult:
        return self.result(self.submit_load(numbers, who))

    def result(self, job: TransferJob, patience: float = 10.0) -> JobResult:
        """The report of `job`, the only job there is."""
        return self.results(1, patience)[job.job_id]

    def results(self, count: int, patience: float = 10.0) -> dict[int, JobResult]:
        """The reports of `count` jobs, which must be all there are and come once each."""
        until = self.runtime.now() + patience
        reports: list[JobResult] = []
        while len(reports) < count:
            assert self.runtime.now() < until, f"{len(reports)} of {count} jobs were reported"
            self.runtime.wait(0.05)
            reports += self.tier.get_finished_jobs()
        by_id = {report.job_id: report for report in reports}
        assert len(reports) == len(by_id) == count
        return by_id

    def ask(self, n: int, who: ReqContext | None = None, patience: float = 10.0) -> LookupResult:
        """What the tier says about block `n`, after as many steps as it takes."""
        until = self.runtime.now() + patience
        while True:
            answer = self.tier.lookup(key(n), who or ctx())
            if answer is not LookupResult.RETRY:
                return answer
            assert self.runtime.now() < until, "no verdict came"
            self.tier.on_schedule_end()
            self.runtime.wait(0.05)

    def slot(self, n: int) -> bytes:
        return bytes(self.view.slot(n))

    def _job(
        self, numbers: tuple[int, ...], is_promotion: bool, who: ReqContext | None
    ) -> TransferJob:
        self._job_id += 1
        keys = tuple(key(n) for n in numbers)
        return TransferJob(self._job_id, keys, numbers, is_promotion, who or ctx())


class StoreContract:
    """What every `BlockStore` owes: subclass it with a `store` for blocks of `BLOCK` bytes."""

    @pytest.fixture
    def store(self) -> Iterator[BlockStore]:
        raise NotImplementedError

    def put(self, store: BlockStore, n: int, content: bytes | None = None) -> None:
        data = memoryview(bytearray(block(n) if content is None else content))
        store.put(key(n), encode(key(n), data), ctx())

    def read(self, store: BlockStore, n: int) -> bytes:
        return bytes(decode(key(n), store.get(key(n), ctx()), BLOCK))

    def test_what_was_put_is_there_and_comes_back(self, store):
        for n in range(20):
            self.put(store, n)
        assert [self.read(store, n) for n in range(20)] == [block(n) for n in range(20)]

    def test_contains_answers_one_bool_per_key_in_order(self, store):
        for n in (0, 2, 5):
            self.put(store, n)
        answers = list(store.contains([key(n) for n in (5, 4, 0, 2, 1, 5)], ctx()))
        assert answers == [True, False, True, True, False, True]
        assert {type(answer) for answer in answers} == {bool}
        assert list(store.contains([], ctx())) == []

    def test_keys_of_different_groups_are_different_blocks(self, store):
        self.put(store, 0)
        assert list(store.contains([key(0, group=1)], ctx())) == [False]

    def test_get_of_a_block_that_is_not_there_is_block_missing(self, store):
        with pytest.raises(BlockMissing, match=key(0).hex()):
            store.get(key(0), ctx())

    def test_put_replaces_what_is_there(self, store):
        self.put(store, 0, content=bytes(BLOCK))
        self.put(store, 0)
        assert self.read(store, 0) == block(0)

    def test_put_takes_a_copy(self, store):
        data = memoryview(bytearray(block(0)))
        store.put(key(0), encode(key(0), data), ctx())
        data[:] = bytes(BLOCK)
        assert self.read(store, 0) == block(0)

    def test_delete_removes_one_block_and_is_content_if_there_is_none(self, store):
        self.put(store, 0)
        self.put(store, 1)
        store.delete(key(0), ctx())
        store.delete(key(0), ctx())
        assert list(store.contains([key(0), key(1)], ctx())) == [False, True]

    def test_many_threads_at_once_read_whole_blocks(self, store):
        for n in range(4):
            self.put(store, n)
        trouble: list[BaseException] = []
        stop = time.monotonic() + 0.3

        def run(me: int) -> None:
            try:
                while time.monotonic() < stop:
                    for n in range(4):
                        if me % 2:
                            self.put(store, n)
                        else:
                            assert self.read(store, n) == block(n)
                            assert list(store.contains([key(n)], ctx())) == [True]
            except BaseException as error:
                trouble.append(error)

        threads = [threading.Thread(target=run, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert trouble == []
