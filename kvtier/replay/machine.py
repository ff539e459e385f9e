"""Scheduler, tiers and a pretend engine, put together for one replay and taken apart after it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from kvtier.errors import BadInput
from kvtier.keys import Namespace, OffloadKey, make_offload_key
from kvtier.lifecycle import LookupObserver
from kvtier.lookup.manager import AsyncLookupManager
from kvtier.replay.config import ReplayConfig
from kvtier.replay.faults import FaultyStore, SlowStore
from kvtier.request import ReqContext
from kvtier.results import LookupResult
from kvtier.runtime import Runtime
from kvtier.scans import KVGroup
from kvtier.scheduler import Request, Scheduler
from kvtier.tiering import TieringObserver, TieringOffloadingManager
from kvtier.tiers.base import LoadStoreSpec, SecondaryTierManager
from kvtier.tiers.filesystem import remove_unused, root_of
from kvtier.tiers.host import CPUOffloadingManager
from kvtier.tiers.registry import TierSetup, open_tier, split_spec
from kvtier.tiers.store import BlockStore
from kvtier.workload import PayloadStream

__all__ = ["WINDOW", "Machine", "PretendEngine", "ReplayObservers", "RequestObserver", "assemble"]

_ROUNDS = 5
"""Times that a folder is removed into which a write that is under way may still put something."""

WINDOW = 8
"""Blocks that the sliding window group of a hybrid replay needs."""


class RequestObserver(Protocol):
    """Sees requests begin and end, and gives each the headers that its spans belong to."""

    def begin(self, req_id: str) -> Mapping[str, str]:
        """The request is added. What it returns are its `trace_headers`."""

    def end(self, req_id: str) -> None:
        """The request was computed, or given up."""


class PretendEngine:
    """Computes nothing, and knows what every block must hold: its payload.

    Implements `kvtier.scheduler.Engine`. What a request stores is the payload of
    its blocks; what it loads is compared with that, byte for byte.

    Computing takes as long as there is no room for the new blocks because those
    of earlier requests are still on their way into the tiers (`crowded`).
    Otherwise an engine that computes in no time would outrun any tier, and
    little would ever be stored. `ended` is called with the id of each request that
    has been computed.
    """

    def __init__(
        self,
        primary: CPUOffloadingManager,
        payload: PayloadStream,
        groups: Sequence[KVGroup],
        crowded: Callable[[], bool],
        ended: Callable[[str], None],
    ) -> None:
        self._primary = primary
        self._slot = primary.view.slot
        self._payload = payload
        self._groups = groups
        self._crowded = crowded
        self._ended = ended
        self._full_in = -1
        """The last step in which a request found no room: those behind it do not overtake it."""
        self.waiting: dict[str, None] = {}
        """Ids of requests that were added and have not run, in the order they came."""
        self.verified = 0
        """Blocks read back and found right."""
        self.mismatches = 0
        self.first_mismatch: str | None = None

    def load(self, request: Request, spec: LoadStoreSpec) -> None:
        for key, slot in zip(spec.keys, spec.slots, strict=True):
            if bytes(self._slot(slot)) == self._payload(key):
                self.verified += 1
                continue
            self.mismatches += 1
            if self.first_mismatch is None:
                where = f"request {request.ctx.req_id}, slot {slot}"
                self.first_mismatch = f"{where}, block {key.hex()}"

    def compute(self, request: Request) -> bool:
        if self._crowded():
            step, new = self._primary.step, self._new_blocks(request)
            if new > (0 if step == self._full_in else self._primary.available):
                self._full_in = step
                return False
        del self.waiting[request.ctx.req_id]
        self._ended(request.ctx.req_id)
        return True

    def _new_blocks(self, request: Request) -> int:
        return sum(
            self._primary.block(make_offload_key(block_hash, group.group_idx)) is None
            for block_hash in request.block_hashes
            for group in self._groups
        )

    def store(self, request: Request, spec: LoadStoreSpec) -> bool:
        for key, slot in zip(spec.keys, spec.slots, strict=True):
            self._slot(slot)[:] = self._payload(key)
        return True


class _CountingManager(TieringOffloadingManager):
    """Counts how often a block is asked for, which the manager has no need to know."""

    lookups = 0

    def locate(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        self.lookups += 1
        return super().locate(key, req_context)


@dataclass(frozen=True, slots=True)
class ReplayObservers:
    """Who watches a replay. Nobody need."""

    lookups: LookupObserver | None = None
    """Sees the transitions of all probes of all tiers."""
    tiering: TieringObserver | None = None
    """Sees jobs and the scheduler's passes."""
    requests: RequestObserver | None = None
    step: Callable[[], None] | None = None
    """Called after every step, between two calls of the machine."""


