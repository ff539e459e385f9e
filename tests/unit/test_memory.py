"""The memory tier: the contract of every back end."""

from __future__ import annotations

import pytest

from kvtier.tiers.memory import MemoryStore
from tests.support.stores import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self):
        return MemoryStore()


def test_two_stores_share_nothing():
    one, other = MemoryStore(), MemoryStore()
    StoreContract().put(one, 0)
    assert other.frames == {}
