"""E*, the longest hit that serves every group, against brute force over all lengths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.results import LookupResult
from kvtier.scans import KVGroup, longest_hit
from tests.support.scan_oracle import (
    LETTERS,
    hybrid_answer,
    longest,
    needed,
    prefix_scan,
    window_scan,
    words,
)

Rows = Sequence[tuple[int | None, str]]


def ask(rows: Rows) -> tuple[int, list[tuple[int, int]]]:
    """E* of the code, and every (group, chunk) it asked, in order."""
    asked: list[tuple[int, int]] = []

    def result(group: KVGroup, chunk: int) -> LookupResult:
        asked.append((group.group_idx, chunk))
        return LETTERS[rows[group.group_idx][1][chunk]]

    groups = [KVGroup(index, window) for index, (window, _) in enumerate(rows)]
    return longest_hit(groups, len(rows[0][1]), result), asked


def check(rows: Rows) -> None:
    end, asked = ask(rows)
    assert end == longest(rows), rows
    assert len(asked) == len(set(asked)), rows
    need = {(g, c) for g, (window, _) in enumerate(rows) for c in needed(window, end)}
    assert need <= set(asked), rows
    ready = all(rows[g][1][c] == "H" for g, c in need)
    assert (end if ready else None) == hybrid_answer(rows), rows
    ruled_out = min((f"{word}M".index("M") for w, word in rows if w is None), default=None)
    for group, chunk in asked:
        window, word = rows[group]
        if window is None:
            assert "M" not in word[:chunk], (rows, group, chunk)
        else:
            assert chunk >= end - window, (rows, group, chunk)
            assert ruled_out is None or chunk < ruled_out, (rows, group, chunk)


def mixes(count: int, widest: int) -> list[tuple[int | None, ...]]:
    return list(product([None, *range(1, widest + 1)], repeat=count))


def every(windows: tuple[int | None, ...], length: int, letters: str) -> None:
    alphabet = ["".join(letters) for letters in product(letters, repeat=length)]
    for group_words in product(alphabet, repeat=len(windows)):
        check(list(zip(windows, group_words, strict=True)))


def test_the_minimum_of_separate_answers_is_wrong():
    rows: Rows = [(None, "HHHM"), (1, "HHMH")]
    assert prefix_scan("HHHM")[0] == 3
    assert window_scan("HHMH", 1)[0] == 4
    assert ask(rows)[0] == 2


@pytest.mark.parametrize(
    ("rows", "end"),
    [
        ([(None, "")], 0),
        ([(None, "MHH"), (1, "HHH")], 0),
        ([(1, "MMH"), (2, "MHH")], 3),
        ([(1, "HMH"), (1, "HHM")], 1),
        ([(None, "HHHHH"), (2, "HHMMH")], 2),  # 5 lacks chunk 3, 4 and 3 lack chunk 2
        ([(2, "MHHMH"), (1, "HHHHH")], 3),
        ([(2, "HHMH"), (3, "HMHH"), (None, "HHHH")], 1),
    ],
)
def test_longest_hit_by_hand(rows, end):
    assert ask(rows)[0] == end


@pytest.mark.parametrize("windows", mixes(1, 5))
def test_one_group_every_sequence_up_to_five(windows):
    for length in range(6):
        every(windows, length, "HPRM")


@pytest.mark.parametrize("windows", mixes(2, 3))
def test_two_groups_every_sequence_up_to_three(windows):
    for length in range(3):
        every(windows, length, "HPRM")
    every(windows, 3, "HRM")


@pytest.mark.parametrize("windows", mixes(2, 4))
def test_two_groups_every_hit_and_miss_of_five(windows):
    every(windows, 5, "HM")


@pytest.mark.parametrize("windows", mixes(3, 3))
def test_three_groups_every_hit_and_miss_of_three(windows):
    every(windows, 3, "HM")


@st.composite
def hybrids(draw) -> Rows:
    length = draw(st.integers(0, 40))
    # Long stretches of hits with a few holes: a uniform word is nearly all holes.
    letter = st.sampled_from("HHHHHHHHHPRM")
    row = st.tuples(
        st.none() | st.integers(1, 12), st.text(letter, min_size=length, max_size=length)
    )
    rows: Rows = draw(st.lists(row, min_size=1, max_size=3))
    return rows


@settings(max_examples=500, deadline=None)
@given(hybrids())
def test_any_hybrid_is_the_brute_force_answer(rows):
    check(rows)


def test_the_order_of_the_groups_does_not_matter():
    for a, b in product(words(4, "HM"), repeat=2):
        if len(a) == len(b):
            assert ask([(None, a), (2, b)])[0] == ask([(2, b), (None, a)])[0]


@pytest.mark.parametrize("window", [None, *range(1, 8)])
def test_a_lone_group_is_its_scan_but_for_a_retry_already_ruled_out(window):
    for word in words(6):
        scan, scanned = prefix_scan(word) if window is None else window_scan(word, window)
        end, asked = ask([(window, word)])
        answer = hybrid_answer([(window, word)])
        assert {chunk for _, chunk in asked} <= scanned, word
        if scan == answer:
            continue
        # The only difference: the window scan waits for a retry that cannot matter any more.
        assert window is not None
        assert scan is None, word
        assert answer == end, word
        assert any(word[c] == "R" for c in scanned - needed(window, end)), word
        assert not any(word[c] in "RP" for c in needed(window, end)), word


def test_a_lone_window_group_asks_what_its_scan_asks_where_nothing_is_a_retry():
    for word in words(6, "HPM"):
        for window in range(1, 8):
            assert {chunk for _, chunk in ask([(window, word)])[1]} == window_scan(word, window)[1]


def test_a_lone_window_group_does_not_wait_for_a_retry_behind_a_miss():
    assert window_scan("HHMR", 2)[0] is None
    assert hybrid_answer([(2, "HHMR")]) == ask([(2, "HHMR")])[0] == 2


# F38 for hybrids: what the window group loads lies inside what was confirmed for it.


def test_f38_a_window_wider_than_the_common_prefix_needs_no_more_than_it():
    rows: Rows = [(None, "HHM"), (8, "HHH")]
    end, asked = ask(rows)
    assert end == 2
    assert KVGroup(1, 8).need(end) == range(0, 2)
    assert {(1, 0), (1, 1)} <= set(asked)


@pytest.mark.parametrize("windows", mixes(2, 3))
def test_f38_needed_keys_were_all_asked_and_none_of_them_is_a_miss(windows):
    for group_words in product(words(3), repeat=2):
        if len(group_words[0]) != len(group_words[1]):
            continue
        rows = list(zip(windows, group_words, strict=True))
        end, asked = ask(rows)
        confirmed = {(g, c) for g, c in asked if rows[g][1][c] != "M"}
        for index, window in enumerate(windows):
            assert {(index, c) for c in KVGroup(index, window).need(end)} <= confirmed, rows
