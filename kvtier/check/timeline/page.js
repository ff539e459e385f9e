
// What the reader does.

function activate(bar, isFocused) {
  const before = state.active;
  state.active = bar;
  state.isChosen = true;
  state.pointed = null;
  reveal(bar);
  if (before && before.lane !== bar.lane) plan(true);
  draw();
  details(bar, false);
  const element = elementOf(bar);
  if (isFocused && element) {
    element.focus({ preventScroll: true });
    tip(tipOf(bar).slice(0, 2), element.getBoundingClientRect());
  }
}

function elementOf(bar) {
  const row = shown.get(bar.lane);
  return row && row.bars.get(bar.number);
}

function step(by) {
  const list = state.active.lane.bars;
  const next = list[list.indexOf(state.active) + by];
  if (next) activate(next, true);
}

/* The lane so many lanes on, and in it the bar that is nearest in time. */
function climb(by) {
  const filled = lanes.filter((lane) => lane.bars.length);
  const at = filled.indexOf(state.active.lane);
  const lane = filled[Math.min(Math.max(at + by, 0), filled.length - 1)];
  if (lane === state.active.lane) return;
  const middle = (state.active.start + state.active.end) / 2;
  const away = (bar) => Math.max(bar.start - middle, middle - bar.end, 0);
  activate(lane.bars.reduce((best, bar) => (away(bar) < away(best) ? bar : best)), true);
}

function frame(bar) {
  const room = Math.max(bar.end - bar.start, whole / 1e4, 10);
  look(bar.start - room, bar.end + room);
}

function search(query) {
  state.query = query.trim().toLowerCase();
  state.matches = matching(query);
  state.matchSet = new Set(state.matches);
  state.foundLanes = new Set(state.matches.map((bar) => bar.lane));
  $("chart").classList.toggle("searching", state.query !== "");
  const count = state.matches.length;
  $("found").textContent = state.query === "" ? "" : count === 1 ? "1 match" : `${count || "no"} matches`;
  $("previous").disabled = $("next").disabled = count === 0;
  paging.first = 0;
  if (!$("table").hidden) fillTable();
  plan(true);
}

function jump(by, isFocused) {
  const count = state.matches.length;
  if (!count) return;
  const at = state.matches.indexOf(state.active);
  const next = at < 0 ? (by > 0 ? 0 : count - 1) : (at + by + count) % count;
  const bar = state.matches[next];
  if (pixels(bar.end) - pixels(bar.start) < TINY) frame(bar);
  activate(bar, isFocused);
  $("found").textContent = `${next + 1} of ${count}`;
}

function onKey(event) {
  const around = state.active ? (state.active.start + state.active.end) / 2 : undefined;
  const isSeen = around !== undefined && around >= view.from && around <= view.to;
  const doing = {
    ArrowLeft: () => (event.shiftKey ? pan(-0.25) : step(-1)),
    ArrowRight: () => (event.shiftKey ? pan(0.25) : step(1)),
    ArrowUp: () => climb(-1),
    ArrowDown: () => climb(1),
    PageUp: () => climb(-10),
    PageDown: () => climb(10),
    Home: () => (event.ctrlKey ? climb(-Infinity) : lookAtAll()),
    End: () => (event.ctrlKey ? climb(Infinity) : activate(state.active.lane.bars.at(-1), true)),
    "+": () => zoom(0.5, isSeen ? around : undefined),
    "=": () => zoom(0.5, isSeen ? around : undefined),
    "-": () => zoom(2, isSeen ? around : undefined),
    Enter: () => frame(state.active),
    " ": () => frame(state.active),
    n: () => jump(1, true),
    p: () => jump(-1, true),
    "/": () => $("query").focus(),
    Escape: () => untip(),
  }[event.key];
  if (!doing || !state.active || event.altKey || event.metaKey) return;
  if (event.ctrlKey && !["Home", "End"].includes(event.key)) return;
  event.preventDefault();
  doing();
}

function onWheel(event) {
  const x = event.clientX - $("scale").getBoundingClientRect().left;
  const isScale = event.target.closest(".ruler");
  if (event.ctrlKey || isScale) zoom(1.0015 ** (event.deltaY || event.deltaX), timeAt(x));
  else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    pan((event.deltaX || event.deltaY) / view.width);
  } else return;
  event.preventDefault();
}

function point(bar) {
  if (state.pointed === bar) return;
  state.pointed = bar;
  const shownBar = current();
  if (shownBar) details(shownBar, true);
  document.querySelectorAll(".bar.current").forEach((element) => element.classList.remove("current"));
  const element = shownBar && elementOf(shownBar);
  if (element) element.classList.add("current");
  drawArrows();
}

