"""Known bugs of tiering, each as the one decision that it gets wrong.

A mutant is the correct `TieringMachine` but for one method, and has the name of
its twin in `tla/mutants/`, where TLC refutes it; `report` is the public report of
a system that had the bug. What each of them breaks is in the manifest of `tla/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kvtier.model.tiering import TieringMachine
from kvtier.model.tiering_rules import Slots
from kvtier.model.tiering_state import FREE, Block, Known, TieringState, claims_of

__all__ = ["TIERING_MUTANTS", "TieringMutant"]


class TieringMutant(TieringMachine):
    """A machine with a known bug."""

    report: ClassVar[str]


class NoStepPin(TieringMutant):
    """An answer HIT keeps nothing: the block can go before it is read."""

    report = "vllm 39702"

    def pins(self) -> bool:
        return False


class NoWaiterProtection(TieringMutant):
    """A block that was loaded for somebody who has not read it yet is taken away again."""

    report = "vllm 54914"

    def evictable(self, block: Block) -> bool:
        return super().evictable(block._replace(waiters=()))


class SubmitAfterFinish(TieringMutant):
    """Who finished stays in the line at a queued promotion, and a load is submitted for it."""

    report = "vllm 49022"

    def left(self, s: TieringState, r: str) -> Slots:
        queued = {claim.slot for claim in s.queue}
        return tuple(
            before if number in queued else after
            for number, (before, after) in enumerate(
                zip(s.slot, super().left(s, r), strict=True), 1
            )
        )


class HeardBeforeCascade(TieringMutant):
    """The tier hears of a finish while slots are still filled, and gets a store after it."""

    report = "vllm 46284"

    def hears(self, me: Known) -> bool:
        return me.phase == "leaving"


class SecondWrite(TieringMutant):
    """A write that came to nothing is as if it had not been: the doomed load is tried again."""

    report = "vllm 49176"

    def spent(self, me: Known, key: str, write: int) -> bool:
        return False


class SlotFreedEarly(TieringMutant):
    """A load that nobody waits for any more loses its slots while the tier still fills them."""

    report = "vllm 49829, SGLang 31296"

    def vacated(self, s: TieringState, slots: Slots) -> frozenset[int]:
        loading = {claim.slot for claim in claims_of(s.jobs, "load")}
        unwanted = {number for number in loading if not slots[number - 1].waiters}
        return super().vacated(s, slots) | unwanted


class ResetFreesAtOnce(TieringMutant):
    """A reset gives away slots that are still written or read."""

    report = "vllm 45268"

    def kept(self, block: Block) -> Block:
        return FREE if block.dropped else block


class NoBudget(TieringMutant):
    """Promotions take all the room there is."""

    report = "vllm 49902"

    def room(self, slots: Slots) -> int:
        return self.available(slots)


class WaitsForRoom(TieringMutant):
    """What there is no room for is not a miss: it is waited for."""

    report = "vllm 49902"

    def answers(self, seen: Sequence[str], end: int) -> bool:
        return end == len(seen) and super().answers(seen, end)


class FailedLoadReadable(TieringMutant):
    """A write that failed counts as one that did not."""

    report = "Dynamo 15079"

    def after_write(self, block: Block, ok: bool) -> Block:
        return super().after_write(block, True)


def _name(kind: type[TieringMutant]) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__).lstrip("_")


TIERING_MUTANTS: dict[str, type[TieringMutant]] = {
    _name(kind): kind for kind in TieringMutant.__subclasses__()
}
"""By name, in the order of this file."""
