
// The chart: which part of the history is seen, and the few rows of it that exist.

const $ = (id) => document.getElementById(id);
const LANE = 34, MARGIN = 6, TINY = 4, LONGEST_RUN = 24, MOST_BARS = 2500, MOST_ARROWS = 200;
const whole = Math.max(data.length, 1);
const view = { from: 0, to: whole, width: 0, height: 0, room: 0 };
const shown = new Map();
const state = { active: null, pointed: null, isChosen: false, matches: [], matchSet: new Set(), foundLanes: new Set(), query: "" };
const drawn = { frames: 0, slowest: 0, total: 0 };
let isPlanned = false, isStale = true;

function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

/* The bar that the reader is at. */
function current() {
  return state.pointed || (state.isChosen ? state.active : null);
}

function pixels(time) {
  return ((time - view.from) / (view.to - view.from)) * view.width;
}

function timeAt(x) {
  return view.from + (x / view.width) * (view.to - view.from);
}

/* Draw at the next frame; `stale`: bars have moved or changed their looks. */
function plan(stale) {
  isStale = isStale || stale;
  if (isPlanned) return;
  isPlanned = true;
  requestAnimationFrame(() => {
    isPlanned = false;
    const before = performance.now();
    draw();
    const took = performance.now() - before;
    drawn.frames += 1;
    drawn.total += took;
    drawn.slowest = Math.max(drawn.slowest, took);
  });
}

function draw() {
  const above = inWindow(done, $("above").scrollTop, view.room);
  const below = inWindow(keyed, $("scroll").scrollTop, view.height - view.room);
  const seen = new Set([...above, ...below]);
  if (state.active) seen.add(state.active.lane);
  for (const [lane, row] of shown) {
    if (!seen.has(lane)) {
      row.element.remove();
      shown.delete(lane);
    }
  }
  const gap = isStale ? legible(seen) : view.gap;
  const isRegrouped = gap !== view.gap;
  view.gap = gap;
  for (const lane of seen) {
    const isNew = !shown.has(lane);
    if (isNew) shown.set(lane, makeRow(lane));
    if (isNew || isStale || isRegrouped) fill(lane, shown.get(lane));
  }
  if (isStale) drawScale();
  isStale = false;
  drawArrows();
}

/* Of lanes that scroll together, those in the window and a few on both sides. */
function inWindow(some, top, height) {
  const first = Math.floor(top / LANE) - MARGIN;
  const count = Math.ceil(height / LANE) + 2 * MARGIN;
  return some.slice(Math.max(first, 0), Math.max(first + count, 0));
}

/* How near, in pixels, short bars are drawn as one: more, if there are too many to draw. */
function legible(seen) {
  let gap = 1;
  const total = () => [...seen].reduce((sum, lane) => sum + grouped(lane, gap).length, 0);
  while (gap < 64 && total() > MOST_BARS) gap *= 2;
  return gap;
}

/* What is done is above, the keys are below; each part scrolls by itself. */
function isAbove(lane) {
  return lane.number < done.length;
}

/* Inside its part of the chart. */
function topOf(lane) {
  return (isAbove(lane) ? lane.number : lane.number - done.length) * LANE;
}

function makeRow(lane) {
  const element = make("div", lane.isGroup ? "lane group" : lane.isKey ? "lane key" : "lane");
  element.setAttribute("role", "row");
  element.setAttribute("aria-rowindex", lane.number + 1);
  element.style.top = `${topOf(lane)}px`;
  const name = make("div", "name", shortName(lane));
  name.setAttribute("role", "rowheader");
  name.title = lane.name;
  element.append(name);
  const row = { element, track: make("div", "track"), bars: new Map(), ticks: make("div", "ticks") };
  row.track.setAttribute("role", "presentation");
  row.ticks.setAttribute("aria-hidden", "true");
  row.track.append(row.ticks);
  if (!lane.isGroup) element.append(row.track);
  const home = isAbove(lane) ? $("pinned") : $("lanes");
  home.insertBefore(element, [...home.children].find((other) => other.lane.number > lane.number) || null);
  element.lane = lane;
  return row;
}

