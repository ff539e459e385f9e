"""An observer that keeps what it sees, for tests and for whoever wants to look closely."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvtier.errors import UsageError
from kvtier.lifecycle import Transition
from kvtier.request import ReqContext

__all__ = ["RecordingObserver"]


class RecordingObserver:
    """Keeps transitions in the order they were made.

    With a `limit` it keeps the newest `limit` and counts the others in `lost`;
    without one it grows for ever. `wanted(req_context, tier)` picks the requests
    to record; by default all of them. One recorder may serve several tiers: the
    records name theirs. Raises `UsageError` for a limit below 1.
    """

    def __init__(
        self,
        limit: int | None = None,
        *,
        wanted: Callable[[ReqContext, str], bool] | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise UsageError(f"a recorder of {limit} transitions: give 1 or more (None: no limit)")
        self.lost = 0
        self._kept: deque[Transition] = deque(maxlen=limit)
        self._wanted = wanted

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """What is kept, oldest first."""
        return tuple(self._kept)

    def clear(self) -> None:
        """Forget what is kept and what was lost."""
        self._kept.clear()
        self.lost = 0

    def wants(self, req_context: ReqContext, tier: str) -> bool:
        return self._wanted is None or self._wanted(req_context, tier)

    def on_transition(self, transition: Transition) -> None:
        if len(self._kept) == self._kept.maxlen:
            self.lost += 1
        self._kept.append(transition)
