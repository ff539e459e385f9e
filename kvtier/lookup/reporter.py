"""What an observer is told: transitions of the probes that it wants, and calls of the back end."""

from __future__ import annotations

from collections.abc import Callable

from kvtier.lifecycle import (
    BatchObserver,
    BatchReport,
    LookupObserver,
    LookupPhase,
    Outcome,
    Transition,
    Trigger,
)
from kvtier.lookup.entry import Entry
from kvtier.request import ReqContext

__all__ = ["Reporter"]


class Reporter:
    """The one observer of a table, until it raises: then it is dropped, and `failed` told why."""

    def __init__(
        self,
        tier: str,
        observer: LookupObserver | None,
        failed: Callable[[Exception], None] | None,
    ) -> None:
        self.wanted: set[str] = set()
        """Requests whose probes are reported."""
        self._tier = tier
        self._observer = observer
        self._batches = observer if isinstance(observer, BatchObserver) else None
        self._failed = failed
        self._seq = 0

    @property
    def sees_batches(self) -> bool:
        """Whether the calls of the back end are to be timed and reported."""
        return self._batches is not None

    def greet(self, req_context: ReqContext) -> None:
        """A request asks for the first time: is it wanted?"""
        if self._observer is None:
            return
        try:
            if self._observer.wants(req_context, self._tier):
                self.wanted.add(req_context.req_id)
        except Exception as error:
            self._drop(error)

    def report(
        self,
        entry: Entry,
        source: LookupPhase,
        trigger: Trigger,
        outcome: Outcome,
        now: float,
        req_id: str | None,
    ) -> None:
        """A row fired for `entry`, which is now as the row leaves it."""
        if self._observer is None:
            return
        self._seq += 1
        transition = Transition(
            self._seq,
            now,
            self._tier,
            entry.scope,
            entry.key,
            entry.generation,
            source,
            entry.phase,
            trigger,
            outcome,
            entry.waiters,
            req_id,
        )
        try:
            self._observer.on_transition(transition)
        except Exception as error:
            self._drop(error)

    def batch(self, report: BatchReport) -> None:
        """A call of the back end has ended."""
        if self._batches is None:
            return
        try:
            self._batches.on_batch(report)
        except Exception as error:
            self._drop(error)

    def _drop(self, error: Exception) -> None:
        self._observer = self._batches = None
        if self._failed is not None:
            self._failed(error)
