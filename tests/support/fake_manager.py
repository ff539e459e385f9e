"""A tiering manager that says what its script says, and insists on its contract.

Answers are letters: H hit, P being loaded, S being stored, N a slower tier has
it, R a probe is open, M miss (also for a key without an answer). Every call is
recorded. What no scheduler may do is an `AssertionError` here: use a request
that is not live, load what did not answer H in this step, promote what is not
noted or more than there is room for, return what was not taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from kvtier.keys import OffloadKey
from kvtier.request import ReqContext
from kvtier.results import LookupResult, MissReason
from kvtier.tiering import DeferReason, TieringOffloadingManager
from kvtier.tiers.base import LoadStoreSpec, PrepareStoreOutput
from tests.support.insist import insist

RESULTS = {
    "H": LookupResult.HIT,
    "P": LookupResult.HIT_PENDING,
    "S": LookupResult.HIT_PENDING,
    "N": LookupResult.RETRY,
    "R": LookupResult.RETRY,
    "M": LookupResult.MISS,
}
REASONS = {
    "P": DeferReason.PROMOTION,
    "N": DeferReason.PROMOTION,
    "S": DeferReason.STORE,
    "R": DeferReason.PROBE,
}


class Call(NamedTuple):
    """One call on the manager; `detail` is a reason or a success where there is one."""

    name: str
    req_id: str = ""
    keys: tuple[OffloadKey, ...] = ()
    detail: object = None


@dataclass
class FakeManager:
    """See above. `answers`, `space`, `busy` and `pending` may be changed between steps."""

    answers: dict[OffloadKey, str] = field(default_factory=dict)
    space: int = 1_000_000
    """What `room()` says; promotions use it up."""
    slots: int = 1_000_000
    """How many keys one `prepare_store` takes."""
    sources: Mapping[OffloadKey, str] = field(default_factory=dict)
    reasons: Mapping[OffloadKey, MissReason] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    pending: int = 0
    """For how many more steps there is pending work."""
    labels: tuple[str, ...] = ("0:primary", "1:near", "2:far")
    calls: list[Call] = field(default_factory=list)
    live: dict[str, dict[OffloadKey, MissReason]] = field(default_factory=dict)
    """Requests, each with why its keys last read as a miss."""
    taken: Counter[tuple[str, str, LoadStoreSpec]] = field(default_factory=Counter)
    """Loads and stores that are under way."""
    hits: set[OffloadKey] = field(default_factory=set)
    """Keys that answered H in this step."""

    @property
    def manager(self) -> TieringOffloadingManager:
        """This, as what it stands in for."""
        return cast(TieringOffloadingManager, self)

    def names(self, req_id: str | None = None) -> list[str]:
        """The calls so far (of one request), by name."""
        return [call.name for call in self.calls if req_id in (None, call.req_id)]

    def keys_of(self, name: str, req_id: str | None = None) -> list[OffloadKey]:
        """All keys of all calls so far of that name."""
        calls = [c for c in self.calls if c.name == name and req_id in (None, c.req_id)]
        return [key for call in calls for key in call.keys]

    # What the scheduler calls

    def on_new_request(self, req_context: ReqContext) -> None:
        insist(req_context.req_id not in self.live)
        self.live[req_context.req_id] = {}
        self.calls.append(Call("on_new_request", req_context.req_id))

    def on_request_finished(self, req_context: ReqContext) -> None:
        insist(not [key for key in self.taken if key[1] == req_context.req_id])
        del self.live[req_context.req_id]
        self.calls.append(Call("on_request_finished", req_context.req_id))

    def is_busy(self, req_context: ReqContext) -> bool:
        insist(req_context.req_id in self.live)
        return req_context.req_id in self.busy

    def locate(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        self._call("locate", [key], req_context)
        letter = self._letter(key)
        misses = self.live[req_context.req_id]
        misses.pop(key, None)
        if letter == "H":
            self.hits.add(key)
        if letter == "M":
            misses[key] = self.reasons.get(key, MissReason.ABSENT)
        return RESULTS[letter]

    def noted(self, key: OffloadKey, req_context: ReqContext) -> bool:
        insist(RESULTS[self._letter(key)] is LookupResult.RETRY)
        return self._letter(key) == "N"

    def pending_reason(self, key: OffloadKey, req_context: ReqContext) -> DeferReason:
        return REASONS[self._letter(key)]

    def room(self) -> int:
        return self.space

    def promote(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> list[OffloadKey]:
        self._call("promote", keys, req_context)
        insist({self._letter(key) for key in keys} == {"N"})
        insist(len(keys) <= self.space)
        self.space -= len(keys)
        self.answers.update(dict.fromkeys(keys, "P"))
        return list(keys)

    def refuse(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        self._call("refuse", keys, req_context)
        self.live[req_context.req_id].update(dict.fromkeys(keys, MissReason.NO_ROOM))

    def defer(self, req_context: ReqContext, reason: DeferReason) -> None:
        self._call("defer", [], req_context, reason)

    def forget(self, req_context: ReqContext) -> None:
        self._call("forget", [], req_context)
        self.live[req_context.req_id].clear()

    def source(self, key: OffloadKey, req_context: ReqContext) -> str:
        insist(key in self.hits)
        return self.sources.get(key, self.labels[0])

    def miss_reason(self, key: OffloadKey, req_context: ReqContext) -> MissReason:
        return self.live[req_context.req_id].get(key, MissReason.BEYOND)

    def touch(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        self._call("touch", keys, req_context)

    def prepare_load(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        self._call("prepare_load", keys, req_context)
        insist(self.hits.issuperset(keys))
        return self._take("load", keys, req_context)

    def complete_load(self, spec: LoadStoreSpec, req_context: ReqContext) -> None:
        self._call("complete_load", spec.keys, req_context)
        self._give_back("load", spec, req_context)

    def prepare_store(
        self, keys: Sequence[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput:
        self._call("prepare_store", keys, req_context)
        new = [key for key in keys if self._letter(key) not in "HPS"]
        spec = self._take("store", new[: self.slots], req_context)
        self.answers.update(dict.fromkeys(spec.keys, "S"))
        return PrepareStoreOutput(spec, (), tuple(new[self.slots :]))

    def complete_store(
        self, spec: LoadStoreSpec, req_context: ReqContext, success: bool = True
    ) -> None:
        self._call("complete_store", spec.keys, req_context, success)
        self._give_back("store", spec, req_context)
        self.answers.update(dict.fromkeys(spec.keys, "H" if success else "M"))

    def on_schedule_end(self) -> None:
        self.calls.append(Call("on_schedule_end"))
        self.hits.clear()
        self.pending = max(0, self.pending - 1)

    def has_pending_work(self) -> bool:
        return self.pending > 0

    def _letter(self, key: OffloadKey) -> str:
        return self.answers.get(key, "M")

    def _call(
        self,
        name: str,
        keys: Sequence[OffloadKey],
        req_context: ReqContext,
        detail: object = None,
    ) -> None:
        insist(req_context.req_id in self.live)
        insist(len(set(keys)) == len(keys))
        self.calls.append(Call(name, req_context.req_id, tuple(keys), detail))

    def _take(self, what: str, keys: Sequence[OffloadKey], ctx: ReqContext) -> LoadStoreSpec:
        slots = tuple(range(len(keys)))
        spec = LoadStoreSpec(tuple(keys), slots, slots)
        self.taken += Counter({(what, ctx.req_id, spec): min(1, len(keys))})
        return spec

    def _give_back(self, what: str, spec: LoadStoreSpec, ctx: ReqContext) -> None:
        insist((what, ctx.req_id, spec) in self.taken or not spec.keys)
        self.taken -= Counter({(what, ctx.req_id, spec): 1})
