"""An assert outside of any test module: `test_package.py` shows that it holds under `-O`."""

from __future__ import annotations

__all__ = ["insist"]


def insist(condition: bool) -> None:
    """Fail unless `condition`."""
    assert condition
