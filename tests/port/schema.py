"""As much of JSON Schema (2020-12) as `spec/` uses; a keyword that is not here is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["problems"]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
_KNOWN = {
    *("$schema", "$defs", "title"),  # say nothing of a value
    *("minimum", "required", "properties", "additionalProperties"),
    *("items", "prefixItems", "minItems", "maxItems"),  # say nothing of a value of another type
}


def problems(root: dict[str, Any], value: Any) -> list[str]:
    """What is wrong with `value`, one line each. Raises `NotImplementedError`."""
    return list(_problems(root, root, value, "$"))


def _problems(root: dict[str, Any], schema: dict[str, Any], value: Any, at: str) -> Iterator[str]:
    for keyword, wanted in schema.items():
        match keyword:
            case "$ref":
                name = wanted.removeprefix("#/$defs/")
                yield from _problems(root, root["$defs"][name], value, at)
            case "type":
                names = [wanted] if isinstance(wanted, str) else wanted
                if not any(_is(value, name) for name in names):
                    yield f"{at}: {value!r} is no {' or '.join(names)}"
            case "const" | "enum":
                allowed = [wanted] if keyword == "const" else wanted
                if not any(type(value) is type(one) and value == one for one in allowed):
                    yield f"{at}: {value!r} is not in {allowed}"
            case "minimum" if _is(value, "number"):
                if value < wanted:
                    yield f"{at}: {value} is less than {wanted}"
            case "required" if isinstance(value, dict):
                yield from (f"{at}: no {name}" for name in wanted if name not in value)
            case "properties" if isinstance(value, dict):
                for name in wanted.keys() & value.keys():
                    yield from _problems(root, wanted[name], value[name], f"{at}.{name}")
            case "additionalProperties" if isinstance(value, dict):
                for name in value.keys() - schema.get("properties", {}).keys():
                    if wanted is False:
                        yield f"{at}: {name} is too much"
                    else:
                        yield from _problems(root, wanted, value[name], f"{at}.{name}")
            case "prefixItems" if isinstance(value, list):
                for n, (item, one) in enumerate(zip(wanted, value, strict=False)):
                    yield from _problems(root, item, one, f"{at}[{n}]")
            case "items" if isinstance(value, list):
                for n, one in enumerate(value):
                    yield from _problems(root, wanted, one, f"{at}[{n}]")
            case "minItems" | "maxItems" if isinstance(value, list):
                if (len(value) - wanted) * (1 if keyword == "minItems" else -1) < 0:
                    yield f"{at}: {len(value)} items"
            case "oneOf":
                found = [list(_problems(root, one, value, at)) for one in wanted]
                if sum(not problem for problem in found) != 1:
                    yield f"{at}: fits {sum(not p for p in found)} of {len(found)} forms"
            case _ if keyword not in _KNOWN:
                raise NotImplementedError(f"{keyword} at {at}")


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
