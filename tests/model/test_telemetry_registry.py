"""The registry of telemetry names in `spec/telemetry/` is whole, and the code uses it, all of it.

What spans and metrics *are* is tested elsewhere; here it is what they are called, and that
nothing in the code goes by a name that the registry does not have.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import kvtier
from kvtier.keys import OffloadKey
from kvtier.lifecycle import LookupPhase, Outcome, Trigger
from kvtier.request import ReqContext
from kvtier.telemetry import names
from kvtier.telemetry.requests import RequestSpans
from kvtier.telemetry.spans import SpanObserver
from kvtier.tiering import DeferReason, JobOutcome, JobReport, PassReport
from kvtier.tiers.base import TransferJob
from tests.port.schema import problems
from tests.support.lookups import HandRuntime, ScriptedLookups, ctx, key, quiet

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "spec" / "telemetry"
SCHEMA = json.loads((FOLDER / "registry.schema.json").read_text())
FILES = {
    name: yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    for name in ("attributes", "spans", "metrics")
}
ATTRIBUTES = {
    one["id"]: one for group in FILES["attributes"]["groups"] for one in group["attributes"]
}
SPANS = {group["annotations"]["kvtier"]["name"]: group for group in FILES["spans"]["groups"]}
METRICS = {group["metric_name"]: group for group in FILES["metrics"]["groups"]}
USERS = [*SPANS.values(), *METRICS.values()]
OTHERS = {"error.type"}
"""Defined by OpenTelemetry; the manifest names the registry that has them."""

CONSTANTS = {name: value for name, value in vars(names).items() if name.isupper()}
NAMES = set(CONSTANTS.values()) - {names.SCOPE, names.SCHEMA_URL}


def bare(span: str) -> str:
    """The name of a span without the tier that follows it."""
    return span.removesuffix(" {kvtier.tier}")


def references(group: dict[str, Any]) -> list[str]:
    return [one["ref"] for one in group["attributes"]]


def members(attribute: str) -> list[str]:
    return [member["value"] for member in ATTRIBUTES[attribute]["type"]["members"]]


# -- the registry in itself --------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_form_of_the_schema(name: str) -> None:
    assert problems(SCHEMA, FILES[name]) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("attributes", {"type": "anything"}),
        ("attributes", {"more": 1}),
        ("spans", {"span_kind": "other"}),
        ("spans", {"attributes": []}),
        ("metrics", {"instrument": "gauge"}),
        ("metrics", {"unit": None}),
    ],
    ids=str,
)
def test_another_form_does_not_fit_the_schema(name: str, change: dict[str, Any]) -> None:
    group = FILES[name]["groups"][0]
    assert problems(SCHEMA, {"groups": [group]}) == []
    assert problems(SCHEMA, {"groups": [group | change]})


def test_nothing_else_is_in_the_folder() -> None:
    found = {path.name for path in FOLDER.iterdir()}
    assert found == {
        *(f"{name}.yaml" for name in FILES),
        "registry_manifest.yaml",
        "registry.schema.json",
    }


def test_the_manifest_names_what_weaver_asks_for_and_the_registry_of_the_schema_url() -> None:
    manifest = yaml.safe_load((FOLDER / "registry_manifest.yaml").read_text())
    assert manifest.keys() == {
        "name",
        "description",
        "semconv_version",
        "schema_base_url",
        "dependencies",
    }
    (needed,) = manifest["dependencies"]
    version = names.SCHEMA_URL.rsplit("/", 1)[1]
    assert needed["registry_path"].endswith(f"/v{version}.zip[model]")


def test_ids_occur_once_and_members_too() -> None:
    ids = [group["id"] for file in FILES.values() for group in file["groups"]]
    ids += [one["id"] for group in FILES["attributes"]["groups"] for one in group["attributes"]]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    for attribute in ATTRIBUTES.values():
        if isinstance(attribute["type"], dict):
            values = [(one["id"], one["value"]) for one in attribute["type"]["members"]]
            assert len(values) == len(set(values))
            assert all(a == b for a, b in values)


def test_a_span_or_metric_refers_to_attributes_that_are_there_each_once() -> None:
    for group in USERS:
        used = references(group)
        assert set(used) <= ATTRIBUTES.keys() | OTHERS, group["id"]
        assert len(used) == len(set(used)), group["id"]


def test_every_attribute_is_used_by_a_span_a_link_or_a_metric() -> None:
    used = {ref for group in USERS for ref in references(group)}
    on_links = set(re.findall(r"`(kvtier\.[a-z_.]+)`", " ".join(g.get("note", "") for g in USERS)))
    assert used | on_links == ATTRIBUTES.keys() | OTHERS


def test_what_is_different_for_every_probe_is_never_on_a_metric() -> None:
    few = {
        *(name for name, one in ATTRIBUTES.items() if isinstance(one["type"], dict)),
        names.TIER,
        names.ERROR_TYPE,
    }
    for name, group in METRICS.items():
        assert set(references(group)) <= few, name


def test_metrics_count_in_units_of_ucum() -> None:
    units = {group["unit"] for group in METRICS.values()}
    assert all(unit == "s" or re.fullmatch(r"\{[a-z]+\}", unit) for unit in units)
    for group in METRICS.values():
        assert (group["unit"] == "s") == (group["instrument"] == "histogram")


def test_what_cites_a_paragraph_cites_one_that_is_there() -> None:
    paragraphs = set(
        re.findall(r"^\*\*(L\d+)\.\*\*", (ROOT / "spec" / "lifecycle.md").read_text(), re.M)
    )
    for path in FOLDER.iterdir():
        assert set(re.findall(r"\bL\d+", path.read_text())) <= paragraphs, path.name


# -- the registry and the enumerations of the code ----------------------------------------------


@pytest.mark.parametrize("attribute", [names.PHASE_FROM, names.PHASE_TO, names.PHASE_NOW])
def test_phases_are_those_of_the_lifecycle(attribute: str) -> None:
    assert members(attribute) == [phase.name.lower() for phase in LookupPhase]


def test_triggers_are_those_of_the_lifecycle() -> None:
    assert members(names.TRIGGER) == [trigger.name.lower() for trigger in Trigger]


def test_outcomes_are_those_of_the_lifecycle_that_are_reported() -> None:
    nothing_happened = {Outcome.UNTOUCHED.value}
    assert set(members(names.OUTCOME)) == {one.value for one in Outcome} - nothing_happened


@pytest.mark.parametrize(
    ("attribute", "kind"), [(names.JOB_OUTCOME, JobOutcome), (names.LOOKUP_BEHIND, DeferReason)]
)
def test_other_values_are_those_of_the_tiers(attribute: str, kind: type[Enum]) -> None:
    assert members(attribute) == [one.value for one in kind]


# -- the registry and the names in the code ------------------------------------------------------


def test_names_in_the_code_are_those_of_the_registry() -> None:
    spans = {bare(span) for span in SPANS}
    assert ATTRIBUTES.keys() | OTHERS | spans | METRICS.keys() == NAMES


def test_no_two_names_are_one() -> None:
    assert len(CONSTANTS) == len(set(CONSTANTS.values()))


def spelled(source: str) -> set[str]:
    """Names of the registry that stand in a program as literals, and what looks like one."""
    ours = {name for name in NAMES if name.startswith("kvtier.")}
    rooms = {name.split(".")[1] for name in ours}
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match node.value.split("."):
                case ["kvtier", room, _, *_] if room in rooms and not is_module(node.value):
                    found.add(node.value)
                case _ if node.value in ours:
                    found.add(node.value)
    return found


def is_module(name: str) -> bool:
    """Whether a logger could have this name."""
    path = Path(kvtier.__file__).parents[1].joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules_with_names() -> dict[str, set[str]]:
    package = Path(kvtier.__file__).parent
    return {
        path.relative_to(package).as_posix(): found
        for path in sorted(package.rglob("*.py"))
        if (found := spelled(path.read_text()))
    }


def test_no_other_file_of_the_code_spells_a_name() -> None:
    assert modules_with_names().keys() == {"telemetry/names.py"}


@pytest.mark.parametrize(
    "line",
    [
        'span.set_attribute("kvtier.tier", "1:fs")',
        'x = {"kvtier.probe.colour": 1}',
        'f"kvtier.lookup_batch.{what}"',
        "def f(name='kvtier.job.id'): pass",
    ],
)
def test_no_way_to_spell_a_name_is_overlooked(line: str) -> None:
    assert spelled(line)


def test_a_logger_and_a_sentence_are_no_names() -> None:
    loggers = [f"Log({name!r})" for name in ("kvtier.lookup", "kvtier.telemetry.spans")]
    assert spelled("\n".join([*loggers, '"""See kvtier.probe.seq there."""'])) == set()


# -- the registry and the spans that are made ----------------------------------------------------


def spans_of_every_kind() -> list[ReadableSpan]:
    """Probes that end in every way, some only partly known; batches, jobs and passes."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    a, b = ctx("a", "some tenant"), ctx("b", "some tenant")
    headers = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-00"}
    unsampled = ReqContext("u", a.kv_transfer_params, headers)
    requests = RequestSpans(provider, lambda: 1)
    requests.begin("a")
    requests.close()
    with quiet(), SpanObserver(provider, thread=False) as spans:
        settings: dict[str, Any] = {"verdict_lifetime": 5.0, "deadline": 4.0}
        lookups = ScriptedLookups(HandRuntime(), observer=spans, **settings)

        def answer(how: Callable[[list[OffloadKey]], list[bool]]) -> None:
            lookups.answer = how
            lookups.flush()
            lookups.step_worker()
            lookups.drain_results()

        # Hit and miss; the one is joined and forced, the other expires and outlives its deadline.
        for number in (1, 2):
            lookups.lookup(key(number), a)
            lookups.lookup(key(number), b)
        answer(lambda keys: [True, False])
        lookups.lookup(key(1), ctx("c", "some tenant"))
        lookups.mark_miss([key(1)])
        lookups.runtime.advance(6.0)
        lookups.lookup(key(2), b)
        lookups.runtime.advance(4.0)
        lookups.lookup(key(2), b)
        lookups.flush()
        lookups.mark_hit([key(2)], b)
        lookups.lookup(key(2), b)
        answer(lambda keys: [False])
        # Failed, asked again, and excused until that is answered.
        lookups.lookup(key(3), a)
        answer(lambda keys: [])
        lookups.cleanup("b")
        lookups.lookup(key(3), b)
        lookups.lookup(key(3), a)
        lookups.flush()
        lookups.lookup(key(3), a)
        answer(lambda keys: [True])
        # Known from the middle on: while pending, while in flight, with a verdict.
        lookups.lookup(key(4), unsampled)
        answer(lambda keys: [True])
        lookups.lookup(key(5), unsampled)
        lookups.flush()
        lookups.lookup(key(6), unsampled)
        for number in (4, 5, 6):
            lookups.lookup(key(number), a)
        # Abandoned, and open at the end: pending, in flight, with a verdict.
        lookups.lookup(key(7), ctx("d", "some tenant"))
        lookups.cleanup("d")
        lookups.flush()
        lookups.lookup(key(8), a)
        spans.pump()
        for load in (True, False):
            job = TransferJob(1, (key(1),), (0,), load, a)
            for outcome in JobOutcome:
                spans.on_job(JobReport("1:test", job, 1, outcome, 0.0, 1.0))
        for reason in (None, *DeferReason):
            spans.on_pass(PassReport(a, 2, 1, reason, 0.0, 1.0))
    return list(exporter.get_finished_spans())


