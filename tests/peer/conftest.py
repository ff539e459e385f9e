"""Where the peer can be had from: tests that need it are skipped without it, but not in CI."""

from __future__ import annotations

import os
from types import ModuleType

import pytest

from tests.peer.vllm_wheel import NEWEST, PeerUnavailable, load


def peer(version: str = NEWEST) -> ModuleType:
    """vLLM's module. Skips the test if it is out of reach, or fails it where `CI` is `true`."""
    try:
        return load(version)
    except PeerUnavailable as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def vllm() -> ModuleType:
    """vLLM's module with its `AsyncLookupManager`."""
    return peer()
