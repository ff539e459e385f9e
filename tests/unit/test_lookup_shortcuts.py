"""Rows that are taken without asking a guard are the rows that the guards would have chosen.

Also in a table that is wrong: the table decides, not what the shortcuts take for granted.
"""

from __future__ import annotations

import random
from itertools import product

import pytest

from kvtier.lifecycle import TABLE, Guard, LookupPhase, Outcome, Row, Trigger
from kvtier.lookup import LookupLimits, LookupTable, Question
from kvtier.lookup.guards import Table, decide
from kvtier.request import ReqContext
from tests.support.lookups import key

LIMITS = [
    LookupLimits(),
    LookupLimits(deadline=2.0),
    LookupLimits(verdict_lifetime=3.0),
    LookupLimits(deadline=2.0, verdict_lifetime=3.0, max_batches_out=1),
]


@pytest.mark.parametrize("cell", TABLE, ids=lambda cell: f"{cell[0].name}-{cell[1].name}")
def test_a_row_is_certain_only_if_it_fits_whatever_is_not_known(cell):
    rows = TABLE[cell]
    guards = [row.guard for row in rows if row.guard is not None]
    for known_values in product([True, False, None], repeat=len(guards)):
        known = {g: v for g, v in zip(guards, known_values, strict=True) if v is not None}
        fitting = set()
        for values in product([True, False], repeat=len(guards)):
            facts = dict(zip(guards, values, strict=True))
            if known.items() <= facts.items():
                fitting.add(next(row for row in rows if row.guard is None or facts[row.guard]))
        row = decide(rows, known)
        if row is not None:
            assert fitting == {row}
            assert row.outcome is not Outcome.ILLEGAL
        elif len(fitting) == 1:
            assert fitting.pop().outcome is Outcome.ILLEGAL


class Watcher:
    """Wants the requests with an even number, and keeps all that it is told."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def wants(self, req_context: ReqContext, tier: str) -> bool:
        return int(req_context.req_id) % 2 == 0

    def on_transition(self, transition: object) -> None:
        self.seen.append(transition)


class GuardsOnly(LookupTable):
    """A table that asks the guards about everything."""

    def __init__(self, *args, **settings) -> None:
        super().__init__(*args, **settings)
        unsure: list[Row | None] = [None] * len(LookupPhase)
        self._at_once.birth = None
        self._at_once.send = unsure
        self._at_once.answer = dict.fromkeys((True, False, None), unsure)
        self._at_once.release = [unsure, unsure]
        self._shares[:] = [False] * len(LookupPhase)


def history(kind: type[LookupTable], table: Table, limits: LookupLimits, seed: int) -> list[object]:
    """What some random calls returned, raised, reported and left behind."""
    rng = random.Random(seed)
    watcher = Watcher()
    lookups = kind("1:t", limits, table=table, observer=watcher)
    out: list[Question] = []
    told: list[object] = []
    now = 0.0
    for _ in range(60):
        now += rng.random()
        req_id, k = str(rng.randrange(4)), key(rng.randrange(3))
        call = rng.choice(["lookup"] * 5 + ["send", "answer", "answer", "forge", "release", "mark"])
        try:
            if call == "lookup":
                told.append(lookups.lookup(k, ReqContext(req_id), None, now))
            elif call == "send":
                lookups.sweep(now)
                out += lookups.take_batch(now)
            elif call == "answer" and out:
                question = out.pop(0)
                verdicts = [rng.choice([True, False, None]) for _ in question.keys]
                told.append([str(e) for e in lookups.answer(question, verdicts, now)])
            elif call == "forge":
                question = Question(None, ReqContext(req_id), [k], [rng.randrange(8)])
                told.append([str(e) for e in lookups.answer(question, [True], now)])
            elif call == "release":
                lookups.release(req_id, now)
            elif call == "mark":
                lookups.mark_miss([k], None, False, now)
                lookups.mark_hit([key(0)], None, now)
            told.append((lookups.snapshot(), str(lookups.counts)))
        except Exception as error:
            told.append((type(error), str(error)))
            break
    return [*told, watcher.seen]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_shortcuts_change_nothing(limits):
    for seed in range(20):
        assert history(LookupTable, TABLE, limits, seed) == history(GuardsOnly, TABLE, limits, seed)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_shortcuts_follow_a_table_that_is_wrong(limits):
    rng = random.Random(1)
    places = [(cell, number) for cell, rows in TABLE.items() for number in range(len(rows))]
    different = 0
    for seed in range(100):
        cells = {cell: list(rows) for cell, rows in TABLE.items()}
        (one, i), (other, j) = rng.sample(places, 2)
        cells[one][i], cells[other][j] = cells[other][j], cells[one][i]
        guards: list[Guard | None] = [*Guard, None]
        for cell in rng.sample(list(TABLE), 2):
            cells[cell][0] = cells[cell][0]._replace(guard=rng.choice(guards))
        wrong = {cell: tuple(rows) for cell, rows in cells.items()}
        followed = history(LookupTable, wrong, limits, seed)
        assert followed == history(GuardsOnly, wrong, limits, seed)
        different += followed != history(LookupTable, TABLE, limits, seed)
    assert different > 60


def test_without_limits_or_marks_a_repeated_lookup_only_reads_in_every_phase():
    table = LookupTable("1:t", LookupLimits())
    assert [phase for phase in LookupPhase if table.shares(phase)] == [
        LookupPhase.PENDING,
        LookupPhase.IN_FLIGHT,
        LookupPhase.RESOLVED,
    ]


@pytest.mark.parametrize(
    ("limits", "phases"),
    [
        (LookupLimits(deadline=1.0), [LookupPhase.RESOLVED]),
        (LookupLimits(verdict_lifetime=1.0), [LookupPhase.PENDING, LookupPhase.IN_FLIGHT]),
    ],
)
def test_a_limit_takes_that_away_where_it_counts(limits, phases):
    table = LookupTable("1:t", limits)
    assert [phase for phase in LookupPhase if table.shares(phase)] == phases


def test_so_does_a_table_that_says_something_else():
    wrong = dict(TABLE)
    wrong[LookupPhase.PENDING, Trigger.JOIN] = (Row(None, LookupPhase.PENDING, Outcome.DEADLINE),)
    assert not LookupTable("1:t", LookupLimits(), table=wrong).shares(LookupPhase.PENDING)


def test_what_is_true_of_most_probes_is_not_taken_for_granted_of_the_rest():
    rows = TABLE[LookupPhase.IN_FLIGHT, Trigger.RELEASE]
    wrong = dict(TABLE)
    wrong[LookupPhase.IN_FLIGHT, Trigger.RELEASE] = (
        Row(Guard.STORED, LookupPhase.ABSENT, Outcome.RELEASED),
        *rows,
    )
    lookups = LookupTable("1:t", LookupLimits(), table=wrong)
    for number in range(2):
        lookups.lookup(key(number), ReqContext("0"), None, 0.0)
    lookups.take_batch(0.0)
    lookups.mark_hit([key(1)], None, 0.0)
    lookups.release("0", 0.0)
    assert list(lookups.snapshot().entries) == [(None, key(0))]


def test_a_probe_that_was_wanted_is_reported_when_nobody_is_left_who_was():
    watcher = Watcher()
    lookups = LookupTable("1:t", LookupLimits(), observer=watcher)
    for req_id in ("0", "1"):
        lookups.lookup(key(0), ReqContext(req_id), None, 0.0)
    lookups.release("0", 0.0)
    watcher.seen.clear()
    lookups.lookup(key(0), ReqContext("3"), None, 0.0)
    assert len(watcher.seen) == 1
