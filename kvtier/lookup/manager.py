"""`AsyncLookupManager`: lookups of one slow tier that never block the scheduler.

A tier composes one of these. It is the table (which decides), the worker (which
asks) and the order between them (which is here): a lookup answers from the
table, `flush` at the end of a step hands the step's questions to the worker, and
what the worker published is applied on the first lookup after a flush, at the
next flush, and at shutdown. One caller at a time, usually the scheduler's
thread; there is no lock.

    class MyLookups(AsyncLookupManager):
        def batch_lookup(self, keys, req_context):
            return [self.client.exists(key) for key in keys]

    with MyLookups("1:mine") as lookups:
        lookups.lookup(key, ctx)     # None: ask again next step
        lookups.flush()              # end of the step
        ...
        lookups.lookup(key, ctx)     # True or False
        lookups.cleanup(ctx.req_id)  # the request ended
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable
from types import TracebackType
from typing import Self

from kvtier.keys import OffloadKey
from kvtier.lifecycle import BatchReport, LookupObserver, LookupPhase
from kvtier.log import Log, shown
from kvtier.lookup.entry import ABSENTEE, UNMARKED, LookupCounts, Question, Snapshot
from kvtier.lookup.guards import LookupLimits
from kvtier.lookup.table import LookupTable
from kvtier.lookup.worker import LookupWorker, Reply
from kvtier.request import ReqContext
from kvtier.results import MissReason
from kvtier.runtime import Runtime, ThreadRuntime

__all__ = ["AsyncLookupManager"]

_log = Log("kvtier.lookup")


class AsyncLookupManager(ABC):
    """Asynchronous existence checks for the tier labelled `tier`.

    `deadline` (seconds from the birth of a probe): past it lookups read `False`
    while the question goes on. `verdict_lifetime` (seconds from the verdict): past
    it the next lookup asks again; it must exceed `deadline`, and should exceed the
    time a probe takes plus a step, or a request can chase expiring verdicts for
    ever. At most `max_batches_out` batches are with the worker at once. Raises
    `UsageError` for values that make no sense.
    """

    def __init__(
        self,
        tier: str,
        *,
        runtime: Runtime | None = None,
        max_batches_out: int = 2,
        deadline: float | None = None,
        verdict_lifetime: float | None = None,
        observer: LookupObserver | None = None,
    ) -> None:
        self.tier = tier
        self._limits = LookupLimits(deadline, verdict_lifetime, max_batches_out)
        self._table = LookupTable(
            tier, self._limits, observer=observer, observer_failed=self._observer_failed
        )
        runtime = runtime if runtime is not None else ThreadRuntime()
        self._now = runtime.now
        self._reports_batches = self._table.reporter.sees_batches
        self._worker = LookupWorker(
            f"kvtier-lookup-{tier}", self.batch_lookup, runtime, timed=self._reports_batches
        )
        self._unanswered: dict[int, tuple[Question, float]] = {}
        """Questions and when they were sent, by identity; kept only to be reported."""
        shared = type(self).probe_scope is AsyncLookupManager.probe_scope
        self._scope_of = None if shared else self.probe_scope
        # Where the lifecycle table says that a repeated lookup only reads, it is read here.
        shares = self._table.shares
        self._held = self._table.held if shares(LookupPhase.RESOLVED) else {}
        """Verdicts to be read off."""
        self._readable = self._held
        """The same, but empty while there may be replies to apply."""
        self._quiet = shares(LookupPhase.PENDING) and shares(LookupPhase.IN_FLIGHT)
        """So may be that there is no verdict yet."""
        self._must_drain = False

    @abstractmethod
    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        """Which of `keys` exist in the tier: one `bool` per key, in the same order.

        Called on the worker's lane, once per scope and batch, with the context of
        the request that first asked for the first key. May block. If it raises, or
        answers anything but one `bool` per key, every key of this call counts as
        failed (vllm 44193): it reads `False` until a new request asks again.
        """

    def probe_scope(self, req_context: ReqContext) -> Hashable:
        """Which requests may share an answer: those with equal scopes.

        Default: all. A tier whose answer depends on the tenant returns the tenant.
        """
        return None

    # -- the step --------------------------------------------------------------------------

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """`True`: the tier has it. `False`: read it as a miss. `None`: ask again next step."""
        try:
            entry = self._readable[req_context.req_id].get(key, ABSENTEE)
        except KeyError:
            entry = ABSENTEE
        if entry.verdict is not None:
            return entry.verdict
        if self._must_drain:
            self.drain_results()
            return AsyncLookupManager.lookup(self, key, req_context)
        if entry is not ABSENTEE and entry.marks is UNMARKED and self._quiet:
            return None
        return self._table.lookup(key, req_context, self._scope_of, self._now())

    def flush(self) -> None:
        """End of a step: apply what came, drop what nobody took, send what was asked."""
        self.drain_results()
        now = self._now()
        self._table.sweep(now)
        questions = self._table.take_batch(now)
        if questions:
            if self._reports_batches:
                self._unanswered.update((id(question), (question, now)) for question in questions)
            self._worker.post(questions)
        if not self._table.closed:
            self._must_drain = True
            self._readable = {}

    def drain_results(self) -> None:
        """Apply the worker's replies. Idempotent; a lookup after a flush does it by itself.

        Draining before the lookup joins, or after, comes to the same: a verdict
        that finds no waiter stays until the next flush for whoever asks first.
        """
        while (reply := self._worker.take()) is not None:
            question = reply.question
            keys = len(question.keys)
            if self._reports_batches:
                self._unanswered.pop(id(question), None)
                self._report_batch(reply)
            if reply.failure is not None:
                _log.warning("lookup_error", tier=self.tier, keys=keys, error=reply.failure)
            for error in self._table.answer(question, reply.verdicts or [None] * keys, self._now()):
                _log.warning("illegal_answer", tier=self.tier, error=str(error))
        self._must_drain = False
        self._readable = self._held

    def mark_miss(
        self, keys: Collection[OffloadKey], req_context: ReqContext | None = None
    ) -> None:
        """A load of `keys` failed: held verdicts become `False` (vllm 49176).

        Questions that are not answered yet are newer and are left alone. Without
        a context: in every scope, since a miss is always allowed.
        """
        every = req_context is None
        scope = None if req_context is None else self.probe_scope(req_context)
        self._table.mark_miss(keys, scope, every, self._now())

    def mark_hit(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """A store of `keys` completed: held and coming verdicts of that scope become `True`."""
        self._table.mark_hit(keys, self.probe_scope(req_context), self._now())

    def cleanup(self, req_id: str) -> None:
        """The request lets go of all it asked for. An unknown id: nothing."""
        self._table.release(req_id, self._now())

    def shutdown(self, timeout: float | None = 5.0) -> None:
        """Stop, within `timeout` seconds whatever the back end does. Idempotent.

        `None` waits as long as the back end takes. Afterwards lookups are pure
        reads, and nothing is asked any more.
        """
        if self._table.closed:
            return
        self._worker.stop(timeout)
        self.drain_results()
        now = self._now()
        for question, posted in self._unanswered.values():
            unanswered = Reply(question, None, "no answer before shutdown")
            unanswered.posted, unanswered.began, unanswered.ended = posted, None, now
            self._report_batch(unanswered)
        self._unanswered.clear()
        self._table.sweep(now)
        self._table.close(now)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    # -- reading ---------------------------------------------------------------------------

    @property
    def counts(self) -> LookupCounts:
        """The counters as of now. Read again for later ones: one that is kept lags behind."""
        return self._table.counts

    def why_false(self, key: OffloadKey, req_context: ReqContext) -> MissReason:
        """What stands behind the `False` that this request reads for `key`. Changes nothing."""
        probe = self._table.peek(key, req_context, self._scope_of)
        if probe is None:
            return MissReason.CLOSED if self._table.closed else MissReason.ABSENT
        if probe.marks.error or req_context.req_id in probe.marks.excused:
            return MissReason.LOOKUP_ERROR
        if probe.phase is not LookupPhase.RESOLVED and self._limits.overdue(
            probe.born, self._now()
        ):
            return MissReason.DEADLINE
        return MissReason.ABSENT

    def has_pending_work(self) -> bool:
        """Whether `flush` must go on being called."""
        return self._table.has_pending_work

    def snapshot(self) -> Snapshot:
        """A copy of the table."""
        return self._table.snapshot()

    def _report_batch(self, reply: Reply) -> None:
        question = reply.question
        self._table.reporter.batch(
            BatchReport(
                self.tier,
                question.scope,
                question.req_context,
                question.keys,
                question.generations,
                reply.verdicts,
                reply.failure,
                reply.posted,
                reply.began,
                reply.ended,
            )
        )

    def _observer_failed(self, error: Exception) -> None:
        _log.error("observer_dropped", tier=self.tier, error=shown(error))
