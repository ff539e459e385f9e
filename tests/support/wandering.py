"""Requests with trace headers, and a manager that is called in every way for a while."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kvtier.lookup import AsyncLookupManager
from kvtier.request import ReqContext
from kvtier.runtime import VirtualRuntime
from tests.support.lookups import key, quiet

__all__ = ["headers", "traced", "wander"]


def headers(number: int, *, sampled: bool = True, state: str | None = None) -> dict[str, str]:
    """A trace context whose trace is `number` and whose span is 100 more."""
    made = {"traceparent": f"00-{number:032x}-{number + 100:016x}-{'01' if sampled else '00'}"}
    return made if state is None else made | {"tracestate": state}


def traced(req_id: str, number: int, *, sampled: bool = True, tenant: Any = None) -> ReqContext:
    return ReqContext(req_id, {"tenant": tenant}, headers(number, sampled=sampled))


def wander(seed: int, observer: Any, between: Callable[[], None], *, steps: int = 1500) -> None:
    """Calls of every kind, drawn with `seed`, on a manager that is shut down at the end."""
    rng = random.Random(seed)
    runtime = VirtualRuntime(seed)

    class Random(AsyncLookupManager):
        def batch_lookup(self, keys, req_context):
            if rng.random() < 0.2:
                raise OSError("unreachable")
            return [rng.random() < 0.5 for _ in keys]

    with quiet():
        lookups = Random(
            "1:test", runtime=runtime, observer=observer, deadline=0.05, verdict_lifetime=0.1
        )
        for _ in range(steps):
            number = rng.randrange(4)
            asker = traced(f"r{number}", number + 1, sampled=number > 0)
            match rng.randrange(9):
                case 0 | 1 | 2 | 3:
                    lookups.lookup(key(rng.randrange(3)), asker)
                case 4:
                    lookups.flush()
                case 5:
                    runtime.wait(0.01)
                    runtime.sleep(0.05)
                case 6:
                    lookups.cleanup(asker.req_id)
                case 7:
                    lookups.mark_miss([key(rng.randrange(3))])
                case 8:
                    lookups.mark_hit([key(rng.randrange(3))], asker)
            if rng.random() < 0.1:
                between()
        lookups.shutdown()
