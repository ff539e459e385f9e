"""Measures what `manifest.json` says of each model: `python tla/measure.py [NAME ...]`.

Names are those of models, kinds or classes (`ci` if none is given). What a model
shows and is expected to do is written by hand; what TLC finds is written here:
distinct states, depth, steps of the counterexample, and seconds of processor time,
which are the same on a busy machine and on an idle one. A model that does not do
what is expected is told, and its figures are left as they were.

`--breaks` asks for more: which of all properties each known bug breaks, one run of
TLC for each pair.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvtier.check.tlc import OK, TlcFailed, TlcResult, run_tlc

HERE = Path(__file__).parent
MANIFEST = HERE / "manifest.json"
SMALL = 20_000
"""Distinct states up to which a run is a quick one."""

ALL = ("errors", "marks", "deadline", "lifetime", "hang", "shutdown")
SAFE = ALL[:4] + ALL[5:]
"""Without `hang`: for liveness."""


def claims(cfg: str) -> list[str]:
    """The invariants and properties that a file names."""
    text = (HERE / cfg).read_text(encoding="utf-8")
    return re.findall(r"\b\w+(?:Inv|Prop|Live)\b", text)


TABLES = (
    # module, specification, features, properties
    ("MC", "Spec", ALL, claims("MC_1x1.cfg")),
    ("MCRefines", "Spec", ALL, ["ProbeSpec"]),
    ("MCTold", "ToldSpec", ALL[:3], ["GuaranteeInv", "CallOnceInv"]),
    ("MCLive", "LiveSpec", SAFE, claims("MCLive_1x2.cfg")[:-1]),
    ("MCLive", "LiveSpec", ALL, ["ShutdownReturnsLive"]),
    ("MCToldLive", "ToldLiveSpec", ("errors", "shutdown"), ["ToldLive"]),
)
"""With what each property of the lifecycle is asked of a bug."""
TWO_KEYS = "K = {k1, k2} R = {r1} MaxOut = 1"
TWO_REQUESTS = "K = {k1} R = {r1, r2} MaxOut = 2"


def spent() -> float:
    """Seconds of processor time that ended children took."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measured(model: dict[str, Any]) -> tuple[TlcResult, float]:
    """What TLC finds, and the seconds it takes."""
    before = spent()
    found = run_tlc(
        HERE,
        model["module"],
        (HERE / model["cfg"]).read_text(encoding="utf-8"),
        coverage="actions" in model,
        quick=model["class"] == "ci" and model.get("distinct", 0) <= SMALL,
    )
    return found, spent() - before


def differences(model: dict[str, Any], found: TlcResult) -> Iterator[str]:
    """How it is not what the manifest expects."""
    if found.exit_code != model["expected"]:
        yield f"exit code {found.exit_code} instead of {model['expected']}"
    if found.violated and found.violated != model["property"]:
        yield f"breaks {found.violated} instead of {model['property']}"
    for action in model.get("actions", ()):
        if not found.taken.get(action):
            yield f"{action} is never taken"


def temporal(model: dict[str, Any]) -> bool:
    """Whether it ends with a temporal property broken.

    TLC looks for that now and then as the graph grows, so how much it has seen by
    then is not the same every time.
    """
    return str(model["property"]).endswith("Live")


def fill(model: dict[str, Any]) -> bool:
    """Measure and write down. Whether it is as expected."""
    found, seconds = measured(model)
    problems = list(differences(model, found))
    state = "; ".join(problems) or f"{found.distinct} distinct, {seconds:.1f} s"
    print(f"{model['name']}: {state}", flush=True)
    if problems:
        return False
    figures = {"seconds": round(seconds, 1)}
    if not temporal(model):
        figures["distinct"], figures["depth"] = found.distinct, found.depth
        if found.trace:
            figures["steps"] = len(found.trace) - 1
    model.update(figures)
    return True


def broken(model: dict[str, Any]) -> list[str]:
    """All properties that a bug breaks, at its own size or with two requests.

    TLC stops at the first it finds; so that one is left out and the rest asked again.
    Temporal ones, which it does not name, are asked one by one. Some bugs make the
    graph very big: what is not broken within 90 seconds counts as not broken.
    """
    text = (HERE / model["cfg"]).read_text(encoding="utf-8")
    bug = [line for line in text.splitlines() if " <- " in line and "NextGen" not in line]
    names: list[str] = []
    for module, spec, features, listed in TABLES:
        for asked in [[name] for name in listed] if "Live" in module else [list(listed)]:
            while asked:
                two_keys = "k2" in text or asked == ["PendingEndsLive"]
                config = [
                    f"SPECIFICATION {spec}",
                    f"CONSTANTS {TWO_KEYS if two_keys else TWO_REQUESTS}",
                    f"Features = {{{', '.join(json.dumps(f) for f in features)}}}",
                    "NextGen <- LeastUnused",
                    *bug,
                ]
                for name in asked:
                    config.append(f"{'INVARIANT' if name.endswith('Inv') else 'PROPERTY'} {name}")
                try:
                    found = run_tlc(HERE, module, "\n".join(config) + "\n", quick=True, timeout=90)
                except TlcFailed:
                    break
                if found.exit_code == OK:
                    break
                name = found.violated or asked[0]
                names.append(name)
                asked.remove(name)
    names.sort(key=[name for table in TABLES for name in table[3]].index)
    print(f"{model['name']}: {', '.join(names)}", flush=True)
    return names


def written(model: dict[str, Any]) -> None:
    """Put one model back into the manifest, which others may have changed meanwhile."""
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    models = [model if old["name"] == model["name"] else old for old in manifest["models"]]
    text = json.dumps({**manifest, "models": models}, indent=1)
    MANIFEST.write_text(text + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """The exit code: 0 if every model does what is expected of it."""
    wanted = set(arguments) - {"--breaks"} or {"ci"}
    ok = True
    for model in json.loads(MANIFEST.read_text(encoding="utf-8"))["models"]:
        if not wanted & {model["name"], model["kind"], model["class"]}:
            continue
        if "--breaks" not in arguments:
            ok = fill(model) and ok
        elif model["kind"] in ("mutant", "bite") and model["module"] in {t[0] for t in TABLES}:
            model["breaks"] = broken(model)
        written(model)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
