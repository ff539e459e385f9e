"""A counterexample as a person wants to read it: what was done, with what, and what changed.

TLC names the action of a step and prints the whole state after it. The arguments
are found out here. Those of a lifecycle step follow from the machine in Python, or
its twin with the bug: they are in the label of the step that leads to the same
state. Those of a tiering step follow from what changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtier.check.graph import state_of
from kvtier.check.models import Model, Row
from kvtier.check.values import parse_state
from kvtier.model.actions import Machine
from kvtier.model.mutants import MUTANTS
from kvtier.model.state import Config, State

__all__ = ["Event", "differences", "events", "events_of_model", "history"]

Values = Mapping[str, Any]
"""A state: the values of the variables by name, as `kvtier.check.values` reads them."""

_SET = "a set"

_Namer = Callable[[str, Values, Values], str]
"""From TLC's name of an action and the states around it to a label with arguments."""


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a counterexample. Number 0 is the beginning."""

    step: int
    label: str
    """Name, arguments and what was returned, as in `kvtier/model/actions.py`."""
    changes: tuple[str, ...]
    """What became different, a line for each part of the state."""
    state: Values

    @property
    def action(self) -> str:
        """The label as a call: `Lookup(r1, k1) = None`."""
        name, *arguments = self.label.split("_")
        returned = f" = {arguments.pop()}" if name == "Lookup" and arguments else ""
        return f"{name}({', '.join(arguments)}){returned}" if arguments else name


def events(row: Row) -> list[Event]:
    """The steps of the counterexample in `row`; none if there is none."""
    found: list[Event] = []
    namer: _Namer | None = None
    for number, step in enumerate(row.trace):
        if number == 0:
            found.append(Event(0, "Initial", (), _read(step.state)))
            namer = _namer(row.model, found[0].state)
        elif step.state:
            before, after = found[-1].state, _read(step.state)
            label = step.action if namer is None else namer(step.action, before, after)
            found.append(Event(number, label, tuple(differences(before, after)), after))
        else:
            found.append(Event(number, "Stuttering", (), found[-1].state))
    return found


def events_of_model(config: Config, labels: Sequence[str], states: Sequence[State]) -> list[Event]:
    """The same for a way that the model in Python took: a label for each state but the first."""
    found = [Event(0, "Initial", (), _values(config, states[0]))]
    for label, state in zip(labels, states[1:], strict=True):
        after = _values(config, state)
        told = tuple(differences(found[-1].state, after))
        found.append(Event(len(found), label, told, after))
    return found


def history(row: Row) -> Iterator[str]:
    """The same as JSON lines, one for each step, sets as sorted lists."""
    for event in events(row):
        yield json.dumps(
            {
                "schema": "kvtier.history/1",
                "model": row.model.name,
                "step": event.step,
                "label": event.label,
                "changes": list(event.changes),
                "state": _plain(event.state),
            },
            ensure_ascii=False,
        )


# States


class _Record(dict[str, Any]):
    """A record or function that can be an element of a set."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def _read(state: str) -> dict[str, Any]:
    """A state whose sets may hold records: read with sets as lists, which become sets here."""
    listed = state.replace("{", f'<<"{_SET}", ').replace("}", ">>")
    return {name: _hashable(value) for name, value in parse_state(listed).items()}


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return _Record((_hashable(k), _hashable(v)) for k, v in value.items())
    if isinstance(value, tuple):
        inside = tuple(_hashable(one) for one in value)
        return frozenset(inside[1:]) if inside[:1] == (_SET,) else inside
    return value


def _values(config: Config, state: State) -> Values:
    """The state under the names of `AsyncLookup.tla`."""
    entries = zip(config.keys, state.entry, strict=True)
    return state._asdict() | {
        "entry": {k: entry._asdict() for k, entry in entries},
        "held": dict(zip(config.requests, state.held, strict=True)),
    }


# What changed


def differences(before: Values, after: Values) -> Iterator[str]:
    """A line for each part of the state that is not what it was."""
    for name, new in sorted(after.items()):
        old_parts, new_parts = _parts(before[name]), _parts(new)
        if old_parts is None or new_parts is None:
            if told := _difference(before[name], new):
                yield f"{name}: {told}"
            continue
        for key in _in_order({*old_parts, *new_parts}):
            if told := _difference(old_parts.get(key), new_parts.get(key)):
                yield f"{name}[{_show(key)}]: {told}"


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """A function by its arguments. One on 1, 2, ... is written by TLC like a sequence."""
    if isinstance(value, tuple) and value and all(isinstance(one, dict) for one in value):
        return dict(enumerate(value, 1))
    return value if isinstance(value, dict) else None


def _difference(old: Any, new: Any) -> str:
    if old == new:
        return ""
    if isinstance(old, dict) and isinstance(new, dict):
        parts = ((key, _difference(old.get(key), new.get(key))) for key in new)
        return ", ".join(f"{_show(key)} {told}" for key, told in parts if told)
    if isinstance(old, frozenset) and isinstance(new, frozenset):
        gone = [f"-{_show(one)}" for one in _in_order(old - new)]
        return " ".join([*gone, *(f"+{_show(one)}" for one in _in_order(new - old))])
    return f"{_show(old)} → {_show(new)}"


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_show(k)}: {_show(v)}" for k, v in value.items()) + "}"
    if isinstance(value, frozenset):
        return "{" + ", ".join(_show(one) for one in _in_order(value)) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_show(one) for one in value) + ")"
    return "nothing" if value is None else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else _show(k): _plain(v) for k, v in value.items()}
    if isinstance(value, frozenset):
        return [_plain(one) for one in _in_order(value)]
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _in_order(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=_show)


# What was done


def _namer(model: Model, state: Values) -> _Namer | None:
    if "entry" in state:
        return _lifecycle_namer(model)
    return _tiering_label if "slot" in state else None


def _lifecycle_namer(model: Model) -> _Namer:
    config = Config(
        keys=tuple(_in_order(model.constant("K"))),
        requests=tuple(_in_order(model.constant("R"))),
        max_out=model.constant("MaxOut"),
        features=model.constant("Features"),
    )
    machine = MUTANTS.get(model.bug or "", Machine)(config)

    def label(action: str, before: Values, after: Values) -> str:
        name = action.removeprefix("Told")
        wanted = state_of(config, dict(after))
        fitting = {
            label
            for label, reached in machine.steps(state_of(config, dict(before)))
            if reached == wanted and _fits(label, name)
        }
        return min(fitting, default=name)

    return label


def _fits(label: str, name: str) -> bool:
    if name == "WorkerFails":
        return label == "WorkerAnswer_Error"
    return label.split("_")[0] == name.removesuffix("Open").removesuffix("Closed")


def _tiering_label(action: str, before: Values, after: Values) -> str:
    arguments: list[str] = []
    if action == "JobReport":
        for job in before["jobs"] - after["jobs"]:
            arguments += [job["kind"], job["req"], *_in_order(claim[1] for claim in job["claims"])]
    elif action == "WriteOld":
        old, new = _parts(before["slot"]) or {}, _parts(after["slot"]) or {}
        arguments += [str(n) for n, slot in new.items() if slot != old[n]]
    elif action not in ("StepEnd", "Reset"):
        arguments += [r for r, known in after["req"].items() if known != before["req"][r]]
    return "_".join([action, *arguments])
