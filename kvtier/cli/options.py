"""Types of options: click's own, with what a person needs to be told."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

__all__ = ["Duration", "NamedPath", "Whole"]


class Whole(click.IntRange):
    """A whole number of something."""

    name = "whole number"


class Duration(click.FloatRange):
    """Milliseconds up to a bound, because what can sleep cannot sleep for ever."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):  # is in every range
            self.fail(f"{number} is not a finite number of milliseconds.", param, ctx)
        return number


class NamedPath(click.Path):
    """A path, which may lead nowhere, but not an empty one: that is the current directory."""

    def __init__(self) -> None:
        super().__init__(readable=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("it is empty: name a file or a directory.", param, ctx)
        return super().convert(value, param, ctx)
