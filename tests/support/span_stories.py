"""Stories about probes, and what the spec says of each (L106 to L114).

`python -m tests.support.span_stories` writes them to `spec/vectors/spans/`; a test
holds the files to the stories, and the check to the files.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from tests.support.span_builder import (
    Life,
    Told,
    at,
    call,
    export,
    export_line,
    waiters,
)

FOLDER = Path(__file__).parents[2] / "spec" / "vectors" / "spans"

RELEASED = "release", "released", "absent"


@dataclass
class Story:
    """An export, and what must be said of it."""

    kind: str
    name: str
    shows: str
    text: str
    complete: int
    incomplete: int = 0
    wrong: int = 0
    requirement: str | None = None

    @property
    def file(self) -> str:
        return f"{self.kind}/{self.name}.jsonl"


STORIES: list[Story] = []


def accepted(name: str, shows: str, *lives: Life | Told, probes: int | None = None) -> None:
    spans, known = _spans(lives)
    STORIES.append(
        Story("accepted", name, shows, export(spans), known if probes is None else probes)
    )


def incomplete(name: str, shows: str, *lives: Life | Told, complete: int = 0, n: int = 1) -> None:
    spans, _ = _spans(lives)
    STORIES.append(Story("incomplete", name, shows, export(spans), complete, n))


def rejected(
    requirement: str,
    name: str,
    shows: str,
    *lives: Life | Told,
    complete: int = 0,
    wrong: int = 1,
    n: int = 0,
) -> None:
    spans, _ = _spans(lives)
    STORIES.append(Story("rejected", name, shows, export(spans), complete, n, wrong, requirement))


def _spans(lives: tuple[Life | Told, ...]) -> tuple[list[Told], int]:
    spans: list[Told] = []
    for life in lives:
        spans += life.spans if isinstance(life, Life) else [life]
    return spans, sum(isinstance(life, Life) for life in lives)


def hit(key: str = "aa", generation: int = 1, born: int = 1, **more: str) -> Life:
    """Born, sent, answered and released, by four numbers in a row."""
    life = Life(key, generation, born, **more)  # type: ignore[arg-type]
    return life.sent(born + 1).answered(born + 2, "hit").released(born + 3)


def failed(**more: object) -> Life:
    return Life(**more).sent(2).answered(3, "lookup_error")  # type: ignore[arg-type]


def told_waiters(life: Life, number: int) -> Life:
    """The probe tells so many at its end, whatever its stays do."""
    life.probe.attributes["probe.waiters"] = number
    return life


# -- accepted ---------------------------------------------------------------------------------

accepted("hit", "asked, sent, answered yes, released", hit())
accepted(
    "miss",
    "answered no",
    Life().sent(2).answered(3, "miss").released(4, False),
)
accepted("lookup_error", "the question failed: a no, and an error", failed().released(4, False))
accepted(
    "stored_while_out",
    "a store is noted while the question is out, and the no becomes a yes",
    Life().sent(2).answered(4, "forced_hit", stored=True).released(5),
)
accepted(
    "stored_and_there",
    "a store is noted while the question is out, and the answer is yes anyway",
    Life().sent(2).answered(4, "hit", stored=True).released(5),
)
accepted(
    "joined",
    "three requests share a question, a fourth its verdict; releases of all but the last "
    "leave numbers out",
    Life(joined=[("r2", 2), ("r3", 4)])
    .sent(3)
    .answered(5, "hit")
    .released(10, links=waiters(("r4", 6))),
)
accepted(
    "taken_back",
    "the last waiter lets go before the question is sent",
    Life().stay("pending", (3, "release", "abandoned", "absent")),
)
accepted(
    "closed_pending",
    "shut down before the question was sent",
    Life().stay("pending", (2, "close", "closed", "absent")),
)
accepted(
    "closed_in_flight",
    "shut down while the question is out",
    Life().sent(2).stay("in_flight", (3, "close", "closed", "absent")),
)
accepted(
    "unclaimed",
    "the waiter lets go while the question is out, and a flush sweeps the answer",
    Life().sent(2).answered(4, "hit", waiters=0).held(True, (5, "sweep", "unclaimed", "absent")),
)
accepted(
    "marked",
    "a load fails, then a store completes: three stays with a verdict",
    Life()
    .sent(2)
    .answered(3, "hit")
    .held(True, (4, "mark_miss", "forced_miss", "resolved"))
    .held(False, (5, "mark_hit", "forced_hit", "resolved"))
    .released(6),
)
accepted(
    "marked_again",
    "marks that change nothing still end a stay",
    Life()
    .sent(2)
    .answered(3, "miss")
    .held(False, (4, "mark_miss", "forced_miss", "resolved"))
    .held(False, (5, "mark_miss", "forced_miss", "resolved"))
    .released(6, False),
)
accepted(
    "asked_again",
    "a failed question is asked again for a new request, with one number for both",
    failed().held(False, (4, "join", "asked_again", "pending")),
    Life(generation=2, born=4, again="asked_again", request="r2", joined=[("r1", 4)])
    .sent(6, excused_reads=1)
    .answered(7, "hit")
    .released(9),
)
accepted(
    "expired",
    "a verdict outlives its lifetime twice",
    Life().sent(2).answered(3, "miss").held(False, (4, "join", "expired", "pending")),
    Life(generation=2, born=4, again="expired")
    .sent(5)
    .answered(6, "hit")
    .held(True, (7, "join", "expired", "pending")),
    Life(generation=3, born=7, again="expired").sent(8).answered(9, "hit").released(10),
)
accepted(
    "asked_again_by_one_who_came_back",
    "a request lets go of a failed question and comes back: it asks as anybody new would",
    failed(joined=[("r2", 2)]).held(False, (5, "join", "asked_again", "pending")),
    Life(generation=2, born=5, again="asked_again", request="r1")
    .sent(6)
    .answered(7, "hit")
    .released(8),
)
accepted(
    "failed_expired",
    "a failed question outlives its lifetime: one who waited for it asks again",
    failed(joined=[("r2", 1.5)]).held(False, (4, "join", "expired", "pending")),
    Life(generation=2, born=4, again="expired", request="r2")
    .sent(5)
    .answered(6, "hit")
    .released(7),
)
accepted(
    "deadline",
    "reads past the deadline are counted, and the late answer counts",
    Life().sent(3, deadline_reads=1).answered(6, "hit", deadline_reads=2).released(8),
)
accepted(
    "asked_anew",
    "everybody lets go, and later the key is asked about again",
    hit(),
    hit(generation=7, born=20),
)
accepted(
    "side_by_side",
    "two keys, two scopes and two managers, each with a history of its own; only the "
    "numbers of one manager are told apart",
    Life().sent(3).answered(5, "hit").released(7),
    Life("bb", 2, 2).sent(4).answered(6, "hit").released(8),
    hit("aa", 3, 10, scope="'tenant-b'"),
    hit("aa", 1, 1, manager="a1/2:s3"),
)
accepted(
    "calls",
    "answered, failed, and never answered because of shutdown; none of it about a known probe",
    hit(),
    call(3, 3, hits=2),
    call(2, 0, error="lookup_error", number=2),
    call(1, 0, error="shutdown", number=3),
)
accepted(
    "jobs",
    "promotions, cascades and passes are kvtier's, and nothing is asked of them",
    hit(),
    *(
        Told(name, f"{n:032x}", f"{n:016x}", None, at(n), at(n + 1), {"request.id": "r1"})
        for n, name in enumerate(("promotion 1:fs", "cascade 1:fs", "scheduler.lookup"), 5)
    ),
)
accepted("in_any_order", "spans of one probe in no order", *reversed(hit().spans), probes=1)
accepted("exported_twice", "an exporter tries again: same id, same content", hit(), *hit().spans)
STORIES.append(
    Story(
        "accepted",
        "in_one_line",
        "an export in a single line, with a span of another library in it",
        export_line(
            {
                "traceId": "f" * 32,
                "spanId": "f" * 16,
                "name": "GET /v1/completions",
                "kind": 2,
                "startTimeUnixNano": str(at(0)),
                "endTimeUnixNano": str(at(9)),
                "attributes": [{"key": "http.request.method", "value": {"stringValue": "GET"}}],
            },
            *(span.otlp() for span in hit().spans),
        )
        + "\n",
        1,
    )
)


# -- incomplete -------------------------------------------------------------------------------


def truncated(life: Life, first: int, joined: int) -> Life:
    """The history begins with a JOIN of this number, in stay number `first`."""
    del life.stays[:first]
    stay = life.stays[0].without("probe.opened.seq")
    stay.attributes["probe.truncated"] = life.probe.attributes["probe.truncated"] = True
    stay.start = life.probe.start = at(joined)
    life.probe.attributes["probe.seq"] = joined
    life.probe.without("probe.phase.from", "probe.phase.to", "probe.trigger", "probe.birth")
    if stay.name == "probe.resolved":
        life.probe.end = at(joined)
        life.probe.without("probe.outcome", "probe.ended.seq", "probe.waiters")
        stay.without("probe.verdict")
    return life


def long_hit() -> Life:
    return Life().sent(10).answered(20, "hit").released(30)


def but(life: Life, *missing: str) -> tuple[Told, ...]:
    """Without the spans of these names."""
    return tuple(span for span in life.spans if span.name.split()[0] not in missing)


incomplete("truncated_pending", "joined while pending", truncated(long_hit(), 0, 5))
incomplete("truncated_in_flight", "joined while the question was out", truncated(long_hit(), 1, 15))
incomplete("truncated_resolved", "joined when it was answered", truncated(long_hit(), 2, 25))
incomplete("open_pending", "closed before it was sent", Life().opened_only("pending", 5))
incomplete("open_in_flight", "closed while it was out", Life().sent(2).opened_only("in_flight", 5))
incomplete(
    "open_resolved",
    "closed while the verdict was held",
    Life().sent(2).answered(3, "hit").opened_only("resolved", 5, verdict=True),
)
for missing in ("probe", "probe.pending", "probe.in_flight", "probe.resolved"):
    incomplete(f"no_{missing.replace('.', '_')}", f"{missing} is missing", *but(hit(), missing))
incomplete("only_pending", "only one span is there", hit().stays[0])
incomplete(
    "no_resolved_between",
    "of three stays with a verdict the second is missing",
    *(
        span
        for span in Life()
        .sent(2)
        .answered(3, "hit")
        .held(True, (4, "mark_miss", "forced_miss", "resolved"))
        .held(False, (5, "mark_hit", "forced_hit", "resolved"))
        .released(6)
        .spans
        if span.attributes.get("probe.opened.seq") != 4
    ),
)


incomplete(
    "no_resolved_last",
    "after a mark the verdict is held, and that span is missing",
    Life().sent(2).answered(3, "hit").held(True, (4, "mark_miss", "forced_miss", "resolved")),
)


def edited(life: Life, stay: int | None, **attributes: object) -> Life:
    """With other attributes on the probe (`None`) or a stay. In names `_` stands for a dot."""
    span = life.probe if stay is None else life.stays[stay]
    for name, value in attributes.items():
        span.attributes[f"probe.{name.replace('_', '.')}"] = value
    return life


def plain(life: Life, stay: int | None, name: str) -> Life:
    """Without this attribute."""
    (life.probe if stay is None else life.stays[stay]).without(name)
    return life


def cut_off(life: Life, stay: int) -> Life:
    """This stay does not tell its end, though the next one is there."""
    ends = ("seq", "phase.to", "trigger", "outcome", "waiters")
    life.stays[stay].without(*(f"probe.{name}" for name in ends)).attributes["probe.open"] = True
    return life


incomplete(
    "open_pending_and_more", "an end that is not told contradicts nothing", cut_off(hit(), 0)
)
incomplete("no_seq", "an attribute is missing", edited(hit(), 1, seq=None))
incomplete("no_generation", "without a place it belongs nowhere", edited(hit(), 1, generation=None))
incomplete("mistyped", "a number is a string", edited(hit(), 1, seq="three"))
incomplete("mistyped_verdict", "a verdict is a number", edited(hit(), 2, verdict=1))
incomplete(
    "waiters_below_zero",
    "a count is negative",
    Life().sent(2, waiters=-1).answered(3, "hit").released(4),
)
incomplete("no_probe_at_all", "calls, and no probe that they were for", call(3, 3, hits=1), n=0)


incomplete("no_tier", "the tier is not told", plain(hit(), 1, "tier"))
incomplete("no_request", "who asked is not told", plain(hit(), None, "request.id"))
incomplete(
    "no_error_type",
    "a question failed, and its error has no type",
    plain(failed().released(4, False), None, "error.type"),
)


def backwards(life: Life) -> Life:
    stay = life.stays[1]
    stay.start, stay.end = stay.end, stay.start
    return life


incomplete("clock_backwards", "a span ends before it begins", backwards(hit()))
incomplete(
    "asked_again_and_lost",
    "the new question is missing",
    failed().held(False, (4, "join", "asked_again", "pending")),
)
incomplete(
    "asked_again_of_what",
    "the question before is missing",
    Life(generation=2, born=4, again="asked_again").sent(5).answered(6, "hit").released(7),
)
STORIES.append(
    Story(
        "incomplete",
        "cut_off",
        "the last line is cut off: what it would have said nobody knows",
        export(hit().spans) + export(hit("bb", 2, 5).spans[:1])[:300],
        1,
    )
)


# -- rejected ---------------------------------------------------------------------------------


def other(span: Told, **changed: object) -> Told:
    """Another span for the same stay: its id differs."""
    twin = deepcopy(span)
    twin.span_id = "00000000000000bb"
    for name, value in changed.items():
        setattr(twin, name, value)
    return twin


def changed(life: Life, stay: int, **fields: object) -> Life:
    """With something else changed than attributes."""
    for name, value in fields.items():
        setattr(life.stays[stay], name, value)
    return life


def shifted(life: Life) -> Life:
    """All of it a little later, with the same numbers."""
    for span in life.spans:
        span.start, span.end = span.start + 1000, span.end + 1000
    return life


rejected(
    "L73",
    "answered_unsent",
    "an answer to what was never sent",
    edited(hit(), 0, trigger="answer", outcome="hit", phase_to="resolved"),
)
rejected(
    "L73",
    "forced_unresolved",
    "vLLM 0.30: a failed load makes a miss of a question that is out",
    Life()
    .sent(2)
    .stay("in_flight", (3, "mark_miss", "forced_miss", "resolved"))
    .released(4, False),
)
rejected(
    "L73",
    "deleted_in_flight",
    "the last waiter's leaving deletes a question that is out",
    Life().sent(2).stay("in_flight", (3, "release", "released", "absent")),
)
rejected(
    "L73",
    "closed_resolved",
    "shutdown takes a verdict that is held",
    Life().sent(2).answered(3, "hit").held(True, (4, "close", "closed", "absent")),
)
rejected(
    "L73",
    "unknown_outcome",
    "an outcome that the spec does not know",
    edited(hit(), 2, outcome="evicted"),
)
rejected(
    "L73",
    "unknown_phase",
    "a stay that ends as one in another phase",
    edited(hit(), 1, phase_from="pending"),
)
rejected(
    "L73",
    "born_of_flight",
    "a probe that begins in flight",
    edited(hit(), None, phase_from="in_flight"),
)
rejected(
    "L38",
    "taken_from_waiters",
    "the verdict goes while two still wait",
    edited(hit(), 2, waiters=2),
)
rejected(
    "L38",
    "gone_by_a_mark",
    "a failed load deletes the entry",
    Life().sent(2).answered(3, "hit").held(True, (4, "mark_miss", "forced_miss", "absent")),
)
rejected(
    "L38",
    "vanished",
    "born of nothing while the verdict before is still held",
    Life().sent(2).answered(3, "hit").released(20),
    hit(generation=2, born=10),
    complete=1,
)
rejected(
    "L61",
    "two_questions",
    "a second question of one key goes out while the first is out",
    Life().sent(2).answered(20, "hit").released(21),
    Life(generation=2, born=5).sent(6).answered(22, "hit").released(23),
    complete=1,
)
rejected(
    "L61",
    "second_answer",
    "an answer changes a verdict",
    Life()
    .sent(2)
    .answered(3, "miss")
    .held(False, (4, "answer", "hit", "resolved"))
    .released(5, True),
)
rejected(
    "L61",
    "two_answers",
    "one question is answered twice, and each answer has a span",
    *hit().spans[:3],
    other(Life().sent(2).answered(9, "miss").stays[1]),
    *hit().spans[3:],
)
rejected(
    "L60",
    "answer_is_no",
    "the answer was yes and the verdict is no",
    edited(hit(), 2, verdict=False),
)
rejected(
    "L60",
    "nothing_stored",
    "a no becomes a yes, and no store was noted",
    Life().sent(2).answered(3, "forced_hit").released(4),
)
rejected(
    "L65",
    "sent_for_nobody",
    "the question is sent although its last waiter has gone",
    edited(hit(), 0, waiters=0),
)
rejected(
    "L67",
    "generation_goes_back",
    "a later question has a lower generation",
    hit(generation=5),
    hit(generation=3, born=10),
    complete=1,
)
rejected(
    "L67",
    "generation_again",
    "a generation is given out twice",
    *hit().spans,
    other(hit(born=10).probe),
)
rejected(
    "L67",
    "generation_of_another_key",
    "a generation is given out to two keys",
    hit(),
    hit("bb", born=10),
    complete=1,
)
rejected(
    "L67",
    "generation_goes_back_elsewhere",
    "a later question about another key has a lower generation",
    hit(generation=5),
    hit("bb", generation=3, born=10),
    complete=1,
)
rejected(
    "L46",
    "asked_after_shutdown",
    "a question is born, and the manager was shut down before",
    Life().sent(2).stay("in_flight", (3, "close", "closed", "absent")),
    Life("bb", 2, 4).stay("pending", (5, "release", "abandoned", "absent")),
    complete=1,
)
rejected(
    "L46",
    "sent_after_shutdown",
    "a question is sent, and the manager was shut down before",
    Life().stay("pending", (3, "close", "closed", "absent")),
    Life("bb", 2, 2).sent(4).answered(5, "hit").released(6),
    complete=1,
)
rejected(
    "L46",
    "answered_after_shutdown",
    "an answer is applied, and the manager was shut down before",
    Life().stay("pending", (4, "close", "closed", "absent")),
    Life("bb", 2, 2).sent(3).answered(5, "hit").released(6),
    complete=1,
)
rejected(
    "L35",
    "swept_though_waited_for",
    "a verdict that somebody waited for is swept as unclaimed",
    Life().sent(2).answered(3, "hit").held(True, (5, "sweep", "unclaimed", "absent")),
)
rejected(
    "L106",
    "asked_for_two_reasons",
    "the verdict ended because its question had failed, and the new one is asked for its age",
    failed().held(False, (4, "join", "asked_again", "pending")),
    Life(generation=2, born=4, again="expired", request="r2")
    .sent(5)
    .answered(6, "hit")
    .released(7),
    complete=1,
)
rejected(
    "L73",
    "born_as_expired",
    "nothing was there that could have expired",
    edited(hit(), None, birth="expired"),
)
rejected(
    "L30",
    "asker_does_not_join",
    "asked again by a request that is no waiter then",
    failed().held(False, (5, "join", "asked_again", "pending"), waiters=0),
    Life(generation=2, born=5, again="asked_again", request="r2")
    .sent(6)
    .answered(7, "hit")
    .released(8),
    complete=1,
)
rejected(
    "L106",
    "waiters_of_one_end",
    "the probe and its stay end with one number, and tell different numbers of waiters",
    told_waiters(hit(), 7),
)
rejected(
    "L75",
    "store_forgotten",
    "a store was noted, and the answer is a no all the same",
    Life().sent(2).answered(4, "miss", stored=True).released(5, False),
)
rejected(
    "L75",
    "mark_without_effect",
    "a load failed, and the verdict is still a yes",
    Life()
    .sent(2)
    .answered(3, "hit")
    .held(True, (4, "mark_miss", "forced_miss", "resolved"))
    .released(5, True),
)
rejected(
    "L75",
    "forced_miss_expires",
    "a forced miss has no lifetime",
    Life()
    .sent(2)
    .answered(3, "hit")
    .held(True, (4, "mark_miss", "forced_miss", "resolved"))
    .held(False, (5, "join", "expired", "pending")),
    Life(generation=2, born=5, again="expired").sent(6).answered(7, "hit").released(8),
    complete=1,
)
rejected(
    "L77",
    "absent_asked_again",
    "a no that is no error is asked again",
    Life().sent(2).answered(3, "miss").held(False, (4, "join", "asked_again", "pending")),
    Life(generation=2, born=4, again="asked_again", request="r2")
    .sent(5)
    .answered(6, "hit")
    .released(7),
    complete=1,
)


for number, stay in enumerate(("probe", "pending", "in_flight", "resolved")):
    rejected(
        "L106",
        f"two_spans_{stay}",
        f"two spans for one {'probe' if stay == 'probe' else f'stay in {stay}'}",
        *hit().spans,
        other(hit().spans[number]),
    )
rejected(
    "L106",
    "same_id",
    "two spans with one id say different things",
    *hit().spans,
    other(hit().spans[2], span_id=hit().spans[2].span_id, end=at(9)),
)
rejected(
    "L106",
    "no_child",
    "a stay is not a child of its probe",
    changed(hit(), 2, parent_id="00000000000000bb"),
)
rejected(
    "L106",
    "other_trace",
    "a stay is in another trace than its probe",
    changed(hit(), 1, trace_id="b" * 32),
)
rejected(
    "L106",
    "chain_pending",
    "the first stay begins with another number than the probe",
    edited(hit(born=2), 0, opened_seq=1),
)
rejected(
    "L106",
    "chain_in_flight",
    "a stay begins with another number than that with which the one before ended",
    edited(Life().sent(3).answered(5, "hit").released(6), 1, opened_seq=4),
)
rejected(
    "L106",
    "chain_resolved",
    "a verdict is held before it came",
    edited(Life().sent(3).answered(5, "hit").released(6), 2, opened_seq=4),
)
rejected(
    "L106",
    "chain_probe_number",
    "the probe ended with another number than its last stay",
    edited(hit(), None, ended_seq=4),
)
rejected(
    "L106",
    "chain_probe_outcome",
    "the probe ended in another way than its last stay",
    edited(hit(), None, outcome="miss"),
)
rejected("L106", "time_between", "time passes between two stays", changed(hit(), 1, start=at(2.25)))
rejected(
    "L106",
    "ended_first",
    "a stay ends with a lower number than it began",
    edited(hit(born=5), 2, seq=3),
)
rejected(
    "L106",
    "held_after_the_end",
    "a verdict is held after it was given up",
    Life().sent(2).answered(3, "hit").released(4).held(True, (5, "sweep", "unclaimed", "absent")),
)
rejected(
    "L106",
    "held_though_taken_back",
    "a verdict is held of a question that was taken back",
    Life()
    .stay("pending", (2, "release", "abandoned", "absent"))
    .held(True, (5, "release", "released", "absent")),
)
rejected(
    "L106",
    "probe_ended_first",
    "a probe ends with a lower number than it began, and its stays are missing",
    edited(hit(born=5), None, ended_seq=3).probe,
)
rejected(
    "L106",
    "one_number_twice",
    "a probe is born with the number with which the one before it ended, and is no re-ask",
    hit(),
    hit(generation=2, born=4),
    complete=1,
)
rejected(
    "L106",
    "one_number_for_two_keys",
    "a transition of one key has the number of a transition of another",
    hit(),
    hit("bb", 2, 4),
    wrong=2,
)
rejected(
    "L106",
    "asked_again_later",
    "asked again at another time than the verdict before it ended",
    failed().held(False, (4, "join", "asked_again", "pending")),
    shifted(
        Life(generation=2, born=4, again="asked_again", request="r2")
        .sent(5)
        .answered(6, "hit")
        .released(7)
    ),
    complete=1,
)
rejected(
    "L73",
    "truncated_and_wrong",
    "what an incomplete history does tell is held to the spec",
    edited(truncated(long_hit(), 1, 15), 1, outcome="hit"),
)
rejected("L110", "number_zero", "numbers begin at 1", hit(born=0))


def with_status(life: Life, error: bool) -> Life:
    life.probe.error = error
    return life


rejected("L113", "a_hit_is_no_error", "a yes with the status of an error", with_status(hit(), True))
rejected(
    "L113",
    "a_failure_is_an_error",
    "a question failed, and the status is no error",
    with_status(failed().released(4, False), False),
)
rejected(
    "L107",
    "short_answer",
    "vLLM takes fewer answers than there are keys: the last key is never answered",
    hit(),
    call(3, 2, hits=1),
    complete=1,
    wrong=0,
)
rejected(
    "L107",
    "no_answer",
    "no answers and no error",
    hit(),
    call(3, 0),
    complete=1,
    wrong=0,
)
rejected(
    "L107",
    "half_failed",
    "a call that failed has no answers",
    hit(),
    call(3, 1, error="lookup_error"),
    complete=1,
    wrong=0,
)
rejected(
    "L108",
    "worker_died",
    "vLLM: what a back end raised ends the worker",
    hit(),
    call(3, 0, error="worker_died"),
    complete=1,
    wrong=0,
)


def index() -> str:
    """What must be said of each file."""
    files = {
        story.file: {
            "expected": story.kind,
            "requirement": story.requirement,
            "shows": story.shows,
            "complete": story.complete,
            "incomplete": story.incomplete,
            "wrong": story.wrong,
        }
        for story in STORIES
    }
    return json.dumps({"schema": "kvtier.span-vectors/1", "files": files}, indent=2) + "\n"


if __name__ == "__main__":
    for story in STORIES:
        path = FOLDER / story.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(story.text)
    (FOLDER / "index.json").write_text(index())