@dataclass(frozen=True, slots=True)
class Machine:
    """All parts of one replay."""

    runtime: Runtime
    engine: PretendEngine
    primary: CPUOffloadingManager
    tiers: tuple[SecondaryTierManager, ...]
    manager: _CountingManager
    scheduler: Scheduler

    @property
    def lookups(self) -> list[AsyncLookupManager]:
        """Of those tiers that ask questions in kvtier's way."""
        found = (getattr(tier, "lookups", None) for tier in self.tiers)
        return [lookups for lookups in found if isinstance(lookups, AsyncLookupManager)]

    def in_flight(self) -> int:
        """Requests that have not run, or whose blocks are still being stored into a tier."""
        return len(self.engine.waiting) + -(-self.manager.open_stores // len(self.tiers))

    def left_over(self) -> dict[str, int]:
        """What is still held. All 0 when everything has ended."""
        tables = self.manager.table_sizes()
        return {
            "lookup_entries": tables["lookups"]
            + sum(len(lookups.snapshot().entries) for lookups in self.lookups),
            "pins": self.primary.num_blocks - self.primary.available,
            "jobs": tables["jobs"],
            "requests": tables["requests"],
        }


@contextmanager
def assemble(
    config: ReplayConfig, model: str, runtime: Runtime, observers: ReplayObservers
) -> Iterator[Machine]:
    """The machine of `config`. Everything is shut down at the end; temporary files are removed.

    `model` goes into the namespace of all tiers. Raises `BadInput`, and leaves
    nothing behind, if the primary does not fit into memory or a tier cannot be
    opened.
    """
    namespace = Namespace(model, config.block_bytes, seed=config.seed)
    with ExitStack() as stack:
        specs = config.tiers
        if not specs:
            specs = (f"fs:{stack.enter_context(_temporary_folder())}",)
        try:
            primary = CPUOffloadingManager(config.host_blocks, config.block_bytes, config.policy)
        except (MemoryError, OverflowError) as error:
            size = config.host_blocks * config.block_bytes
            raise BadInput(
                f"{config.host_blocks} slots of {config.block_bytes} bytes",
                f"no memory for {size} bytes",
                "a primary that fits into memory",
            ) from error

        def wrap(store: BlockStore) -> BlockStore:
            if not config.tiers:
                # Also if shutdown does not come to it: what is open may fill the folder again.
                stack.callback(store.close)
            if config.faults:
                store = FaultyStore(store, config.faults, config.seed)
            return SlowStore(store, config.slow_backend, runtime) if config.slow_backend else store

        tiers: list[SecondaryTierManager] = []
        with _undone([*_folders(specs, namespace)]), ExitStack() as opening:
            for number, spec in enumerate(specs, 1):
                setup = TierSetup(
                    view=primary.view,
                    namespace=namespace,
                    label=f"{number}:{split_spec(spec)[0]}",
                    runtime=runtime,
                    deadline=config.deadline,
                    observer=observers.lookups,
                    wrap=wrap,
                )
                tiers.append(open_tier(spec, setup))
                opening.callback(_shut, tiers[-1])
            stack.push(opening.pop_all())
        manager = _CountingManager(
            primary,
            tiers,
            runtime=runtime,
            # With one request at a time nobody is kept from anything by what waits.
            headroom=0 if config.concurrency == 1 else None,
            observer=observers.tiering,
        )
        groups = [KVGroup(0), KVGroup(1, WINDOW)] if config.hybrid else [KVGroup(0)]
        engine = PretendEngine(
            primary,
            PayloadStream(config.seed, config.block_bytes),
            groups,
            crowded=lambda: manager.open_stores > 0,
            ended=_nothing if observers.requests is None else observers.requests.end,
        )
        scheduler = Scheduler(
            manager,
            groups,
            engine,
            max_num_seqs=config.concurrency,
            runtime=runtime,
            observer=observers.tiering,
        )
        yield Machine(runtime, engine, primary, tuple(tiers), manager, scheduler)


def _nothing(req_id: str) -> None:
    pass


@contextmanager
def _temporary_folder() -> Iterator[str]:
    try:
        folder = tempfile.mkdtemp(prefix="kvtier-replay-")
    except OSError as error:
        raise BadInput(
            "temporary directory",
            f"cannot be made: {error.strerror}",
            "room in TMPDIR, or a tier that needs none",
        ) from error
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_folder(folder: str | os.PathLike[str]) -> None:
    """Remove a tree of many small files, several at a time.

    A file system that discards what it frees makes every single removal wait for
    milliseconds, and a replay leaves a hundred thousand files. Errors are passed over.
    """
    leaves = [path for path, below, _ in os.walk(folder) if not below]
    # Where no thread can be started, it takes longer.
    with suppress(RuntimeError), ThreadPoolExecutor(16, "kvtier-remove") as pool:
        pool.map(partial(shutil.rmtree, ignore_errors=True), leaves)
    for _ in range(_ROUNDS):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            break


@contextmanager
def _undone(folders: list[Path]) -> Iterator[None]:
    """On failure removes those of `folders` that were not there before, parents included.

    Another process may have had the same idea: nothing goes that holds what is not ours.
    """
    made = [
        [path for path in (folder, *folder.parents) if not os.path.exists(path)]
        for folder in folders
    ]
    try:
        yield
    except BaseException:
        for paths in filter(None, made):
            remove_unused(paths[0])
            for parent in paths[1:]:
                with suppress(OSError):
                    parent.rmdir()
        raise


def _folders(specs: Sequence[str], namespace: Namespace) -> Iterator[Path]:
    """The directories that opening these tiers makes."""
    for name, arg in map(split_spec, specs):
        if name == "fs" and arg:
            yield root_of(arg) / namespace.digest


def _shut(tier: SecondaryTierManager) -> None:
    with suppress(Exception):  # it has been logged by then, and there is nobody left to tell
        tier.shutdown()
