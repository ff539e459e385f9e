"""The secondary tiers as the manager sees them: numbered, and behind a wall.

A tier is somebody else's code. An exception that it raises does not reach the
scheduler, whose step it would break for every request; it is logged, counted
(`TieringCounts.tier_errors`), and read as the answer that promises least:

* `lookup` that raises: `MISS` of that tier, reason `lookup_error`.
* `submit_load`, `submit_store` that raise: the tier has not taken the job.
* `get_finished_jobs` that raises, at once or while it is read: what it reported
  before counts, the rest it may report in the next step.
* `has_pending_work` that raises: no.
* any other: the tier did not hear it. The others do.

Two things do reach the caller. `lookup` that *answers* anything but a
`LookupResult` raises `UsageError` naming the tier: it is written against the old
`bool | None` interface, and no reading of it is safe. And `shutdown` re-raises the
first error after every tier had its turn (vllm 52290).

Tiers are numbered from 1, as in their labels; number 0 is the primary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, assert_never

from kvtier.keys import OffloadKey
from kvtier.log import Log
from kvtier.request import ReqContext
from kvtier.results import LookupResult, MissReason, require_result
from kvtier.runtime import Runtime
from kvtier.tiering.counts import TieringCounts
from kvtier.tiers.base import SecondaryTierManager, TransferJob

__all__ = ["Answer", "Secondaries"]

_log = Log("kvtier.tiering")

_GRAVITY = (MissReason.LOOKUP_ERROR, MissReason.DEADLINE, MissReason.CLOSED)
"""Which reason to give when tiers have different ones: the first of these, else `absent`."""


class Answer(NamedTuple):
    """What all secondary tiers together say about one block."""

    tier: int | None
    """The first that has it."""
    open: bool
    """None is known to have it, and one has not answered yet."""
    reason: MissReason
    """If neither: why not."""


class Secondaries:
    """The tiers in the order in which they are asked."""

    def __init__(
        self, tiers: Sequence[SecondaryTierManager], runtime: Runtime, counts: TieringCounts
    ) -> None:
        self._tiers = tuple(enumerate(tiers, 1))
        self._runtime = runtime
        self._counts = counts
        self.labels = tuple(f"{number}:{tier.tier_type}" for number, tier in self._tiers)
        self.numbers = tuple(number for number, _ in self._tiers)

    def ask(self, key: OffloadKey, ctx: ReqContext) -> Answer:
        """Ask each tier until one has the block.

        A tier that does not know yet does not keep the next from being asked.
        One that answers `HIT_PENDING` is on its way to having it: not yet.
        """
        is_open = False
        reason = MissReason.ABSENT
        said_no = []
        for number, tier in self._tiers:
            try:
                answer = tier.lookup(key, ctx)
            except Exception as error:
                self._failed(number, "lookup", error)
                reason = MissReason.LOOKUP_ERROR
                continue
            match require_result(answer, self.labels[number - 1]):
                case LookupResult.HIT:
                    return Answer(number, False, MissReason.ABSENT)
                case LookupResult.RETRY | LookupResult.HIT_PENDING:
                    is_open = True
                case LookupResult.MISS:
                    said_no.append((number, tier))
                case never:
                    assert_never(never)
        if not is_open and reason is MissReason.ABSENT:
            reason = self._why(said_no, key, ctx)
        return Answer(None, is_open, reason)

    def submit(self, number: int, job: TransferJob) -> bool:
        """Hand `job` to a tier; whether it took it."""
        tier = self._tiers[number - 1][1]
        try:
            if job.is_promotion:
                tier.submit_load(job)
            else:
                tier.submit_store(job)
        except Exception as error:
            self._failed(number, "submit_load" if job.is_promotion else "submit_store", error)
            return False
        return True

    def reports(self) -> Iterator[tuple[int, object]]:
        """What each tier reports, with the tier's number."""
        for number, tier in self._tiers:
            try:
                for report in tier.get_finished_jobs():
                    yield number, report
            except Exception as error:
                self._failed(number, "get_finished_jobs", error)

    def tell(self, call: str, how: Callable[[SecondaryTierManager], None]) -> None:
        """Make the call named `call` on every tier."""
        for number, tier in self._tiers:
            try:
                how(tier)
            except Exception as error:
                self._failed(number, call, error)

    def has_pending_work(self) -> bool:
        """Whether any tier needs steps."""
        for number, tier in self._tiers:
            try:
                if tier.has_pending_work():
                    return True
            except Exception as error:
                self._failed(number, "has_pending_work", error)
        return False

    def drain(self, timeout: float | None) -> None:
        """Let every tier finish its jobs, within `timeout` seconds in all."""
        for number, tier, share in self._shares(timeout):
            try:
                tier.drain_jobs(share)
            except Exception as error:
                self._failed(number, "drain_jobs", error)

    def shutdown(self, timeout: float | None) -> None:
        """Shut every tier down, within `timeout` seconds in all; then raise the first error."""
        first: Exception | None = None
        for number, tier, share in self._shares(timeout):
            try:
                tier.shutdown(share)
            except Exception as error:
                self._failed(number, "shutdown", error)
                first = error if first is None else first
        if first is not None:
            raise first

    def _shares(
        self, timeout: float | None
    ) -> Iterator[tuple[int, SecondaryTierManager, float | None]]:
        """Each tier with an equal share of the time that is left when its turn comes."""
        until = None if timeout is None else self._runtime.now() + timeout
        for number, tier in self._tiers:
            if until is None:
                yield number, tier, None
            else:
                left = max(0.0, until - self._runtime.now())
                yield number, tier, left / (len(self._tiers) - number + 1)

    def _why(
        self,
        said_no: list[tuple[int, SecondaryTierManager]],
        key: OffloadKey,
        ctx: ReqContext,
    ) -> MissReason:
        reasons = set()
        for number, tier in said_no:
            try:
                reasons.add(tier.miss_reason(key, ctx))
            except Exception as error:
                self._failed(number, "miss_reason", error)
        return next((reason for reason in _GRAVITY if reason in reasons), MissReason.ABSENT)

    def _failed(self, number: int, call: str, error: Exception) -> None:
        self._counts.tier_errors += 1
        _log.error("tier_raised", tier=self.labels[number - 1], call=call, exc_info=error)
