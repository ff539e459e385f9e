"""What an observer is told: the transitions of the probes that it wants, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from kvtier.lifecycle import LookupObserver, LookupPhase, Outcome, Transition, Trigger
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
        self._failed = failed
        self._seq = 0

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

    def _drop(self, error: Exception) -> None:
        self._observer = None
        if self._failed is not None:
            self._failed(error)
