// The lookup machine in another language, written from spec/lifecycle.md and
// spec/transitions.json alone. That it passes spec/vectors/calls shows that these
// suffice. The numbers in comments are those of the paragraphs of lifecycle.md.
//
// The worker moves by hand and the clock is a number, so that a test can decide what
// happens when; a port that is used would put a thread and a clock in their places.

const byName = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

class Entry {
  phase = "ABSENT";
  verdict = null;
  since = null;
  error = false;
  stored = false;
  waiters = new Set();
  excused = new Set();
  generation = 0;
  born = null;
}

export class Lookups {
  // `transitions` is spec/transitions.json, `settings` the arguments of `new` (L101).
  constructor(transitions, settings) {
    this.cells = new Map(transitions.cells.map((c) => [`${c.phase} ${c.trigger}`, c.rows]));
    this.settings = settings;
    this.now = 0;
    this.entries = new Map(); // L6; one scope, so the key is enough
    this.held = new Map(); // L7: request -> Set of keys
    this.counter = 0; // L10
    this.drainDue = false;
    this.batches = []; // sent, and perhaps not answered: lists of [key, generation]
    this.queue = [];
    this.results = [];
    this.worker = { doing: "idle", taken: [] };
    this.shut = "open";
    this.rowsTaken = []; // for whoever wants to know what the vectors reach
  }

  // -- the table -------------------------------------------------------------------

  guard(name, entry, event) { // L16
    const { deadline, verdict_lifetime: lifetime } = this.settings;
    switch (name) {
      case null: return true;
      case "FAILED_AND_NEW": return entry.error && event.isNew;
      case "AGED":
        return lifetime !== null && entry.since !== null && this.now - entry.since > lifetime;
      case "EXCUSED": return entry.excused.has(event.request);
      case "OVERDUE": return deadline !== null && this.now - entry.born >= deadline;
      case "OTHER_GENERATION": return event.generation !== entry.generation;
      case "YES": return event.answer === true;
      case "STORED": return entry.stored;
      case "FAILED": return event.answer === null;
      case "OTHERS_WAIT": return entry.waiters.size > 1;
      case "CLAIMED": return entry.waiters.size > 0;
      default: throw new Error(`no guard ${name}`);
    }
  }

  // Takes the row that fits, and says what came of it (L13 to L15).
  fire(key, trigger, event = {}) {
    const entry = this.entries.get(key) ?? new Entry();
    const { phase } = entry;
    const rows = this.cells.get(`${phase} ${trigger}`);
    const row = rows.find((r) => this.guard(r.guard, entry, event));
    this.rowsTaken.push([phase, trigger, row.target, row.outcome].join(" "));
    if (row.outcome === "illegal") {
      if (trigger === "ANSWER") return row.outcome; // untrusted, not the caller's fault
      throw new Error(`${trigger} of ${key}: not possible while ${phase}`);
    }
    entry.phase = row.target;
    this.effect(key, entry, row.outcome, trigger, event);
    if (phase !== "ABSENT" && row.target === "ABSENT") this.remove(key, entry);
    return row.outcome;
  }

  effect(key, entry, outcome, trigger, event) {
    switch (outcome) {
      case "asked": // L20
        this.entries.set(key, entry);
        return this.ask(entry, new Set([event.request]), new Set());
      case "asked_again":
        return this.ask(entry, entry.waiters, this.excuses(entry, event.request));
      case "expired": return this.ask(entry, entry.waiters, new Set());
      case "hit": return this.resolve(entry, true, false); // L22
      case "miss": return this.resolve(entry, false, false);
      case "lookup_error": return this.resolve(entry, false, true);
      case "forced_hit": return this.resolve(entry, true, false); // L22, L23
      case "forced_miss": // L23
        this.resolve(entry, false, false);
        entry.since = null;
        return undefined;
      case "noted": entry.stored = true; return undefined;
      case "released": // L24
      case "abandoned":
        entry.waiters.delete(event.request);
        entry.excused.delete(event.request);
        return undefined;
      default: return undefined; // L21, L25
    }
  }

  ask(entry, waiters, excused) { // L12
    this.counter += 1;
    Object.assign(entry, {
      generation: this.counter, verdict: null, born: this.now, since: null,
      error: false, stored: false, waiters, excused,
    });
  }

  excuses(entry, request) {
    return new Set([...entry.waiters].filter((other) => other !== request));
  }

  resolve(entry, verdict, error) {
    Object.assign(entry, {
      verdict, error, since: this.now, stored: false, excused: new Set(),
    });
  }

  remove(key, entry) { // L15
    this.entries.delete(key);
    for (const request of entry.waiters) this.held.get(request)?.delete(key);
  }

  // -- calls -----------------------------------------------------------------------

