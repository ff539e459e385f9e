"""The tiering manager: one primary, any number of secondaries, and requests that ask for blocks.

A request may read a block only out of the primary. So a block that only a
secondary has must be *promoted*: a slot of the primary is reserved, a load job
fills it, and the request waits for that write. A block that the GPU stored into
the primary is *cascaded* into every secondary. This package decides who waits
for what, what is told to whom, and when waiting is over. It moves no bytes and
does not know what kind of tier it talks to.

What lives where:

* `manager.py`: the rules, as methods of `TieringOffloadingManager`.
* `promotions.py`: who waits for which write, and loads until they are reported.
* `requests.py`: what is remembered about one request.
* `jobs.py`: which jobs a tier owes a report for, and what a report may claim.
* `secondaries.py`: the wall between the manager and the tiers' code.
* `counts.py`: plain integers, always on. `reports.py`: what an observer is told.

Three rules explain the rest.

1. *At most one write per (request, key).* Whatever becomes of the write that a
   request waited for, it never waits for another write of that key. So every
   deferral of a request uses up something of which there is a finite amount,
   and no timeout is needed to see that it ends (vllm 49176, 49902).
2. *A slot belongs to its writer until the writer itself is done.* Not a
   timeout, not an abort, not a reset gives it to somebody else (vllm 49829,
   45268; SGLang 31296).
3. *A tier is not trusted.* What it raises, and what it reports about jobs and
   keys it was never given, is counted and logged, and everybody else is served
   (LMCache 4384; vllm 50321, 52290).
"""

from __future__ import annotations

from kvtier.tiering.counts import (
    DeferReason,
    JobCounts,
    PromotionCounts,
    StoreCounts,
    TieringCounts,
)
from kvtier.tiering.manager import TieringOffloadingManager
from kvtier.tiering.reports import JobOutcome, JobReport, PassReport, Reports, TieringObserver

__all__ = [
    "DeferReason",
    "JobCounts",
    "JobOutcome",
    "JobReport",
    "PassReport",
    "PromotionCounts",
    "Reports",
    "StoreCounts",
    "TieringCounts",
    "TieringObserver",
    "TieringOffloadingManager",
]
