"""Link 2: the real manager does, edge by edge, what the model says, and nothing else.

Every edge of the model's graph is walked with the real manager: whole state and
returned value are compared. And what the model forbids, the code refuses: in every
state, answers to questions that are not out change nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from kvtier.keys import OffloadKey
from kvtier.lifecycle import TABLE, Guard, LookupPhase, Trigger
from kvtier.lookup import Question
from kvtier.model.actions import Machine
from kvtier.model.explore import explore
from kvtier.model.invariants import questions_out
from kvtier.model.state import Config
from kvtier.request import ReqContext
from tests.support.hand_machine import HandMachine, Table, canonical, step
from tests.support.lookups import quiet

SIZES = {"1x1": Config.of(1, 1), "1x2": Config.of(1, 2), "2x1": Config.of(2, 1, max_out=1)}


@pytest.fixture(autouse=True)
def _no_log_lines() -> Iterator[None]:
    with quiet():
        yield


def walk(config: Config, table: Table = TABLE) -> str | None:
    """Walk every edge, and a flush after it; what is wrong with the first that differs.

    The flush is there because a real machine may carry more than the state shows:
    which verdicts it takes for unclaimed, how many batches it takes to be out.
    """
    graph, _ = explore(Machine(config))
    flushed = {a: b for a, label, b in graph.edges if label == "Flush"}
    machines = {0: HandMachine(config, table)}
    for here, edges in itertools.groupby(graph.edges, key=lambda edge: edge[0]):
        machine = machines.pop(here)
        for _, label, there in edges:
            copy = machine.copy()
            problem = step(copy, graph.states[here], label, graph.states[there])
            if graph.reached_by[there] == (here, label):
                machines[there] = copy.copy()
            if problem is None and there in flushed:
                after = graph.states[flushed[there]]
                problem = step(copy, graph.states[there], "Flush", after)
            if problem is not None:
                return problem
    return None


@pytest.mark.parametrize("size", ["1x1", "1x2"])
def test_every_edge_of_the_model_is_a_step_of_the_code(size: str) -> None:
    assert walk(SIZES[size]) is None


@pytest.mark.slow
def test_every_edge_of_the_model_is_a_step_of_the_code_with_two_keys() -> None:
    assert walk(SIZES["2x1"]) is None


def test_answers_without_a_question_change_nothing_in_any_state() -> None:
    config = SIZES["1x2"]
    graph, _ = explore(Machine(config))
    machines = {0: HandMachine(config)}
    refused = 0
    for here, edges in itertools.groupby(graph.edges, key=lambda edge: edge[0]):
        machine, state = machines.pop(here), graph.states[here]
        for _, label, there in edges:
            if graph.reached_by[there] == (here, label):
                machines[there] = machine.copy()
                machines[there].do(label)
        out = set(questions_out(machine.state()))
        table = machine.manager._table
        entry = machine.state().entry[0]
        for gen in {entry.gen, entry.gen + 1, max(entry.gen - 1, 0)}:
            if ("k1", gen) in out and entry.phase == "IN_FLIGHT":
                continue
            for answer in (True, False, None):
                question = Question(None, ReqContext("late"), [OffloadKey(b"k1")], [gen])
                refused += len(table.answer(question, [answer], 0.0))
                assert canonical(machine.state()) == canonical(state), (gen, answer)
    assert refused > 0


Place = tuple[tuple[LookupPhase, Trigger], int]
"""A cell of the table, and the number of a row in it."""


def swapped(a: Place, b: Place) -> Table:
    """The table with two rows exchanged."""
    table = dict(TABLE)
    (cell_a, i), (cell_b, j) = a, b
    row_a, row_b = TABLE[cell_a][i], TABLE[cell_b][j]
    for cell, at, row in ((cell_a, i, row_b), (cell_b, j, row_a)):
        rows = list(table[cell])
        rows[at] = row
        table[cell] = tuple(rows)
    return table


WITHIN = [
    ((cell, i), (cell, j))
    for cell, rows in TABLE.items()
    for i, j in itertools.combinations(range(len(rows)), 2)
]


@pytest.mark.parametrize(
    "pair", WITHIN, ids=lambda p: f"{p[0][0][0].name}-{p[0][0][1].name}-{p[0][1]}-{p[1][1]}"
)
def test_two_rows_of_a_cell_in_the_wrong_order_are_noticed(pair: tuple[Place, Place]) -> None:
    table = swapped(*pair)
    noticed = walk(SIZES["1x1"], table) or walk(SIZES["1x2"], table)
    if noticed is None:
        (cell, i), (_, j) = pair
        guards = {TABLE[cell][i].guard, TABLE[cell][j].guard}
        # No step of the model delivers such an answer; they are injected above.
        assert cell[1] is Trigger.ANSWER
        assert Guard.OTHER_GENERATION in guards
