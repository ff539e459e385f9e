"""The two scans against their definitions: answers, number of questions, which questions."""

from __future__ import annotations

from itertools import product

import pytest

from kvtier.errors import KvtierError, UsageError
from kvtier.scans import KVGroup, maximal_prefix_lookup, sliding_window_lookup
from tests.support.scan_oracle import Asked, prefix_scan, window_scan, words


def prefix(word: str) -> tuple[int | None, list[int]]:
    return Asked(word).scan(maximal_prefix_lookup)


def window(word: str, size: int) -> tuple[int | None, list[int]]:
    return Asked(word).scan(lambda keys, lookup: sliding_window_lookup(keys, size, lookup))


def test_prefix_scan_is_its_definition_for_every_sequence_up_to_seven():
    for word in words(7):
        answer, asked = prefix_scan(word)
        assert prefix(word) == (answer, sorted(asked)), word


@pytest.mark.parametrize("size", range(1, 9))
def test_window_scan_is_its_definition_for_every_sequence_up_to_seven(size):
    for word in words(7):
        answer, asked = window_scan(word, size)
        assert window(word, size) == (answer, sorted(asked)), word


@pytest.mark.parametrize(
    ("word", "answer", "asked"),
    [
        ("", 0, 0),
        ("HHHH", 4, 4),
        ("HHMH", 2, 3),
        ("MHHH", 0, 1),
        ("HRHM", None, 4),  # a retry does not stop the scan
        ("HPMH", None, 3),
        ("HMRP", 1, 2),  # what lies behind the first miss is never asked
    ],
)
def test_prefix_scan_by_hand(word, answer, asked):
    assert prefix(word) == (answer, list(range(asked)))


@pytest.mark.parametrize(
    ("word", "size", "answer", "asked_from"),
    [
        ("", 1, 0, 0),
        ("HHHH", 2, 4, 2),
        ("HHHM", 2, 3, 1),
        ("HHMHM", 2, 2, 0),
        ("HMHHMH", 2, 4, 2),  # the last run that is long enough wins
        ("HHM", 3, 2, 0),  # no full window: the run at the start
        ("MHM", 2, 0, 0),
        ("HHPM", 2, None, 1),
        ("HHR", 2, None, 0),  # an asked retry defers although the run is a hit
        ("RHH", 2, 3, 1),  # a retry that was not asked does not
        ("PHH", 2, 3, 1),
        ("HHMP", 2, 2, 0),
    ],
)
def test_window_scan_by_hand(word, size, answer, asked_from):
    assert window(word, size) == (answer, list(range(asked_from, len(word))))


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_below_one_is_a_value_error_and_a_kvtier_error(size):
    lookup = Asked("HH")
    with pytest.raises(ValueError, match=f"window of {size} blocks") as caught:
        sliding_window_lookup(lookup.keys, size, lookup)
    assert isinstance(caught.value, UsageError)
    assert lookup.places == []
    with pytest.raises(KvtierError, match="give 1 or more"):
        KVGroup(0, size)


@pytest.mark.parametrize("value", [True, False, None])
def test_an_answer_of_the_old_interface_is_not_misread(value):
    keys = Asked("H").keys
    with pytest.raises(AssertionError):
        maximal_prefix_lookup(keys, lambda key: value)
    with pytest.raises(AssertionError):
        sliding_window_lookup(keys, 1, lambda key: value)


# F36: a pending block is part of a run and defers it; a retry breaks the run and defers.


def test_f36_a_pending_block_joins_the_run_and_defers_it():
    assert window("HPH", 3) == (None, [0, 1, 2])


def test_f36_a_retry_breaks_the_run_and_defers():
    assert window("HRH", 2) == (None, [0, 1, 2])


@pytest.mark.parametrize("size", range(1, 6))
def test_f36_every_run_with_something_pending_in_it_defers_until_it_is_a_hit(size):
    for letters in product("HP", repeat=size):
        word = "M" + "".join(letters)
        assert window(word, size) == (
            None if "P" in word else size + 1,
            list(range(1, size + 1)),
        ), word
        assert window(word.replace("P", "H"), size)[0] == size + 1


@pytest.mark.parametrize("size", range(2, 5))
def test_f36_a_retry_anywhere_in_the_last_window_makes_the_scan_ask_on(size):
    for place in range(size):
        word = "H" * size + "H" * place + "R" + "H" * (size - 1 - place)
        assert window(word, size) == (None, list(range(place, 2 * size))), word


# F37: a pending block outside the chosen window does not hold the request up.


def test_f37_a_pending_block_behind_the_window_does_not_defer():
    assert window("HHMP", 2) == (2, [0, 1, 2, 3])


@pytest.mark.parametrize("size", range(1, 4))
def test_f37_any_pending_tail_too_short_for_a_window_is_ignored(size):
    for tail in words(size - 1, "HP"):
        word = "H" * size + "M" + tail
        assert window(word, size)[0] == size, word


@pytest.mark.parametrize("size", range(1, 4))
def test_f37_what_is_pending_in_front_of_the_window_is_not_even_asked(size):
    for front in words(3, "HPRM"):
        word = front + "H" * size
        assert window(word, size) == (len(word), list(range(len(front), len(word)))), word


def test_f37_a_pending_block_behind_a_miss_does_not_hold_a_prefix_up():
    for tail in words(3):
        assert prefix("HHM" + tail) == (2, [0, 1, 2])


# F38: nothing is loaded that was not confirmed.


@pytest.mark.parametrize("size", range(1, 9))
def test_f38_every_key_that_a_window_needs_was_confirmed(size):
    group = KVGroup(0, size)
    for word in words(6):
        end, asked = window(word, size)
        if end is not None:
            assert set(group.need(end)) <= {place for place in asked if word[place] == "H"}, word


def test_f38_a_window_wider_than_the_run_needs_the_run_only():
    assert window("HHMM", 4)[0] == 2
    assert KVGroup(0, 4).need(2) == range(0, 2)


def test_f38_every_key_that_a_prefix_needs_was_confirmed():
    group = KVGroup(0)
    for word in words(6):
        end, asked = prefix(word)
        if end is not None:
            assert set(group.need(end)) <= {place for place in asked if word[place] == "H"}, word
