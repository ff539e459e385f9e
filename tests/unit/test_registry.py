"""Tiers by name: kvtier's own, somebody else's, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from kvtier.errors import BadInput, UsageError
from kvtier.keys import Namespace
from kvtier.runtime import VirtualRuntime
from kvtier.tiers import registry
from kvtier.tiers.base import PrimaryView
from kvtier.tiers.filesystem import FilesystemStore
from kvtier.tiers.memory import MemoryStore
from kvtier.tiers.registry import TierSetup, known_tiers, open_tier, split_spec
from kvtier.tiers.store import StoreTier
from tests.support.stores import BLOCK, ScriptedStore


def setup_of(**options):
    base = TierSetup(PrimaryView(4, BLOCK), Namespace("model", BLOCK), "1:x", VirtualRuntime())
    return replace(base, **options)


@pytest.fixture
def entry_points(monkeypatch):
    """The entry points that are installed, as a list to add to."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    return points


@pytest.fixture
def plugin(monkeypatch):
    """A module `someone.tier` that can be imported."""
    module = ModuleType("someone_tier")
    monkeypatch.setitem(sys.modules, "someone_tier", module)
    return module


def test_names_and_arguments():
    assert split_spec("memory") == ("memory", None)
    assert split_spec("fs:/some/dir") == ("fs", "/some/dir")
    assert split_spec("redis:redis://host:6379/0") == ("redis", "redis://host:6379/0")
    assert split_spec("fs:") == ("fs", "")
    assert split_spec("") == ("", None)


def test_its_own_tiers_resolve_from_a_checkout(entry_points, tmp_path):
    memory = open_tier("memory", setup_of())
    files = open_tier(f"fs:{tmp_path}", setup_of())
    assert isinstance(memory, StoreTier)
    assert isinstance(files, StoreTier)
    assert (memory.tier_type, type(memory.store)) == ("memory", MemoryStore)
    assert (files.tier_type, type(files.store)) == ("fs", FilesystemStore)
    assert (tmp_path / Namespace("model", BLOCK).digest).is_dir()


def test_a_tier_is_built_with_all_of_the_setup():
    wrapped = []

    def wrap(store):
        wrapped.append(store)
        return ScriptedStore()

    setup = setup_of(label="3:mem", deadline=1.0, verdict_lifetime=9.0, wrap=wrap)
    tier = open_tier("memory", setup)
    assert isinstance(tier, StoreTier)
    assert (tier.label, tier.lookups.tier) == ("3:mem", "3:mem")
    assert [type(store) for store in wrapped] == [MemoryStore]
    assert isinstance(tier.store, ScriptedStore)
    with pytest.raises(UsageError):  # the lifetime must exceed the deadline
        open_tier("memory", setup_of(deadline=9.0, verdict_lifetime=1.0))


def test_a_tier_of_another_package_is_opened(entry_points, plugin):
    seen = []

    def from_spec(arg, setup):
        seen.append(arg)
        return setup.tier(ScriptedStore(), "theirs")

    plugin.from_spec = from_spec
    entry_points.append(EntryPoint("theirs", "someone_tier:from_spec", "kvtier.tiers"))
    assert open_tier("theirs", setup_of()).tier_type == "theirs"
    assert open_tier("theirs:a:b", setup_of()).tier_type == "theirs"
    assert seen == [None, "a:b"]
    assert set(known_tiers()) == {"fs", "memory", "theirs"}


def test_another_package_cannot_take_one_of_its_names(entry_points):
    entry_points.append(EntryPoint("memory", "someone_tier:from_spec", "kvtier.tiers"))
    assert open_tier("memory", setup_of()).tier_type == "memory"


@pytest.mark.parametrize("spec", ["tape", "tape:/dev/st0", "", ":x", "FS:/tmp", " memory"])
def test_an_unknown_name_is_refused_with_the_known_ones(entry_points, spec):
    with pytest.raises(
        BadInput, match=r"there is no tier .*; expected one of fs, memory$"
    ) as caught:
        open_tier(spec, setup_of())
    assert repr(spec) in caught.value.where


