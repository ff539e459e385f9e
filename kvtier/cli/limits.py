"""The options of the checking commands that set limits: sizes and seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from kvtier.check.models import SIZES

__all__ = ["SIZE", "timeout_option"]

SIZE = click.IntRange(min=SIZES[0], max=SIZES[-1])
"""So many keys, requests or batches out."""

_LONGEST_S = 1_000_000
"""Eleven days; z3 and Python's threads cannot wait much longer."""


def timeout_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--timeout SECONDS`, with its help."""
    return click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True, max=_LONGEST_S),
        callback=_finite,
        help=text,
    )


def _finite(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):  # is in every range
        raise click.BadParameter(f"{value} is not a finite number of seconds.")
    return value
