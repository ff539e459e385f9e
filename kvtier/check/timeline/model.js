"use strict";
// What is known: lanes, bars and words for them. Nothing here touches the page.

const data = JSON.parse(document.getElementById("data").textContent);
const OPEN = 1, TRUNCATED = 2;
const WORDS = {
  pending: "pending", in_flight: "in flight", hit: "hit", miss: "miss", error: "lookup failed",
  forced_hit: "hit, forced", forced_miss: "miss, forced", resolved: "resolved", probe: "probe",
  batch: "call", promotion: "promotion", cascade: "cascade", pass: "admitted", step: "step",
};
const SIGNS = {
  hit: "✓ ", miss: "✗ ", error: "! ", forced_hit: "⚑ ✓ ", forced_miss: "⚑ ✗ ", batch_failed: "! ",
  promotion_failed: "! ", cascade_failed: "! ",
};
const MEANINGS = [
  ["pending", "pending", "asked for, not yet sent"],
  ["in_flight", "in flight", "with the back end"],
  ["hit", "✓ hit", "the tier has the block"],
  ["miss", "✗ miss", "it does not"],
  ["error", "! failed", "the question failed"],
  ["forced_hit", "⚑ ✓ hit", "a store completed"],
  ["forced_miss", "⚑ ✗ miss", "a load failed"],
  ["pending open", "open", "end not told: rounded, dotted edge"],
  ["pending truncated", "truncated", "beginning not told"],
  ["batch", "call", "of the back end"],
  ["batch failed", "! call", "one that failed; so are jobs"],
  ["promotion", "promotion", "blocks loaded"],
  ["cascade", "cascade", "blocks stored"],
  ["many", "", "bars too short to tell apart: zoom in"],
];

/* A span is [start, length, flags, trace, id, line, shape, values]; times are nanoseconds
   after the first span began. A shape is a list of attribute names. What all spans of a
   lane say alike is told once, as the lane's own [shape, values]. */
function spanOf(told, shared) {
  const [start, length, flags, trace, id, line, shape, values] = told;
  const said = [shared, [shape, values]];
  return { start, length, end: start + Math.max(length, 0), flags, trace, id, line, said };
}

function attributes(span) {
  return span.said.flatMap(([shape, values]) => data.shapes[shape].map((name, n) => [name, values[n]]));
}

function attribute(span, name) {
  for (const [shape, values] of span.said) {
    const n = data.shapes[shape].indexOf(name);
    if (n >= 0) return values[n];
  }
  return undefined;
}

const probes = [];
const bars = [];
/* Rows of the chart: what is done, then the keys, in groups, and before each group its name. */
const done = [], keyed = [];
for (const [group, name, isKey, part, shared, told] of data.lanes) {
  const last = keyed[keyed.length - 1];
  if (group && (!last || last.group !== group)) {
    keyed.push({ group, name: group, isGroup: true, isKey: false, bars: [] });
  }
  const lane = { group, name, isKey: !!isKey, part, bars: [] };
  for (const [kind, ...rest] of told) {
    const [probe, ticks, arrows] = rest.slice(8);
    if (probe >= 0) probes[probe] ??= spanOf(data.probes[probe], shared);
    lane.bars.push({
      number: bars.length, kind, lane, ...spanOf(rest, shared), probe: probes[probe], ticks, to: arrows, from: [],
    });
    bars.push(lane.bars[lane.bars.length - 1]);
  }
  (group ? keyed : done).push(lane);
}
const lanes = [...done, ...keyed];
lanes.forEach((lane, n) => { lane.number = n; });
for (const bar of bars) {
  bar.to = bar.to.map((number) => bars[number]);
  bar.to.forEach((target) => target.from.push(bar));
}

// Words

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

function unitOf(ns) {
  return UNITS.find(([size]) => Math.abs(ns) >= size) || UNITS[3];
}

function lasting(ns) {
  if (data.steps) return ns === 1 ? "1 step" : `${ns} steps`;
  if (ns < 0) return `ends ${lasting(-ns)} before it begins`;
  const [size, unit] = unitOf(ns);
  return `${Number((ns / size).toPrecision(4))} ${unit}`;
}

function moment(ns) {
  if (data.steps) return `step ${ns}`;
  const [size, unit] = unitOf(ns);
  return `${Number((ns / size).toFixed(size === 1e9 ? 6 : 3))} ${unit}`;
}

function shortName(lane) {
  if (lane.isKey && lane.name.length > 20) {
    const [key, ...scope] = lane.name.split(" in ");
    const short = key.length > 20 ? `${key.slice(0, 16)}…` : key;
    return scope.length ? `${short} in ${scope.join(" in ")}` : short;
  }
  return lane.part ? `${lane.name}, row ${lane.part + 1}` : lane.name;
}

function word(bar) {
  const kind = bar.kind.replace("_failed", "");
  if (bar.kind === "step") return String(attribute(bar, "label"));
  if (bar.kind === "pass_failed") {
    const behind = attribute(bar, "kvtier.lookup.behind");
    return behind === undefined ? "deferred" : `deferred behind ${behind}`;
  }
  const failed = kind === bar.kind ? "" : " failed";
  const amount = { batch: "kvtier.lookup_batch.keys", promotion: "kvtier.job.blocks", cascade: "kvtier.job.blocks" }[kind];
  const count = amount && attribute(bar, amount);
  const said = WORDS[kind] + failed;
  const unit = kind === "batch" ? "key" : "block";
  return count === undefined ? said : `${said}, ${count} ${unit}${count === 1 ? "" : "s"}`;
}

function label(bar) {
  return (SIGNS[bar.kind] || "") + word(bar);
}

function classes(bar) {
  const kind = bar.kind.replace("_failed", bar.kind === "pass_failed" ? " deferred" : " failed");
  return `bar ${kind}${bar.flags & OPEN ? " open" : ""}${bar.flags & TRUNCATED ? " truncated" : ""}`;
}

function endedBy(bar) {
  if (bar.flags & OPEN) return "end not told";
  const outcome = attribute(bar, "kvtier.probe.outcome") ?? attribute(bar, "kvtier.job.outcome");
  return outcome === undefined ? "" : String(outcome).replaceAll("_", " ");
}

function requests(bar) {
  const asker = attribute(bar, "kvtier.request.id") ?? (bar.probe && attribute(bar.probe, "kvtier.request.id"));
  const found = asker === undefined ? [] : [String(asker)];
  return [...new Set([...found, ...bar.ticks.map((tick) => tick[1])])];
}

/* The bar in one sentence. */
function sentence(bar) {
  const parts = [word(bar), lasting(bar.length), `from ${moment(bar.start)}`];
  if (bar.flags & TRUNCATED) parts.push("beginning not told");
  const ended = endedBy(bar);
  if (ended) parts.push(bar.flags & OPEN ? ended : `ended by ${ended}`);
  if (bar.ticks.length) parts.push(`${bar.ticks.length} joined`);
  return parts.join(", ");
}

// Search

/* Bars of the request with exactly this id; if there is none, of requests whose id, or
   of keys whose name, begins with it. */
function matching(query) {
  const wanted = query.trim().toLowerCase();
  if (!wanted) return [];
  const exact = bars.filter((bar) => requests(bar).some((id) => id.toLowerCase() === wanted));
  if (exact.length) return exact;
  return bars.filter(
    (bar) => (bar.lane.isKey && bar.lane.name.toLowerCase().startsWith(wanted))
      || requests(bar).some((id) => id.toLowerCase().startsWith(wanted)),
  );
}
