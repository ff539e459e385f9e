"""A disk that is full when the span check wants to keep its rows there."""

from __future__ import annotations

import pytest

from kvtier.check.spans.store import RowStore

__all__ = ["fill"]


def fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on there is room for a few hundred rows."""
    enter = RowStore.__enter__

    def small(store: RowStore) -> RowStore:
        entered = enter(store)
        entered._base.execute("PRAGMA max_page_count = 20")
        return entered

    monkeypatch.setattr(RowStore, "__enter__", small)
