"""The interfaces between a manager and its tiers, and the jobs that pass between them.

The *primary* tier is one shared buffer in host memory, cut into *slots* of one
block each. Every other tier is *secondary*: it never sees the GPU, only slots of
the primary. A *load* (promotion) copies blocks from a secondary into slots, a
*store* (cascade) copies slots into a secondary. Both are jobs: `submit_*` only
starts them, `get_finished_jobs` reports them.

What a manager promises a tier: one caller at a time; slots of a job are neither
reused nor evicted until the job is reported; after `on_request_finished` no
job of that request is submitted any more. What a tier promises: no call blocks
on the back end; every job is reported once; it does not touch the slots of a
job that it has reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.results import LookupResult, MissReason

__all__ = [
    "JobResult",
    "LoadStoreSpec",
    "OffloadingManager",
    "PrepareStoreOutput",
    "PrimaryView",
    "SecondaryTierManager",
    "TransferJob",
]


class PrimaryView:
    """The primary's buffer as a secondary tier sees it: slots by number, nothing else."""

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self._buffer = memoryview(bytearray(num_blocks * block_bytes))

    def slot(self, index: int) -> memoryview:
        """Writable view of slot `index`, exactly `block_bytes` long."""
        start = index * self.block_bytes
        return self._buffer[start : start + self.block_bytes]


@dataclass(frozen=True, slots=True)
class LoadStoreSpec:
    """Blocks and the slots that hold them: `keys[i]` is in slot `slots[i]` under `write_ids[i]`.

    A write id names one filling of one slot, so that a late completion cannot be
    taken for a completion of what the slot holds now.
    """

    keys: tuple[OffloadKey, ...]
    slots: tuple[int, ...]
    write_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def only(self, keys: Collection[OffloadKey]) -> LoadStoreSpec:
        """The part of this spec whose keys are in `keys`, in the same order."""
        picked = [i for i, key in enumerate(self.keys) if key in keys]
        return LoadStoreSpec(
            tuple(self.keys[i] for i in picked),
            tuple(self.slots[i] for i in picked),
            tuple(self.write_ids[i] for i in picked),
        )


@dataclass(frozen=True, slots=True)
class PrepareStoreOutput:
    """What `prepare_store` granted: the slots to fill, what had to go, what found no room."""

    store_spec: LoadStoreSpec
    evicted_keys: tuple[OffloadKey, ...]
    no_room: tuple[OffloadKey, ...]


@dataclass(frozen=True, slots=True)
class TransferJob:
    """One load or store between a secondary tier and slots of the primary."""

    job_id: int
    keys: tuple[OffloadKey, ...]
    slots: tuple[int, ...]
    is_promotion: bool
    """True: secondary to primary (load). False: primary to secondary (store)."""
    req_context: ReqContext


@dataclass(frozen=True, slots=True)
class JobResult:
    """Report of one finished job."""

    job_id: int
    success: bool
    """True if every key made it."""
    successful_keys: Collection[OffloadKey] | None = None
    """On failure: the keys that made it all the same. `None`: none of them."""
    transfer_time: float | None = None
    """Seconds spent moving bytes."""
    transfer_bytes: int | None = None


class OffloadingManager(ABC):
    """What a scheduler talks to. Calls come from one caller at a time and never block."""

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Where is this block, for this request, now?"""

    @abstractmethod
    def prepare_load(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Take a reference on blocks that answered `HIT` in this step.

        Raises `UsageError`, and takes none, if one of them is not readable.
        """

    @abstractmethod
    def complete_load(self, spec: LoadStoreSpec, req_context: ReqContext) -> None:
        """Give back the references that `prepare_load` took."""

    @abstractmethod
    def prepare_store(
        self, keys: Sequence[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput:
        """Take slots for new blocks, from the front as far as they fit.

        A key that has a slot already is skipped. The caller fills the slots and
        calls `complete_store`.
        """

    @abstractmethod
    def complete_store(
        self, spec: LoadStoreSpec, req_context: ReqContext, success: bool = True
    ) -> None:
        """The slots of `spec` are filled and become readable, or, on failure, are freed."""

    def touch(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        """These blocks were used; `keys` in prefix order."""
        return

    def on_new_request(self, req_context: ReqContext) -> None:
        """The first call for a request."""
        return

    def on_request_finished(self, req_context: ReqContext) -> None:
        """The scheduler submits nothing more for this request; completions may follow."""
        return

    def on_schedule_end(self) -> None:
        """The last call of a scheduler step."""
        return

    def has_pending_work(self) -> bool:
        """Whether steps are needed although no request runs."""
        return False

    def shutdown(self, timeout: float | None = 5.0) -> None:
        """Release everything within `timeout` seconds (`None`: wait as long as it takes)."""
        return


class SecondaryTierManager(ABC):
    """One slower tier. Subclass this to add a back end; `kvtier.tiers.memory` is the example.

    A back end that can only block (a file system, a client library) is easier to
    add as a `kvtier.tiers.store.BlockStore`.
    """

    tier_type: str
    """What kind of tier this is, for labels: `fs`, `memory`."""

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """`HIT`: can be loaded. `MISS`: not here. `RETRY`: not known yet, ask next step."""

    @abstractmethod
    def submit_load(self, job: TransferJob) -> None:
        """Start copying blocks into the slots of the primary that `job` names."""

    @abstractmethod
    def submit_store(self, job: TransferJob) -> None:
        """Start copying the slots of the primary that `job` names into this tier."""

    @abstractmethod
    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Every job that ended since the last call, each once."""

    def miss_reason(self, key: OffloadKey, req_context: ReqContext) -> MissReason:
        """Why `lookup` last answered `MISS`. A pure read."""
        return MissReason.ABSENT

    def touch(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        """These blocks were used; `keys` in prefix order."""
        return

    def on_new_request(self, req_context: ReqContext) -> None:
        """The first call for a request."""
        return

    def on_request_finished(self, req_context: ReqContext) -> None:
        """No job of this request follows; those submitted may still be under way."""
        return

    def release_lookups(self, req_context: ReqContext) -> None:
        """The request asks nothing more, though stores of its blocks may follow."""
        return

    def on_schedule_end(self) -> None:
        """The last call of a scheduler step: send what was asked."""
        return

    def has_pending_work(self) -> bool:
        """Whether `on_schedule_end` and `get_finished_jobs` must go on being called."""
        return False

    def drain_jobs(self, timeout: float | None) -> bool:
        """Wait until no job touches the primary any more; whether that came true in time."""
        return True

    def shutdown(self, timeout: float | None = 5.0) -> None:
        """Stop within `timeout` seconds whatever the back end does. Idempotent."""
        return
