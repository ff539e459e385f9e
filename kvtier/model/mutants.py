"""Known bugs, each as the one decision that it gets wrong.

A mutant is the correct `Machine` but for one method. Its name is that of its twin
in `tla/mutants/`, where TLC refutes it; `report` is the public report of a system
that had the bug, or where it was seen. What each of them breaks is in
`tla/manifest.json`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from kvtier.model.actions import Machine
from kvtier.model.state import Batch, Entry, Reply, State

__all__ = ["MUTANTS", "Mutant"]

_STOPPED: tuple[str, Batch] = ("stopped", frozenset())


class Mutant(Machine):
    """A machine with a known bug."""

    report: ClassVar[str]


class NoMarkMiss(Mutant):
    """A failed load leaves the verdict as it is: the doomed load is tried again for ever."""

    report = "vLLM 0.24; vllm 49176"

    def missed(self, e: Entry) -> Entry:
        return e


class NoGeneration(Mutant):
    """An answer is applied to whatever question of the key is there, and a last waiter takes
    the entry along: the answer to the first question resolves the second."""

    report = "vLLM 0.28; vllm 54872"

    def takes(self, e: Entry, gen: int) -> bool:
        return e.phase == "IN_FLIGHT"

    def goes_with_last(self, e: Entry) -> bool:
        return True


class CleanupDeletesInFlight(Mutant):
    """The last waiter takes the entry along although its question is out: the next asks anew."""

    report = "vLLM 0.28; vllm 55823"

    def goes_with_last(self, e: Entry) -> bool:
        return True


class FlushDoesNotDrain(Mutant):
    """Only a lookup drains: what came after the last lookup is never applied."""

    report = "vLLM 0.28"

    def flush_drained(self, s: State) -> tuple[Entry, ...]:
        return s.entry

    def flush_unread(self, s: State) -> tuple[Reply, ...]:
        return s.results


class MarkMissForcesUnresolved(Mutant):
    """A failed load resolves a question that is not answered yet."""

    report = "vLLM 0.30"

    def missed(self, e: Entry) -> Entry:
        if e.phase not in ("PENDING", "IN_FLIGHT"):
            return super().missed(e)
        return self.resolved(e, "F")._replace(age=self.forced_age())


class LazyAnswerKillsWorker(Mutant):
    """An answer that raises while it is read ends the worker's thread."""

    report = "vLLM 0.30; vllm 44193"

    def failed(self, s: State) -> State:
        return s._replace(worker=_STOPPED)


class ShortAnswer(Mutant):
    """Keys that the back end's answer does not reach get no answer."""

    report = "vLLM 0.33"

    def published(self, reply: Reply) -> Reply:
        return frozenset(sorted(reply)[:-1])


class ShutdownLeavesPending(Mutant):
    """Shutdown drains, and leaves what has no answer."""

    report = "vLLM 0.33"

    def ends_at_close(self, e: Entry) -> bool:
        return False


class ShutdownWaitsForEver(Mutant):
    """Shutdown has no timeout: a back end that hangs takes the caller along."""

    report = "vLLM 0.33"

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        return ((label, after) for label, after in super().steps(s) if label != "ShutdownTimeout")


class DrainDropsOrphans(Mutant):
    """An answer that finds no waiter is dropped at once, though somebody may be about to ask."""

    report = "vLLM 0.33"

    def drained(self, s: State) -> tuple[Entry, ...]:
        return self.swept(super().drained(s))


class BatchSentTwice(Mutant):
    """The batch is not emptied when it is sent: the next flush sends it again."""

    report = "the assertion in vLLM's drain_results"

    def batch_after_send(self, s: State) -> frozenset[str]:
        return s.batch


class CleanupKeepsPending(Mutant):
    """A question that nobody wants any more is sent all the same."""

    report = "vllm 55075"

    def goes_with_last(self, e: Entry) -> bool:
        return e.phase == "RESOLVED"


class CleanupForgetsIndex(Mutant):
    """The request lets go of its probes, and the reverse index keeps them."""

    report = "LMCache 5006"

    def forgotten(self, keys: frozenset[str]) -> frozenset[str]:
        return keys


class LateAsksAgain(Mutant):
    """A question past its deadline is asked again while the first is still out."""

    report = "LMCache 3685"

    def too_old(self, e: Entry) -> bool:
        return super().too_old(e) or (e.phase == "IN_FLIGHT" and e.late)


class StoreNotNoted(Mutant):
    """A store that completes while the question is out is undone by its "no"."""

    report = "fork pr 631"

    def stored(self, e: Entry) -> Entry:
        return e if e.phase == "IN_FLIGHT" else super().stored(e)


class NobodyExcused(Mutant):
    """When a failed question is asked again, those who were told "no" must wait again."""

    report = "seen in 0.33.0 (F10)"

    def excuses(self, e: Entry, r: str) -> frozenset[str]:
        return frozenset()


class ForcedMissExpires(Mutant):
    """A miss that a failed load forced is asked again after a while: the load fails again."""

    report = "vllm 49176"

    def forced_age(self) -> str:
        return self.youth()


class ErrorKeptAsAbsent(Mutant):
    """A failed question counts as a "no" for everybody, as long as somebody holds it."""

    report = "seen in 0.33.0 (F10)"

    def asks_again(self, e: Entry, asks_first_time: bool) -> bool:
        return False


def _name(kind: type[Mutant]) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__).lstrip("_")


MUTANTS: dict[str, type[Mutant]] = {_name(kind): kind for kind in Mutant.__subclasses__()}
"""By name, in the order of this file."""
