"""What it costs to be observed: nobody wants it, somebody does, and a vLLM that is traced."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

from opentelemetry.sdk.trace import TracerProvider

from kvtier.lookup import AsyncLookupManager
from kvtier.telemetry.spans import SpanObserver
from kvtier.telemetry.vllm import VllmOffloadInstrumentor
from kvtier.telemetry.vllm.shape import MODULE
from tests.bench.lookups import TYPICAL, Asked, Shape, Side
from tests.bench.measure import Clocks, Result, Spread, in_turn

__all__ = ["instrumented_results", "telemetry_results"]

UNWANTED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}
WANTED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

PRESENT_BOUND = 1.1
"""Times the cost without an observer, for a request that is not wanted."""
TRANSITION_BOUND = 3000.0
"""Nanoseconds of the scheduler's thread."""
INSTRUMENTED_BOUND = 1.1
"""Times the cached lookup of a vLLM that is not instrumented."""
TRANSITIONS = 4
"""Of a probe's whole life with one waiter: asked, sent, answered, released."""


class Traced(Side):
    """A side whose requests come with these trace headers."""

    def __init__(self, base: Any, headers: dict[str, str], **settings: Any) -> None:
        super().__init__(base, **settings)
        self._headers = headers

    def asked(self, shape: Shape, steps: int) -> Iterator[list[Asked]]:
        headers = self._headers
        return iter(
            [
                [(replace(ctx, trace_headers=headers), keys) for ctx, keys in step]
                for step in super().asked(shape, steps)
            ]
        )


def telemetry_results(rounds: int) -> Iterator[Result]:
    """Every benchmark of an observer."""
    provider = TracerProvider(shutdown_on_exit=False)
    observer = SpanObserver(provider, limit=sys.maxsize, max_probes_per_second=None, thread=False)
    bare = Side(AsyncLookupManager)
    unwanted = Traced(AsyncLookupManager, UNWANTED, observer=observer)
    wanted = Traced(AsyncLookupManager, WANTED, observer=observer)

    def seen(sample: Callable[[Side, Shape], Clocks], side: Side) -> Clocks:
        observer.pump()
        return sample(side, TYPICAL)

    try:
        samples: dict[str, Callable[[Side, Shape], Clocks]] = {
            "cached lookup": Side.cached_lookups,
            "whole probe": Side.whole_probes,
        }
        for name, sample in samples.items():
            first, second = in_turn(
                partial(seen, sample, unwanted), partial(sample, bare, TYPICAL), rounds
            )
            yield Result.paired(
                f"not wanted: {name}, {TYPICAL}",
                "ns",
                [clocks.caller for clocks in first],
                [clocks.caller for clocks in second],
                "no observer",
                PRESENT_BOUND,
            )
        first, second = in_turn(
            partial(seen, Side.whole_probes, wanted), partial(bare.whole_probes, TYPICAL), rounds
        )
        extra = [(a.caller - b.caller) / TRANSITIONS for a, b in zip(first, second, strict=True)]
        yield Result(
            f"wanted: one transition, {TYPICAL}", "ns", Spread.of(extra), bound=TRANSITION_BOUND
        )
    finally:
        for side in (bare, unwanted, wanted):
            side.manager.shutdown()
        observer.close()
        provider.shutdown()


def instrumented_results(
    vllm: Callable[[], ModuleType], beside: str, rounds: int
) -> Iterator[Result]:
    """vLLM's own manager, traced, beside itself; `vllm` loads its module anew each time."""
    provider = TracerProvider(shutdown_on_exit=False)
    instrumentor, module = VllmOffloadInstrumentor(), vllm()
    bare = Side(vllm().AsyncLookupManager)
    with mock.patch.dict(sys.modules, {MODULE: module}):
        instrumentor.instrument(tracer_provider=provider)
    traced = Traced(module.AsyncLookupManager, WANTED)
    try:
        samples: dict[str, tuple[Callable[[Side, Shape], Clocks], float | None]] = {
            "cached lookup": (Side.cached_lookups, INSTRUMENTED_BOUND),
            "whole probe": (Side.whole_probes, None),
        }
        for name, (sample, bound) in samples.items():
            first, second = in_turn(
                partial(sample, traced, TYPICAL), partial(sample, bare, TYPICAL), rounds
            )
            yield Result.paired(
                f"instrumented: {name}, {TYPICAL}",
                "ns",
                [clocks.caller for clocks in first],
                [clocks.caller for clocks in second],
                beside,
                bound,
            )
    finally:
        for side in (bare, traced):
            side.manager.shutdown()
        instrumentor.uninstrument()
        provider.shutdown()
