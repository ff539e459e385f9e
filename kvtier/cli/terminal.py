"""What reaches a person: on a terminal or in a file, and nothing that a terminal would obey."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console, RenderableType
from rich.text import Text

__all__ = ["is_terminal", "print_wide", "printable"]

_WIDE = 160
"""Columns of what is not a terminal."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody looks at it; a stream may be closed, and then it is `None`."""
    return stream is not None and stream.isatty()


def printable(text: str) -> str:
    """`text`, which may come from anywhere, with what cannot be printed escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def print_wide(*parts: RenderableType) -> None:
    """Print on standard output, if there is one: tables as wide as they may be, lines whole."""
    if sys.stdout is None:
        return
    width = None if sys.stdout.isatty() else _WIDE
    console = Console(highlight=False, markup=False, width=width)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str | Text))
