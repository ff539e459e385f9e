"""Several observers where there is room for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtier.lifecycle import BatchReport, Transition
from kvtier.log import Log, shown
from kvtier.request import ReqContext
from kvtier.tiering.reports import JobReport, PassReport

__all__ = ["CompositeObserver"]

_log = Log("kvtier.telemetry")


class CompositeObserver:
    """Tells each of `observers` everything for which it has a method, in this order.

    A request is wanted if any of them wants it. Then all of them see the transitions
    of its probes: whoever is interested in some requests only has to look for itself.
    One that raises is dropped, which is logged, and the others go on. `close()` closes
    all that have something to close, for whoever has only this one to close.
    """

    def __init__(self, *observers: object) -> None:
        self._observers = list(observers)
        self._all = observers
        self._bind()

    def wants(self, req_context: ReqContext, tier: str) -> bool:
        wanted = [self._ask(observer, req_context, tier) for observer in list(self._observers)]
        return any(wanted)

    def on_transition(self, transition: Transition) -> None:
        self._tell(self._transitions, transition)

    def on_batch(self, report: BatchReport) -> None:
        self._tell(self._batches, report)

    def on_job(self, report: JobReport) -> None:
        self._tell(self._jobs, report)

    def on_pass(self, report: PassReport) -> None:
        self._tell(self._passes, report)

    def close(self) -> None:
        """Close each one that can be closed, also those that were dropped."""
        for observer in self._all:
            close = getattr(observer, "close", None)
            if close is not None:
                try:
                    close()
                except Exception as error:
                    _log.error(
                        "observer_not_closed", observer=type(observer).__name__, error=shown(error)
                    )

    def _ask(self, observer: Any, req_context: ReqContext, tier: str) -> bool:
        try:
            return hasattr(observer, "wants") and bool(observer.wants(req_context, tier))
        except Exception as error:
            self._drop(observer, error)
            return False

    def _tell(self, methods: list[tuple[object, Callable[[Any], None]]], what: object) -> None:
        for observer, method in methods:
            try:
                method(what)
            except Exception as error:
                self._drop(observer, error)

    def _drop(self, observer: object, error: Exception) -> None:
        self._observers = [other for other in self._observers if other is not observer]
        self._bind()
        _log.error("observer_dropped", observer=type(observer).__name__, error=shown(error))

    def _bind(self) -> None:
        self._transitions = self._with("on_transition")
        self._batches = self._with("on_batch")
        self._jobs = self._with("on_job")
        self._passes = self._with("on_pass")

    def _with(self, name: str) -> list[tuple[object, Callable[[Any], None]]]:
        return [
            (observer, getattr(observer, name))
            for observer in self._observers
            if hasattr(observer, name)
        ]
