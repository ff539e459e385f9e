"""What ends a stay, by section "The table" of spec/lifecycle.md, written down once more.

Written from the text and not taken from `kvtier.lifecycle`: the check is no check if
it shares a mistake with what it checks. Only the rows that end a stay or begin a
history are here; what else can happen to a probe is never described by a span.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ANSWERS", "BIRTHS", "ENDS", "MARKS"]

ENDS: Final = {
    "pending": {
        ("send", "sent", "in_flight"),
        ("release", "abandoned", "absent"),
        ("close", "closed", "absent"),
    },
    "in_flight": {
        ("answer", "hit", "resolved"),
        ("answer", "forced_hit", "resolved"),
        ("answer", "lookup_error", "resolved"),
        ("answer", "miss", "resolved"),
        ("close", "closed", "absent"),
    },
    "resolved": {
        ("join", "asked_again", "pending"),
        ("join", "expired", "pending"),
        ("mark_miss", "forced_miss", "resolved"),
        ("mark_hit", "forced_hit", "resolved"),
        ("release", "released", "absent"),
        ("sweep", "unclaimed", "absent"),
    },
}
"""For each phase: trigger, outcome, and the phase that follows."""

BIRTHS: Final = {
    ("absent", "join", "asked", "pending"),
    ("resolved", "join", "asked_again", "pending"),
    ("resolved", "join", "expired", "pending"),
}
"""Phase before, trigger, outcome, and the phase that follows."""

ANSWERS: Final = {"hit": True, "forced_hit": True, "lookup_error": False, "miss": False}
"""Outcomes of an answer, and the verdict of each."""

MARKS: Final = {"forced_hit": True, "forced_miss": False}
"""Outcomes of a mark on a held verdict, and the verdict of each."""
