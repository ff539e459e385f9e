// Ports that each break one rule of spec/lifecycle.md. The vectors must notice every
// one of them: what they let pass, a real port may get wrong.

const withTable = (change) => (Base) => class extends Base {
  constructor(transitions, settings) {
    const table = structuredClone(transitions);
    change((phase, trigger) => table.cells.find((c) => c.phase === phase && c.trigger === trigger));
    super(table, settings);
  }
};

const withGuard = (name, holds) => (Base) => class extends Base {
  guard(asked, entry, event) {
    return asked === name ? holds(this, entry, event) : super.guard(asked, entry, event);
  }
};

const swapped = (phase, trigger, a, b) => withTable((cell) => {
  const { rows } = cell(phase, trigger);
  [rows[a], rows[b]] = [rows[b], rows[a]];
});

export const broken = {
  L10_generation_for_each_key: (Base) => class extends Base {
    ask(entry, waiters, excused) {
      this.counter = entry.generation;
      super.ask(entry, waiters, excused);
    }
  },
  L15_index_keeps_what_is_gone: (Base) => class extends Base {
    remove(key) { this.entries.delete(key); }
  },
  L16_new_is_whoever_does_not_wait_now: (Base) => class extends Base {
    guard(name, entry, event) {
      if (name !== "FAILED_AND_NEW") return super.guard(name, entry, event);
      return entry.error && !entry.waiters.has(event.request);
    }
  },
  L16_error_asked_again_for_anybody: withGuard("FAILED_AND_NEW", (port, entry) => entry.error),
  L16_error_kept_as_absent: withGuard("FAILED_AND_NEW", () => false),
  L16_no_generation_check: withGuard("OTHER_GENERATION", () => false),
  L16_deadline_strict: withGuard("OVERDUE", ({ now, settings: { deadline } }, entry) => (
    deadline !== null && now - entry.born > deadline)),
  L16_deadline_from_the_first_question: (Base) => class extends Base {
    ask(entry, waiters, excused) {
      const born = entry.born ?? this.now;
      super.ask(entry, waiters, excused);
      entry.born = born;
    }
  },
  L16_lifetime_inclusive: withGuard("AGED", ({ now, settings }, { since }) => (
    settings.verdict_lifetime !== null && since !== null
      && now - since >= settings.verdict_lifetime)),
  L16_lifetime_from_the_question: withGuard("AGED", ({ now, settings }, { since, born }) => (
    settings.verdict_lifetime !== null && since !== null
      && now - born > settings.verdict_lifetime)),
  L20_excused_dropped: (Base) => class extends Base {
    excuses() { return new Set(); }
  },
  L20_asker_excused_too: (Base) => class extends Base {
    excuses(entry) { return new Set(entry.waiters); }
  },
  L22_stored_forgotten: withGuard("STORED", () => false),
  L22_stored_outlives_the_answer: (Base) => class extends Base {
    resolve(entry, verdict, error) {
      const { stored } = entry;
      super.resolve(entry, verdict, error);
      entry.stored = stored;
    }
  },
  L22_excused_outlive_the_answer: (Base) => class extends Base {
    resolve(entry, verdict, error) {
      const { excused } = entry;
      super.resolve(entry, verdict, error);
      entry.excused = excused;
    }
  },
  L23_forced_miss_expires: (Base) => class extends Base {
    effect(key, entry, outcome, ...rest) {
      super.effect(key, entry, outcome, ...rest);
      if (outcome === "forced_miss") entry.since = this.now;
    }
  },
  L24_excused_after_letting_go: (Base) => class extends Base {
    effect(key, entry, outcome, trigger, event) {
      const was = entry.excused.has(event.request);
      super.effect(key, entry, outcome, trigger, event);
      if (trigger === "RELEASE" && was) entry.excused.add(event.request);
    }
  },
  L31_waits_past_the_deadline: withGuard("OVERDUE", () => false),
  L32_every_lookup_drains: (Base) => class extends Base {
    lookup(args) {
      this.drainDue = this.shut === "open";
      return super.lookup(args);
    }
  },
  L32_no_lookup_drains: (Base) => class extends Base {
    lookup(args) {
      this.drainDue = false;
      return super.lookup(args);
    }
  },
  L33_drain_deletes_orphans: (Base) => class extends Base {
    drain_results() {
      super.drain_results();
      this.sweep();
    }
  },
  L34_flush_does_not_drain: (Base) => class extends Base {
    flush() {
      const { results } = this;
      this.results = [];
      super.flush();
      this.results = results;
    }
  },
  L34_no_bound: (Base) => class extends Base {
    constructor(transitions, settings) {
      super(transitions, { ...settings, max_batches_out: Infinity });
    }
  },
  L34_batch_counted_until_the_worker_has_it: (Base) => class extends Base {
    flush() {
      this.batches = this.batches.filter((batch) => this.queue.includes(batch));
      super.flush();
    }
  },
  L35_nothing_swept: (Base) => class extends Base {
    sweep() {}
  },
  L36_forces_what_is_out: (Base) => class extends Base {
    mark_miss({ keys }) {
      super.mark_miss({ keys });
      for (const key of keys) {
        const entry = this.entries.get(key);
        if (entry?.phase === "IN_FLIGHT") {
          entry.phase = "RESOLVED";
          this.resolve(entry, false, false);
        }
      }
    }
  },
  L36_takes_the_store_back: (Base) => class extends Base {
    mark_miss({ keys }) {
      super.mark_miss({ keys });
      for (const key of keys) if (this.entries.has(key)) this.entries.get(key).stored = false;
    }
  },
  L37_store_not_noted: (Base) => class extends Base {
    effect(key, entry, outcome, ...rest) {
      if (outcome !== "noted") super.effect(key, entry, outcome, ...rest);
    }
  },
  L38_cleanup_deletes_what_is_out: withTable((cell) => {
    cell("IN_FLIGHT", "RELEASE").rows = cell("PENDING", "RELEASE").rows
      .map((row) => (row.target === "PENDING" ? { ...row, target: "IN_FLIGHT" } : row));
  }),
  L38_question_not_taken_back: withTable((cell) => {
    cell("PENDING", "RELEASE").rows[1].target = "PENDING";
  }),
  L45_shutdown_leaves_questions: withTable((cell) => {
    cell("PENDING", "CLOSE").rows[0].target = "PENDING";
  }),
  L45_shutdown_forgets_verdicts: withTable((cell) => {
    cell("RESOLVED", "CLOSE").rows = cell("IN_FLIGHT", "CLOSE").rows;
  }),
  L46_joins_when_closed: (Base) => class extends Base {
    lookup(args) {
      const told = super.lookup(args);
      if (this.shut === "closed") this.entries.get(args.key)?.waiters.add(args.request);
      return told;
    }
  },
  L50_flag_not_read: (Base) => class extends Base {
    flagSet() { return false; }
  },
  L51_short_answer_believed: (Base) => class extends Base {
    publish(returned) {
      const { taken } = this.worker;
      if (!Array.isArray(returned) || returned.length >= taken.length) super.publish(returned);
      else {
        super.publish(taken.map((_, n) => returned[n] ?? false));
      }
    }
  },
  L51_long_answer_believed: (Base) => class extends Base {
    publish(returned) {
      const { length } = this.worker.taken;
      super.publish(Array.isArray(returned) ? returned.slice(0, length) : returned);
    }
  },
  L51_anything_is_a_boolean: (Base) => class extends Base {
    publish(returned) { super.publish(Array.isArray(returned) ? returned.map(Boolean) : returned); }
  },
  L51_failure_is_absence: (Base) => class extends Base {
    publish(returned) {
      super.publish(returned);
      const reply = this.results.pop();
      this.results.push(reply.map(([key, generation, answer]) => [key, generation, answer ?? false]));
    }
  },
  L51_answers_read_before_it_raised: (Base) => class extends Base {
    publish(returned) {
      const read = [];
      try {
        for (const answer of returned) read.push(answer);
      } catch {
        return super.publish(read);
      }
      return super.publish(read);
    }
  },
  table_stored_after_failed: swapped("IN_FLIGHT", "ANSWER", 2, 3),
  table_aged_before_failed: swapped("RESOLVED", "JOIN", 0, 1),
};
