"""The state of the lookup machine as an immutable value, and how a value is written down.

The names are those of the variables in `tla/AsyncLookup.tla`, and so are the
words inside: phases, answers, what the worker does. Keys are `k1`, `k2`, ...,
requests `r1`, `r2`, .... A state is hashable, and two states are equal exactly
if nothing can tell them apart.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ABSENT", "Batch", "Config", "Entry", "Reply", "State", "show"]

Batch = frozenset[tuple[str, int]]
"""Questions of one batch: key and generation."""
Reply = frozenset[tuple[str, int, str]]
"""Key, generation and answer, for each question of a batch: "T", "F", or "E" for failed."""

_NOBODY: frozenset[str] = frozenset()


class Entry(NamedTuple):
    """One probe. `ABSENT` is the entry of a key without one."""

    phase: str = "ABSENT"
    """ABSENT, PENDING, IN_FLIGHT or RESOLVED."""
    gen: int = 0
    verdict: str = "none"
    """none, T or F."""
    waiters: frozenset[str] = _NOBODY
    error: bool = False
    """The verdict stands for a failed question."""
    stored: bool = False
    """The block was stored while the question was out."""
    excused: frozenset[str] = _NOBODY
    """Those who waited when a failed question was asked again."""
    late: bool = False
    """The deadline of this generation has passed."""
    age: str = "none"
    """Of the verdict: young, old, or never (it has no lifetime)."""


ABSENT = Entry()


class State(NamedTuple):
    """The whole machine, worker and queues included."""

    entry: tuple[Entry, ...]
    """Of k1, k2, ..."""
    held: tuple[frozenset[str], ...]
    """The keys that r1, r2, ... joined."""
    batch: frozenset[str]
    """Keys asked for and not yet sent."""
    due: bool
    """The next lookup drains first."""
    queue: tuple[Batch, ...]
    """Sent, and not yet taken by the worker."""
    worker: tuple[str, Batch]
    """idle, read (the stop flag), call, hung or stopped; and the batch it has."""
    results: tuple[Reply, ...]
    """Published, and not yet drained."""
    shut: str
    """open, sentinel, flag or closed."""


class Config(NamedTuple):
    """Size of the model and what can happen in it."""

    keys: tuple[str, ...]
    requests: tuple[str, ...]
    max_out: int
    features: frozenset[str]

    @classmethod
    def of(
        cls, keys: int, requests: int, max_out: int = 2, without: frozenset[str] = _NOBODY
    ) -> Config:
        """So many keys, requests and batches out; every feature but those in `without`."""
        return cls(
            tuple(f"k{n}" for n in range(1, keys + 1)),
            tuple(f"r{n}" for n in range(1, requests + 1)),
            max_out,
            FEATURES - without,
        )


FEATURES = frozenset({"errors", "marks", "deadline", "lifetime", "hang", "shutdown"})
"""What can be switched off: then it never happens."""


def show(config: Config, state: State) -> str:
    """A state in one line, for people: what is as in the beginning is left out."""
    parts = []
    for key, entry in zip(config.keys, state.entry, strict=True):
        if entry != ABSENT:
            marks = [name for name in ("error", "stored", "late") if getattr(entry, name)]
            told = [f"{entry.phase}#{entry.gen}", entry.verdict, entry.age]
            told += [f"waiters={'+'.join(sorted(entry.waiters))}", *marks]
            if entry.excused:
                told.append(f"excused={'+'.join(sorted(entry.excused))}")
            parts.append(f"{key}: {' '.join(word for word in told if word != 'none')}")
    parts += [f"queue={[sorted(b) for b in state.queue]}"] if state.queue else []
    if state.worker[0] != "idle":
        parts.append(f"worker={state.worker[0]} {sorted(state.worker[1])}")
    parts += [f"results={[sorted(r) for r in state.results]}"] if state.results else []
    parts += [state.shut] if state.shut != "open" else []
    return "; ".join(parts) or "nothing"
