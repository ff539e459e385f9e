"""Two oracles for `ARCPolicy`, written for reading and not for speed.

`PaperARC` is Figure 4 of N. Megiddo and D. S. Modha, "ARC: A Self-Tuning, Low
Overhead Replacement Cache", FAST 2003, case by case, in the paper's names. Each
list is a Python list with its LRU page first.

`BarredARC` is the rule of kvtier's design for blocks that may not leave, as one
pass over plain lists: it looks at every block, each time.
"""

from __future__ import annotations

from collections.abc import Callable

from kvtier.keys import OffloadKey

Lists = tuple[list[OffloadKey], list[OffloadKey], list[OffloadKey], list[OffloadKey], float]


class PaperARC:
    """ARC(c)."""

    def __init__(self, c: int) -> None:
        self.c = c
        self.p: float = 0
        self.T1: list[OffloadKey] = []
        self.T2: list[OffloadKey] = []
        self.B1: list[OffloadKey] = []
        self.B2: list[OffloadKey] = []

    @property
    def state(self) -> Lists:
        return self.T1, self.T2, self.B1, self.B2, self.p

    def request(self, x: OffloadKey) -> OffloadKey | None:
        """One request of the stream; the page that leaves the cache, if one does."""
        c, T1, T2, B1, B2 = self.c, self.T1, self.T2, self.B1, self.B2
        gone: OffloadKey | None = None

        # Case I: a hit.
        if x in T1 or x in T2:
            (T1 if x in T1 else T2).remove(x)
            T2.append(x)

        # Case II: in B1.
        elif x in B1:
            delta_1 = 1 if len(B1) >= len(B2) else len(B2) / len(B1)
            self.p = min(self.p + delta_1, c)
            gone = self.replace(x)
            B1.remove(x)
            T2.append(x)

        # Case III: in B2.
        elif x in B2:
            delta_2 = 1 if len(B2) >= len(B1) else len(B1) / len(B2)
            self.p = max(self.p - delta_2, 0)
            gone = self.replace(x)
            B2.remove(x)
            T2.append(x)

        # Case IV: nowhere.
        else:
            if len(T1) + len(B1) == c:  # Case A
                if len(T1) < c:
                    B1.pop(0)
                    gone = self.replace(x)
                else:
                    gone = T1.pop(0)
            else:  # Case B: L1 has less than c pages
                total = len(T1) + len(T2) + len(B1) + len(B2)
                if total >= c:
                    if total == 2 * c:
                        B2.pop(0)
                    gone = self.replace(x)
            T1.append(x)
        return gone

    def replace(self, x: OffloadKey) -> OffloadKey:
        """Subroutine REPLACE(x, p)."""
        T1, p = self.T1, self.p
        if T1 and (len(T1) > p or (x in self.B2 and len(T1) == p)):
            page = T1.pop(0)
            self.B1.append(page)
        else:
            page = self.T2.pop(0)
            self.B2.append(page)
        return page


class BarredARC:
    """ARC over blocks of which some may not leave, and some are removed."""

    def __init__(self, c: int) -> None:
        self.c = c
        self.state: Lists = ([], [], [], [], 0.0)

    def touch(self, x: OffloadKey) -> None:
        t1, t2, b1, b2, p = self.state
        if x in t1 + t2:
            self.state = (without(t1, x), [*without(t2, x), x], b1, b2, p)

    def remove(self, x: OffloadKey) -> None:
        t1, t2, b1, b2, p = self.state
        self.state = (without(t1, x), without(t2, x), b1, b2, p)

    def admit(
        self, x: OffloadKey, evictable: Callable[[OffloadKey], bool]
    ) -> tuple[bool, OffloadKey | None]:
        """Whether there was room, and who went for it."""
        t1, t2, b1, b2, p = self.state
        if x in b1:
            p = min(p + (1 if len(b1) >= len(b2) else len(b2) / len(b1)), self.c)
        elif x in b2:
            p = max(p - (1 if len(b2) >= len(b1) else len(b1) / len(b2)), 0)
        victim = None
        if len(t1) + len(t2) == self.c:
            from_t1 = len(t1) > p or (x in b2 and len(t1) == p)
            order = t1 + t2 if from_t1 else t2 + t1
            may_leave = [key for key in order if evictable(key)]
            if not may_leave:
                return False, None
            victim = may_leave[0]
            if victim in t1:
                t1, b1 = without(t1, victim), [*b1, victim]
            else:
                t2, b2 = without(t2, victim), [*b2, victim]
        if x in b1 + b2:
            t2, b1, b2 = [*t2, x], without(b1, x), without(b2, x)
        else:
            t1 = [*t1, x]
        b1 = newest(b1, self.c - len(t1))
        b2 = newest(b2, 2 * self.c - len(t1) - len(t2) - len(b1))
        self.state = (t1, t2, b1, b2, p)
        return True, victim


def without(keys: list[OffloadKey], key: OffloadKey) -> list[OffloadKey]:
    return [other for other in keys if other != key]


def newest(keys: list[OffloadKey], at_most: int) -> list[OffloadKey]:
    return keys[len(keys) - at_most :] if len(keys) > at_most else keys
