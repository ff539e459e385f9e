"""`kvtier timeline`, and its page as a browser shows it."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from kvtier.check.spans.reading import Span
from kvtier.check.timeline import render_timeline
from kvtier.cli import main
from tests.support.chromium import Page, chromium, need_chromium
from tests.support.drawn_spans import call, export, job, joined, key, look, many, probe
from tests.support.tools import need_tlc

EVIL = "<img src=x onerror=document.title='run'>"

SPANS = [
    *probe(
        1,
        (0, 100, 900, 2000),
        waiters=(joined("r2", 300), joined("r3", 850)),
        later=(joined("r4", 1500),),
    ),
    *probe(2, (10, 100, 900, 1200), outcome="miss", verdict=False, request="r2"),
    *probe(3, (1000, 1100, 1500, 2500), outcome="lookup_error", verdict=False, request="r5"),
    *probe(4, (1050, 1100, 1500, 2600), outcome="forced_hit", request="r5"),
    call(1, 150, 850, queued=50, keys=2, requests=("r1", "r2")),
    call(2, 1110, 1490, queued=10, keys=2, failed=True, requests=("r5",)),
    job(1, 1000, 1600, (1,)),
    job(2, 1700, 1900, (1,), what="cascade", outcome="failed"),
    look(1, 0, 5, "r1", "probe"),
    look(2, 950, 990, "r1"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    need_chromium()
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as page:
        yield page


@pytest.fixture
def show(browser: Page, tmp_path: Path) -> Callable[..., Page]:
    """Opens a page of these spans."""

    def show(spans: list[Span], **how: str) -> Page:
        path = tmp_path / "page.html"
        path.write_text(render_timeline(spans, "spans.jsonl"))
        browser.open(path, **how)
        return browser

    return show


@pytest.fixture(scope="module")
def ten_thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "big.html"
    path.write_text(render_timeline(many(10_000), "big.jsonl"))
    return path


def lanes(page: Page) -> dict[str, list[str]]:
    """The label of each lane that is there, and those of its bars from left to right."""
    found: dict[str, list[str]] = page.run(
        """Object.fromEntries([...document.querySelectorAll('.lane')].map(lane => [
            lane.querySelector('[role=rowheader]').title,
            [...lane.querySelectorAll('.bar')]
              .sort((a, b) => a.getBoundingClientRect().left - b.getBoundingClientRect().left)
              .map(bar => bar.getAttribute('aria-label'))]))"""
    )
    return found


def text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({selector!r}).innerText"))


def beside(page: Page) -> list[str]:
    """The lines beside what is pointed at or has the focus."""
    found: list[str] = page.run("[...$('tip').children].map(line => line.innerText)")
    return found


def focused(page: Page) -> str:
    """What a screen reader says of the element with the focus."""
    return str(page.run("document.activeElement.getAttribute('aria-label')"))


def box(page: Page, bar: str) -> dict[str, float]:
    """Where the element of the bar that `bar` finds is."""
    found: dict[str, float] = page.run(f"elementOf({bar}).getBoundingClientRect().toJSON()")
    return found


def seen(page: Page) -> tuple[float, float]:
    """The part of the history that is in the window, in microseconds."""
    return page.run("view.from") / 1000, page.run("view.to") / 1000


# What is drawn

IN_FLIGHT = "bars.find(bar => bar.kind === 'in_flight')"
CALL = "bars.find(bar => bar.kind === 'batch')"


def test_every_key_is_a_lane_and_every_stay_a_bar(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    assert lanes(page) == {
        "scheduler passes": [
            "deferred behind probe, 5 µs, from 0 ns",
            "admitted, 40 µs, from 950 µs",
        ],
        "1:fs calls": [
            "call, 2 keys, 700 µs, from 150 µs",
            "call failed, 2 keys, 380 µs, from 1.11 ms",
        ],
        "1:fs promotions": ["promotion, 1 block, 600 µs, from 1 ms, ended by ok"],
        "1:fs cascades": ["cascade failed, 1 block, 200 µs, from 1.7 ms, ended by failed"],
        "tier 1:fs, manager m1/1:fs": [],
        key(1): [
            "pending, 100 µs, from 0 ns, ended by sent",
            "in flight, 800 µs, from 100 µs, ended by hit, 2 joined",
            "hit, 1.1 ms, from 900 µs, ended by released, 1 joined",
        ],
        key(2): [
            "pending, 90 µs, from 10 µs, ended by sent",
            "in flight, 800 µs, from 100 µs, ended by miss",
            "miss, 300 µs, from 900 µs, ended by released",
        ],
        key(3): [
            "pending, 100 µs, from 1 ms, ended by sent",
            "in flight, 400 µs, from 1.1 ms, ended by lookup error",
            "lookup failed, 1 ms, from 1.5 ms, ended by released",
        ],
        key(4): [
            "pending, 50 µs, from 1.05 ms, ended by sent",
            "in flight, 400 µs, from 1.1 ms, ended by forced hit",
            "hit, forced, 1.1 ms, from 1.5 ms, ended by released",
        ],
    }


def test_a_bar_is_where_its_time_is_and_says_what_it_is(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    track = page.run("document.querySelector('.key .track').getBoundingClientRect().toJSON()")
    # The window is 4 % wider than the 2.6 ms, in equal parts on both sides.
    scale = track["width"] / (2600 * 1.04)
    place = box(page, IN_FLIGHT)
    assert place["left"] - track["left"] == pytest.approx((100 + 52) * scale, abs=2)
    assert place["width"] == pytest.approx(800 * scale, abs=2)
    assert page.run(f"elementOf({IN_FLIGHT}).innerText") == "in flight"
    assert page.run("elementOf(bars.find(bar => bar.kind === 'hit')).innerText") == "✓ hit"


def test_the_head_says_the_file_and_how_much(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    assert text(page, "h1") == "spans.jsonl"
    assert text(page, "#counts") == (
        "4 probes, 4 keys, 22 spans, over 2.6 ms, from 2023-11-14 22:13:20.000000000 UTC"
    )
    assert page.run("document.title") == "spans.jsonl: 4 probes, 4 keys, 22 spans"
    scale = text(page, "#scale").split("\n")
    assert scale == ["0 ms", "0.5 ms", "1 ms", "1.5 ms", "2 ms", "2.5 ms"]


def test_it_needs_no_network_and_complains_of_nothing(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    [address] = page.fetched()
    assert address.startswith("file://")
    assert page.complaints() == []


def test_a_waiter_is_a_tick_with_its_request(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    told = "[...document.querySelectorAll('.tick')].map(one => one.tick.request)"
    assert page.run(told) == ["r2", "r3", "r4"]
    tick = page.run("document.querySelector('.tick').getBoundingClientRect().toJSON()")
    stay = box(page, IN_FLIGHT)
    part = (tick["x"] + tick["width"] / 2 - stay["left"]) / stay["width"]
    assert part == pytest.approx(200 / 800, abs=0.01)
    assert tick["bottom"] == pytest.approx(stay["top"], abs=2)
    page.mouse("mouseMoved", tick["x"] + 4, tick["y"] + 4)
    assert beside(page) == ["r2 joined", "at 300 µs, while in flight"]


def test_arrows_lead_from_a_call_to_what_it_asked(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    assert page.run("$('links').children.length") == 0
    page.run(f"activate({CALL}, true)")
    page.settle()
    arrows = page.run(
        """[...$('links').children].map(path => [0, path.getTotalLength()].map(length => {
            const end = path.getPointAtLength(length);
            const at = new DOMPoint(end.x, end.y).matrixTransform(path.getScreenCTM());
            return [at.x, at.y]; }))"""
    )
    stays = page.run(
        "bars.filter(bar => bar.kind === 'in_flight').slice(0, 2)"
        ".map(bar => elementOf(bar).getBoundingClientRect().toJSON())"
    )
    asked = box(page, CALL)
    assert len(arrows) == 2
    for ends, stay in zip(arrows, stays, strict=True):
        for (x, y), place in zip(ends, (asked, stay), strict=True):
            assert place["left"] <= x <= place["right"]
            assert place["top"] <= y <= place["bottom"]


def test_what_is_linked_can_be_gone_to(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    page.run(f"activate({IN_FLIGHT}, true)")
    page.settle()
    assert text(page, "#panel button") == "1:fs calls: call, 2 keys"
    page.run("document.querySelector('#panel button').click()")
    page.settle()
    assert focused(page) == "call, 2 keys, 700 µs, from 150 µs"


def test_open_and_truncated_edges_are_drawn_and_told(show: Callable[..., Page]) -> None:
    spans = probe(1, (0, 100, 900, 2000))
    spans[1].attributes["kvtier.probe.truncated"] = True
    spans[3].attributes["kvtier.probe.open"] = True
    for name in ("seq", "phase.to", "trigger", "outcome"):
        del spans[3].attributes[f"kvtier.probe.{name}"]
    page = show(spans)
    assert lanes(page)[key(1)] == [
        "pending, 100 µs, from 0 ns, beginning not told, ended by sent",
        "in flight, 800 µs, from 100 µs, ended by hit",
        "hit, 1.1 ms, from 900 µs, end not told",
    ]
    edges = page.run(
        "[...document.querySelectorAll('.key .bar')].map(bar => getComputedStyle(bar))"
        ".map(style => [style.borderLeft, style.borderRight].map(one => one.slice(0, 10)))"
    )
    dotted = "4px dotted"
    assert [[edge == dotted for edge in both] for both in edges] == [
        [True, False],
        [False, False],
        [False, True],
    ]


def test_every_kind_is_told_apart_without_colours(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    looks = page.run(
        """Object.fromEntries(Object.keys(WORDS).map(kind => {
            const bar = make('div', `bar ${kind}`);
            document.body.append(bar);
            const style = getComputedStyle(bar);
            const plain = style.backgroundImage.replace(/rgba?\\([^)]*\\)/g, 'ink');
            const told = [style.borderTopStyle, style.borderTopWidth, plain, SIGNS[kind] || ''];
            bar.remove();
            return [kind, told.join()]; }))"""
    )
    stays = ("pending", "in_flight", "hit", "miss", "error", "forced_hit", "forced_miss", "probe")
    assert len({looks[kind] for kind in stays}) == len(stays)
    assert len({looks[kind].rpartition(",")[0] for kind in stays[:5]}) == 5
    assert not any(look.startswith("none,") for look in looks.values())


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([], "0 probes, 0 keys, 0 spans, over 0 ns"),
        (probe(1, (0, 0, 0, 0)), "1 probe, 1 key, 4 spans, over 0 ns"),
        (probe(1, (0, 1, 2, 3))[:1], "1 probe, 1 key, 1 span, over 2 µs"),
    ],
    ids=["nothing", "an instant", "a probe without stays"],
)
def test_the_smallest_histories_are_pages_too(
    show: Callable[..., Page], spans: list[Span], said: str
) -> None:
    page = show(spans)
    assert text(page, "#counts").startswith(said)
    assert page.run("$('chart').hidden") == (not spans)
    assert page.run("$('nothing').hidden") == bool(spans)
    assert page.run("document.querySelectorAll('.bar[aria-label]').length > 0") == bool(spans)
    page.run("search('r1'); jump(1); zoom(0.5); pan(1); toTable(true)")
    assert page.complaints() == []


def test_a_probe_of_an_instant_can_be_walked_through(show: Callable[..., Page]) -> None:
    page = show(probe(1, (0, 0, 0, 0)))
    page.run("activate(bars[0], true)")
    said = [focused(page)]
    for _ in range(2):
        page.press("ArrowRight")
        said.append(focused(page))
    assert [one.split(",")[0] for one in said] == ["pending", "in flight", "hit"]


def test_what_spans_say_is_shown_and_never_run(show: Callable[..., Page]) -> None:
    spans = probe(1, (0, 100, 900, 2000), request=EVIL, extra={"kvtier.scope": EVIL, EVIL: EVIL})
    page = show([replace(one, name=f"probe {EVIL}") if " " in one.name else one for one in spans])
    page.run("activate(bars[1], true); toTable(true)")
    page.settle()
    assert page.run("document.querySelectorAll('img').length") == 0
    assert "run" not in page.run("document.title").split(":")[0]
    assert EVIL in text(page, "#panel")
    assert EVIL in text(page, "#rows")


# Search


def opacity(page: Page) -> dict[str, list[float]]:
    """Of each lane of a key, of its bars."""
    found: dict[str, list[float]] = page.run(
        """Object.fromEntries([...document.querySelectorAll('.lane.key')].map(lane => [
            lane.lane.name, [...lane.querySelectorAll('.bar')]
              .map(bar => Number(getComputedStyle(bar).opacity))]))"""
    )
    return found


def ask(page: Page, query: str) -> None:
    page.run("$('query').focus(); $('query').select()")
    page.send("Input.insertText", text=query)
    page.settle()


def test_search_for_a_request_dims_the_rest_and_jumps(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    ask(page, "r5")
    assert text(page, "#found") == "6 matches"
    assert opacity(page) == {
        key(1): [0.25] * 3,
        key(2): [0.25] * 3,
        key(3): [1] * 3,
        key(4): [1] * 3,
    }
    said = []
    for _ in range(4):
        page.press("Enter")
        said.append((text(page, "#found"), text(page, "#panel h2")))
    assert said == [
        ("1 of 6", "pending"),
        ("2 of 6", "in flight"),
        ("3 of 6", "! lookup failed"),
        ("4 of 6", "pending"),
    ]
    page.press("Enter", shift=True)
    assert text(page, "#found") == "3 of 6"
    page.press("Escape")
    assert (text(page, "#found"), page.run("$('query').value")) == ("", "")
    assert {one for bars in opacity(page).values() for one in bars} == {1}


def test_a_waiter_is_found_where_it_joined(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    ask(page, "R3")
    assert text(page, "#found") == "1 match"
    page.press("Enter")
    assert text(page, "#panel p") == "in flight, 800 µs, from 100 µs, ended by hit, 2 joined."
    assert page.run("document.querySelectorAll('.tick.match').length") == 1


def test_an_id_that_begins_like_another_is_not_found_with_it(show: Callable[..., Page]) -> None:
    spans = [one for n in range(9, 12) for one in probe(n, (0, 1, 2, 3), request=f"R{n - 8}0")]
    page = show([*spans, *probe(1, (0, 1, 2, 3), request="R1")])
    for query, found in (("r1", "3 matches"), ("r10", "3 matches"), ("r", "12 matches")):
        ask(page, query)
        assert text(page, "#found") == found


def test_search_for_a_key_by_its_beginning(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    ask(page, key(2)[:6])
    assert text(page, "#found") == "3 matches"
    assert opacity(page)[key(2)] == [1] * 3
    ask(page, "nobody")
    assert text(page, "#found") == "no matches"
    assert page.run("$('next').disabled")


def test_a_match_far_away_is_brought_into_the_window(browser: Page, ten_thousand: Path) -> None:
    browser.open(ten_thousand)
    ask(browser, "w9992")
    browser.press("Enter")
    assert text(browser, "#panel dd").strip() == key(9992)
    place, window = (
        box(browser, "state.active"),
        browser.run("$('scroll').getBoundingClientRect().toJSON()"),
    )
    assert window["top"] <= place["top"] <= place["bottom"] <= window["bottom"]
    assert window["left"] <= place["left"] <= place["right"] <= window["right"]
    assert place["width"] > 100


# Keyboard and mouse


def to_chart(page: Page) -> None:
    """Tab until a bar has the focus."""
    for _ in range(12):
        page.press("Tab")
        if page.run("document.activeElement.classList.contains('bar')"):
            return
    pytest.fail("no bar can be reached with Tab")


def test_all_bars_can_be_reached_with_the_arrow_keys(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    to_chart(page)
    said = [focused(page)]
    for name in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "End"):
        page.press(name)
        said.append(focused(page))
    hit, miss = "hit, 1.1 ms, from 900 µs", "miss, 300 µs, from 900 µs"
    begins = [
        "pending, 100 µs", "in flight, 800 µs", hit, hit, miss, "in flight, 800 µs", miss,
    ]  # fmt: skip
    assert [one.startswith(begin) for one, begin in zip(said, begins, strict=True)] == [True] * 7
    page.press("Home", ctrl=True)
    assert page.run("state.active.lane.name") == "1:fs calls"
    page.press("End", ctrl=True)
    assert page.run("state.active.lane.name") == key(4)
    assert page.run("document.querySelectorAll('.bar[tabindex=\"0\"]').length") == 1


def test_what_has_the_focus_is_told_in_the_panel_and_beside_it(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    to_chart(page)
    page.press("ArrowRight")
    assert page.run("$('panel').getAttribute('aria-live')") == "polite"
    panel = text(page, "#panel").split("\n")
    for name, value in (
        ("kvtier.probe.opened.seq", "2"),
        ("kvtier.probe.phase.to", "resolved"),
        ("kvtier.request.id", "r1"),
        ("kvtier.manager.id", "m1/1:fs"),
        ("key", key(1)),
    ):
        assert (name, value) in pairwise(panel)
    assert "r2 at 300 µs" in panel
    assert beside(page)[0] == f"{key(1)[:16]}…: in flight"
    page.press("Escape")
    assert page.run("$('tip').hidden")


def test_keys_zoom_and_pan(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    assert seen(page) == (-52, 2652)
    to_chart(page)
    page.press("ArrowRight")
    page.press("+")
    assert seen(page) == pytest.approx((224, 1576))
    page.press("ArrowRight", shift=True)
    assert seen(page) == pytest.approx((562, 1914))
    page.press("ArrowLeft", shift=True)
    page.press("-")
    assert seen(page) == (-52, 2652)
    page.press("Enter")
    assert seen(page) == (-700, 1700) or seen(page) == (-52, 2348)
    page.press("Home")
    assert seen(page) == (-52, 2652)


def test_buttons_zoom_and_pan(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    for button, after in (
        ("zoom-in", (624, 1976)),
        ("pan-right", (1300, 2652)),
        ("pan-right", (1300, 2652)),
        ("pan-left", (624, 1976)),
        ("zoom-out", (-52, 2652)),
        ("zoom-out", (-52, 2652)),
        ("zoom-in", (624, 1976)),
        ("all", (-52, 2652)),
    ):
        page.run(f"$('{button}').click()")
        page.settle()
        assert seen(page) == pytest.approx(after), button


def test_the_wheel_zooms_at_the_pointer_and_scrolls_lanes(
    browser: Page, ten_thousand: Path
) -> None:
    browser.open(ten_thousand)
    wide = browser.run("view.to - view.from")
    at = browser.run("timeAt(700 - $('scale').getBoundingClientRect().left)")
    browser.mouse("mouseWheel", 700, 400, deltaX=0, deltaY=-300, modifiers=2)
    assert browser.run("view.to - view.from") < wide * 0.8
    still = browser.run("timeAt(700 - $('scale').getBoundingClientRect().left)")
    assert still == pytest.approx(at, rel=1e-6)
    narrow = browser.run("view.to - view.from")
    browser.mouse("mouseWheel", 700, 108, deltaX=0, deltaY=300)
    assert browser.run("view.to - view.from") > narrow * 1.2
    browser.mouse("mouseWheel", 700, 400, deltaX=0, deltaY=-300, modifiers=2)
    before = browser.run("view.from")
    browser.mouse("mouseWheel", 700, 400, deltaX=0, deltaY=100, modifiers=8)
    assert browser.run("view.from") > before
    browser.mouse("mouseWheel", 700, 400, deltaX=0, deltaY=340)
    browser.wait("$('scroll').scrollTop >= 300")


def test_dragging_pans(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    page.run("zoom(0.25)")
    page.settle()
    before, _ = seen(page)
    y = page.run("document.querySelector('.key').getBoundingClientRect().top") + 4
    page.mouse("mousePressed", 800, y, button="left", clickCount=1)
    for x in (790, 700, 600):
        page.mouse("mouseMoved", x, y, button="left", buttons=1)
    page.mouse("mouseReleased", 600, y, button="left", clickCount=1)
    width = page.run("view.width")
    assert seen(page)[0] - before == pytest.approx(200 / width * 676, rel=0.03)


def test_what_is_pointed_at_is_told(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    place = box(page, IN_FLIGHT)
    page.mouse("mouseMoved", place["left"] + 40, place["top"] + 10)
    tip = beside(page)
    assert tip[:2] == [
        f"{key(1)[:16]}…: in flight",
        "in flight, 800 µs, from 100 µs, ended by hit, 2 joined",
    ]
    assert "probe.outcome: hit" in tip
    assert text(page, "#panel h2") == "in flight"
    assert page.run("$('panel').getAttribute('aria-live')") == "off"
    assert page.run("$('links').children.length") == 1
    page.mouse("mouseMoved", 5, 5)
    assert page.run("$('tip').hidden")
    assert page.run("$('links').children.length") == 0


# For everybody

CONTRASTS = """(() => {
  const channel = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = numbers(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest('script')) continue;
    const [a, b] = [light(numbers(getComputedStyle(element).color)), light(ground(element))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.textContent]);
  }
  return found;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(show: Callable[..., Page], scheme: str) -> None:
    page = show(SPANS, scheme=scheme)
    page.run(f"document.querySelectorAll('details').forEach(one => one.open = true); search('r5');"
             f"activate({IN_FLIGHT}, true)")  # fmt: skip
    page.settle()
    found = page.run(CONTRASTS)
    assert len(found) > 80
    assert [(ratio, said) for ratio, said in found if ratio < 4.5] == []
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]


