// Replays vectors through the port: node run.mjs SPEC [VARIANT]
//
// SPEC is the folder spec/. VARIANT names a port with one broken rule (broken.mjs).
// Prints one JSON object: the lines that passed, the first that did not and how, and
// the rows of the table that were taken. Exit code 1 if one did not pass.

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";

import { Lookups } from "./lookup.mjs";
import { broken } from "./broken.mjs";

const [spec, variant] = process.argv.slice(2);
const transitions = JSON.parse(readFileSync(join(spec, "transitions.json"), "utf8"));
const folder = join(spec, "vectors", "calls");
const port = variant === undefined ? Lookups : broken[variant](Lookups, transitions);

const rows = new Set();
let passed = 0;

function differs(machine, { op, args, returns, state }) {
  try {
    const returned = machine[op](args) ?? null;
    if (returned !== returns) return { returned };
    const got = machine.state();
    if (!isDeepStrictEqual(JSON.parse(JSON.stringify(got)), state)) return { state: got };
  } catch (error) {
    return { error: String(error) };
  }
  return null;
}

function firstFailure() {
  for (const file of readdirSync(folder).filter((name) => name.endsWith(".jsonl")).sort()) {
    let machine = null;
    const lines = readFileSync(join(folder, file), "utf8").trimEnd().split("\n");
    for (const [n, text] of lines.entries()) {
      const line = JSON.parse(text);
      if (line.op === "new") {
        machine = new port(transitions, line.args);
        machine.new = () => null;
      }
      const got = differs(machine, line);
      for (const row of machine.rowsTaken.splice(0)) rows.add(row);
      if (got !== null) return { file, line: n + 1, expected: line, got };
      passed += 1;
    }
  }
  return null;
}

const failed = firstFailure();
console.log(JSON.stringify({ passed, failed, rows: [...rows].sort() }));
process.exitCode = failed === null ? 0 : 1;
