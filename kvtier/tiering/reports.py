"""What an observer is told about the tiers: jobs that ended, and passes of the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kvtier.log import Log, shown
from kvtier.request import ReqContext
from kvtier.tiering.counts import DeferReason
from kvtier.tiers.base import TransferJob

__all__ = ["JobOutcome", "JobReport", "PassReport", "Reports", "TieringObserver"]

_log = Log("kvtier.tiering")


class JobOutcome(Enum):
    """How a job ended. The value is the name that telemetry uses."""

    OK = "ok"
    """Every block made it."""
    PARTIAL = "partial"
    """Some did."""
    FAILED = "failed"
    """None did."""
    RAISED = "raised"
    """The tier did not take it."""
    OPEN = "open"
    """Shutdown came before its report."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """A load (promotion) or store (cascade) that ended."""

    tier: str
    """Label of the tier, for example `1:fs`."""
    job: TransferJob
    moved: int
    """Blocks that made it."""
    outcome: JobOutcome
    submitted: float
    """Seconds on the manager's clock, as is `ended`."""
    ended: float


@dataclass(frozen=True, slots=True)
class PassReport:
    """One look of the scheduler at one waiting request."""

    req_context: ReqContext
    blocks: int
    """Of its prompt."""
    hit_blocks: int
    """How far the reusable prefix reached."""
    deferred: DeferReason | None
    """What the request has to wait for; `None`: it was admitted."""
    began: float
    """Seconds on the scheduler's clock, as is `ended`."""
    ended: float


class TieringObserver(Protocol):
    """Sees jobs and passes. What is said of a `LookupObserver` goes for it too."""

    def on_job(self, report: JobReport) -> None:
        """A job ended, or was refused, or is open at shutdown."""

    def on_pass(self, report: PassReport) -> None:
        """A request was looked up once."""


class Reports:
    """The one observer, until it raises: then it is dropped, and that is logged."""

    def __init__(self, observer: TieringObserver | None) -> None:
        self.observer = observer

    def tell(self, how: Callable[[TieringObserver], None]) -> None:
        """Make this call on the observer, if there is one."""
        if self.observer is None:
            return
        try:
            how(self.observer)
        except Exception as error:
            self.observer = None
            _log.error("observer_dropped", error=shown(error))
