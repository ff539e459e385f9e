"""The lookup manager beside vLLM's own: the same calls, the same back end, the same keys."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from types import ModuleType
from typing import Any

from kvtier.keys import OffloadKey
from kvtier.lookup import AsyncLookupManager
from kvtier.request import ReqContext
from tests.bench.measure import Clocks, Result, Spread, in_turn

__all__ = ["TYPICAL", "Asked", "Shape", "Side", "lookup_results"]

PER_SAMPLE = 4096
"""About so many lookups go into one sample."""

Asked = tuple[ReqContext, list[OffloadKey]]


@dataclass(frozen=True, slots=True)
class Shape:
    """One step: so many new requests, each with so many keys, the first few common to all."""

    requests: int
    keys: int
    common: int = 0

    def __str__(self) -> str:
        text = f"{self.requests} x {self.keys}"
        return f"{text}, {self.common} shared" if self.common else text

    @property
    def lookups(self) -> int:
        return self.requests * self.keys

    @property
    def probes(self) -> int:
        return self.requests * (self.keys - self.common) + self.common

    def step(self, serial: int) -> list[Asked]:
        """Requests and keys that no other `serial` has, as a scheduler would hold them."""
        prefix = [_key(serial, 0, chunk) for chunk in range(self.common)]
        return [
            (
                ReqContext(f"{serial}-{request}"),
                prefix + [_key(serial, request + 1, c) for c in range(self.common, self.keys)],
            )
            for request in range(self.requests)
        ]


def _key(*numbers: int) -> OffloadKey:
    """36 bytes, as long as a SHA-256 and a group index."""
    return OffloadKey(b"".join(number.to_bytes(12, "big") for number in numbers))


TYPICAL = Shape(64, 16)
SHAPES = [TYPICAL, Shape(64, 16, common=8), Shape(512, 1), Shape(16, 128)]
WAITING = Shape(128, 1, common=1)


class BackEnd:
    """Answers yes at once, or keeps its caller until `open` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self._due = 0
        self._answered = threading.Event()

    def expect(self, keys: int) -> None:
        self._due = keys
        self._answered.clear()

    def __call__(self, keys: list[OffloadKey]) -> list[bool]:
        if not self.open.is_set():
            self.open.wait()
        self._due -= len(keys)
        if not self._due:
            self._answered.set()
        return [True] * len(keys)

    def wait(self) -> None:
        """Until all keys that were expected are answered."""
        self._answered.wait()


class Side:
    """One of the two managers with its back end."""

    def __init__(self, base: Any, **settings: Any) -> None:
        self.back_end = back_end = BackEnd()

        class Manager(base):  # type: ignore[misc]
            def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> list[bool]:
                return back_end(keys)

        self.manager = Manager("1:bench", **settings)
        self._serials = count()

    def asked(self, shape: Shape, steps: int) -> Iterator[list[Asked]]:
        return iter([shape.step(next(self._serials)) for _ in range(steps)])

    def ask(self, step: list[Asked]) -> None:
        lookup = self.manager.lookup
        for ctx, keys in step:
            for key in keys:
                lookup(key, ctx)

    def settle(self, step: list[Asked]) -> None:
        """Until the answers can be read. Both managers publish just after the last call."""
        self.back_end.wait()
        ctx, keys = step[-1]
        while self.manager.lookup(keys[-1], ctx) is None:
            time.sleep(0.0002)
            self.manager.drain_results()

    def hold(self, step: list[Asked], probes: int) -> None:
        """Ask, send, wait and read the verdicts, and hold on to them."""
        self.back_end.expect(probes)
        self.ask(step)
        self.manager.flush()
        self.settle(step)
        self.ask(step)

    def release(self, step: list[Asked]) -> None:
        for ctx, _ in step:
            self.manager.cleanup(ctx.req_id)

    # -- samples ---------------------------------------------------------------------------

    def whole_probes(self, shape: Shape) -> Clocks:
        """Whole lives: asked, sent, answered, drained, read, let go."""
        steps = max(1, PER_SAMPLE // shape.lookups)
        work = self.asked(shape, steps)

        def live() -> None:
            for step in work:
                self.hold(step, shape.probes)
                self.release(step)

        clocks = Clocks.around(live, steps * shape.lookups)
        self.manager.flush()
        return clocks

    def cached_lookups(self, shape: Shape) -> Clocks:
        """Verdicts that are held already."""
        repeats = max(1, PER_SAMPLE // shape.lookups)
        [step] = self.asked(shape, 1)
        self.hold(step, shape.probes)

        def again() -> None:
            for _ in range(repeats):
                self.ask(step)

        clocks = Clocks.around(again, repeats * shape.lookups)
        self.release(step)
        self.manager.flush()
        return clocks

    def polls(self, shape: Shape) -> Clocks:
        """Lookups of probes that are out and not answered."""
        repeats = max(1, PER_SAMPLE // shape.lookups)
        [step] = self.asked(shape, 1)
        self.back_end.open.clear()
        self.back_end.expect(shape.probes)
        self.ask(step)
        self.manager.flush()
        self.ask(step)

        def again() -> None:
            for _ in range(repeats):
                self.ask(step)

        clocks = Clocks.around(again, repeats * shape.lookups)
        self.back_end.open.set()
        self.settle(step)
        self.release(step)
        self.manager.flush()
        return clocks

    def bytes_per_probe(self, shape: Shape) -> float:
        """What one answered probe that is held takes, without its key and its request."""
        [step] = self.asked(shape, 1)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            self.hold(step, shape.probes)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.release(step)
        self.manager.flush()
        return (after - before) / shape.probes


Sample = Callable[[Side, Shape], Clocks]
CACHED_BOUND = 0.6
WHOLE_BOUND = 0.9


def lookup_results(vllm: ModuleType | None, beside: str, rounds: int) -> Iterator[Result]:
    """Every lookup benchmark; `beside` names the peer, `None` if it cannot be had."""
    ours = Side(AsyncLookupManager)
    theirs = Side(vllm.AsyncLookupManager) if vllm is not None else None

    def compared(name: str, sample: Sample, shape: Shape, bounds: dict[str, float]) -> list[Result]:
        first, second = in_turn(
            lambda: sample(ours, shape),
            (lambda: sample(theirs, shape)) if theirs is not None else None,
            rounds,
        )
        results = []
        for clock in ("cpu", "wall", "caller"):
            label = f"{name}, {shape}, {clock}"
            a = [getattr(sample, clock) for sample in first]
            b = [getattr(sample, clock) for sample in second]
            if second:
                results.append(Result.paired(label, "ns", a, b, beside, bounds.get(clock)))
            else:
                results.append(Result(label, "ns", Spread.of(a)))
        return results

    try:
        yield compared("cached lookup", Side.cached_lookups, TYPICAL, {"cpu": CACHED_BOUND})[0]
        for shape in SHAPES:
            bounds = {"cpu": WHOLE_BOUND, "wall": WHOLE_BOUND} if shape is TYPICAL else {}
            yield from compared("whole probe", Side.whole_probes, shape, bounds)
        yield compared("poll", Side.polls, WAITING, {})[0]
        for shape in SHAPES[:2]:
            a = ours.bytes_per_probe(shape)
            if theirs is None:
                yield Result(f"live probe, {shape}", "bytes", Spread.of([a]))
            else:
                b = theirs.bytes_per_probe(shape)
                yield Result.paired(f"live probe, {shape}", "bytes", [a], [b], beside)
    finally:
        ours.manager.shutdown()
        if theirs is not None:
            theirs.manager.shutdown()
