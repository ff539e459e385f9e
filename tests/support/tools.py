"""Tools that an extra brings: a test without them is skipped, but in CI it fails."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from kvtier.check.tlc import find_tools
from kvtier.errors import MissingTool

__all__ = ["need_tlc", "need_z3"]


def need_tlc() -> None:
    """For a test that runs TLC."""
    try:
        find_tools()
    except MissingTool as missing:
        _do_without(missing)


def need_z3() -> None:
    """For a test that proves."""
    if find_spec("z3") is None:
        _do_without(MissingTool("z3", "proof"))


def _do_without(missing: MissingTool) -> None:
    if os.environ.get("CI"):
        raise missing
    pytest.skip(str(missing))
