"""How the peer gets here: one member of a wheel, the one that is known, and no trace in Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.peer import vllm_wheel
from tests.peer.conftest import peer
from tests.peer.vllm_wheel import PeerUnavailable, load, source

pytestmark = [pytest.mark.peer, pytest.mark.timeout(180)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


def test_loading_leaves_the_module_table_as_it_was(vllm):
    before = dict(sys.modules)
    module = load()
    assert module.AsyncLookupManager is not vllm.AsyncLookupManager
    assert sys.modules == before


def test_a_vllm_that_is_installed_is_put_back(vllm, monkeypatch):
    installed = object()
    monkeypatch.setitem(sys.modules, "vllm.logger", installed)
    load()
    assert sys.modules["vllm.logger"] is installed
    assert "vllm.v1.kv_offload.base" not in sys.modules


def test_out_of_reach_it_says_so(cache, no_network):
    with pytest.raises(PeerUnavailable, match=r"no wheel of vLLM 0\.33\.0"):
        load()
    assert list(cache.rglob("*.py")) == []


def test_out_of_reach_tests_are_skipped_with_the_reason(cache, no_network, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no wheel of vLLM"):
        peer()


def test_out_of_reach_tests_fail_in_ci(cache, no_network, monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(PeerUnavailable):
        peer()


def test_a_file_that_is_not_the_known_one_is_not_run(cache, no_network, tmp_path):
    path = cache / "kvtier-peer" / "0.33.0" / "async_lookup.py"
    path.parent.mkdir(parents=True)
    path.write_text("raise SystemExit('was run')")
    with pytest.raises(PeerUnavailable):
        load()


def test_what_was_fetched_must_be_the_known_file(cache, monkeypatch):
    monkeypatch.setattr(vllm_wheel, "_fetch", lambda version: b"raise SystemExit('was run')")
    with pytest.raises(PeerUnavailable, match="not the file that is known"):
        load()
    assert list(cache.rglob("*.py")) == []


@pytest.mark.slow
def test_it_is_fetched_once_and_nothing_else_is(vllm, cache, monkeypatch):
    path = source()
    assert [file for file in cache.rglob("*") if file.is_file()] == [path]
    monkeypatch.setattr(vllm_wheel, "_fetch", lambda version: pytest.fail("fetched again"))
    assert source() == path