  lookup({ key, request }) { // L30
    if (this.shut === "closed") return this.entries.get(key)?.verdict ?? false; // L46
    const entry = this.entries.get(key);
    const isNew = !entry?.waiters.has(request);
    entry?.waiters.add(request);
    if (!this.held.has(request)) this.held.set(request, new Set());
    this.held.get(request).add(key);
    if (this.drainDue) this.drain_results();
    const outcome = this.fire(key, "JOIN", { request, isNew });
    if (outcome === "excused" || outcome === "deadline") return false; // L31
    return this.entries.get(key).verdict;
  }

  drain_results() { // L33
    for (const reply of this.results.splice(0)) {
      for (const [key, generation, answer] of reply) {
        this.fire(key, "ANSWER", { generation, answer });
      }
    }
    this.drainDue = false; // L32
  }

  sweep() { // L35
    for (const [key, entry] of [...this.entries]) {
      if (entry.phase === "RESOLVED") this.fire(key, "SWEEP");
    }
  }

  flush() { // L34
    this.drain_results();
    this.sweep();
    this.batches = this.batches.filter((batch) => batch.some(([key, generation]) => {
      const entry = this.entries.get(key);
      return entry?.phase === "IN_FLIGHT" && entry.generation === generation;
    }));
    const batch = this.batch();
    if (batch.length > 0 && this.batches.length < this.settings.max_batches_out) {
      for (const key of batch) this.fire(key, "SEND");
      const question = batch.map((key) => [key, this.entries.get(key).generation]);
      this.batches.push(question);
      this.queue.push(question);
    }
    this.drainDue = this.shut === "open";
  }

  batch() { // L8
    return [...this.entries]
      .filter(([, entry]) => entry.phase === "PENDING")
      .sort(([, a], [, b]) => a.generation - b.generation)
      .map(([key]) => key);
  }

  mark_miss({ keys }) { for (const key of keys) this.fire(key, "MARK_MISS"); } // L36

  mark_hit({ keys }) { for (const key of keys) this.fire(key, "MARK_HIT"); } // L37

  cleanup({ request }) { // L38
    const keys = this.held.get(request) ?? [];
    this.held.delete(request);
    for (const key of keys) this.fire(key, "RELEASE", { request });
  }

  // -- shutdown (L44, L103) ------------------------------------------------------------

  shutdown_begins() { this.shut = "sentinel"; }

  shutdown_times_out() { this.shut = "flag"; }

  shutdown_ends() { // L45
    this.drain_results();
    this.sweep();
    for (const key of [...this.entries.keys()]) this.fire(key, "CLOSE");
    this.shut = "closed";
  }

  // -- the worker (L50, L102) ------------------------------------------------------------

  flagSet() { return this.shut === "flag" || this.shut === "closed"; }

  take() {
    const more = !this.flagSet() && this.queue.length > 0;
    this.worker = more
      ? { doing: "read", taken: this.queue.shift() }
      : { doing: "stopped", taken: [] };
  }

  call() { this.worker.doing = "call"; }

  hang() { this.worker.doing = "hung"; }

  answer({ answers }) { this.publish(answers); }

  fail({ after }) {
    this.publish((function* broken() {
      for (let n = 0; n < after; n += 1) yield true;
      throw new Error("unreachable");
    })());
  }

  // L51: one boolean for each key, or the whole question has failed.
  publish(returned) {
    const { taken } = this.worker;
    const answers = [];
    let ok = true;
    try {
      for (const answer of returned) {
        answers.push(answer);
        if (answers.length > taken.length) break;
      }
      ok = answers.length === taken.length && answers.every((a) => typeof a === "boolean");
    } catch {
      ok = false;
    }
    this.results.push(taken.map(([key, gen], n) => [key, gen, ok ? answers[n] : null]));
    this.worker = { doing: "idle", taken: [] };
  }

  // -- for the vectors -------------------------------------------------------------------

  advance({ seconds }) { this.now += seconds; } // L101

  stray({ answers }) { this.results.push(answers); } // L104

  state() { // L105
    const entries = {};
    for (const [key, e] of this.entries) {
      entries[key] = {
        generation: e.generation, phase: e.phase, verdict: e.verdict,
        waiters: [...e.waiters].sort(byName), born: e.born, since: e.since,
        error: e.error, stored: e.stored, excused: [...e.excused].sort(byName),
      };
    }
    const held = {};
    for (const [request, keys] of this.held) {
      if (keys.size > 0) held[request] = [...keys].sort(byName);
    }
    return {
      entries, held, batch: this.batch(), drain_due: this.drainDue, queue: this.queue,
      worker: this.worker.doing, taken: this.worker.taken, results: this.results,
      shutdown: this.shut,
    };
  }
}