/* The first bar of the row that ends after the left edge; ends are in order, as starts are. */
function firstSeen(lane) {
  let low = 0, high = lane.bars.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.bars[middle].end < view.from) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* What is drawn of a lane: bars, and runs of bars too short to tell apart. */
function grouped(lane, gap) {
  const found = [];
  let run = null;
  const close = () => {
    if (run) found.push(run.bars.length === 1 ? run.bars[0] : run);
    run = null;
  };
  for (let n = firstSeen(lane); n < lane.bars.length; n += 1) {
    const bar = lane.bars[n];
    if (bar.start > view.to) break;
    const left = pixels(bar.start), right = pixels(bar.end);
    const isShort = right - left < TINY * gap && bar !== state.active;
    const isFull = run && right - run.left > LONGEST_RUN * gap;
    if (run && (!isShort || isFull || left - run.right > gap)) close();
    if (!isShort) found.push(bar);
    else if (run) {
      run.bars.push(bar);
      run.right = right;
    } else run = { bars: [bar], left, right };
  }
  close();
  const active = state.active;
  if (active && active.lane === lane && !found.includes(active)) found.push(active);
  return found;
}

function fill(lane, row) {
  row.element.classList.toggle("found", state.foundLanes.has(lane));
  const kept = new Map();
  for (const one of lane.isGroup ? [] : grouped(lane, view.gap)) {
    const key = one.bars ? one.bars[0].number + 0.5 : one.number;
    const element = row.bars.get(key) || make("div");
    kept.set(key, element);
    (one.bars ? showRun : showBar)(element, one);
    if (!element.parentNode) row.track.append(element);
  }
  for (const [key, element] of row.bars) {
    if (!kept.has(key)) element.remove();
  }
  row.bars = kept;
  showTicks(lane, row);
}

function place(element, left, right) {
  const from = Math.max(left, -20), to = Math.min(right, view.width + 20);
  element.style.left = `${from}px`;
  element.style.width = `${Math.max(to - from, 3)}px`;
  return to - from;
}

function showBar(element, bar) {
  element.bar = bar;
  element.run = null;
  const looks = [classes(bar)];
  if (state.matchSet.has(bar)) looks.push("match");
  if (bar === current()) looks.push("current");
  element.className = looks.join(" ");
  const width = place(element, pixels(bar.start), pixels(bar.end));
  const text = width > 16 ? label(bar) : "";
  if (element.textContent !== text) element.replaceChildren(...(text ? [make("span", "", text)] : []));
  element.setAttribute("role", "gridcell");
  element.setAttribute("aria-label", sentence(bar));
  element.tabIndex = bar === state.active ? 0 : -1;
}

function showRun(element, run) {
  element.bar = null;
  element.run = run;
  element.className = run.bars.some((bar) => state.matchSet.has(bar)) ? "bar many match" : "bar many";
  place(element, run.left, run.right);
  element.setAttribute("role", "gridcell");
  element.setAttribute("aria-label", `${run.bars.length} short bars from ${moment(run.bars[0].start)}`);
  element.tabIndex = -1;
}

function showTicks(lane, row) {
  const ticks = [];
  let last = -Infinity;
  for (let n = firstSeen(lane); n < lane.bars.length && lane.bars[n].start <= view.to; n += 1) {
    for (const [time, request] of lane.bars[n].ticks) {
      const x = time === null ? NaN : pixels(time);
      const isMatch = state.query !== "" && request.toLowerCase().startsWith(state.query);
      if (!(x >= 0 && x <= view.width) || (Math.abs(x - last) < 3 && !isMatch)) continue;
      last = x;
      const tick = make("div", isMatch ? "tick match" : "tick");
      tick.style.left = `${x}px`;
      tick.tick = { time, request, bar: lane.bars[n] };
      ticks.push(tick);
    }
  }
  row.ticks.replaceChildren(...ticks);
}