function onPoint(event) {
  const element = event.target.closest(".bar, .tick");
  if (element && element.tick) {
    const { time, request, bar } = element.tick;
    point(bar);
    tip([`${request} joined`, `at ${moment(time)}, while ${word(bar)}`], element.getBoundingClientRect());
  } else if (element && element.bar) {
    point(element.bar);
    const box = element.getBoundingClientRect();
    tip(tipOf(element.bar), { left: event.clientX, top: box.top, bottom: box.bottom });
  } else if (element && element.run) {
    tip([`${element.run.bars.length} short bars`, "click to zoom in"], element.getBoundingClientRect());
  } else {
    point(null);
    untip();
  }
}

function onClick(event) {
  const element = event.target.closest(".bar, .tick");
  if (!element || drag.isMoved) return;
  if (element.run) {
    const { bars: run } = element.run;
    frame({ start: run[0].start, end: run.at(-1).end });
  } else activate(element.bar || element.tick.bar, true);
}

const drag = { x: null, isMoved: false };

function onDrag(event) {
  if (event.type === "pointerdown" && event.button === 0 && event.target.closest(".track, #scale")) {
    Object.assign(drag, { x: event.clientX, isMoved: false });
  } else if (event.type === "pointermove" && drag.x !== null) {
    const by = event.clientX - drag.x;
    if (!drag.isMoved && Math.abs(by) < 4) return;
    drag.isMoved = true;
    $("chart").classList.add("moving");
    drag.x = event.clientX;
    pan(-by / view.width);
  } else if (event.type === "pointerup" || event.type === "pointercancel") {
    drag.x = null;
    $("chart").classList.remove("moving");
  }
}

function toTable(isTable) {
  $("chart").hidden = isTable;
  $("table").hidden = !isTable;
  $("as-table").setAttribute("aria-pressed", String(isTable));
  if (isTable) fillTable();
  else measure();
}

function turn(by) {
  paging.first = Math.max(paging.first + by * PAGE, 0);
  fillTable();
}

function clicks(id, doing) {
  $(id).addEventListener("click", doing);
}

$("title").textContent = data.title;
$("counts").textContent = [
  data.counts, data.steps ? "" : `over ${lasting(data.length)}`, data.began && `from ${data.began}`,
  data.repeats ? `${data.repeats} repeated` : "", data.others ? `beside ${data.others} that are not drawn` : "",
].filter(Boolean).join(", ");
clicks("zoom-in", () => zoom(0.5));
clicks("zoom-out", () => zoom(2));
clicks("pan-left", () => pan(-0.5));
clicks("pan-right", () => pan(0.5));
clicks("all", lookAtAll);
clicks("as-table", () => toTable($("table").hidden));
clicks("page-back", () => turn(-1));
clicks("page-on", () => turn(1));
clicks("previous", () => jump(-1, false));
$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  jump(1, false);
});
$("query").addEventListener("input", () => search($("query").value));
$("query").addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    $("query").value = "";
    search("");
  } else if (event.key === "Enter" && event.shiftKey) {
    event.preventDefault();
    jump(-1, false);
  }
});
$("chart").addEventListener("keydown", onKey);
$("chart").addEventListener("wheel", onWheel, { passive: false });
$("chart").addEventListener("pointerover", onPoint);
$("chart").addEventListener("pointerleave", () => {
  point(null);
  untip();
});
$("chart").addEventListener("click", onClick);
for (const type of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
  addEventListener(type, onDrag);
}
$("chart").addEventListener("focusin", (event) => {
  if (event.target.bar && event.target.bar !== state.active) activate(event.target.bar, false);
});
$("chart").addEventListener("focusout", untip);
for (const id of ["above", "scroll"]) {
  $(id).addEventListener("scroll", () => {
    if (state.pointed) untip();
    plan(false);
  });
}
addEventListener("keydown", (event) => {
  if (event.key === "Escape") untip();
});
$("previous").disabled = $("next").disabled = true;
$("nothing").hidden = bars.length > 0;
$("chart").hidden = bars.length === 0;
$("chart").setAttribute("aria-rowcount", lanes.length);
state.active = (keyed.find((lane) => lane.bars.length) || lanes[0] || { bars: [] }).bars[0] || null;
legend();
look(-whole * 0.02, whole * 1.02);
new ResizeObserver(measure).observe($("chart"));