def test_nothing_moves_for_who_does_not_want_it(show: Callable[..., Page]) -> None:
    moving = (
        "[...document.querySelectorAll('*')].map(one => getComputedStyle(one))"
        ".filter(style => style.animationName !== 'none' || style.transitionDuration !== '0s')"
        ".length"
    )
    page = show(SPANS)
    page.run(f"activate({IN_FLIGHT}, true)")
    assert page.run(moving) > 0
    page = show(SPANS, motion="reduce")
    page.run(f"activate({IN_FLIGHT}, true)")
    assert page.run(moving) == 0


def test_a_screen_reader_finds_its_way(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    said = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]
    roles = {role for role, _ in said}
    assert {"banner", "main", "complementary", "search", "grid", "row", "heading"} <= roles
    assert ("complementary", "Details and help") in said
    assert ("grid", "spans.jsonl") in said
    assert ("searchbox", "Request id or key") in said
    assert ("rowheader", f"{key(1)[:16]}…") in said
    assert ("gridcell", "in flight, 800 µs, from 100 µs, ended by hit, 2 joined") in said
    assert sum(role == "gridcell" for role, _ in said) == 18
    assert [said for role, said in said if role == "button" and not said] == []
    assert page.run("document.documentElement.lang") == "en"
    assert page.run("$('panel').getAttribute('aria-live')") == "polite"
    assert page.run("$('chart').getAttribute('aria-rowcount')") == "9"


