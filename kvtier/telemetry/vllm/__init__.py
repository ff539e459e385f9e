"""Traces the probes of a running vLLM: `opentelemetry-instrument vllm serve ...`.

vLLM's `AsyncLookupManager` (`vllm.v1.kv_offload.tiering.async_lookup`) lives by the
lifecycle that kvtier's is named after, so what happens in one can be told in the
words of the other and given to the same observers. What is where:

* here: finding the module, wrapping `__init__` of its class, and putting it back;
* `shape.py`: whether the module found is one whose lifecycle is known;
* `tracing.py`: what is put around one manager, and taken away again;
* `worker.py`: the calls of the back end, on vLLM's worker thread;
* `ledger.py`: what became of which probe, told as transitions.

Three rules. `lookup` is left as it is, because it is called thousands of times in a
step and vLLM's own takes less time than any wrapper adds. Whatever goes wrong in
here ends the tracing of that manager and nothing else. vLLM is not imported from
here: one that is never imported costs nothing, and none need be installed.
"""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import logging
import sys
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from kvtier.lifecycle import LookupObserver
from kvtier.telemetry.spans import SpanObserver
from kvtier.telemetry.vllm.shape import MODULE, SUPPORTED, misfits
from kvtier.telemetry.vllm.tracing import ManagerTracing

__all__ = ["VllmOffloadInstrumentor"]

_log = logging.getLogger("kvtier.telemetry.vllm")


class VllmOffloadInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Traces every `AsyncLookupManager` that is made from now on, subclasses included.

    `instrument(tracer_provider=None, observer=None)`: `observer()` makes the observer of
    one manager; by default it is a `SpanObserver` of that tracer provider. Two managers
    never share one, so tiers of one type are told apart. Its `close()`, if it has one,
    is called when the manager is shut down, at `uninstrument()`, or when Python ends.

    A vLLM that is not known is left alone, with one warning that says what differs.
    """

    _observer: Callable[[], LookupObserver] | None = None
    """`None`: not instrumented."""
    _hooked = False
    _patched: type[Any] | None = None
    _original: Any = None
    _traced: Any = None
    """The two `__init__` of `_patched`."""
    _tracings: set[ManagerTracing] = set()  # noqa: RUF012 (there is one instrumentor)

    def instrumentation_dependencies(self) -> Collection[str]:
        """vLLM, of any version: a build from source has none that says anything."""
        return ("vllm",)

    def instrument(self, **kwargs: Any) -> None:
        """Instrument vLLM once it is imported. Whether it can be is seen then, not asked of pip."""
        super().instrument(**{**kwargs, "skip_dep_check": True})

    def _instrument(self, **kwargs: Any) -> None:
        provider = kwargs.get("tracer_provider")
        self._observer = kwargs.get("observer") or functools.partial(SpanObserver, provider)
        atexit.register(self._end_all)
        module = sys.modules.get(MODULE)
        if module is not None:
            self._imported(module)
        elif not self._hooked:
            self._hooked = True
            wrapt.register_post_import_hook(self._imported, MODULE)

    def _uninstrument(self, **kwargs: Any) -> None:
        self._observer = None
        patched = self._patched
        # Else somebody has put theirs around ours, which stays, idle until it is wanted again.
        if patched is not None and patched.__init__ is self._traced:
            patched.__init__ = self._original
            self._patched = self._original = self._traced = None
        atexit.unregister(self._end_all)
        self._end_all()

    def _imported(self, module: ModuleType) -> None:
        """vLLM's module is there. Nothing raised in here may stop its import."""
        if self._observer is None or self._patched is not None:
            return
        try:
            found = misfits(module)
        except Exception as error:
            found = [f"it cannot be examined ({error!r})"]
        if found:
            self._refuse(found)
        else:
            self._patch(module.AsyncLookupManager)

    def _refuse(self, found: list[str]) -> None:
        _log.warning(
            "probes of vLLM%s are not traced: %s. Supported: %s.",
            _version(),
            "; ".join(found),
            SUPPORTED,
        )

    def _patch(self, manager_type: type[Any]) -> None:
        original = vars(manager_type)["__init__"]

        @functools.wraps(original)
        def traced_init(manager: Any, *args: Any, **kwargs: Any) -> None:
            observer = self._observer
            if observer is None:
                original(manager, *args, **kwargs)
                return
            with ManagerTracing(manager, observer, self._tracings.discard) as tracing:
                original(manager, *args, **kwargs)
            if tracing.attached:
                self._tracings.add(tracing)
            if self._observer is None:  # uninstrumented meanwhile, by another thread
                self._end_all()

        self._patched, self._original, self._traced = manager_type, original, traced_init
        manager_type.__init__ = traced_init

    def _end_all(self) -> None:
        for tracing in list(self._tracings):
            tracing.end()


def _version() -> str:
    try:
        return " " + importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return ""
