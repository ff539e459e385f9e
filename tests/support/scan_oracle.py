"""The scans by their definitions: what the answer *is*, not how to find it.

Everything here is a maximum over all candidates, with no early end and no order
of looking. Results are written as letters: H hit, P hit pending, R retry, M miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from kvtier.keys import OffloadKey
from kvtier.results import LookupResult

LETTERS = {
    "H": LookupResult.HIT,
    "P": LookupResult.HIT_PENDING,
    "R": LookupResult.RETRY,
    "M": LookupResult.MISS,
}


def words(longest: int, letters: str = "HPRM") -> Iterator[str]:
    """Every word over `letters` of 0 to `longest` letters."""
    for length in range(longest + 1):
        yield from map("".join, product(letters, repeat=length))


def prefix_scan(word: str) -> tuple[int | None, set[int]]:
    """Answer of the prefix scan and the places it must ask."""
    n = len(word)
    length = max(e for e in range(n + 1) if "M" not in word[:e])
    deferred = set(word[:length]) & {"R", "P"}
    return (None if deferred else length), set(range(min(length + 1, n)))


def window_scan(word: str, window: int) -> tuple[int | None, set[int]]:
    """Answer of the window scan and the places it must ask."""
    n = len(word)
    full = [s for s in range(n - window + 1) if set(word[s : s + window]) <= {"H", "P"}]
    start = max(full, default=0)
    leading = max(e for e in range(n + 1) if set(word[:e]) <= {"H", "P"})
    end = start + window if full else leading
    deferred = "R" in word[start:] or "P" in word[start:end]
    return (None if deferred else end), set(range(start, n))


def needed(window: int | None, end: int) -> set[int]:
    """The places a group needs for a hit of length `end`."""
    return {c for c in range(end) if window is None or end - c <= window}


def longest(rows: Sequence[tuple[int | None, str]]) -> int:
    """E* of groups given as (window, word), all words equally long."""
    n = len(rows[0][1])
    return max(
        e
        for e in range(n + 1)
        if all(word[c] != "M" for window, word in rows for c in needed(window, e))
    )


def hybrid_answer(rows: Sequence[tuple[int | None, str]]) -> int | None:
    """E* if everything that it needs is a hit, else `None`."""
    end = longest(rows)
    ready = all(word[c] == "H" for window, word in rows for c in needed(window, end))
    return end if ready else None


class Asked:
    """A `lookup` over one word that remembers every place it was asked about."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.keys = [OffloadKey(bytes([place])) for place in range(len(word))]
        self.places: list[int] = []

    def __call__(self, key: OffloadKey) -> LookupResult:
        self.places.append(key[0])
        return LETTERS[self.word[key[0]]]

    def scan(
        self, run: Callable[[list[OffloadKey], Callable[[OffloadKey], LookupResult]], int | None]
    ) -> tuple[int | None, list[int]]:
        """What `run(keys, lookup)` answered and the places it asked, sorted, repeats kept."""
        self.places.clear()
        answer = run(self.keys, self)
        return answer, sorted(self.places)


@dataclass(frozen=True)
class PassEnd:
    """What a pass must come to: `end` if the request starts, else why it is deferred."""

    end: int | None
    deferred: str | None
    promoted: frozenset[tuple[int, int]]
    refused: frozenset[tuple[int, int]]
    """(chunk, group) that read as a miss for lack of room."""


def end_of_pass(rows: Sequence[tuple[int | None, str]], room: int) -> PassEnd:
    """The end of a pass as the text has it, one refusal at a time and all of E* anew.

    More letters: N a slower tier has it, R a probe is open, P being loaded, S being stored.
    """
    rows = list(rows)
    refused: set[tuple[int, int]] = set()
    while True:
        end = longest(rows)
        need = {(c, g): word[c] for g, (w, word) in enumerate(rows) for c in needed(w, end)}
        if "R" in need.values():
            return PassEnd(None, "probe", frozenset(), frozenset(refused))
        noted = {place for place, letter in need.items() if letter == "N"}
        if len(noted) <= room:
            break
        chunk, group = max(noted)
        refused.add((chunk, group))
        window, word = rows[group]
        rows[group] = (window, word[:chunk] + "M" + word[chunk + 1 :])
    promotion, store = "P" in need.values() or noted, "S" in need.values()
    deferred = "promotion" if promotion else "store" if store else None
    return PassEnd(None if deferred else end, deferred, frozenset(noted), frozenset(refused))