def test_there_is_a_table_instead(browser: Page, ten_thousand: Path, show: Any) -> None:
    page = show(SPANS)
    page.run("$('as-table').click()")
    assert page.run("$('chart').hidden")
    rows = page.run("[...$('rows').rows].map(row => [...row.cells].map(cell => cell.innerText))")
    assert len(rows) == 18
    assert rows[7] == [key(1), "in flight", "100 µs", "800 µs", "hit", "r1, r2, r3"]
    ask(page, "r3")
    assert page.run("$('rows').rows.length") == 1
    browser.open(ten_thousand)
    browser.run("$('as-table').click(); $('page-on').click()")
    assert text(browser, "#page-said") == "rows 101 to 200 of 30157"
    assert browser.run("$('rows').rows.length") == 100


# Room

RESIZED = """new Promise(done => {
  const rows = () => document.querySelectorAll('.lane').length;
  let isFirst = true;
  new ResizeObserver(() => {
    if (isFirst) setTimeout(() => { document.body.style.width = '900px'; });
    else done(rows());
    isFirst = false;
  }).observe($('scroll'));
})"""
"""How many rows there are when the page's own observer has heard of a new size."""


def test_the_first_frame_of_a_new_size_has_all_rows(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    assert page.run(RESIZED) == 9
    right = page.run("document.querySelector('.key .track').getBoundingClientRect().right")
    assert right < 900
    # The window is 4 % wider than the 2.6 ms, on both sides.
    width = page.run("document.querySelector('.key .track').clientWidth")
    assert box(page, IN_FLIGHT)["width"] == pytest.approx(800 * width / (2600 * 1.04), abs=2)
    assert page.complaints() == []


def test_the_focus_stays_when_the_window_gets_another_size(show: Callable[..., Page]) -> None:
    page = show(SPANS)
    to_chart(page)
    said = focused(page)
    page.run(RESIZED)
    assert focused(page) == said


@pytest.fixture
def low(browser: Page) -> Iterator[Page]:
    """A window of 1000 by 700."""
    how = {"width": 1000, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    browser.send("Emulation.setDeviceMetricsOverride", **how)
    yield browser
    browser.send("Emulation.clearDeviceMetricsOverride")


def in_window(page: Page, selector: str) -> list[str]:
    """Names of the lanes that are seen where their middle is."""
    found: list[str] = page.run(
        """[...document.querySelectorAll(SELECTOR)].filter(lane => {
            const { left, top, height } = lane.getBoundingClientRect();
            const there = document.elementFromPoint(left + 50, top + height / 2);
            return there !== null && there.closest('.lane') === lane;
        }).map(lane => lane.querySelector('[role=rowheader]').innerText)""".replace(
            "SELECTOR", repr(selector)
        )
    )
    return found


def test_many_rows_of_what_is_done_leave_room_for_keys(
    low: Page, show: Callable[..., Page]
) -> None:
    calls = [call(n, 100 + n, 900) for n in range(30)]
    page = show([*calls, *(span for n in range(1, 31) for span in probe(n, (0, 100, 900, 2000)))])
    first = in_window(page, ".lane:not(.key, .group)")
    assert first == ["1:fs calls", *(f"1:fs calls, row {n}" for n in range(2, len(first) + 1))]
    assert 3 <= len(first) <= 8
    keys = in_window(page, ".lane.key")
    assert len(keys) >= 8
    page.mouse("mouseWheel", 500, 200, deltaX=0, deltaY=340)
    page.wait("$('above').scrollTop >= 300")
    page.settle()
    assert in_window(page, ".lane.key") == keys
    assert in_window(page, ".lane:not(.key, .group)")[0] == "1:fs calls, row 11"


def test_a_row_that_is_out_of_sight_is_brought_into_the_window(
    low: Page, show: Callable[..., Page]
) -> None:
    calls = [call(n, 100 + n, 900) for n in range(30)]
    page = show([*calls, *probe(1, (0, 100, 900, 2000))])
    to_chart(page)
    page.press("ArrowUp")
    assert page.run("state.active.lane.part") == 29
    assert "1:fs calls, row 30" in in_window(page, ".lane:not(.key)")
    assert len(in_window(page, ".lane.key")) == 1
    page.press("Home", ctrl=True)
    assert "1:fs calls" in in_window(page, ".lane:not(.key)")
    ends = "[...$('links').children].map(path => path.getPointAtLength(0).y)"
    page.run("$('above').scrollTop = 900")
    page.settle()
    assert page.run(f"{ends}.every(y => y >= 0 && y <= view.room)")


# Ten thousand

SCROLL = """(async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const times = [];
  let most = 0, empty = 0;
  await frame();
  let last = performance.now();
  for (let n = 0; n < 30; n += 1) {
    MOVE;
    await frame();
    const now = performance.now();
    times.push(now - last);
    last = now;
    await new Promise(done => setTimeout(done));
    most = Math.max(most, document.querySelectorAll('*').length);
    const window = $('scroll').getBoundingClientRect();
    const middle = document.elementFromPoint(window.left + 50, window.top + 300);
    empty += middle === null || !middle.closest('.lane');
  }
  times.sort((a, b) => a - b);
  return { median: times[15], most, empty, drawn: drawn.total / drawn.frames };
})()"""


def test_ten_thousand_probes_move_smoothly(browser: Page, ten_thousand: Path) -> None:
    browser.open(ten_thousand)
    for move in ("$('scroll').scrollTop += 1700", "zoom(0.9, view.from + 1e5)", "pan(0.1)"):
        found = browser.run(SCROLL.replace("MOVE", move))
        assert found["most"] < 1000, move
        assert found["empty"] == 0, move
        assert found["drawn"] < 20, move
        assert found["median"] < 70, move  # a frame is 17; other programs run too


def test_a_lane_of_ten_thousand_bars_is_drawn_as_runs(show: Callable[..., Page]) -> None:
    page = show([call(n, n * 10, n * 10 + 9) for n in range(10_000)])
    assert page.run("document.querySelectorAll('*').length") < 1500
    [[first, *_]] = lanes(page).values()
    assert first == "call, 1 key, 9 µs, from 0 ns"
    runs = page.run("[...document.querySelectorAll('.lane .many')].map(one => one.run.bars.length)")
    assert sum(runs) == 9_999
    assert len(runs) > 20
    for _ in range(2):
        page.run("document.querySelectorAll('.lane .many')[10].click()")
        page.settle()
    assert page.run("document.querySelectorAll('.lane .many').length") == 0
    assert len(next(iter(lanes(page).values()))) < 100


def test_the_focus_stays_while_lanes_scroll_away(browser: Page, ten_thousand: Path) -> None:
    browser.open(ten_thousand)
    to_chart(browser)
    said = focused(browser)
    browser.run("$('scroll').scrollTop = 200000")
    browser.settle()
    assert focused(browser) == said
    browser.press("ArrowDown")
    assert browser.run("state.active.lane.name") == key(1)
    browser.wait("$('scroll').scrollTop < 100")


# The command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["timeline", *map(str, args)])


def test_the_page_has_the_name_of_the_file_and_is_here(folder: Path) -> None:
    (folder / "there").mkdir()
    (folder / "there" / "spans.jsonl.gz").write_text(export(SPANS))
    done = run("there/spans.jsonl.gz")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "spans.html: 4 probes, 4 keys, 22 spans; open it in a browser\n"
    page = (folder / "spans.html").read_text()
    assert "<title>there/spans.jsonl.gz: 4 probes, 4 keys, 22 spans</title>" in page


FOREIGN = Span("GET /", "ab" * 16, "ab" * 8, None, 1, 2, {"http.method": "GET"}, (), False, 1)


def test_spans_of_others_are_counted_on_the_page(folder: Path, browser: Page) -> None:
    (folder / "spans.jsonl").write_text(export([*SPANS, FOREIGN, FOREIGN]))
    assert json.loads(run("spans.jsonl", "--json").stdout)["spans"] == 22
    browser.open(folder / "spans.html")
    assert text(browser, "#counts").endswith(", beside 2 that are not drawn")


def test_only_spans_of_others_are_bad_input(folder: Path) -> None:
    (folder / "spans.jsonl").write_text(export([FOREIGN]))
    done = run("spans.jsonl")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "spans.jsonl: has no kvtier spans" in done.stderr
    assert not (folder / "spans.html").exists()


def test_json_says_what_is_on_the_page(folder: Path) -> None:
    for name, part in (("a.jsonl", SPANS[:8]), ("b.jsonl", SPANS[8:])):
        (folder / name).write_text(export(part))
    done = run("a.jsonl", "b.jsonl", "-o", "out.html", "--json")
    assert json.loads(done.stdout) == {
        "schema": "kvtier.timeline/1",
        "out": "out.html",
        "lanes": 8,
        "keys": 4,
        "probes": 4,
        "spans": 22,
    }
    assert "<title>a.jsonl and 1 more: 4 probes" in (folder / "out.html").read_text()


@pytest.mark.parametrize("name", ["spans.html", "./spans.html", "hard.html", "soft.html"])
def test_a_page_is_never_written_over_what_is_read(folder: Path, name: str) -> None:
    path = folder / "spans.html"
    path.write_text(export(SPANS))
    (folder / "hard.html").hardlink_to(path)
    (folder / "soft.html").symlink_to(path)
    done = run("spans.html", "-o", name)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is one of the files to be read" in done.stderr
    assert path.read_text() == export(SPANS)


def test_standard_output_is_not_for_a_page(folder: Path) -> None:
    (folder / "spans.jsonl").write_text(export(SPANS))
    done = run("spans.jsonl", "-o", "-")
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.fullmatch("kvtier: -o -: .*; expected the name of a file\n", done.stderr)
    assert [path.name for path in folder.iterdir()] == ["spans.jsonl"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "spans.jsonl: is empty"),
        ("not JSON\nat all\n", "spans.jsonl"),
        ("\0\1\2", "spans.jsonl"),
    ],
)
def test_bad_input_is_one_line_and_no_page(folder: Path, content: str, said: str) -> None:
    (folder / "spans.jsonl").write_text(content)
    done = run("spans.jsonl")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["spans.jsonl"]
    assert run("missing.jsonl").exit_code == 2


