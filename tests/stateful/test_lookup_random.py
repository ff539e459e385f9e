"""Lookups at random, by the hundred thousand, and the same run against wrong lifecycle tables."""

from __future__ import annotations

import sys
from functools import partial
from itertools import combinations

import pytest

from kvtier.errors import IllegalTransition
from kvtier.lifecycle import TABLE, LookupPhase, Outcome, Trigger
from kvtier.lookup import LookupTable
from tests.support.lookup_twin import random_run

# The second pass, under -O, is about asserts in the library: fewer will do.
OPERATIONS, AT_LEAST = (20_000, 10) if sys.flags.optimize else (200_000, 1_000)

LEGAL = {
    (phase, trigger, row.outcome, row.target)
    for (phase, trigger), rows in TABLE.items()
    for row in rows
    if row.outcome is not Outcome.ILLEGAL
}

SWAPS = [
    pytest.param(phase, trigger, one, two, id=f"{phase.name}-{trigger.name}-{one}-{two}")
    for (phase, trigger), rows in TABLE.items()
    for one, two in combinations(range(len(rows)), 2)
]


@pytest.mark.timeout(300)
def test_a_random_life_follows_the_contract_takes_every_row_and_ends_empty():
    fired = random_run(seed=2, operations=OPERATIONS, glance=20)
    rare = {row: fired[row] for row in LEGAL if fired[row] < AT_LEAST}
    assert not rare
    # A forged answer is the only illegal event that can come from outside.
    assert {(row[0], row[1]) for row in fired.keys() - LEGAL} == {
        (LookupPhase.PENDING, Trigger.ANSWER),
        (LookupPhase.RESOLVED, Trigger.ANSWER),
    }


def swapped(phase: LookupPhase, trigger: Trigger, one: int, two: int):
    rows = list(TABLE[phase, trigger])
    rows[one], rows[two] = rows[two], rows[one]
    return {**TABLE, (phase, trigger): tuple(rows)}


@pytest.mark.parametrize(("phase", "trigger", "one", "two"), SWAPS)
def test_two_rows_in_the_wrong_order_are_noticed(phase, trigger, one, two):
    """In the table, the replies or the counters; three of the swaps in what is reported only.

    Those change no reply and no state: an asker both excused and past the deadline
    reads `False` either way (while `PENDING`, and while `IN_FLIGHT`), and a yes for
    a block that was stored meanwhile is a yes either way.
    """
    wrong = partial(LookupTable, table=swapped(phase, trigger, one, two))
    with pytest.raises((AssertionError, IllegalTransition, KeyError)):
        random_run(seed=4, operations=100_000, table=wrong)


def test_every_pair_of_rows_was_swapped():
    """Three cells of three rows (three pairs each), one of five (ten), five of two (one each)."""
    assert len(SWAPS) == 24
