"""`LookupWorker`: asks the back end, on one background lane, and never dies of it.

The contract, whatever the back end does: every question is answered **at most
once**; exactly once if every `batch_lookup` returns or raises and shutdown does
not reach its timeout. A back end's answer is only believed if it is one `bool`
per key. Anything else, be it an exception, a lazy iterable that raises, an
answer too many or too few, or a `None` in between, means that the answers
cannot be matched with the keys: the whole question has failed.

Questions are answered first in, first out. Each is a task of its own on the lane
and is published as soon as it is answered, so a slow scope holds back neither
the answer before it nor whoever waits on the runtime for news. The worker never
touches the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from kvtier.keys import OffloadKey
from kvtier.log import shown
from kvtier.lookup.entry import Question
from kvtier.request import ReqContext
from kvtier.runtime import Runtime

__all__ = ["BatchLookup", "LookupWorker", "Reply"]

BatchLookup = Callable[[list[OffloadKey], ReqContext], Iterable[bool]]
"""Does each of these keys exist in the tier? May block; runs on the worker's lane."""


class Reply:
    """The answer to one `Question`: a verdict per key, or why there is none."""

    __slots__ = ("began", "ended", "failure", "posted", "question", "verdicts")

    def __init__(
        self, question: Question, verdicts: list[bool] | None, failure: str | None
    ) -> None:
        self.question = question
        self.verdicts = verdicts
        self.failure = failure
        self.posted = self.ended = 0.0
        self.began: float | None = 0.0
        """When it was asked, taken up and answered; 0 unless the worker is timed."""


class LookupWorker:
    """One lane that turns questions into replies. `timed`: it notes when it did what."""

    def __init__(
        self, name: str, batch_lookup: BatchLookup, runtime: Runtime, *, timed: bool = False
    ) -> None:
        self._batch_lookup = batch_lookup
        self._now = runtime.now if timed else _no_time
        self._replies: deque[Reply] = deque()
        self._lane = runtime.lane(name)

    def post(self, questions: list[Question]) -> None:
        """Ask these, in this order, after everything posted before."""
        for question in questions:
            self._lane.post(partial(self._answer, question, self._now()))

    def take(self) -> Reply | None:
        """The oldest reply not yet taken, if there is one."""
        return self._replies.popleft() if self._replies else None

    def stop(self, timeout: float | None) -> bool:
        """Answer what was posted, for at most `timeout` seconds, then begin no question more.

        Returns whether everything posted was answered.
        """
        return self._lane.stop(timeout)

    def _answer(self, question: Question, posted: float) -> None:
        if not self._lane.stopping:
            began = self._now()
            reply = self._ask(question)
            reply.posted, reply.began, reply.ended = posted, began, self._now()
            self._replies.append(reply)

    def _ask(self, question: Question) -> Reply:
        wanted = len(question.keys)
        try:
            answers = self._batch_lookup(list(question.keys), question.req_context)
            verdicts = list(islice(answers, wanted + 1))
        except BaseException as error:  # the lane must outlive whatever a back end raises
            return Reply(question, None, shown(error))
        if len(verdicts) != wanted:
            count = f"{len(verdicts)}" if len(verdicts) < wanted else f"more than {wanted}"
            return Reply(question, None, f"{count} answers for {wanted} keys")
        if set(map(type, verdicts)) != {bool}:
            strange = next(verdict for verdict in verdicts if type(verdict) is not bool)
            return Reply(question, None, f"{shown(strange)} is not a bool")
        return Reply(question, verdicts, None)


def _no_time() -> float:
    return 0.0
