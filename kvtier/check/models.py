"""The models of `tla/manifest.json`, each run by TLC and held to what the manifest says of it.

A model is a module, a configuration, and an expectation: TLC's exit code, which
property is broken (by a known bug, or by a state that must be reachable), how many
distinct states there are and how deep the search goes. A run that finds anything
else is wrong, also if no property is broken: a spec that lost states has lost
behaviour.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from kvtier.check.tlc import PROPERTY, Progress, Step, TlcFailed, TlcResult, run_tlc
from kvtier.check.values import parse_value
from kvtier.errors import BadInput

__all__ = [
    "SIZES",
    "Model",
    "Row",
    "TimeClass",
    "choose",
    "lifecycle",
    "read_manifest",
    "run_model",
]

TimeClass = Literal["ci", "slow"]

SIZES = range(1, 5)
"""Of keys, requests and batches out. Beyond them nobody has seen the end of a search."""

_QUICK = 20_000
"""Distinct states of a model that is over before a Java that optimises pays."""

_SIZED = "MC_1x1.cfg"
"""Its invariants and properties are those of the lifecycle at every size."""


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the manifest."""

    name: str
    module: str
    cfg: str
    """The file, below `tla/`."""
    shows: str
    expected: int
    """TLC's exit code."""
    breaks: str | None
    """The invariant or property that must not hold."""
    distinct: int | None
    """Distinct states; `None` here and below: not known beforehand."""
    depth: int | None
    time_class: TimeClass
    report: str | None = None
    """For a known bug: the public report that it stands for."""
    actions: tuple[str, ...] = ()
    """Those that some state must enable. One that none enables is dead."""
    kind: str = ""
    """What it is there for: `holds`, `reach`, `false`, `mutant`, ..."""
    text: str = field(default="", repr=False)
    """The configuration itself."""

    @property
    def bug(self) -> str | None:
        """Name of the known bug that is in this model, if one is."""
        return self.name if "mutants" in Path(self.cfg).parts else None

    def constant(self, name: str) -> Any:
        """The value that the configuration gives to a constant. Raises `BadInput`."""
        found = re.search(rf"^\s*{name}\s*=(.*)$", self.text, flags=re.M)
        if found is None:
            raise BadInput(self.cfg, f"gives no value to {name}")
        return parse_value(found[1])


@dataclass(frozen=True, slots=True)
class Row:
    """What a run of a model found."""

    model: Model
    observed: int | None
    """TLC's exit code; `None` if it did not come to an end."""
    distinct: int | None
    depth: int | None
    seconds: float
    problem: str | None
    """How this is not what the manifest says; `None`: it is."""
    trace: tuple[Step, ...] = field(default=(), repr=False)
    """A behaviour that breaks the property."""

    @property
    def ok(self) -> bool:
        """Whether it is what the manifest says."""
        return self.problem is None

    def as_json(self) -> dict[str, Any]:
        """An element of `models` in `kvtier check --json`."""
        return {
            "name": self.model.name,
            "cfg": self.model.cfg,
            "shows": self.model.shows,
            "expected": self.model.expected,
            "observed": self.observed,
            "distinct": self.distinct,
            "depth": self.depth,
            "seconds": round(self.seconds, 2),
            "ok": self.ok,
        }


def read_manifest(folder: Path) -> tuple[Model, ...]:
    """All models of `folder`, in the order of its `manifest.json`. Raises `BadInput`."""
    path = folder / "manifest.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(str(path), f"cannot be read: {error}") from error
    return tuple(_model(path, entry) for entry in _listed(path, entries))


def _listed(path: Path, entries: Any) -> list[Any]:
    if isinstance(entries, dict):
        entries = entries.get("models")
    if not isinstance(entries, list):
        raise BadInput(str(path), "holds no models", "a list of objects")
    return entries