@pytest.fixture(scope="module")
def made() -> dict[str, list[ReadableSpan]]:
    """By the name in the registry."""
    found: dict[str, list[ReadableSpan]] = {}
    for span in spans_of_every_kind():
        name, _, tier = span.name.partition(" ")
        found.setdefault(f"{name} {{kvtier.tier}}" if tier else name, []).append(span)
    return found


def test_every_kind_of_span_is_made_and_no_other(made: dict[str, list[ReadableSpan]]) -> None:
    assert made.keys() == SPANS.keys()


@pytest.mark.parametrize("name", SPANS)
def test_a_span_has_the_attributes_that_the_registry_says(
    name: str, made: dict[str, list[ReadableSpan]]
) -> None:
    group = SPANS[name]
    for span in made[name]:
        attributes = dict(span.attributes or {})
        assert attributes.keys() <= set(references(group))
        for one in group["attributes"]:
            if needed(one["requirement_level"], attributes):
                assert one["ref"] in attributes, f"{span.name} {attributes}"
        for attribute, value in attributes.items():
            assert fits(attribute, value), f"{attribute}={value!r}"
        kinds = {group["span_kind"], group["annotations"]["kvtier"].get("local_kind")}
        assert span.kind.name.lower() in kinds


def needed(level: str | dict[str, str], attributes: dict[str, Any]) -> bool:
    """Whether an attribute must be there. Conditions other than `unless` are not decided here."""
    if isinstance(level, str):
        return level == "required"
    condition = level.get("conditionally_required", "")
    flags = {flag for flag in (names.OPEN, names.TRUNCATED) if flag.split(".")[-1] in condition}
    return condition.startswith("unless") and bool(flags) and not flags & attributes.keys()


def fits(attribute: str, value: object) -> bool:
    if attribute in OTHERS:
        return isinstance(value, str)
    kind = ATTRIBUTES[attribute]["type"]
    if isinstance(kind, dict):
        return value in members(attribute)
    return type(value) is {"string": str, "int": int, "double": float, "boolean": bool}[kind]


def test_every_attribute_is_on_some_span_that_may_have_it(
    made: dict[str, list[ReadableSpan]],
) -> None:
    never = {names.DISCARDED_ANSWERS}  # only from a worker that breaks its word
    for name, group in SPANS.items():
        seen = {attribute for span in made[name] for attribute in span.attributes or {}}
        assert set(references(group)) - seen - never == set(), name


def test_links_have_the_attributes_that_the_notes_say(made: dict[str, list[ReadableSpan]]) -> None:
    for name, group in SPANS.items():
        said = set(re.findall(r"`(kvtier\.[a-z_.]+)`", group.get("note", "")))
        links = [set(link.attributes or {}) for span in made[name] for link in span.links]
        assert all(found == said for found in links), name
        assert bool(links) == ("links" in group["annotations"]["kvtier"]), name
