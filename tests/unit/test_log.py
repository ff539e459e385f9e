"""A log line that cannot be written stops nothing, and none is printed on standard output."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from kvtier.log import Log, shown
from tests.support.lookups import Unprintable


@pytest.fixture(autouse=True)
def _structlog_as_found() -> Iterator[None]:
    was_configured, before = structlog.is_configured(), structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if was_configured:
        structlog.configure(**before)


def _full_disk(*args: object) -> dict[str, object]:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("level", ["warning", "error"])
def test_a_line_that_cannot_be_written_is_given_up(level: str) -> None:
    structlog.configure(processors=[_full_disk])
    getattr(Log("kvtier.test"), level)("something", key="value")


@pytest.mark.parametrize("level", ["warning", "error"])
def test_without_a_configured_structlog_lines_go_to_logging(
    level: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    getattr(Log("kvtier.test"), level)("something", key="value")
    assert caplog.record_tuples == [
        ("kvtier.test", getattr(logging, level.upper()), "something key=value")
    ]
    assert capsys.readouterr().out == ""


def test_with_a_configured_structlog_lines_go_there(capsys: pytest.CaptureFixture[str]) -> None:
    with structlog.testing.capture_logs() as lines:
        structlog.configure(processors=structlog.get_config()["processors"])
        Log("kvtier.test").warning("something", key="value")
    assert lines == [{"event": "something", "key": "value", "log_level": "warning"}]


def test_a_thing_that_cannot_be_shown_is_named_by_its_type() -> None:
    assert shown(Unprintable()) == "<Unprintable>"
    assert shown("word") == "'word'"
