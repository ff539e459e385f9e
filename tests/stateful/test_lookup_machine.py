"""Lookups against their oracle, on whatever sequence of calls Hypothesis can think of.

After every rule the whole table, the counters, the transitions and the replies are
compared, and everything that must always hold is checked.
"""

from __future__ import annotations

import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvtier.lifecycle import LookupPhase
from tests.support.lookup_twin import KEYS, LIMITS, REQ_IDS, TENANTS, LookupTwin
from tests.support.lookups import BAD_ANSWERS, OwnerGuard, quiet

# The second pass, under -O, is about asserts in the library: fewer will do.
EXAMPLES = 100 if sys.flags.optimize else 300

req_ids = st.sampled_from(REQ_IDS[:4])
tenants = st.sampled_from(TENANTS)
one_key = st.sampled_from(KEYS[:2])
some_keys = st.lists(one_key, min_size=1, max_size=2, unique=True)
hows = st.one_of(st.integers(0, 2 ** len(KEYS) - 1), st.sampled_from(sorted(BAD_ANSWERS)))


class LookupMachine(RuleBasedStateMachine):
    """A run is an engine's: steps in which requests ask, end, and ask again, then a flush."""

    twin: LookupTwin
    steps = 0

    @initialize(
        limits=st.sampled_from(LIMITS), max_batches_out=st.integers(1, 3), watched=st.booleans()
    )
    def begin(self, limits, max_batches_out, watched):
        self.twin = LookupTwin(
            table=OwnerGuard, watched=watched, max_batches_out=max_batches_out, **limits
        )

    def teardown(self):
        if hasattr(self, "twin"):
            self.twin.wind_down()

    @rule(req_id=req_ids, k=one_key)
    def lookup(self, req_id, k):
        self.twin.lookup(req_id, k)

    @rule(some=st.lists(req_ids, min_size=2, max_size=4), keys=some_keys)
    def requests_ask(self, some, keys):
        for req_id in some:
            for k in keys:
                self.twin.lookup(req_id, k)

    @rule()
    def those_who_wait_ask_again(self):
        for req_id, places in sorted(self.twin.oracle.held.items()):
            for _, k in sorted(places):
                self.twin.lookup(req_id, k)

    @rule(
        asks=st.lists(st.tuples(req_ids, one_key), max_size=3), answers=st.lists(hows, max_size=3)
    )
    def a_step(self, asks, answers):
        for req_id, k in asks:
            self.twin.lookup(req_id, k)
        self.end_of_step()
        self.worker_answers(answers)

    @rule()
    def end_of_step(self):
        self.steps += 1
        self.twin.flush()

    @rule(answers=st.lists(hows, min_size=1, max_size=3))
    def worker_answers(self, answers):
        for how in answers:
            if self.twin.questions_wait:
                self.twin.work(how)

    @rule()
    def drain(self):
        self.twin.drain()

    @rule(keys=some_keys, tenant=st.one_of(st.none(), tenants))
    def mark_miss(self, keys, tenant):
        self.twin.mark_miss(keys, tenant)

    @rule(keys=some_keys, tenant=tenants)
    def mark_hit(self, keys, tenant):
        self.twin.mark_hit(keys, tenant)

    @rule(req_id=req_ids)
    def cleanup(self, req_id):
        self.twin.cleanup(req_id)

    @rule(seconds=st.sampled_from([1.0, 3.0, 5.0]))
    def time_passes(self, seconds):
        self.twin.advance(seconds)

    @rule(tenant=tenants, k=one_key, older=st.integers(0, 2), yes=st.sampled_from((True, None)))
    def an_answer_nobody_waits_for(self, tenant, k, older, yes):
        probe = self.twin.oracle.probes.get((tenant, k))
        if probe is not None and probe.phase is LookupPhase.IN_FLIGHT:
            older = max(older, 1)
        self.twin.inject(tenant, {k: (probe.generation if probe else 0) - older}, yes)

    @rule(in_time=st.lists(hows, max_size=2), hung=st.none() | hows, begun=st.booleans())
    @precondition(lambda self: self.steps >= 3)
    def shutdown(self, in_time, hung, begun):
        self.twin.shutdown(in_time, hung, begun=begun)

    @rule()
    @precondition(lambda self: self.twin.late)
    def the_last_call_returns(self):
        self.twin.publish_late()

    @invariant()
    def everything_is_as_it_must_be(self):
        if hasattr(self, "twin"):
            self.twin.check()


@pytest.mark.timeout(600)  # A failure takes a while to be made small.
def test_lookups_follow_the_contract_call_by_call():
    with quiet():
        run_state_machine_as_test(
            LookupMachine, settings=settings(max_examples=EXAMPLES, stateful_step_count=50)
        )


@pytest.mark.slow
def test_lookups_follow_the_contract_in_many_long_runs():
    with quiet():
        run_state_machine_as_test(
            LookupMachine, settings=settings(max_examples=1_500, stateful_step_count=60)
        )
