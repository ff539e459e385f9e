"""Link 3: the real manager with the model as oracle, at sizes that TLC cannot reach.

Each rule takes a step that the model offers, with the real manager, and compares
whole state, returned value and what was reported; after each rule every invariant
is asked of the real manager's state, and every step property of the step.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvtier.lifecycle import Outcome
from kvtier.model.actions import Machine
from kvtier.model.invariants import INVARIANTS
from kvtier.model.properties import PROPERTIES
from kvtier.model.state import Config, State
from tests.support.hand_machine import HandMachine, step
from tests.support.lookups import quiet


class LookupsAgainstModel(RuleBasedStateMachine):
    """A caller, a worker and a clock, each with the steps that the model allows them."""

    @initialize(keys=st.integers(1, 4), requests=st.integers(1, 4), max_out=st.integers(1, 3))
    def begin(self, keys: int, requests: int, max_out: int) -> None:
        self.config = Config.of(keys, requests, max_out)
        self.model = Machine(self.config)
        self.state = self.model.initial()
        self.real = HandMachine(self.config)

    def steps(self, *actions: str) -> list[tuple[str, State]]:
        return [s for s in self.model.steps(self.state) if s[0].split("_")[0] in actions]

    def take(self, data: st.DataObject, *actions: str) -> None:
        possible = self.steps(*actions)
        if not possible:
            return
        label, after = data.draw(st.sampled_from(possible), label="step")
        with quiet():
            assert step(self.real, self.state, label, after) is None
        for name, holds in PROPERTIES.items():
            assert holds(self.model, self.state, label, after), name
        self.state = after

    @rule(data=st.data())
    def a_request_asks(self, data: st.DataObject) -> None:
        self.take(data, "Lookup")

    @rule(data=st.data())
    def the_step_ends(self, data: st.DataObject) -> None:
        self.take(data, "Flush")

    @rule(data=st.data())
    def a_request_lets_go(self, data: st.DataObject) -> None:
        self.take(data, "Cleanup")

    @rule(data=st.data())
    def a_block_is_marked_or_answers_are_drained(self, data: st.DataObject) -> None:
        self.take(data, "MarkMiss", "MarkHit", "Drain")

    @rule(data=st.data())
    def the_worker_works(self, data: st.DataObject) -> None:
        self.take(data, "WorkerTake", "WorkerCall", "WorkerAnswer")

    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        self.take(data, "DeadlinePasses", "VerdictAges")

    @precondition(lambda self: self.real.manager.counts.issued > 5)
    @rule(data=st.data())
    def the_end_comes_nearer(self, data: st.DataObject) -> None:
        self.take(data, "WorkerHang", "ShutdownBegin", "ShutdownTimeout", "ShutdownEnd")

    @invariant()
    def the_invariants_hold_of_the_real_state(self) -> None:
        if hasattr(self, "real"):
            state = self.real.state()
            broken = [name for name, holds in INVARIANTS.items() if not holds(self.model, state)]
            assert not broken

    @invariant()
    def the_books_are_balanced(self) -> None:
        if hasattr(self, "real"):
            counts = self.real.manager.counts
            open_probes = sum(e.phase in ("PENDING", "IN_FLIGHT") for e in self.real.state().entry)
            ended = counts.resolved + counts.abandoned + counts.closed
            assert counts.issued == ended + open_probes


TestLookupsAgainstModel = LookupsAgainstModel.TestCase
TestLookupsAgainstModel.settings = settings(max_examples=60, stateful_step_count=60)


OFTEN = {
    "Lookup": 4,
    "Flush": 2,
    "WorkerTake": 4,
    "WorkerCall": 4,
    "WorkerAnswer": 4,
    "Drain": 1,
    "Cleanup": 2,
}
"""How often an action is taken, against 0.5 for the others and 0.12 for those that end it all."""
ENDING = ("ShutdownBegin", "WorkerHang")

REPORTED = set(Outcome) - {Outcome.UNTOUCHED, Outcome.ILLEGAL, Outcome.DISCARDED}
"""Answers that are discarded or illegal are injected elsewhere; the model delivers none."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_long_random_walk_agrees_and_every_outcome_comes_a_thousand_times() -> None:
    rng = random.Random(7)
    seen: Counter[Outcome] = Counter()
    with quiet():
        for _ in range(4_000):
            config = Config.of(rng.randint(1, 2), rng.randint(2, 3), rng.randint(1, 2))
            model, real = Machine(config), HandMachine(config)
            state = model.initial()
            for _ in range(250):
                by_action: dict[str, list[tuple[str, State]]] = defaultdict(list)
                for label, after in model.steps(state):
                    by_action[label.split("_")[0]].append((label, after))
                often = [OFTEN.get(a, 0.12 if a in ENDING else 0.5) for a in by_action]
                choice = by_action[rng.choices(list(by_action), often)[0]]
                if rng.random() < 0.5:
                    failed = [c for c in choice if c[0] == "WorkerAnswer_Error"]
                    choice = failed or choice
                label, after = rng.choice(choice)
                assert step(real, state, label, after) is None
                seen.update(real.seen.outcomes)
                state = after
    rare = {outcome: seen[outcome] for outcome in REPORTED if seen[outcome] < 1_000}
    assert not rare
