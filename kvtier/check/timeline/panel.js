
// Words beside the chart: details of a bar, what is pointed at, the table, the legend.

const PAGE = 100;
const paging = { first: 0 };

function listed(pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) {
    const text = typeof value === "object" ? JSON.stringify(value) : String(value);
    list.append(make("dt", "", name), make("dd", "", text));
  }
  return list;
}

function details(bar, isQuiet) {
  const panel = $("panel");
  panel.setAttribute("aria-live", isQuiet ? "off" : "polite");
  const parts = [make("h2", "", label(bar)), make("p", "", `${sentence(bar)}.`)];
  const where = [[bar.lane.isKey ? "key" : "lane", bar.lane.name]];
  if (bar.lane.group) where.push(["of", bar.lane.group]);
  parts.push(listed(where));
  if (bar.ticks.length) {
    parts.push(make("h3", "", "Joined"));
    const list = make("ul");
    for (const [time, request] of bar.ticks.slice(0, 100)) {
      list.append(make("li", "", `${request} at ${time === null ? "a time not told" : moment(time)}`));
    }
    if (bar.ticks.length > 100) list.append(make("li", "", `and ${bar.ticks.length - 100} more`));
    parts.push(list);
  }
  const linked = [...bar.from, ...bar.to];
  if (linked.length) {
    parts.push(make("h3", "", "Linked"));
    const list = make("ul");
    for (const other of linked.slice(0, 30)) {
      const item = make("li"), button = make("button", "", `${shortName(other.lane)}: ${word(other)}`);
      button.type = "button";
      button.addEventListener("click", () => activate(other, true));
      item.append(button);
      list.append(item);
    }
    if (linked.length > 30) list.append(make("li", "", `and ${linked.length - 30} more`));
    parts.push(list);
  }
  parts.push(make("h3", "", "Span"), listed([...attributes(bar), ...identity(bar)]));
  if (bar.probe) {
    parts.push(make("h3", "", "Its probe"), listed([...attributes(bar.probe), ...identity(bar.probe)]));
  }
  panel.replaceChildren(...parts);
}

function identity(span) {
  if (data.steps) return [];
  const found = [["trace", data.traces[span.trace]], ["span", span.id]];
  return span.line ? [...found, ["line of the file", span.line]] : found;
}

/* What is pointed at, beside it. */
function tip(lines, box) {
  const element = $("tip");
  element.replaceChildren(...lines.map((line) => make("p", "", line)));
  element.hidden = false;
  const { width, height } = element.getBoundingClientRect();
  const left = Math.min(Math.max(box.left, 4), innerWidth - width - 4);
  const below = box.bottom + 8;
  element.style.left = `${Math.max(left, 4)}px`;
  element.style.top = `${below + height > innerHeight ? Math.max(box.top - height - 8, 4) : below}px`;
}

function untip() {
  $("tip").hidden = true;
}

function tipOf(bar) {
  const own = attributes(bar).filter(([name]) => !/\.(manager\.id|tier|key|scope)$/.test(name));
  const said = own.slice(0, 10).map(([name, value]) => `${name.replace("kvtier.", "")}: ${value}`);
  return [`${shortName(bar.lane)}: ${label(bar)}`, sentence(bar), ...said];
}

function fillTable() {
  const all = state.query ? state.matches : bars;
  paging.first = Math.min(paging.first, Math.max(Math.ceil(all.length / PAGE) - 1, 0) * PAGE);
  const part = all.slice(paging.first, paging.first + PAGE);
  $("rows").replaceChildren(...part.map((bar) => {
    const row = make("tr"), name = make("th", "", bar.lane.name);
    name.scope = "row";
    const cells = [word(bar), moment(bar.start), lasting(bar.length), endedBy(bar), requests(bar).join(", ")];
    row.append(name, ...cells.map((text) => make("td", "", text)));
    return row;
  }));
  const what = state.query ? "matching rows" : "rows";
  $("page-said").textContent = all.length
    ? `${what} ${paging.first + 1} to ${paging.first + part.length} of ${all.length}` : `no ${what}`;
  $("page-back").disabled = paging.first === 0;
  $("page-on").disabled = paging.first + PAGE >= all.length;
}

function legend() {
  const looks = new Set(bars.flatMap((bar) => classes(bar).split(" ")));
  const met = MEANINGS.filter(([sample]) => sample === "many" || looks.has(sample.split(" ").at(-1)));
  const items = met.map(([kind, text, meaning]) => {
    const item = make("li"), sample = make("div", `bar ${kind}`);
    sample.append(make("span", "", text));
    item.append(sample, make("span", "", meaning));
    return item;
  });
  const waiter = make("li");
  waiter.append(make("span", "", "▾ above a bar: a request joined and waits for it"));
  $("legend").replaceChildren(...items, waiter);
}
