"""What must hold of the tiers: of every state, of every step, and in the end.

Named as in `tla/Tiering.tla`, `tla/TieringProps.tla` and `tla/TieringLive.tla`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from kvtier.model.tiering import TieringMachine
from kvtier.model.tiering_state import (
    BLANK,
    FREE,
    Block,
    Claim,
    Known,
    TieringState,
    claims_of,
)

__all__ = ["TIERING_INVARIANTS", "TIERING_PROPERTIES", "ends_live"]

_LIVE = ("waiting", "found", "running", "storing")


def once(m: TieringMachine, s: TieringState) -> bool:
    """No block has two slots."""
    keys = [block.key for block in s.slot if block.used and not block.dropped]
    return len(keys) == len(set(keys))


def slots(m: TieringMachine, s: TieringState) -> bool:
    """No slot is reused under a writer or a reader."""
    writers = s.queue | claims_of(s.jobs, "load") | _of_all(me.filling for me in s.req)
    readers = claims_of(s.jobs, "store") | _of_all(me.reading for me in s.req)
    return all(_named(s, claim).writing for claim in writers) and all(
        _named(s, claim).ready for claim in readers
    )


def ready(m: TieringMachine, s: TieringState) -> bool:
    """What is called readable holds the bytes of its key."""
    return all(block.bytes == block.key for block in s.slot if block.ready)


def load(m: TieringMachine, s: TieringState) -> bool:
    """What prepare_load would be given now is in the primary, and readable."""
    for prompt, me in zip(m.config.prompt, s.req, strict=True):
        if me.phase == "found":
            for key in prompt[: me.end]:
                number = m.holder(s.slot, key)
                if number is None or not s.slot[number - 1].ready:
                    return False
    return True


def one_write(m: TieringMachine, s: TieringState) -> bool:
    """One write of a key for a request."""
    return all(len({key for key, _ in me.waits}) == len(me.waits) for me in s.req)


def jobs(m: TieringMachine, s: TieringState) -> bool:
    """Every write has one writer, and every job something to do."""
    at = [claim.slot for claim in s.queue]
    at += [n for job in s.jobs if job.kind == "load" for n in {c.slot for c in job.claims}]
    at += [n for me in s.req for n in {claim.slot for claim in me.filling}]
    one_each = all(at.count(n) == 1 for n, block in enumerate(s.slot, 1) if block.writing)
    return one_each and all(job.claims for job in s.jobs)


def finish(m: TieringMachine, s: TieringState) -> bool:
    """The tier got no job of a request after it had heard that it finished."""
    return not any(job.late for job in s.jobs)


def heard(m: TieringMachine, s: TieringState) -> bool:
    """The tier has heard of a finish exactly when nothing is left that could be submitted."""
    for r, me in zip(m.config.requests, s.req, strict=True):
        if me.phase in ("leaving", "gone") and (r in s.heard) is bool(me.filling):
            return False
        if me.phase in _LIVE and r in s.heard:
            return False
    return True


def pins(m: TieringMachine, s: TieringState) -> bool:
    """As many references as there are readers, and pins only inside a step."""
    for number, block in enumerate(s.slot, 1):
        readers = [me.reading for me in s.req]
        readers += [job.claims for job in s.jobs if job.kind == "store"]
        reads = sum(any(claim.slot == number for claim in claims) for claims in readers)
        if block.refs != reads or (block.pinned and not (block.ready and s.polled)):
            return False
    return True


def waiters(m: TieringMachine, s: TieringState) -> bool:
    """The line at a slot is exactly those who wait for its write."""
    for block in s.slot:
        if len(set(block.waiters)) < len(block.waiters):
            return False
        for r, me in zip(m.config.requests, s.req, strict=True):
            waits = not block.dropped and (block.key, block.write) in me.waits
            stands = r in block.waiters
            if stands and not (waits and me.phase in ("waiting", "found")):
                return False
            if waits and not (me.late or stands):
                return False
    return True


def queue(m: TieringMachine, s: TieringState) -> bool:
    """A promotion that the tier was not asked for yet is wanted by somebody."""
    return all(s.slot[claim.slot - 1].waiters for claim in s.queue)


def empty(m: TieringMachine, s: TieringState) -> bool:
    """All requests gone, all jobs reported, a step ended: nothing is left but blocks."""
    if s.jobs or s.polled or any(me.phase not in ("new", "gone") for me in s.req):
        return True
    clean = all(me == BLANK._replace(phase=me.phase) for me in s.req)
    kept = [block for block in s.slot if block != FREE]
    at_rest = all(b == Block(b.key, b.write, ready=True, bytes=b.key) for b in kept)
    return not s.queue and clean and at_rest


TIERING_INVARIANTS: Mapping[str, Callable[[TieringMachine, TieringState], bool]] = {
    "OnceInv": once,
    "SlotInv": slots,
    "ReadyInv": ready,
    "LoadInv": load,
    "OneWriteInv": one_write,
    "JobInv": jobs,
    "FinishInv": finish,
    "HeardInv": heard,
    "PinsInv": pins,
    "WaitersInv": waiters,
    "QueueInv": queue,
    "EmptyInv": empty,
}
"""What must hold of every state. (`TypeInv` is what mypy checks here.)"""


def rank_of(m: TieringMachine, s: TieringState, me: Known, key: str) -> int:
    """3 no verdict, 2 the tier has it, 1 waits for a write, 0 nothing left to wait for."""
    if key in me.settled:
        return 0
    for block in s.slot:
        under_way = block.writing and not block.dropped and block.key == key
        if under_way and (key, block.write) in me.waits:
            return 1
    if any(k == key for k, _ in me.waits):
        return 0
    return 2 if key in me.notes else 3


def ranks_fall(m: TieringMachine, s: TieringState, after: TieringState) -> bool:
    """The variant: no rank grows, unless its request starts over."""
    seeks = ("waiting", "found")
    for me, now in zip(s.req, after.req, strict=True):
        if me.phase in seeks and now.phase in seeks and me.preempted == now.preempted:
            for key in m.config.keys:
                if rank_of(m, after, now, key) > rank_of(m, s, me, key):
                    return False
    return True


def defers_for_cause(m: TieringMachine, s: TieringState, after: TieringState) -> bool:
    """A pass that defers has met an open question or a write that is under way."""
    for prompt, me, now in zip(m.config.prompt, s.req, after.req, strict=True):
        if me.passed or not now.passed or now.phase != "waiting" or me.busy:
            continue
        if not any(key in now.asked or rank_of(m, after, now, key) == 1 for key in prompt):
            return False
    return True


def keeps(m: TieringMachine, s: TieringState, after: TieringState) -> bool:
    """What is readable and held stays; only a reset takes it from who only waits for it."""
    for block, now in zip(s.slot, after.slot, strict=True):
        held = block.ready and not block.dropped and (block.refs or block.pinned or block.waiters)
        if held and block[:2] != now[:2]:
            return "reset" in m.config.features and after == m.reset(s)
    return True


def stays_in_budget(m: TieringMachine, s: TieringState, after: TieringState) -> bool:
    """After a promotion no more slots are waited for than the budget allows."""
    awaited = sum(bool(block.waiters) for block in after.slot)
    return not after.queue - s.queue or awaited <= m.config.budget


def jobs_end_by_report(m: TieringMachine, s: TieringState, after: TieringState) -> bool:
    """A job goes with its own report; one begins at the end of a step or of a store."""
    for job in s.jobs - after.jobs:
        if (after.req, after.queue, after.jobs) != (s.req, s.queue, s.jobs - {job}) or s.polled:
            return False
    begun = after.jobs - s.jobs
    ends_step = s.queue == claims_of(begun, "load") or not after.queue
    return all(job.kind == "store" or ends_step for job in begun)


TIERING_PROPERTIES: Mapping[str, Callable[[TieringMachine, TieringState, TieringState], bool]] = {
    "RankProp": ranks_fall,
    "DeferProp": defers_for_cause,
    "KeptProp": keeps,
    "BudgetProp": stays_in_budget,
    "JobProp": jobs_end_by_report,
}
"""What must hold of every step."""


def ends_live(
    m: TieringMachine, states: Sequence[TieringState], edges: Mapping[int, Sequence[int]]
) -> list[int] | None:
    """`EndsLive`: states that a request can go round for ever, waiting; `None` if there are none.

    `states` are all there are, `edges` the numbers of the states after each. For
    ever means: though steps go on, passes are made, loads are reported and stores
    end (`LiveSpec`). It may also stay where it is.
    """
    for number in range(len(m.config.prompt)):
        waiting = {n for n, s in enumerate(states) if s.req[number].phase == "waiting"}
        inside = {n: [t for t in edges[n] if t in waiting] for n in waiting}
        for round_trip in _components(inside):
            if _fair(m, [states[n] for n in round_trip]):
                return round_trip
    return None


def _fair(m: TieringMachine, round_trip: Sequence[TieringState]) -> bool:
    """Whether everything that must happen again and again does so on the way round."""
    ends: list[Callable[[TieringState], bool]] = [_step_ended]
    for n in range(len(m.config.prompt)):
        ends += [partial(_pass_made, n), partial(_fill_ended, n)]
        if "preempt" in m.config.features:
            ends.append(partial(_read_ended, n))
    ends += [partial(_load_ended, number) for number in range(1, m.config.cap + 1)]
    return all(any(map(end, round_trip)) for end in ends)


def _step_ended(s: TieringState) -> bool:
    return not s.polled and not any(me.passed for me in s.req)


def _pass_made(n: int, s: TieringState) -> bool:
    return s.req[n].phase != "waiting" or s.req[n].passed


def _fill_ended(n: int, s: TieringState) -> bool:
    return not s.req[n].filling


def _read_ended(n: int, s: TieringState) -> bool:
    return not s.req[n].reading


def _load_ended(number: int, s: TieringState) -> bool:
    return all(claim.slot != number for claim in claims_of(s.jobs, "load"))


def _components(edges: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """The strongly connected parts of a graph (Kosaraju: twice depth first)."""
    order: list[int] = []
    seen: set[int] = set()
    for root in edges:
        path = [] if root in seen else [(root, iter(edges[root]))]
        seen.add(root)
        while path:
            here, rest = path[-1]
            there = next((n for n in rest if n not in seen), None)
            if there is None:
                order.append(here)
                path.pop()
            else:
                seen.add(there)
                path.append((there, iter(edges[there])))
    back: dict[int, list[int]] = {n: [] for n in edges}
    for here, following in edges.items():
        for there in following:
            back[there].append(here)
    for root in reversed(order):
        if root in seen:
            seen.remove(root)
            part = [root]
            for here in part:
                for there in back[here]:
                    if there in seen:
                        seen.remove(there)
                        part.append(there)
            yield part


def _named(s: TieringState, claim: Claim) -> Block:
    """The block that a claim names, or `FREE` if that is not there."""
    block = s.slot[claim.slot - 1]
    return block if (block.key, block.write) == (claim.key, claim.write) else FREE


def _of_all(claims: Iterable[frozenset[Claim]]) -> frozenset[Claim]:
    return frozenset(chain.from_iterable(claims))