def _model(path: Path, entry: Any) -> Model:
    try:
        model = Model(
            name=entry["name"],
            module=entry["module"],
            cfg=entry["cfg"],
            shows=entry["shows"],
            expected=entry["expected"],
            breaks=entry.get("property"),
            distinct=entry.get("distinct"),
            depth=entry.get("depth"),
            time_class=entry["class"],
            report=entry.get("report"),
            actions=tuple(entry.get("actions", ())),
            kind=entry.get("kind", ""),
            text=(path.parent / entry["cfg"]).read_text(encoding="utf-8"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(str(path), f"an entry is not complete: {entry!r} ({error})") from error
    except OSError as error:
        raise BadInput(str(path), f"{entry['cfg']} cannot be read: {error.strerror}") from error
    if model.time_class not in get_args(TimeClass):
        raise BadInput(str(path), f"{model.name} is of class {model.time_class!r}", "ci or slow")
    return model


def choose(
    models: Sequence[Model],
    *,
    names: Sequence[str] = (),
    bug: str | None = None,
    slow: bool = False,
) -> list[Model]:
    """The models of those names, or the one with that bug, or those of a class.

    Without either, what CI checks; with `slow`, all. Raises `BadInput` for a name
    or a bug that is not in the manifest.
    """
    if bug is not None:
        return [_found(bug, {model.bug: model for model in models if model.bug}, "bug")]
    if names:
        by_name = {model.name: model for model in models}
        return [_found(name, by_name, "model") for name in names]
    return [model for model in models if slow or model.time_class == "ci"]


def _found(name: str, known: Mapping[str, Model], what: str) -> Model:
    if name not in known:
        raise BadInput(name, f"is no {what} of the manifest", f"one of {', '.join(known)}")
    return known[name]


def lifecycle(folder: Path, keys: int, requests: int, batches_out: int) -> Model:
    """The lifecycle with every feature on, at a size of one's own.

    With two keys and two requests or more, states that differ by a renaming of
    either count once. Raises `BadInput` for a size that is not one of `SIZES`.
    """
    for what, size in (("keys", keys), ("requests", requests), ("batches out", batches_out)):
        if size not in SIZES:
            raise BadInput(what, f"{size} is no size", f"{SIZES[0]} to {SIZES[-1]}")
    text = (folder / _SIZED).read_text(encoding="utf-8")
    for constant, value in (
        ("K", _set("k", keys)),
        ("R", _set("r", requests)),
        ("MaxOut", str(batches_out)),
    ):
        text, found = re.subn(rf"^(\s*{constant}\s*=).*$", rf"\1 {value}", text, flags=re.M)
        if found != 1:
            raise BadInput(str(folder / _SIZED), f"sets {constant} {found} times", "once")
    renaming = keys > 1 and requests > 1
    counts = f"{keys} key{'s' * (keys > 1)}, {requests} request{'s' * (requests > 1)}"
    return Model(
        name=f"lifecycle {keys}x{requests}",
        module="MC",
        cfg=_SIZED,
        shows=f"{counts}, {batches_out} out{', but for renaming' if renaming else ''}",
        expected=0,
        breaks=None,
        distinct=None,
        depth=None,
        time_class="slow",
        text=text + "\nSYMMETRY Symmetry\n" if renaming else text,
    )


def _set(letter: str, size: int) -> str:
    return "{" + ", ".join(f"{letter}{n}" for n in range(1, size + 1)) + "}"


def run_model(
    folder: Path,
    model: Model,
    *,
    timeout: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Row:
    """Run one model of `folder` in TLC, with one worker, so that its figures do not vary.

    `timeout` is in seconds. What TLC cannot finish is a row too. Raises
    `MissingTool` without Java or TLC.
    """
    begun = time.monotonic()
    try:
        found = run_tlc(
            folder,
            model.module,
            model.text,
            timeout=timeout,
            coverage=bool(model.actions),
            quick=model.distinct is not None and model.distinct <= _QUICK,
            progress=progress,
        )
    except TlcFailed as error:
        return Row(model, None, None, None, time.monotonic() - begun, str(error))
    return Row(
        model,
        found.exit_code,
        found.distinct,
        found.depth,
        time.monotonic() - begun,
        _difference(model, found),
        found.trace,
    )


def _difference(model: Model, found: TlcResult) -> str | None:
    compared: list[tuple[str, object, object]] = [
        ("exit code", found.exit_code, model.expected),
        ("broken", _broken(model, found) or "nothing", model.breaks or "nothing"),
        ("distinct states", found.distinct, model.distinct),
        ("depth", found.depth, model.depth),
    ]
    differences = [
        f"{what} {got} instead of {wanted}"
        for what, got, wanted in compared
        if wanted is not None and got != wanted
    ]
    dead = [action for action in model.actions if not found.taken.get(action)]
    differences += [f"never taken: {', '.join(dead)}"] if dead else []
    return "; ".join(differences) or None


def _broken(model: Model, found: TlcResult) -> str | None:
    """What is broken. TLC does not name a temporal property; it is plain if there is only one."""
    if found.violated is None and found.exit_code == PROPERTY:
        listed = _sections(model.text).get("PROPERTIES", [])
        return listed[0] if len(listed) == 1 else None
    return found.violated


def _sections(configuration: str) -> dict[str, list[str]]:
    """The words of a configuration below its keywords, which are the words in capitals."""
    sections: dict[str, list[str]] = {}
    keyword = ""
    for word in re.sub(r"\\\*.*", "", configuration).split():
        if re.fullmatch(r"[A-Z_]{4,}", word):
            keyword = "PROPERTIES" if word == "PROPERTY" else word
        else:
            sections.setdefault(keyword, []).append(word)
    return sections
