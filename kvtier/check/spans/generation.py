"""One generation of a probe, held to the spec span by span.

`Generation` is given the probe, its stays as the lifecycle has them, and the stays of
its verdict by the number with which they began. It holds a few rows at a time, however
many marks a verdict met.

Two rules. What can be explained by spans that are missing is a *gap* and never wrong
(L109). And of several things that are wrong the first is named, in the order of the
probe's life: the others may follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final

from msgspec import Struct

from kvtier.check.spans.rows import Kind, Row
from kvtier.check.spans.table import ANSWERS, BIRTHS, ENDS, MARKS

__all__ = ["SAME_ID", "Gap", "Generation", "Step", "Wrong", "steps"]

SAME_ID: Final = "another span has the same id and says something else"


class Gap(IntEnum):
    """Why a history is incomplete; of several reasons the first counts."""

    TRUNCATED = 0
    OPEN = 1
    UNUSABLE = 2
    CLOCK = 3
    NO_PROBE = 4
    NO_PENDING = 5
    NO_IN_FLIGHT = 6
    NO_RESOLVED = 7
    NO_PREDECESSOR = 8
    NO_SUCCESSOR = 9

    @property
    def says(self) -> str:
        """In words."""
        return _GAPS[self]


_GAPS: Final = {
    Gap.TRUNCATED: "the beginning is not told (truncated)",
    Gap.OPEN: "the end is not told (open)",
    Gap.UNUSABLE: "a span lacks an attribute",
    Gap.CLOCK: "a span ends before it begins",
    Gap.NO_PROBE: "the probe span is missing",
    Gap.NO_PENDING: "the probe.pending span is missing",
    Gap.NO_IN_FLIGHT: "the probe.in_flight span is missing",
    Gap.NO_RESOLVED: "a probe.resolved span is missing",
    Gap.NO_PREDECESSOR: "asked again, and the question before is missing",
    Gap.NO_SUCCESSOR: "asked again, and the new question is missing",
}


class Step(Struct, frozen=True):
    """One transition of a history."""

    seq: int | None
    source: str | None
    trigger: str | None
    outcome: str | None
    target: str | None
    generation: int
    file: int
    line: int


class Wrong(Struct, frozen=True):
    """One requirement that one span breaks."""

    requirement: str
    says: str
    row: Row
    history: tuple[Step, ...]


def steps(rows: Iterable[Row | None]) -> tuple[Step, ...]:
    """What these spans describe, in the order of their numbers."""
    found = {
        (row.seq, row.kind, row.file, row.line): Step(
            row.seq,
            row.source,
            row.trigger,
            row.birth if row.kind == Kind.PROBE else row.outcome,
            row.target,
            row.generation,
            row.file,
            row.line,
        )
        for row in rows
        if row is not None and row.source is not None
    }
    return tuple(
        sorted(found.values(), key=lambda step: (step.seq or 0, step.generation, step.line))
    )


PHASES: Final[dict[int, str]] = {
    Kind.PENDING: "pending",
    Kind.IN_FLIGHT: "in_flight",
    Kind.RESOLVED: "resolved",
}


class Generation:
    """What is known of one generation, row by row."""

    def __init__(self, first: Row) -> None:
        self.number = first.generation
        self.probe: Row | None = None
        self.pending: Row | None = None
        self.in_flight: Row | None = None
        self.resolved: Row | None = None
        """The last one so far."""
        self.first: Row | None = None
        """With the lowest number of all."""
        self.low = 0
        """That number; 0 if none is known."""
        self.last: Row | None = None
        self.high = 0
        self.gaps: set[Gap] = set()
        self.wrong: Wrong | None = None

    # -- what is told ----------------------------------------------------------------------

    def add(self, row: Row) -> None:
        """One row more of this generation, in the order of `Kind` and of `opened`."""
        if row.clash:
            self.breaks("L106", SAME_ID, row)
            return
        if row.why is not None:
            self.gaps.add(Gap.UNUSABLE)
            return
        if row.truncated:
            self.gaps.add(Gap.TRUNCATED)
        if row.open:
            self.gaps.add(Gap.OPEN)
        if row.end < row.start:
            self.gaps.add(Gap.CLOCK)
        self._reach(row)
        _ADD[row.kind](self, row)
        if row.taken:
            told = f"number {row.seq} is also that of a transition of another key"
            self.breaks("L106", told, row)

    def _probe(self, row: Row) -> None:
        if (other := self.probe) is not None:
            if other.seq == row.seq:
                self.breaks("L106", "two spans for one probe", row, other)
            else:
                self.breaks("L67", "this generation was given out twice", row, other)
            return
        self.probe = row
        if not row.truncated and (row.source, row.trigger, row.birth, row.target) not in BIRTHS:
            told = f"no probe begins by {row.trigger} from {row.source} to {row.target}"
            told += f" as {row.birth}"
            self.breaks("L73", told, row)
        elif row.ended is not None and row.ended <= (row.seq or 0):
            self.breaks("L106", "the probe ended before it began", row)
        elif row.seq is not None and row.seq < 1:
            self.breaks("L110", f"number {row.seq}, and the first is 1", row)
        elif row.outcome is not None and row.failed is not (row.outcome == "lookup_error"):
            status = "an" if row.failed else "no"
            self.breaks("L113", f"its status is {status} error after {row.outcome}", row)

    def _pending(self, row: Row) -> None:
        if (other := self.pending) is not None:
            self.breaks("L106", "two spans for one stay in pending", row, other)
            return
        self.pending = row
        if not self._stay(row, self.probe):
            return
        if (probe := self.probe) is not None:
            if not row.truncated and row.opened != probe.seq:
                self.breaks(
                    "L106", "the stay begins with another number than the probe", row, probe
                )
            elif self.apart(probe.start, row.start):
                self.breaks("L106", "the stay begins at another time than the probe", row, probe)
        if row.outcome == "sent" and not row.waiters:
            self.breaks("L65", "a question was sent that nobody waited for", row, self.probe)

    def _in_flight(self, row: Row) -> None:
        if (other := self.in_flight) is not None:
            if "answer" == row.trigger == other.trigger and row.seq != other.seq:
                self.breaks("L61", "two answers to one question", row, other)
            else:
                self.breaks("L106", "two spans for one stay in flight", row, other)
            return
        self.in_flight = row
        if not self._stay(row, self.pending):
            return
        if (before := self.pending) is not None:
            self._joins(before, row)
        if row.outcome == "forced_hit" and not (row.stored or row.truncated):
            self.breaks("L60", "a no was made a yes, and no store was noted", row, self.pending)
        elif row.stored and row.outcome in ("miss", "lookup_error"):
            told = "the block was stored while the question was out, and it ended as a no"
            self.breaks("L75", told, row, self.pending)

    def _resolved(self, row: Row) -> None:
        last = self.resolved
        if last is not None and last.opened == row.opened:
            self.breaks("L106", "two spans for one stay with a verdict", row, last)
            return
        before = last or self.in_flight
        self.resolved = row
        if not self._stay(row, before):
            return
        if before is None or before.seq is None:
            if self.pending is not None and self.pending.target == "absent":
                self._joins(self.pending, row)
        elif before.target == "resolved" and row.opened is not None and row.opened > before.seq:
            self.gaps.add(Gap.NO_RESOLVED)
        else:
            self._joins(before, row)
            self._held(row, before, ANSWERS if last is None else MARKS)

    def _held(self, row: Row, before: Row, verdicts: dict[str, bool]) -> None:
        """The verdict is what began this stay, and it is given up only for a reason."""
        outcome = before.outcome or ""
        expected = verdicts.get(outcome)
        if expected is not None and row.verdict is not expected:
            told = f"the verdict is a {'yes' if row.verdict else 'no'} after {outcome}"
            self.breaks("L60" if verdicts is ANSWERS else "L75", told, row, before)
        elif row.outcome == "asked_again" and outcome != "lookup_error":
            self.breaks("L77", f"asked again as if it had failed, after {outcome}", row, before)
        elif row.outcome == "unclaimed" and before.waiters:
            told = f"swept, and {before.waiters} waited for it when the verdict came"
            self.breaks("L35", told, row, before)
        elif row.outcome == "expired" and outcome == "forced_miss":
            self.breaks("L75", "a forced miss has no lifetime, and it expired", row, before)

    # -- what every stay must be -----------------------------------------------------------

    def _stay(self, row: Row, before: Row | None) -> bool:
        """Whether there is more to be looked at."""
        probe = self.probe
        if probe is not None and (row.parent_id, row.trace_id) != (probe.span_id, probe.trace_id):
            self.breaks("L106", "it is not a child of its probe", row, probe)
            return False
        if row.open:
            return True
        if row.opened is not None and row.seq is not None and row.seq <= row.opened:
            self.breaks("L106", "the stay ended before it began", row, before)
            return False
        phase = PHASES[row.kind]
        if row.source == phase and (row.trigger, row.outcome, row.target) in ENDS[phase]:
            if row.trigger in ("release", "sweep") and row.waiters:
                self.breaks("L38", f"the entry went while {row.waiters} waited", row, before)
            elif row.trigger == "join" and not row.waiters:
                self.breaks("L30", "asked again, and the asker did not join", row, before)
            return True
        told = f"{row.trigger} does not lead from {row.source} to {row.target} as {row.outcome}"
        if row.source != phase:
            self.breaks("L73", f"a stay in {phase} ends as one in {row.source}", row, before)
        elif row.trigger == "answer" and phase == "resolved":
            self.breaks("L61", "a second answer to one question", row, before)
        elif row.target == "absent" and row.trigger not in ("release", "sweep", "close"):
            self.breaks("L38", f"the entry went without a reason: {told}", row, before)
        else:
            self.breaks("L73", told, row, before)
        return False

    def _joins(self, before: Row, row: Row) -> None:
        """A stay begins as the one before it ended."""
        if before.open or row.truncated:
            return
        if before.target != PHASES[row.kind]:
            told = f"the stay before it ended in {before.target}"
            self.breaks("L106", told, row, before)
        elif row.opened != before.seq:
            told = f"it begins with {row.opened}, and the stay before it ended with {before.seq}"
            self.breaks("L106", told, row, before)
        elif self.apart(before.end, row.start):
            self.breaks(
                "L106", "it begins at another time than the stay before it ended", row, before
            )

    def apart(self, one: int, other: int) -> bool:
        """Whether these times differ, where the clock is to be believed."""
        return one != other and Gap.CLOCK not in self.gaps

    def breaks(self, requirement: str, says: str, row: Row, *others: Row | None) -> None:
        """Something is wrong. `others`: what else must be seen to see it."""
        if self.wrong is None:
            self.wrong = Wrong(requirement, says, row, steps((*others, row)))

    def _reach(self, row: Row) -> None:
        for number in (row.opened, row.seq, row.ended):
            if number is not None:
                if self.first is None or number < self.low:
                    self.first, self.low = row, number
                if self.last is None or number > self.high:
                    self.last, self.high = row, number

    # -- what is not -----------------------------------------------------------------------

    def finish(self) -> None:
        """No more rows of this generation."""
        probe, pending, in_flight, resolved = (
            self.probe,
            self.pending,
            self.in_flight,
            self.resolved,
        )
        if probe is None:
            self.gaps.add(Gap.NO_PROBE)
        if pending is None:
            self.gaps.add(Gap.NO_PENDING)
        elif pending.target == "in_flight" and in_flight is None:
            self.gaps.add(Gap.NO_IN_FLIGHT)
        if in_flight is not None and in_flight.target == "resolved" and resolved is None:
            self.gaps.add(Gap.NO_RESOLVED)
        if resolved is not None and resolved.target == "resolved":
            self.gaps.add(Gap.NO_RESOLVED)
        closer = in_flight or pending
        if probe is None or closer is None or probe.ended is None or closer.open:
            return
        if closer is pending and pending.target != "absent":
            return
        if probe.waiters != closer.waiters and probe.ended == closer.seq:
            told = f"{probe.waiters} waiters at its end, and its stay tells {closer.waiters}"
            self.breaks("L106", told, probe, closer)
        elif (probe.ended, probe.outcome) != (closer.seq, closer.outcome):
            told = (
                f"the probe ended with number {probe.ended} as {probe.outcome}, and its stay"
                f" with {closer.seq} as {closer.outcome}"
            )
            self.breaks("L106", told, probe, closer)
        elif self.apart(probe.end, closer.end):
            self.breaks("L106", "the probe ended at another time than its stay", probe, closer)

    @property
    def asked_again(self) -> Row | None:
        """The stay that a re-ask ended, if one did."""
        row = self.resolved
        return row if row is not None and row.target == "pending" else None

    @property
    def birth(self) -> int | None:
        """The number of its birth, if that is told."""
        return None if self.probe is None or self.probe.truncated else self.probe.seq


_ADD: Final[dict[int, Callable[[Generation, Row], None]]] = {
    Kind.PROBE: Generation._probe,
    Kind.PENDING: Generation._pending,
    Kind.IN_FLIGHT: Generation._in_flight,
    Kind.RESOLVED: Generation._resolved,
}
