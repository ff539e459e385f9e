"""Values as TLC prints them, read into Python.

{a, b}                  a frozenset
<<1, 2>>                a tuple
[x |-> 1, y |-> 2]      a dict
(k1 :> 1 @@ k2 :> 2)    a dict
"text", k1, 3, TRUE     a str (a model value too), an int, a bool
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kvtier.errors import BadInput

__all__ = ["parse_state", "parse_value"]

_TOKEN = re.compile(r'\s*(<<|>>|\|->|:>|@@|/\\|[{}\[\](),=]|"(?:[^"\\]|\\.)*"|-?\d+|\w+)')
_WORDS = {"TRUE": True, "FALSE": False}


def parse_value(text: str) -> Any:
    """One value. Raises `BadInput` for what is none."""
    tokens = _Tokens(text)
    value = _value(tokens)
    tokens.expect(None)
    return value


def parse_state(text: str) -> dict[str, Any]:
    """A state: variables by name, from `/\\ x = 1 /\\ y = {}` (or a single `x = 1`)."""
    tokens = _Tokens(text)
    state: dict[str, Any] = {}
    while tokens.next is not None:
        if tokens.next == "/\\":
            tokens.take()
        name = tokens.take()
        tokens.expect("=")
        state[name] = _value(tokens)
    return state


class _Tokens:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.next: str | None = None
        self._advance()

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            if self._text[self._at :].strip():
                raise BadInput("TLC's output", f"no value at {self._text[self._at :][:40]!r}")
            self.next = None
        else:
            self._at = match.end()
            self.next = match[1]

    def take(self) -> str:
        word = self.next
        if word is None:
            raise BadInput("TLC's output", f"a value ends too early: {self._text[-40:]!r}")
        self._advance()
        return word

    def expect(self, word: str | None) -> None:
        if self.next != word:
            raise BadInput("TLC's output", f"{self.next!r} in {self._text[:60]!r}", repr(word))
        if word is not None:
            self._advance()


def _value(tokens: _Tokens) -> Any:
    word = tokens.take()
    if word == "{":
        return frozenset(_items(tokens, "}"))
    if word == "<<":
        return tuple(_items(tokens, ">>"))
    if word == "[":
        return dict(_pairs(tokens, "|->", ",", "]"))
    if word == "(":
        return dict(_pairs(tokens, ":>", "@@", ")"))
    if word.startswith('"'):
        return word[1:-1]
    if word.lstrip("-").isdigit():
        return int(word)
    return _WORDS.get(word, word)


def _items(tokens: _Tokens, end: str) -> Iterator[Any]:
    while tokens.next != end:
        yield _value(tokens)
        if tokens.next == ",":
            tokens.take()
    tokens.take()


def _pairs(tokens: _Tokens, arrow: str, between: str, end: str) -> Iterator[tuple[Any, Any]]:
    while tokens.next != end:
        name = _value(tokens)
        tokens.expect(arrow)
        yield name, _value(tokens)
        if tokens.next == between:
            tokens.take()
    tokens.take()
