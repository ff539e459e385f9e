"""The jobs that tiers owe a report for, and what a report may claim.

A report is untrusted: only the tier that got a job may end it, only once, and
only for the keys that were in it. What else it claims is counted as a protocol
error and ignored, and where it contradicts itself the reading with fewer
readable blocks is taken: a failed transfer that passes for a good one gives
somebody wrong bytes (Dynamo 15079), the reverse costs one recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.tiering.counts import JobCounts, TieringCounts
from kvtier.tiering.reports import JobOutcome
from kvtier.tiers.base import JobResult, LoadStoreSpec, TransferJob

__all__ = ["JobLedger", "OpenJob", "outcome_of"]


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job, the number of the tier that has it, and the slots that it holds."""

    transfer: TransferJob
    tier: int
    spec: LoadStoreSpec
    submitted: float
    """Seconds on the manager's clock."""


def outcome_of(job: OpenJob, moved: frozenset[OffloadKey]) -> JobOutcome:
    """How a job ended of whose blocks these made it."""
    if len(moved) == len(job.spec):
        return JobOutcome.OK
    return JobOutcome.PARTIAL if moved else JobOutcome.FAILED


class JobLedger:
    """Open jobs by id. Ids are never used twice, not by two tiers either."""

    def __init__(self, counts: TieringCounts) -> None:
        self._counts = counts
        self._ids = count(1)
        self._open: dict[int, OpenJob] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open_jobs(self, *, promotions: bool) -> int:
        """Loads (or stores) that no report has ended yet."""
        return sum(job.transfer.is_promotion is promotions for job in self._open.values())

    def __iter__(self) -> Iterator[OpenJob]:
        return iter(self._open.values())

    def open(
        self, tier: int, spec: LoadStoreSpec, is_promotion: bool, ctx: ReqContext, now: float
    ) -> OpenJob:
        """Enter a job that is about to be submitted to tier number `tier`."""
        transfer = TransferJob(next(self._ids), spec.keys, spec.slots, is_promotion, ctx)
        job = self._open[transfer.job_id] = OpenJob(transfer, tier, spec, now)
        self._counts_of(job).submitted += 1
        return job

    def refused(self, job: OpenJob) -> None:
        """The tier raised when it was given `job`. It may not report it later."""
        del self._open[job.transfer.job_id]
        self._counts_of(job).raised += 1

    def close(self, tier: int, report: object) -> tuple[OpenJob, frozenset[OffloadKey]] | None:
        """The job that `report` of tier number `tier` ends, and its blocks that made it.

        `None` if it ends no job of this tier.
        """
        if not isinstance(report, JobResult) or not isinstance(report.job_id, int):
            self._counts.protocol_errors += 1
            return None
        job = self._open.get(report.job_id)
        if job is None or job.tier != tier:
            self._counts.protocol_errors += 1
            return None
        del self._open[report.job_id]
        moved = self._moved(frozenset(job.spec.keys), report)
        counts = self._counts_of(job)
        outcome = outcome_of(job, moved)
        counts.ok += outcome is JobOutcome.OK
        counts.partial += outcome is JobOutcome.PARTIAL
        counts.failed += outcome is JobOutcome.FAILED
        return job, moved

    def _moved(self, keys: frozenset[OffloadKey], report: JobResult) -> frozenset[OffloadKey]:
        try:
            named = report.successful_keys
            claimed = keys if named is None else frozenset(named)
        except Exception:  # whatever that was, it is no collection of keys
            self._counts.protocol_errors += 1
            return frozenset()
        self._counts.protocol_errors += len(claimed - keys)
        if report.success is True:
            self._counts.protocol_errors += not claimed >= keys
            return claimed & keys
        self._counts.protocol_errors += report.success is not False
        return frozenset() if named is None else claimed & keys

    def _counts_of(self, job: OpenJob) -> JobCounts:
        counts = self._counts
        return counts.promotions if job.transfer.is_promotion else counts.stores
