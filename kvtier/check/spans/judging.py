"""All rows, in the order of places, held to the spec: what one generation leaves to the next.

A *place* is what a probe is of: manager, scope and key. Its generations come in
order, each is judged for itself (`generation.py`), and then by what came before it in
this place. Each ends up *wrong*, *incomplete* or *complete*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from kvtier.check.spans.generation import SAME_ID, Gap, Generation, Wrong
from kvtier.check.spans.rows import Kind, Row

__all__ = ["Judge"]

_OPEN_ONLY: Final = {"join", "send", "answer", "sweep"}
"""Triggers of a machine that is not shut down."""


class Judge:
    """Give it all rows (`RowStore` has them in the right order), then `finish`.

    `found` is told what is wrong, at most once for each generation and each call of a
    back end. `closed` has for each manager the first number with which it closed an entry.
    """

    def __init__(self, found: Callable[[Wrong], None], closed: Mapping[str, int]) -> None:
        self.complete = 0
        self.wrong = 0
        """Generations, like `complete`."""
        self.incomplete: Counter[Gap] = Counter()
        """Likewise, by the first reason of each."""
        self.batches = 0
        self.others = 0
        self._found = found
        self._closed = closed
        self._place: tuple[str, str | None, str] | None = None
        self._now: Generation | None = None
        self._before: Generation | None = None
        """The one before it, which is settled when it is known what followed."""
        self._latest: Generation | None = None
        """Of those before, the one that lasted longest."""
        self._youngest: Generation | None = None
        """The one that was born last."""
        self._out: Generation | None = None
        """The one whose question was out longest."""

    def add(self, row: Row) -> None:
        """One row more."""
        if row.kind >= Kind.BATCH:
            self._apart_from_probes(row)
            return
        place = row.manager, row.scope, row.key
        if place != self._place:
            self.finish()
            self._place = place
        elif self._now is not None and row.generation != self._now.number:
            self._next()
        if self._now is None:
            self._now = Generation(row)
        self._now.add(row)
        if row.trigger in _OPEN_ONLY and (row.seq or 0) > self._closed.get(row.manager, inf):
            told = f"{row.trigger} after shutdown, which closed entries before"
            self._now.breaks("L46", told, row)

    def finish(self) -> None:
        """No more rows of this place, or at all."""
        self._next()
        self._settle()
        self._before = self._latest = self._youngest = self._out = None

    def _next(self) -> None:
        now, before = self._now, self._before
        if now is None:
            return
        now.finish()
        follows = before is not None and _follows(before, now)
        if before is not None and follows:
            _asked_rightly(before, now)
        elif now.probe is not None and now.probe.source == "resolved":
            now.gaps.add(Gap.NO_PREDECESSOR)
        if now.wrong is None:
            self._compare(now, follows)
        self._settle(follows)
        self._before, self._now = now, None
        if now.wrong is None:
            self._remember(now)

    def _compare(self, now: Generation, follows: bool) -> None:
        """What no two generations of one place may do."""
        out, young, late = self._out, self._youngest, self._latest
        flight, birth = now.in_flight, now.birth
        if out is not None and flight is not None and _both_out(out, now):
            told = f"asked while the question of generation {out.number} was out"
            now.breaks("L61", told, flight, out.pending, out.in_flight, now.probe, now.pending)
        elif young is not None and birth is not None and birth <= (young.birth or 0):
            if young.probe is not None:
                told = f"born later than generation {now.number}"
                now.breaks("L67", told, young.probe, now.probe)
        elif late is not None and late.last is not None and now.first is not None:
            if now.low < late.high:
                told = f"begins while generation {late.number} is still there"
                now.breaks("L38", told, now.first, late.last)
            elif now.low == late.high and not follows:
                told = f"number {now.low} is also that of another transition"
                now.breaks("L106", told, now.first, late.last)
        if now.probe is not None and now.probe.misnumbered:
            told = f"generation {now.number} is not the next that the manager gave out"
            now.breaks("L67", told, now.probe)

    def _remember(self, now: Generation) -> None:
        if self._latest is None or now.high > self._latest.high:
            self._latest = now
        if (now.birth or 0) > (0 if self._youngest is None else self._youngest.birth or 0):
            self._youngest = now
        if _answered(now) > (0 if self._out is None else _answered(self._out)):
            self._out = now

    def _settle(self, followed: bool = False) -> None:
        """Nothing that comes can change what the generation before is."""
        before = self._before
        if before is None:
            return
        if before.asked_again is not None and not followed:
            before.gaps.add(Gap.NO_SUCCESSOR)
        if before.wrong is not None:
            self.wrong += 1
            self._found(before.wrong)
        elif before.gaps:
            self.incomplete[min(before.gaps)] += 1
        else:
            self.complete += 1

    def _apart_from_probes(self, row: Row) -> None:
        """What is judged for itself: a call of the back end, or a span that only needs its id."""
        if row.kind == Kind.BATCH:
            self.batches += 1
        else:
            self.others += 1
        told = f"{row.answers} answers to {row.keys} keys"
        if row.clash:
            self._found(Wrong("L106", SAME_ID, row, ()))
        elif row.kind != Kind.BATCH or row.why is not None:
            return
        elif row.error == "worker_died":
            self._found(Wrong("L108", f"the worker died of this call: {told}", row, ()))
        elif row.answers != row.keys and (row.answers or row.error is None):
            self._found(Wrong("L107", told, row, ()))


def _answered(generation: Generation) -> int:
    row = generation.in_flight
    return 0 if row is None or row.seq is None or row.opened is None else row.seq


def _both_out(earlier: Generation, now: Generation) -> bool:
    one, other = earlier.in_flight, now.in_flight
    if one is None or other is None or one.opened is None or other.opened is None:
        return False
    return other.opened < (one.seq or 0) and (other.seq is None or other.seq > one.opened)


def _follows(before: Generation, now: Generation) -> bool:
    """Whether one transition ended the one and is the birth of the other."""
    last, probe = before.asked_again, now.probe
    if last is None:
        return False
    if probe is None:  # missing, but its stays are not
        return last.seq == now.low
    return probe.source == "resolved" and last.seq == probe.seq


def _asked_rightly(before: Generation, now: Generation) -> None:
    """Both tell the same of the one transition between them."""
    last, probe = before.asked_again, now.probe
    if last is None or probe is None:
        return
    if probe.birth != last.outcome:
        told = f"asked as {probe.birth}, and the verdict before it ended as {last.outcome}"
        now.breaks("L106", told, probe, last)
    elif now.apart(probe.start, last.end) and Gap.CLOCK not in before.gaps:
        told = "the probe begins at another time than the verdict before it ended"
        now.breaks("L106", told, probe, last)
