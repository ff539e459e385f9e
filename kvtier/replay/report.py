"""What a replay found, and the laws that its figures must obey."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

__all__ = ["SCHEMA", "ReplayReport", "broken_laws"]

SCHEMA = "kvtier.replay/1"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The figures of one replay.

    A *block* is one block of one prompt, whatever the number of groups. A
    *probe* is one question to one tier about one block of one group, and an
    *answer* is what comes back for it. Figures of several tiers are summed, also
    where they are peaks.

    On real threads some figures vary with timing. With one request at a time
    and no deadline these are `lookups`, `deferrals`, `steps` and `wall_s`, which
    tell how long was waited; with several in flight or a deadline, all but
    `workload`, `requests`, `blocks` and those that must be 0. On a
    `VirtualRuntime` nothing varies.
    """

    workload: str
    requests: int
    """Requests that came, whether they were served or (after an interruption) aborted."""
    blocks: int
    """Blocks of their prompts; each is counted once in `hits` or in `misses`."""
    lookups: int
    """Times that a request asked where a block is."""
    probes_issued: int
    """Questions born, those asked again included."""
    probes_joined: int
    """Questions that were not born, because a probe about the block was there to share."""
    backend_calls: int
    """Calls of a back end that carried those questions, many in one."""
    hits: Mapping[str, int]
    """Blocks reused, by label of the tier they came from."""
    misses: Mapping[str, int]
    """Blocks not reused, by `MissReason`."""
    deferrals: Mapping[str, int]
    """Passes that ended in "ask again", by `DeferReason`."""
    promotions: Mapping[str, int]
    """Loads into the primary: jobs by how they ended, and `no_room`, refusals of a block in a pass
    because there was no room for it."""
    stores: Mapping[str, int]
    """Stores into secondary tiers: jobs by how they ended, and `skipped`, blocks that found no slot
    of the primary, and so no tier."""
    probes_resolved: int
    """Probes that got an answer: yes, no or error."""
    probes_abandoned: int
    """Probes that were taken back before they were sent, because nobody wanted them any more."""
    probes_closed: int
    """Probes that the shutdown of an interrupted run ended without an answer."""
    answers_discarded: int
    """Answers that came when their question had gone."""
    unclaimed: int
    """Answers that came when nobody wanted them any more."""
    lookup_errors: int
    """Probes whose answer was an error."""
    failed_blocks: Mapping[str, Mapping[str, int]]
    """Blocks that could not be moved, by label of the tier and kind of error (`OSError ENOSPC`)."""
    tier_errors: int
    """Calls into a tier that raised."""
    protocol_errors: int
    """Job reports that contradicted what was submitted."""
    bytes_verified: int
    """Bytes read back from the primary and found to be what was once stored."""
    mismatches: int
    """Blocks read back that were not what was once stored."""
    first_mismatch: str | None
    """Where the first of them was met."""
    leaks: Mapping[str, int]
    """What was still held after everything had ended: probes and notes about blocks
    (`lookup_entries`), slots of the primary (`pins`), `jobs` and `requests`."""
    peak: Mapping[str, int]
    """Most probes held at the end of a step, and most in flight at once."""
    steps: int
    """Scheduler steps."""
    interrupted: bool
    """Whether the run was stopped before its workload had ended."""
    wall_s: float
    """Seconds from the first request to the last step, on the clock of the runtime."""

    @property
    def violations(self) -> tuple[str, ...]:
        """The laws that this run broke, one sentence each; empty for a run that is right."""
        return tuple(broken_laws(self))

    def as_json(self) -> dict[str, object]:
        """The report as `--json` prints it."""
        return {"schema": SCHEMA, **asdict(self), "violations": list(self.violations)}


def broken_laws(report: ReplayReport) -> list[str]:
    """Which of the laws that hold at the end of every run `report` breaks."""
    broken: list[str] = []
    hits, misses = sum(report.hits.values()), sum(report.misses.values())
    if report.blocks != hits + misses:
        broken.append(f"{report.blocks} blocks, but {hits} hits + {misses} misses")
    ended = report.probes_resolved + report.probes_abandoned + report.probes_closed
    if report.probes_issued != ended:
        broken.append(
            f"{report.probes_issued} probes issued, but {report.probes_resolved} resolved + "
            f"{report.probes_abandoned} abandoned + {report.probes_closed} closed"
        )
    for name, jobs in (("promotion", report.promotions), ("store", report.stores)):
        ways = {way: jobs[way] for way in ("ok", "partial", "failed", "raised", "open")}
        if jobs["submitted"] != sum(ways.values()):
            told = " + ".join(f"{number} {way}" for way, number in ways.items())
            broken.append(f"{jobs['submitted']} {name} jobs submitted, but {told}")
    for name, number in report.leaks.items():
        if number:
            broken.append(f"{number} {name.replace('_', ' ')} left when all was over")
    if report.mismatches:
        broken.append(
            f"{report.mismatches} blocks read back were not what was stored"
            f" (first: {report.first_mismatch})"
        )
    return broken
