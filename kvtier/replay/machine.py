"""Scheduler, tiers and a pretend engine, put together for one replay and taken apart after it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvtier.errors import BadInput, KvtierError
from kvtier.keys import Namespace, OffloadKey
from kvtier.lifecycle import LookupObserver
from kvtier.lookup.manager import AsyncLookupManager
from kvtier.replay.config import ReplayConfig
from kvtier.replay.faults import FaultyStore, SlowStore
from kvtier.request import ReqContext
from kvtier.results import LookupResult
from kvtier.runtime import Runtime
from kvtier.scans import KVGroup
from kvtier.scheduler import Request, Scheduler
from kvtier.tiering import TieringOffloadingManager
from kvtier.tiers.base import LoadStoreSpec, PrimaryView, SecondaryTierManager
from kvtier.tiers.host import CPUOffloadingManager
from kvtier.tiers.registry import TierSetup, known_tiers, open_tier, split_spec
from kvtier.tiers.store import BlockStore
from kvtier.workload import PayloadStream

__all__ = ["WINDOW", "Machine", "PretendEngine", "assemble"]

WINDOW = 8
"""Blocks that the sliding window group of a hybrid replay needs."""


class PretendEngine:
    """Computes nothing, and knows what every block must hold: its payload.

    Implements `kvtier.scheduler.Engine`. What a request stores is the payload of
    its blocks; what it loads is compared with that, byte for byte.
    """

    def __init__(self, view: PrimaryView, payload: PayloadStream) -> None:
        self._view = view
        self._payload = payload
        self.waiting: dict[str, None] = {}
        """Ids of requests that were added and have not run, in the order they came."""
        self.verified = 0
        """Blocks read back and found right."""
        self.mismatches = 0
        self.first_mismatch: str | None = None

    def load(self, request: Request, spec: LoadStoreSpec) -> None:
        for key, slot in zip(spec.keys, spec.slots, strict=True):
            if bytes(self._view.slot(slot)) == self._payload(key):
                self.verified += 1
                continue
            self.mismatches += 1
            if self.first_mismatch is None:
                where = f"request {request.ctx.req_id}, slot {slot}"
                self.first_mismatch = f"{where}, block {key.hex()}"

    def compute(self, request: Request) -> None:
        del self.waiting[request.ctx.req_id]

    def store(self, request: Request, spec: LoadStoreSpec) -> bool:
        for key, slot in zip(spec.keys, spec.slots, strict=True):
            self._view.slot(slot)[:] = self._payload(key)
        return True


class _CountingManager(TieringOffloadingManager):
    """Counts how often a block is asked for, which the manager has no need to know."""

    lookups = 0

    def locate(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        self.lookups += 1
        return super().locate(key, req_context)


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
    config: ReplayConfig, model: str, runtime: Runtime, observer: LookupObserver | None
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
            folder = tempfile.mkdtemp(prefix="kvtier-replay-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            specs = (f"fs:{folder}",)
        for spec in specs:
            _check(spec)
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
            if config.faults:
                store = FaultyStore(store, config.faults, config.seed)
            return SlowStore(store, config.slow_backend, runtime) if config.slow_backend else store

        tiers: list[SecondaryTierManager] = []
        for number, spec in enumerate(specs, 1):
            setup = TierSetup(
                view=primary.view,
                namespace=namespace,
                label=f"{number}:{split_spec(spec)[0]}",
                runtime=runtime,
                deadline=config.deadline,
                observer=observer,
                wrap=wrap,
            )
            tiers.append(open_tier(spec, setup))
            stack.callback(_shut, tiers[-1])
        manager = _CountingManager(
            primary,
            tiers,
            runtime=runtime,
            # With one request at a time nobody is kept from anything by what waits.
            headroom=0 if config.concurrency == 1 else None,
        )
        engine = PretendEngine(primary.view, PayloadStream(config.seed, config.block_bytes))
        groups = [KVGroup(0), KVGroup(1, WINDOW)] if config.hybrid else [KVGroup(0)]
        scheduler = Scheduler(
            manager, groups, engine, max_num_seqs=config.concurrency, runtime=runtime
        )
        yield Machine(runtime, engine, primary, tuple(tiers), manager, scheduler)


def _check(spec: str) -> None:
    """Find out what is wrong with a tier before the first of them has made a directory."""
    name, arg = split_spec(spec)
    if name not in known_tiers():
        raise BadInput(
            f"tier {spec!r}", f"there is no tier {name!r}", f"one of {', '.join(known_tiers())}"
        )
    if name != "fs" or not arg:
        return
    folder = Path(arg).expanduser()
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        usable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise BadInput(f"tier {spec!r}", f"cannot be used: {error.strerror}") from error
    if not usable:
        what = "is no directory" if not folder.is_dir() else "cannot be written to"
        raise BadInput(f"tier {spec!r}", f"{folder} {what}", "a directory that can be made or used")


def _shut(tier: SecondaryTierManager) -> None:
    try:
        tier.shutdown()
    except KvtierError:
        return  # a tier that cannot be closed has been counted and logged