def test_a_counterexample_of_tlc_is_drawn(folder: Path, browser: Page) -> None:
    need_tlc()
    how = "check --bug no_mark_miss --timeline bug.html"
    checked = CliRunner().invoke(main, how)
    assert checked.exit_code == 0, checked.output
    browser.open(folder / "bug.html")
    assert browser.complaints() == []
    assert text(browser, "h1") == "no_mark_miss breaks GuaranteeInv"
    assert text(browser, "#counts") == "8 steps"
    assert lanes(browser)["k1"] == [
        "pending, 1 step, from step 1",
        "in flight, 4 steps, from step 2, ended by hit",
        "hit, 3 steps, from step 6, end not told",
    ]
    done = lanes(browser)["what is done"]
    assert (done[0], done[7]) == (
        "Initial, 1 step, from step 0",
        "MarkMiss(k1), 1 step, from step 7",
    )
    refused = CliRunner().invoke(main, "check --timeline bug.html")
    assert (refused.exit_code, "single model" in refused.stderr) == (2, True)


@pytest.mark.parametrize("out", ["no/such/folder.html", "/proc/out.html", "."])
def test_a_page_that_cannot_be_written_is_one_line(folder: Path, out: str) -> None:
    (folder / "spans.jsonl").write_text(export(SPANS))
    done = run("spans.jsonl", "-o", out)
    assert (done.exit_code, done.stdout) == (1, "")
    assert re.fullmatch(f"kvtier: {re.escape(out)}: cannot be written: .*\n", done.stderr)
    assert [path.name for path in folder.iterdir()] == ["spans.jsonl"]


