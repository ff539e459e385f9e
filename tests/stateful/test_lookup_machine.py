"""Lookups against their oracle, on whatever sequence of calls Hypothesis can think of.

After every rule the whole table, the counters, the transitions and the replies are
compared, and everything that must always hold is checked.
"""

from __future__ import annotations

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

req_ids = st.sampled_from(REQ_IDS)
tenants = st.sampled_from(TENANTS)
one_key = st.sampled_from(KEYS)
some_keys = st.lists(one_key, min_size=1, max_size=3)
hows = st.one_of(st.integers(0, 2 ** len(KEYS) - 1), st.sampled_from(sorted(BAD_ANSWERS)))


class LookupMachine(RuleBasedStateMachine):
    twin: LookupTwin

    @initialize(limits=st.sampled_from(LIMITS), max_batches_out=st.integers(1, 3))
    def begin(self, limits, max_batches_out):
        self.twin = LookupTwin(table=OwnerGuard, max_batches_out=max_batches_out, **limits)

    def teardown(self):
        if hasattr(self, "twin"):
            self.twin.wind_down()

    # A request asks for several keys, and asks again: so sequences get far.
    @rule(req_id=req_ids, keys=some_keys)
    def lookup(self, req_id, keys):
        for k in keys:
            self.twin.lookup(req_id, k)

    @rule(keys=some_keys)
    def all_ask(self, keys):
        for req_id in REQ_IDS:
            for k in keys:
                self.twin.lookup(req_id, k)

    @rule()
    def flush(self):
        self.twin.flush()

    @rule(how=hows)
    @precondition(lambda self: self.twin.questions_wait)
    def worker_answers(self, how):
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

    @rule(
        tenant=tenants, k=one_key, older=st.integers(0, 3), yes=st.sampled_from([True, False, None])
    )
    def an_answer_nobody_waits_for(self, tenant, k, older, yes):
        probe = self.twin.oracle.probes.get((tenant, k))
        if probe is not None and probe.phase is LookupPhase.IN_FLIGHT:
            older = max(older, 1)
        self.twin.inject(tenant, {k: (probe.generation if probe else 0) - older}, yes)

    @rule(in_time=st.lists(hows, max_size=3), hung=st.one_of(st.none(), hows))
    def shutdown(self, in_time, hung):
        self.twin.shutdown(in_time, hung)

    @rule()
    @precondition(lambda self: self.twin.late)
    def the_last_call_returns(self):
        self.twin.publish_late()

    @invariant()
    def everything_is_as_it_must_be(self):
        if hasattr(self, "twin"):
            self.twin.check()


def test_lookups_follow_the_contract_call_by_call():
    with quiet():
        run_state_machine_as_test(
            LookupMachine, settings=settings(max_examples=120, stateful_step_count=40)
        )


@pytest.mark.slow
def test_lookups_follow_the_contract_in_many_long_runs():
    with quiet():
        run_state_machine_as_test(
            LookupMachine, settings=settings(max_examples=2_000, stateful_step_count=80)
        )
