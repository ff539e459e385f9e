"""What the lookup worker promises: at most one answer each, and that it outlives its back end."""

from __future__ import annotations

import threading
import time

import pytest

from kvtier.keys import OffloadKey
from kvtier.lookup import LookupWorker, Question
from kvtier.runtime import ThreadRuntime
from tests.support.lookups import BAD_ANSWERS, PATIENCE, HandRuntime, ctx, key


def question(*numbers: int, scope=None, req_id: str = "a") -> Question:
    keys = [key(number) for number in numbers]
    return Question(scope, ctx(req_id), keys, [*range(1, len(keys) + 1)])


def replies(worker: LookupWorker) -> list[tuple[list[OffloadKey], list[bool] | None]]:
    taken = []
    while (reply := worker.take()) is not None:
        taken.append((reply.question.keys, reply.verdicts))
    return taken


def hand_worker(back_end):
    runtime = HandRuntime()
    return LookupWorker("w", back_end, runtime), runtime.lanes[0]


def run(lane) -> None:
    while lane.tasks:
        lane.step()


def test_answers_keep_the_order_of_the_keys():
    worker, lane = hand_worker(lambda keys, ctx: [k == key(2) for k in keys])
    worker.post([question(1, 2, 3)])
    run(lane)
    assert replies(worker) == [([key(1), key(2), key(3)], [False, True, False])]


def test_a_lazy_answer_is_read_on_the_worker():
    worker, lane = hand_worker(lambda keys, ctx: (k == key(2) for k in keys))
    worker.post([question(1, 2)])
    run(lane)
    assert replies(worker) == [([key(1), key(2)], [False, True])]


def test_questions_are_answered_first_in_first_out_across_posts():
    worker, lane = hand_worker(lambda keys, ctx: [True] * len(keys))
    worker.post([question(1), question(2, scope="s")])
    worker.post([question(3)])
    run(lane)
    assert [keys for keys, _ in replies(worker)] == [[key(1)], [key(2)], [key(3)]]


def test_the_back_end_gets_the_context_of_the_question_and_its_own_list_of_keys():
    seen = []

    def back_end(keys, context):
        seen.append(context)
        keys.clear()
        return [True, True]

    worker, lane = hand_worker(back_end)
    worker.post([question(1, 2, req_id="who")])
    run(lane)
    assert replies(worker) == [([key(1), key(2)], [True, True])]
    assert seen == [ctx("who")]


def test_nothing_is_taken_before_something_was_answered():
    worker, lane = hand_worker(lambda keys, ctx: [True])
    assert worker.take() is None
    worker.post([question(1)])
    assert worker.take() is None
    run(lane)
    assert worker.take() is not None
    assert worker.take() is None


@pytest.mark.parametrize("keys", [1, 2, 3, 17])
@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_a_bad_answer_fails_its_whole_question_and_no_other(bad, keys):
    broken = question(*range(keys), scope="broken")
    before, after = question(100, scope="x"), question(101, 102, scope="y")

    def back_end(asked, _):
        return BAD_ANSWERS[bad](asked) if asked == broken.keys else [True] * len(asked)

    worker, lane = hand_worker(back_end)
    worker.post([before, broken, after])
    run(lane)
    assert replies(worker) == [
        (before.keys, [True]),
        (broken.keys, None),
        (after.keys, [True, True]),
    ]


@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_why_a_question_failed_is_told(bad):
    worker, lane = hand_worker(lambda keys, ctx: BAD_ANSWERS[bad](keys))
    worker.post([question(1, 2)])
    run(lane)
    reply = worker.take()
    assert reply is not None
    assert reply.failure


def test_at_most_one_answer_more_than_asked_is_read():
    read = 0

    def count():
        nonlocal read
        while True:
            read += 1
            yield True

    worker, lane = hand_worker(lambda keys, ctx: count())
    worker.post([question(1, 2, 3)])
    run(lane)
    assert read == 4


# -- with a real thread ----------------------------------------------------------------------


def thread_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def until(condition) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_its_thread_lives_on_whatever_the_back_end_does(bad):
    answers = [BAD_ANSWERS[bad], lambda keys: [True] * len(keys)]
    worker = LookupWorker("w-bad", lambda keys, ctx: answers.pop(0)(keys), ThreadRuntime())
    worker.post([question(1, 2)])
    worker.post([question(3)])
    assert worker.stop(PATIENCE)
    assert replies(worker) == [([key(1), key(2)], None), ([key(3)], [True])]


def test_its_thread_is_a_named_daemon_and_ends_with_a_clean_stop():
    worker = LookupWorker("w-named", lambda keys, ctx: [True], ThreadRuntime())
    (thread,) = thread_named("w-named")
    assert thread.daemon
    worker.post([question(1)])
    assert worker.stop(PATIENCE)
    assert not thread.is_alive()


def test_a_question_is_published_while_the_next_is_still_out():
    hold = threading.Event()

    def back_end(keys, _):
        if keys == [key(2)]:
            assert hold.wait(PATIENCE)
        return [True]

    runtime = ThreadRuntime()
    worker = LookupWorker("w-each", back_end, runtime)
    worker.post([question(1, scope="fast"), question(2, scope="slow")])
    # A step loop that waits for a report is woken by the first, not by the last.
    assert runtime.wait(PATIENCE)
    assert replies(worker) == [([key(1)], [True])]
    hold.set()
    assert worker.stop(PATIENCE)
    assert replies(worker) == [([key(2)], [True])]


@pytest.mark.parametrize("hung", [0, 1, 2])
def test_a_stop_that_gave_up_begins_no_further_question(hung):
    hold, asked = threading.Event(), []

    def back_end(keys, _):
        asked.append(keys)
        if keys == [key(hung)]:
            assert hold.wait(PATIENCE)
        return [True]

    worker = LookupWorker("w-hung", back_end, ThreadRuntime())
    (thread,) = thread_named("w-hung")
    worker.post([question(0, scope="s"), question(1, scope="t")])
    worker.post([question(2)])
    worker.post([question(3)])
    until(lambda: len(asked) == hung + 1)
    began = time.monotonic()
    assert not worker.stop(0.05)
    assert time.monotonic() - began < PATIENCE / 2
    hold.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert asked == [[key(number)] for number in range(hung + 1)]


def test_stop_waits_for_what_was_posted_and_takes_no_more():
    asked = []

    def back_end(keys, _):
        time.sleep(0.01)
        asked.append(keys)
        return [True]

    worker = LookupWorker("w-rest", back_end, ThreadRuntime())
    for number in range(3):
        worker.post([question(number)])
    assert worker.stop(None)
    worker.post([question(9)])
    assert worker.stop(0.0)
    assert asked == [[key(0)], [key(1)], [key(2)]]
    assert len(replies(worker)) == 3