def test_a_file_that_is_cut_off_is_drawn_as_far_as_it_goes(folder: Path) -> None:
    (folder / "spans.jsonl").write_text(export(SPANS[:4]) + export(SPANS[4:])[:500])
    done = run("spans.jsonl")
    assert done.exit_code == 0
    assert done.stdout.startswith("spans.html: 1 probe, 1 key, 4 spans")
    assert re.fullmatch(r"kvtier: spans\.jsonl: .*cut off.*\n", done.stderr)


def test_a_run_of_kvtier_is_drawn(folder: Path, browser: Page) -> None:
    how = "replay --limit 16 --concurrency 4 --slow-backend 2 --spans spans.jsonl"
    replayed = CliRunner().invoke(main, how)
    assert replayed.exit_code == 0, replayed.output
    told = json.loads(run("spans.jsonl", "--json").stdout)
    browser.open(folder / "spans.html")
    assert browser.complaints() == []
    assert browser.run("new Set(bars.map(bar => bar.probe).filter(Boolean)).size") == told["probes"]
    kinds = set(browser.run("bars.map(bar => bar.kind)"))
    assert {"pending", "in_flight", "batch", "pass"} <= kinds
    assert not {"resolved", "probe"} & kinds
    # Every question that was out was sent by the call that asked for as many keys.
    asked = "bar.kind === 'batch' && attribute(bar, 'kvtier.lookup_batch.keys') - bar.to.length"
    assert browser.run(f"bars.filter(bar => {asked}).length") == 0
    assert browser.run("bars.filter(b => b.kind === 'in_flight' && b.from.length !== 1)") == []
