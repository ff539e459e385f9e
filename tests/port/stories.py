"""Stories: what other systems got wrong, and what is easy to get wrong, step by step.

One step on a line, or several between commas. `r1 k1 ...` is a lookup and what it
is told: `yes`, `no`, or `later` for none; written by hand, so the model is held to
them too. The numbers in brackets are those of the paragraphs of `spec/lifecycle.md`.
"""

from __future__ import annotations

from typing import Any

from tests.port.vectors import DEADLINE, LIFETIME, Line, Walk

__all__ = ["STORIES", "told"]

_WORDS = {"yes": True, "no": False, "later": None, "none": None, "1": 1}

STORIES: dict[str, str] = {
    # L31, L34: from the first question to the end of the request.
    "from_ask_to_answer": """
        new
        r1 k1 later, r1 k1 later, r1 k2 later, flush, r1 k1 later
        take, call, answer yes no, flush, r1 k1 yes, r1 k2 no, r1 k1 yes
        cleanup r1, flush
        r1 k1 later, cleanup r1, flush
    """,
    # L30: the question of a request that let go serves whoever comes while it is out.
    "take_over": """
        new
        r1 k1 later, flush, take, call, cleanup r1, r2 k1 later
        answer yes, flush, r2 k1 yes, r3 k1 yes, cleanup r2, r3 k1 yes
    """,
    # L35: an answer that nobody wants ends with the flush that reads it.
    "orphan": """
        new
        r1 k1 later, flush, take, call, cleanup r1, answer no, flush, flush
        r2 k1 later, flush, take, call, cleanup r2, answer yes, drain_results, flush
    """,
    # L33: until then somebody may take it; one that failed is asked again instead.
    "unclaimed": """
        new
        r1 k1 later, r1 k2 later, flush, take, call, cleanup r1, answer yes no
        r2 k1 yes, r2 k2 no, flush, r2 k2 no, cleanup r2
        r1 k1 later, flush, take, call, cleanup r1, fail 0, drain_results
        r2 k1 later, flush, take, call, answer yes, flush, r2 k1 yes
        new
        r1 k1 later, flush, take, call, cleanup r1, answer yes, drain_results
        r2 k1 yes, cleanup r2, r3 k1 later
    """,
    # L16, L20: a failed question is asked again for somebody new; the others read "no".
    "error_asked_again": """
        new
        r1 k1 later, r2 k1 later, flush, take, call, fail 0
        r1 k1 no, r2 k1 no, r1 k1 no, flush, r1 k1 no
        r3 k1 later, r1 k1 no, r2 k1 no, r3 k1 later, flush, r1 k1 no
        cleanup r1, r1 k1 later, take, call, answer yes, flush
        r1 k1 yes, r2 k1 yes, r3 k1 yes
        new
        r1 k1 later, flush, take, call, fail 1, r2 k1 later, r1 k1 no
        flush, take, call, fail 0, r1 k1 no, r2 k1 no, r3 k1 later, r2 k1 no, r1 k1 no
        flush, take, call, answer no, flush, r1 k1 no, r2 k1 no, r3 k1 no
    """,
    # L16: whether a request is new to an error is decided before it joins.
    "error_of_ones_own": """
        new
        r1 k1 later, flush, take, call, fail 0, r1 k1 no, cleanup r1, r1 k1 later
        flush, take, call, fail 0, flush, r1 k1 no, cleanup r1
    """,
    # L51: answers that cannot be matched with keys are no answers, to any of them.
    "broken_answers": """
        new
        r1 k1 later, r1 k2 later, flush, take, call, answer yes, r1 k1 no, r1 k2 no
        cleanup r1, r1 k1 later, r1 k2 later, flush, take, call, answer yes yes yes
        r1 k2 no, r1 k1 no
        cleanup r1, r1 k1 later, r1 k2 later, flush, take, call, answer yes none
        r1 k1 no, r1 k2 no
        cleanup r1, r1 k1 later, r1 k2 later, flush, take, call, answer 1 no
        r1 k1 no, r1 k2 no
        cleanup r1, r1 k1 later, r1 k2 later, flush, take, call, answer
        r1 k1 no, r1 k2 no
        cleanup r1, r1 k1 later, r1 k2 later, flush, take, call, fail 1
        r1 k1 no, r1 k2 no
        cleanup r1, r1 k1 later, r1 k2 later, flush, take, call, fail 2
        r1 k1 no, r1 k2 no
        cleanup r1, r1 k1 later, r1 k2 later, flush, take, call, answer no yes
        r1 k1 no, r1 k2 yes
    """,
    # L56: past the deadline a lookup reads "no"; the late answer is used.
    "deadline": """
        new deadline
        r1 k1 later, advance 1, r1 k1 no, r1 k2 later, flush, r1 k2 later, r2 k1 no
        take, advance 1, r1 k2 no, flush, r2 k2 no, call, answer yes no, r1 k1 no
        flush, r1 k1 yes, r2 k1 yes, r1 k2 no
        new deadline
        r1 k1 later, flush, take, call, fail 0, advance 1, r2 k1 later, r1 k1 no
        advance 1, r2 k1 no, flush, take, call, hang, r2 k1 no, flush, r2 k1 no
    """,
    # L57: past its lifetime a verdict is asked again; everybody waits, nobody is excused.
    "lifetime": """
        new lifetime
        r1 k1 later, r2 k1 later, flush, advance 2, take, call, answer yes
        r1 k1 yes, advance 2, r2 k1 yes, advance 1, r1 k1 later, r2 k1 later
        flush, take, call, answer no, r2 k1 no, advance 2, r1 k1 no, mark_hit k1
        advance 1, r1 k1 yes, advance 1, r1 k1 yes, advance 1, r1 k1 later
        new lifetime
        r1 k1 later, flush, take, call, answer yes, flush, mark_miss k1
        advance 3, r1 k1 no, r2 k1 no, advance 3, r1 k1 no
        new lifetime
        r1 k1 later, flush, take, call, fail 0, flush, advance 3
        r2 k1 later, r1 k1 no, flush, take, call, fail 0, r1 k1 no, advance 3
        r1 k1 later, r2 k1 later
    """,
    # L36, L37: marks obey the phase.
    "marks": """
        new
        mark_miss k1, mark_hit k1, r1 k1 later, mark_miss k1, mark_hit k1, flush
        mark_miss k1, take, mark_hit k1, mark_miss k1, call, answer no, r1 k1 yes
        mark_miss k1, r1 k1 no, r2 k1 no, mark_hit k1, r1 k1 yes, mark_hit k1, r2 k1 yes
        new
        r1 k1 later, flush, take, call, mark_hit k1, fail 0, r1 k1 yes, r2 k1 yes
        new
        r1 k1 later, flush, take, call, mark_hit k1, answer yes, r1 k1 yes
        mark_miss k1, cleanup r1, r1 k1 later, flush, take, call, fail 0
        r1 k1 no, mark_miss k1, r2 k1 no, r1 k1 no
        new
        r1 k1 later, flush, take, call, fail 0, flush, mark_hit k1, r2 k1 yes, r1 k1 yes
    """,
    # L34: with enough batches out, the next waits and grows.
    "held_back": """
        new out=1
        r1 k1 later, flush, r1 k2 later, flush, flush, take, call, flush
        answer yes, r2 k1 yes, flush, take, call, answer no, flush, r1 k2 no
        new out=1
        r1 k1 later, flush, take, call, r1 k2 later, flush, cleanup r1, answer yes
        r2 k2 later, r3 k1 yes, flush, take, call, answer yes, flush, r2 k2 yes
        new out=2
        r1 k1 later, flush, r1 k2 later, flush, r1 k3 later, flush, take, call, flush
        answer yes, take, call, r2 k1 yes, flush, answer no, r1 k2 no, take, call
        answer yes, flush, r1 k3 yes
        new out=2
        r1 k1 later, flush, r1 k2 later, flush, take, call, answer yes, r2 k1 yes
        cleanup r1, cleanup r2, r3 k1 later, flush, flush, take, call, answer no
        r3 k2 no, flush, take, call, answer no, flush, r3 k1 no
    """,
    # L8, L38: who lets go before the flush takes the question back.
    "taken_back": """
        new
        r1 k1 later, r1 k2 later, r2 k2 later, cleanup r1, flush, take, call, answer yes
        r2 k2 yes, r1 k1 later, cleanup r1, flush
    """,
    # L8, L34: in the order of asking, and a key that is asked again goes to the end.
    "order_of_asking": """
        new
        r1 k2 later, r1 k1 later, flush, take, call, answer no yes, r1 k2 no, r1 k1 yes
        cleanup r1, r1 k1 later, flush, take, call, fail 0, r1 k1 no, r2 k2 later
        r2 k1 later, flush, take, call, answer yes no, flush, r1 k1 no, r2 k2 yes
    """,
    # L32: one drain for each flush, whoever asks first.
    "drained_once": """
        new
        r1 k1 later, flush, r1 k1 later, take, call, answer yes, r1 k1 later, r2 k2 later
        flush, r1 k1 yes
        new
        r1 k1 later, flush, take, call, answer no, r2 k2 later, r1 k1 no
        new
        r1 k1 later, flush, r1 k1 later, take, call, answer no, drain_results, r1 k1 no
        flush, drain_results, drain_results, cleanup r2, r2 k1 no
    """,
    # L44, L45: what was asked in time is answered, what was not sent goes.
    "shutdown": """
        new
        r1 k1 later, flush, r2 k2 later, shutdown_begins, take, call, answer yes, take
        shutdown_ends, r1 k1 yes, r2 k1 yes, r2 k2 no, r1 k2 no, mark_miss k1, r1 k1 no
        mark_hit k1 k2, r3 k1 yes, cleanup r1, r1 k1 no, mark_miss k2 k1
        new
        r1 k1 later, flush, take, call, cleanup r1, shutdown_begins, answer yes, take
        shutdown_ends, r1 k1 no
        new lifetime
        r1 k1 later, flush, take, call, fail 0, shutdown_begins, take, shutdown_ends
        advance 3, r2 k1 no, r1 k1 no
    """,
    # L44: a back end that never returns does not hold it up.
    "shutdown_hung": """
        new deadline lifetime
        r1 k1 later, flush, take, call, hang, r1 k2 later, flush, r2 k2 later
        shutdown_begins, shutdown_times_out, shutdown_ends
        r1 k1 no, r2 k2 no, cleanup r1
    """,
    # L78, L46: the flag stops what has not begun; what comes late is heard by nobody.
    "shutdown_late": """
        new
        r1 k1 later, flush, take, shutdown_begins, shutdown_times_out, call
        shutdown_ends, answer yes, r1 k1 no, take
        new
        r1 k1 later, flush, r1 k2 later, flush, take, call, shutdown_begins
        shutdown_times_out, answer yes, take, shutdown_ends, r1 k1 yes, r1 k2 no
        new
        r1 k1 later, flush, shutdown_begins, shutdown_times_out, shutdown_ends, take
    """,
    # L94: answers that no question asked for change nothing, in any phase.
    "stray_answers": """
        new
        stray k1#1=yes, flush, r1 k1 later, stray k1#1=yes, stray k1#9=no, drain_results
        flush, stray k2#1=no k1#2=yes, r1 k1 later, flush, take, call, answer no
        stray k1#7=yes, flush, r1 k1 no, stray k1#1=yes, stray k1#2=none, drain_results
        r1 k1 no, r2 k1 no, mark_hit k1, stray k1#1=no, flush, r1 k1 yes
    """,
}


