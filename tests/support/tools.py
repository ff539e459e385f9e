"""Tools that an extra brings: a test without them is skipped, but in CI it fails."""

from __future__ import annotations

import os

import pytest

from kvtier.check.tlc import find_tools
from kvtier.errors import MissingTool

__all__ = ["need_tlc"]


def need_tlc() -> None:
    """For a test that runs TLC."""
    try:
        find_tools()
    except MissingTool as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
