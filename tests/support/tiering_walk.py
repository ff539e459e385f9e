"""The real managers driven by the labels of the tiers' model, and what can be seen of them.

`RealTiers.do` makes the calls that a label of `kvtier.model.tiering` stands for.
`seen` is what a person could see of the state, from the real managers, and
`visible` the same from a state of the model. Slot and write numbers are not part
of it: they name things and mean nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kvtier.keys import OffloadKey
from kvtier.model.tiering import Label, TieringMachine
from kvtier.model.tiering_state import Job, TieringConfig, TieringState, claims_of
from kvtier.request import ReqContext
from kvtier.results import LookupResult
from kvtier.runtime import VirtualRuntime
from kvtier.tiering import DeferReason, TieringOffloadingManager
from kvtier.tiers.base import LoadStoreSpec, TransferJob
from kvtier.tiers.host import CPUOffloadingManager
from tests.support.fake_tier import BLOCK_BYTES, FakeTier, ctx, key, one_pass

__all__ = ["RealTiers", "explored", "same_call", "visible"]

Seen = dict[str, Any]


class ModelTier(FakeTier):
    """A tier as in the model: it answers at once, or one step after the question."""

    def __init__(self, config: TieringConfig, runtime: VirtualRuntime) -> None:
        super().__init__("model", runtime)
        self.holds = {number(k) for k in config.has}
        self._slow = {number(k) for k in config.slow}
        self._asked: set[tuple[str, OffloadKey]] = set()
        self._answered: set[tuple[str, OffloadKey]] = set()
        self.hangs.add("drain_jobs")

    @property
    def heard(self) -> set[str]:
        """The requests of which it has heard that they finished."""
        return set(self._gone)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        question = req_context.req_id, key
        if key in self._slow and question not in self._answered:
            self._asked.add(question)
            return LookupResult.RETRY
        return LookupResult.HIT if key in self.holds else LookupResult.MISS

    def on_schedule_end(self) -> None:
        self._answered |= self._asked
        self._asked.clear()

    def release_lookups(self, req_context: ReqContext) -> None:
        for questions in (self._asked, self._answered):
            questions -= {q for q in questions if q[0] == req_context.req_id}


def number(k: str) -> OffloadKey:
    """The block that `k1`, `k2`, ... stand for."""
    return key(int(k[1:]))


class RealTiers:
    """A manager, a primary and a tier at the size of `config`.

    `hold_limit` as in `TieringOffloadingManager`.
    """

    def __init__(self, config: TieringConfig, *, hold_limit: float = 0.0) -> None:
        runtime = VirtualRuntime()
        self.config = config
        self.names = {number(k): k for k in config.keys}
        self.primary = CPUOffloadingManager(config.cap, BLOCK_BYTES)
        self.tier = ModelTier(config, runtime)
        self.manager = TieringOffloadingManager(
            self.primary,
            [self.tier],
            runtime=runtime,
            headroom=config.headroom,
            hold_limit=hold_limit,
        )
        self.behind = False
        """Reports are out that the manager has not taken in."""
        self._jobs: dict[Job, TransferJob] = {}
        self._end: dict[str, int] = {}
        self._reading: dict[str, LoadStoreSpec] = {}
        self._filling: dict[str, LoadStoreSpec] = {}

    def do(self, label: Label) -> object:
        """Make the calls; what they returned, as in `Label.result`."""
        result: object = getattr(self, "_" + label.action)(*label.args)
        return result

    def seen(self) -> Seen:
        """What is visible."""
        blocks = {}
        for block_key, name in self.names.items():
            block = self.primary.block(block_key)
            if block is not None:
                line = tuple(block.waiters)
                blocks[name] = (block.ready, block.ref_count, block.step_pinned, line)
        jobs = [
            (
                "load" if job.is_promotion else "store",
                job.req_context.req_id,
                frozenset(self.names[k] for k in job.keys),
            )
            for job in self.tier.jobs.values()
        ]
        sizes = self.manager.table_sizes()
        return {
            "blocks": blocks,
            "dropped": self.primary.holding,
            "jobs": Counter(jobs),
            "heard": self.tier.heard,
            "requests": sizes["requests"],
            "open": sizes["jobs"],
            "pins": sizes["pins"],
            "room": self.primary.available,
        }

    def went(self, before: TieringState, after: TieringState) -> None:
        """The step that was made led there in the model: its new jobs are the tier's new jobs.

        By kind, request and blocks alone a job is not known: a request that comes
        again may have the same one twice.
        """
        for job in before.jobs - after.jobs:
            del self._jobs[job]
        taken = {real.job_id for real in self._jobs.values()}
        for job in after.jobs - before.jobs:
            keys = {number(k) for k in job.keys}
            [self._jobs[job]] = [
                real
                for real in self.tier.jobs.values()
                if real.job_id not in taken
                and real.is_promotion is (job.kind == "load")
                and real.req_context.req_id == job.req
                and set(real.keys) == keys
            ]

    # One method for each action

    def _Arrive(self, r: str) -> None:
        self.manager.on_new_request(ctx(r))

    def _Pass(self, r: str) -> int | None:
        if self.manager.is_busy(ctx(r)):
            self.manager.defer(ctx(r), DeferReason.STORE)
            return None
        prompt = [number(k) for k in self._prompt(r)]
        end = one_pass(self.manager, ctx(r), prompt)
        self.behind = False
        if end is not None:
            self._end[r] = end
        return end

    def _Admit(self, r: str) -> None:
        keys = [number(k) for k in self._prompt(r)[: self._end[r]]]
        self._reading[r] = self.manager.prepare_load(keys, ctx(r))

    def _CompleteLoad(self, r: str) -> None:
        self.manager.complete_load(self._reading.pop(r), ctx(r))

    def _PrepareStore(self, r: str) -> tuple[str, ...]:
        keys = [number(k) for k in self._prompt(r)[self._end[r] :]]
        spec = self._filling[r] = self.manager.prepare_store(keys, ctx(r)).store_spec
        self.behind = False
        return tuple(sorted(self.names[k] for k in spec.keys))

    def _CompleteStore(self, r: str, ok: bool, refused: bool) -> None:
        self.tier.refuses = {r} if refused else set()
        self.manager.complete_store(self._filling.pop(r), ctx(r), ok)
        self.tier.refuses = set()

    def _Finish(self, r: str) -> None:
        self.manager.on_request_finished(ctx(r))

    def _Preempt(self, r: str) -> None:
        self.manager.forget(ctx(r))
        self.tier.release_lookups(ctx(r))

    def _JobReport(self, job: Job, good: frozenset[str]) -> None:
        made = {number(k) for k in good}
        if job.kind == "store":
            self.tier.holds |= made
        self.tier.report(self._jobs[job], None if good == job.keys else made)
        self.behind = True

    def _StepEnd(self, refused: frozenset[str]) -> None:
        self.tier.refuses = set(refused)
        self.manager.on_schedule_end()
        self.tier.refuses = set()
        self.behind = False

    def _Reset(self) -> None:
        self.manager.reset_cache()
        self.behind = False

    def _prompt(self, r: str) -> tuple[str, ...]:
        return self.config.prompt[self.config.requests.index(r)]


def visible(config: TieringConfig, s: TieringState) -> Seen:
    """What a state of the model would look like."""
    blocks = {
        block.key: (block.ready, block.refs, block.pinned, block.waiters)
        for block in s.slot
        if block.used and not block.dropped
    }
    machine = TieringMachine(config)
    awaited = sum(bool(block.waiters) for block in s.slot)
    return {
        "blocks": blocks,
        "dropped": sum(block.dropped for block in s.slot),
        "jobs": Counter((job.kind, job.req, job.keys) for job in s.jobs),
        "heard": set(s.heard),
        "requests": sum(me.phase not in ("new", "gone") for me in s.req),
        # The manager counts a load that a tier has twice: as a job, and by its blocks.
        "open": len(s.jobs) + len(claims_of(s.jobs, "load")) + len(s.queue),
        "pins": sum(block.refs for block in s.slot) + awaited,
        "room": machine.available(s.slot),
    }


def same_call(label: Label) -> tuple[object, ...]:
    """What makes labels of two machines the same call: not how it went, nor any numbers."""
    args = tuple((a.kind, a.req, a.keys) if isinstance(a, Job) else a for a in label.args)
    return label.action, args


def explored(machine: TieringMachine) -> Iterator[tuple[TieringState, Label, TieringState]]:
    """Every step of the machine; each state is seen before the steps that begin in it."""
    start = machine.initial()
    found, waiting = {start}, [start]
    for here in waiting:
        for label, there in machine.steps(here):
            if there not in found:
                found.add(there)
                waiting.append(there)
            yield here, label, there