@pytest.mark.parametrize("spec", ["memory:", "memory:10", "fs", "fs:"])
def test_an_argument_that_makes_no_sense_is_refused(spec):
    with pytest.raises(BadInput, match=f"tier '{spec.split(':')[0]}"):
        open_tier(spec, setup_of())


@pytest.mark.parametrize("value", ["kvtier_no_such_module:f", "someone_tier:nothing"])
def test_a_tier_that_cannot_be_imported_is_refused_by_name(entry_points, plugin, value):
    entry_points.append(EntryPoint("theirs", value, "kvtier.tiers"))
    with pytest.raises(BadInput, match=f"tier 'theirs': {value} cannot be imported"):
        open_tier("theirs", setup_of())


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def from_spec(arg, setup:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit('no driver')", "SystemExit: no driver"),
        ("raise ValueError(open)", "ValueError: <built-in"),
    ],
)
def test_a_tier_whose_module_raises_is_refused_by_name(
    entry_points, tmp_path, monkeypatch, code, error
):
    (tmp_path / "kvtier_bad_tier.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    entry_points.append(EntryPoint("theirs", "kvtier_bad_tier:from_spec", "kvtier.tiers"))
    expected = f"tier 'theirs:x': kvtier_bad_tier:from_spec cannot be imported: {error}"
    with pytest.raises(BadInput, match=expected):
        open_tier("theirs:x", setup_of())


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no port"), "ValueError: no port"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyError("host"), "KeyError: 'host'"),
        (OSError(111, "Connection refused"), "Connection refused"),
        (TypeError(), "TypeError"),
        (Unspeakable(), "Unspeakable"),
    ],
)
def test_a_tier_that_cannot_be_made_is_refused_by_name(entry_points, plugin, error, told):
    def from_spec(arg, setup):
        raise error

    plugin.from_spec = from_spec
    entry_points.append(EntryPoint("theirs", "someone_tier:from_spec", "kvtier.tiers"))
    with pytest.raises(BadInput, match=f"^tier 'theirs': someone_tier:from_spec failed: .*{told}"):
        open_tier("theirs", setup_of())


def test_control_c_while_a_tier_is_made_is_no_bad_input(entry_points, plugin):
    def from_spec(arg, setup):
        raise KeyboardInterrupt

    plugin.from_spec = from_spec
    entry_points.append(EntryPoint("theirs", "someone_tier:from_spec", "kvtier.tiers"))
    with pytest.raises(KeyboardInterrupt):
        open_tier("theirs", setup_of())


def test_opening_one_of_its_own_tiers_does_not_look_through_what_is_installed(monkeypatch):
    def entry_points(group):
        raise AssertionError("looked")

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert open_tier("memory", setup_of()).tier_type == "memory"


@pytest.mark.parametrize(
    ("arg", "problem"),
    [
        ("~nosuchuser/x", "Could not determine home directory"),
        ("a\0b", "null byte"),
    ],
)
def test_a_directory_that_cannot_be_is_refused(arg, problem):
    with pytest.raises(BadInput, match=problem):
        open_tier(f"fs:{arg}", setup_of())


def test_a_relative_directory_below_a_folder_that_is_gone_is_refused(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(BadInput, match="kv: cannot be used: No such file or directory"):
        open_tier("fs:kv", setup_of())


def test_what_is_no_tier_is_refused(entry_points, plugin):
    plugin.from_spec = lambda arg, setup: ScriptedStore()
    entry_points.append(EntryPoint("theirs", "someone_tier:from_spec", "kvtier.tiers"))
    with pytest.raises(BadInput, match="returned ScriptedStore; expected a SecondaryTierManager"):
        open_tier("theirs", setup_of())


def test_blocks_that_are_not_the_size_of_slots_are_refused():
    with pytest.raises(UsageError, match="blocks of 97 bytes do not fit slots of 96 bytes"):
        setup_of(namespace=Namespace("model", 97))
