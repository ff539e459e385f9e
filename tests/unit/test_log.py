"""A log line that cannot be written stops nothing."""

from __future__ import annotations

import pytest
import structlog

from kvtier.log import Log, shown
from tests.support.lookups import Unprintable


def _full_disk(*args: object) -> dict[str, object]:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("level", ["warning", "error"])
def test_a_line_that_cannot_be_written_is_given_up(level: str) -> None:
    before = structlog.get_config()
    try:
        structlog.configure(processors=[_full_disk])
        getattr(Log("kvtier.test"), level)("something", key="value")
    finally:
        structlog.configure(**before)


def test_a_thing_that_cannot_be_shown_is_named_by_its_type() -> None:
    assert shown(Unprintable()) == "<Unprintable>"
    assert shown("word") == "'word'"