def told(story: str) -> list[Line]:
    """The lines of a story. Raises `ValueError` where the model does not go along."""
    lines: list[Line] = []
    walk = None
    for step in story.replace("\n", ",").split(","):
        if not (words := step.split()):
            continue
        if words[0] == "new":
            walk = Walk(_settings(words[1:]))
            lines += walk.lines
            continue
        if walk is None:
            raise ValueError("a story begins with new")
        returned = walk.do(*_op(words))
        lines.append(walk.lines[-1])
        if words[0].startswith("r") and returned is not _WORDS[words[2]]:
            raise ValueError(f"{step}: the model says {returned}")
    return lines


def _settings(words: list[str]) -> dict[str, Any]:
    out = next((int(word[4:]) for word in words if word.startswith("out=")), 2)
    return {
        "max_batches_out": out,
        "deadline": DEADLINE if "deadline" in words else None,
        "verdict_lifetime": LIFETIME if "lifetime" in words else None,
    }


def _op(words: list[str]) -> tuple[str, dict[str, Any]]:
    match words:
        case [r, k, _] if r.startswith("r"):
            return "lookup", {"key": k, "request": r}
        case ["cleanup", r]:
            return "cleanup", {"request": r}
        case ["mark_miss" | "mark_hit" as mark, *keys]:
            return mark, {"keys": keys}
        case ["answer", *answers]:
            return "answer", {"answers": [_WORDS[word] for word in answers]}
        case ["fail", after]:
            return "fail", {"after": int(after)}
        case ["advance", seconds]:
            return "advance", {"seconds": int(seconds)}
        case ["stray", *answers]:
            return "stray", {"answers": [_stray(word) for word in answers]}
        case [op]:
            return op, {}
        case _:
            raise ValueError(f"no such step: {' '.join(words)}")


def _stray(word: str) -> list[Any]:
    question, answer = word.split("=")
    key, generation = question.split("#")
    return [key, int(generation), _WORDS[answer]]