function drawScale() {
  const [size, unit, step] = scaleStep();
  const marks = [];
  for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) {
    const value = Number((time / size).toFixed(9));
    const mark = make("span", "", data.steps ? `step ${value}` : `${value} ${unit}`);
    mark.style.left = `${pixels(time)}px`;
    marks.push(mark);
  }
  $("scale").replaceChildren(...marks);
}

function scaleStep() {
  const rough = ((view.to - view.from) / Math.max(view.width, 1)) * 110;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  if (data.steps) return [1, "", Math.max(1, Math.ceil(step))];
  const [size, unit] = unitOf(Math.max(view.to, 1));
  return [size, unit, Math.max(step, 0.1)];
}

/* How far down the middle of a bar is in the window; outside it, at the edge. */
function heightOf(bar) {
  const inside = topOf(bar.lane) + 20, room = view.room;
  if (isAbove(bar.lane)) return Math.min(Math.max(inside - $("above").scrollTop, 1), room - 1);
  return Math.min(Math.max(inside + room - $("scroll").scrollTop, room + 1), view.height - 1);
}

function drawArrows() {
  const bar = current();
  const pairs = bar ? [...bar.to.map((to) => [bar, to]), ...bar.from.map((from) => [from, bar])] : [];
  const paths = pairs.slice(0, MOST_ARROWS).map(([from, to]) => {
    const y1 = heightOf(from), y2 = heightOf(to);
    const middle = pixels(Math.min(Math.max((from.start + from.end) / 2, view.from), view.to));
    const x2 = pixels(Math.min(Math.max(Math.max(to.start, Math.min(from.start, to.end)), view.from), view.to));
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", `M${middle} ${y1} Q${middle} ${(y1 + y2) / 2} ${x2} ${y2}`);
    path.setAttribute("marker-end", "url(#head)");
    return path;
  });
  $("links").replaceChildren(...paths);
}

// Moving

function look(from, to) {
  const edge = whole * 0.02;
  const length = Math.min(Math.max(to - from, data.steps ? 2 : 100), whole + 2 * edge);
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - length / 2, -edge), whole + edge - length);
  view.to = view.from + length;
  plan(true);
}

function lookAtAll() {
  look(-whole * 0.02, whole * 1.02);
}

function zoom(factor, around) {
  const at = around === undefined ? (view.from + view.to) / 2 : around;
  look(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

function pan(part) {
  const by = (view.to - view.from) * part;
  look(view.from + by, view.to + by);
}

/* How much room there is, and what fits into it. */
function measure() {
  const ruler = document.querySelector(".ruler");
  view.height = Math.max($("chart").clientHeight - ruler.offsetHeight, 0);
  const most = Math.max(Math.floor(view.height / 3 / LANE), 1);
  view.room = keyed.length ? Math.min(done.length, most) * LANE : view.height;
  $("above").style.height = `${view.room}px`;
  const names = parseFloat(getComputedStyle(document.querySelector(".corner")).flexBasis) || 240;
  const left = document.querySelector(".corner").offsetWidth || names;
  view.width = Math.max($("scroll").clientWidth - left, 1);
  $("pinned").style.height = `${done.length * LANE}px`;
  $("lanes").style.height = `${keyed.length * LANE}px`;
  $("arrows").style.left = `${left}px`;
  $("arrows").setAttribute("width", view.width);
  $("arrows").setAttribute("height", view.height);
  isStale = true;
  draw(); // now: in the next frame would be too late for the one that shows the new size
}

/* Bring a bar into the window, with as little movement as that needs. */
function reveal(bar) {
  const box = isAbove(bar.lane) ? $("above") : $("scroll");
  const room = (isAbove(bar.lane) ? view.room : view.height - view.room) - LANE;
  const y = topOf(bar.lane);
  if (y < box.scrollTop) box.scrollTop = y;
  else if (y > box.scrollTop + room) box.scrollTop = y - room;
  const length = view.to - view.from;
  if (bar.end < view.from || bar.start > view.to) {
    const middle = (bar.start + bar.end) / 2;
    look(middle - length / 2, middle + length / 2);
  }
  plan(true);
}
