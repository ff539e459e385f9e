"""A state of the model as values of functions at points (a *structure*), and back.

A batch is a thing of its own in a structure and a position in a queue in a state.
So a state has many structures: besides the batches that are out there may be others
that are nowhere. Batches are numbered from the oldest to the youngest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

from kvtier.check.proof.finite import Point
from kvtier.check.proof.state import Entry
from kvtier.model.state import Batch, Config, Reply, State
from kvtier.model.state import Entry as ModelEntry

__all__ = ["Place", "Values", "is_state", "out_of", "state_of", "structure"]

Values: TypeAlias = dict[Point, Any]
Place: TypeAlias = Mapping[int, tuple[str, Mapping[str, str]]]
"""Of the batches that are out, by number: where, and the answers to it."""

_PLAIN = [f.name for f in fields(Entry) if f.name not in ("waits", "excused")]
_BUSY = ("read", "call", "hung")


def out_of(s: State) -> list[tuple[Batch, str, Mapping[str, str]]]:
    """The batches that are out, from the oldest: what they ask, where they are, the answers."""
    out: list[tuple[Batch, str, Mapping[str, str]]] = [
        (frozenset((k, g) for k, g, _ in reply), "results", {k: a for k, _, a in reply})
        for reply in s.results
    ]
    out += [(s.worker[1], "worker", {})] if s.worker[0] in _BUSY else []
    return out + [(batch, "queue", {}) for batch in s.queue]


def structure(
    config: Config,
    s: State,
    batches: Sequence[Batch],
    place: Place,
    yes: frozenset[str] = frozenset(),
) -> Values:
    """The values at all points, the batches from the oldest to the youngest."""
    keys, requests = config.keys, config.requests
    values: Values = {
        ("due", ()): s.due,
        ("shut", ()): s.shut,
        ("lane", ()): s.worker[0],
        ("sent", ()): len(s.queue) + (s.worker[0] in _BUSY),
        ("unread", ()): len(s.results),
        ("max_out", ()): config.max_out,
        ("lifetime", ()): "lifetime" in config.features,
    }
    for n, k in enumerate(keys):
        values.update({(name, (n,)): getattr(s.entry[n], name) for name in _PLAIN})
        values["batch", (n,)] = k in s.batch
        values["yes", (n,)] = k in yes
        for m, r in enumerate(requests):
            values["waits", (n, m)] = r in s.entry[n].waiters
            values["excused", (n, m)] = r in s.entry[n].excused
            values["held", (m, n)] = k in s.held[m]
    for b, content in enumerate(batches):
        where, answers = place.get(b, ("nowhere", {}))
        numbers = dict(content)
        values["at", (b,)] = where
        for n, k in enumerate(keys):
            values["asks", (b, n)] = k in numbers
            values["number_of", (b, n)] = numbers.get(k, 0)
            values["answer", (b, n)] = answers.get(k, "none")
        for c in range(len(batches)):
            values["older", (b, c)] = b < c
    return values


def is_state(values: Values, batches: Sequence[Batch]) -> bool:
    """Whether a state of the model has this structure: counts and places fit together."""
    places = [values["at", (b,)] for b in range(len(batches))]
    mine = places.count("worker")
    strays = [
        point
        for point, answer in values.items()
        if point[0] == "answer" and answer != "none" and places[point[1][0]] != "results"
    ]
    counted = (places.count("queue") + mine, places.count("results"))
    return (
        not strays
        and mine == (values["lane", ()] in _BUSY)
        and counted == (values["sent", ()], values["unread", ()])
    )


def state_of(config: Config, values: Values, batches: Sequence[Batch]) -> State:
    """The state with this structure; of one that no state has, as much as a state can show."""
    keys, requests = config.keys, config.requests

    def at(place: str) -> list[int]:
        return [b for b in range(len(batches)) if values["at", (b,)] == place]

    def entry(n: int) -> ModelEntry:
        e = ModelEntry(**{name: values[name, (n,)] for name in _PLAIN})
        waiters = frozenset(r for m, r in enumerate(requests) if values["waits", (n, m)])
        excused = frozenset(r for m, r in enumerate(requests) if values["excused", (n, m)])
        return e._replace(waiters=waiters, excused=excused)

    mine = at("worker")
    return State(
        entry=tuple(entry(n) for n in range(len(keys))),
        held=tuple(
            frozenset(k for n, k in enumerate(keys) if values["held", (m, n)])
            for m in range(len(requests))
        ),
        batch=frozenset(k for n, k in enumerate(keys) if values["batch", (n,)]),
        due=values["due", ()],
        queue=tuple(batches[b] for b in at("queue")),
        worker=(values["lane", ()], batches[mine[0]] if mine else frozenset()),
        results=tuple(_reply(config, values, batches, b) for b in at("results")),
        shut=values["shut", ()],
    )


def _reply(config: Config, values: Values, batches: Sequence[Batch], b: int) -> Reply:
    numbers = dict(batches[b])
    answers = {k: values["answer", (b, n)] for n, k in enumerate(config.keys)}
    return frozenset((k, numbers.get(k, 0), a) for k, a in answers.items() if a != "none")
