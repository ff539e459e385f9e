"""What all tests share: the Hypothesis profiles, the traces, and asserts that hold under `-O`.

`make test` runs the unit and stateful tests a second time with Python's asserts
switched off, to show that the library does not lean on them. The tests do lean
on theirs: pytest rewrites the asserts of test modules into `if ...: raise`, and
what test modules import from beside them is registered here for the same.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parent

pytest.register_assert_rewrite(*(f"tests.{f.name}" for f in TESTS.iterdir() if f.is_dir()))

# What is started in the background may have to ignore Ctrl-C, and so would its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every run draws the same examples, and no clock decides whether one passes.
settings.register_profile(
    "kvtier",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# Other examples in every run: `pytest --hypothesis-profile=explore`.
settings.register_profile("explore", deadline=None, max_examples=1_000)
settings.load_profile("kvtier")


@pytest.fixture(autouse=True)
def _unconfigured() -> None:
    """Log lines go where they go by default. `capture_logs` leaves structlog configured."""
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of public request traces, which lies beside the checkout."""
    folder = TESTS.parents[1] / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("no folder shared/traces beside the checkout")
    return folder
