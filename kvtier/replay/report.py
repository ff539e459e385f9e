"""What a replay found, and the laws that its figures must obey."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

__all__ = ["SCHEMA", "ReplayReport", "broken_laws"]

SCHEMA = "kvtier.replay/1"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The figures of one replay. Which of them vary with timing is said in `docs/`.

    A *block* is one block of one prompt in one group; an *answer* is about one
    probe, and a *probe* is one question of one tier about one block.
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
    """Loads into the primary: jobs by how they ended, and blocks that found no room."""
    stores: Mapping[str, int]
    """Stores into secondary tiers: jobs by how they ended, and blocks that found no room."""
    probes_resolved: int
    probes_abandoned: int
    probes_closed: int
    answers_discarded: int
    unclaimed: int
    lookup_errors: int
    failed_blocks: Mapping[str, Mapping[str, int]]
    """Blocks that could not be moved, by label of the tier and class of error."""
    tier_errors: int
    """Calls into a tier that raised."""
    protocol_errors: int
    """Job reports that contradicted what was submitted."""
    bytes_verified: int
    """Bytes read back from the primary and found to be what was once stored."""
    mismatches: int
    """Blocks read back that were not what was once stored."""
    first_mismatch: str | None
    leaks: Mapping[str, int]
    """What was still held after everything had ended."""
    peak: Mapping[str, int]
    steps: int
    interrupted: bool
    wall_s: float
    """Seconds from the first request to the last step, on the clock of the run."""

    @property
    def violations(self) -> tuple[str, ...]:
        """The laws that this run broke, one sentence each; empty for a run that is right."""
        return tuple(broken_laws(self))

    def as_json(self) -> dict[str, object]:
        """The report as `--json` prints it."""
        return {"schema": SCHEMA, **asdict(self), "violations": list(self.violations)}


def broken_laws(report: ReplayReport) -> list[str]:
    """Check a report against the laws of counting (`docs/`), and say which it breaks."""
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
