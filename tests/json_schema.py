"""A small strict validator for the part of JSON Schema that we use; imports nothing of ours."""

from __future__ import annotations

from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
ANNOTATIONS = {"$schema", "$defs", "title", "description"}
KEYWORDS = {"enum", "type", "required", "properties", "additionalProperties", "items", "minimum", "maximum", "$ref"}
KEYWORDS |= {"if", "then", "else", "maxItems"}


def is_of(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, place: str = "$") -> list[str]:
    """What is wrong with a value, by place; a keyword that is not known is an error of the schema."""
    root = schema if root is None else root
    assert schema.keys() <= ANNOTATIONS | KEYWORDS, f"{place}: {sorted(schema.keys() - ANNOTATIONS - KEYWORDS)}"
    found = []
    if "$ref" in schema:
        found += problems(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, place)
    if "if" in schema:
        found += problems(value, schema["else" if problems(value, schema["if"], root) else "then"], root, place)
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(is_of(value, kind) for kind in kinds):
            return [*found, f"{place} is {value!r}, not {' or '.join(kinds)}"]
    if value not in schema.get("enum", [value]):
        found.append(f"{place} is {value!r}, not one of {schema['enum']}")
    if is_of(value, "number"):
        if value != value or value in (float("inf"), float("-inf")):
            found.append(f"{place} is {value!r}, which is not JSON")
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            found.append(f"{place} is {value!r}, out of range")
    if isinstance(value, dict):
        found += [f"{place} has no {name!r}" for name in schema.get("required", []) if name not in value]
        for name, one in value.items():
            of_name = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            if of_name is False:
                found.append(f"{place} must not have {name!r}")
            else:
                found += problems(one, of_name, root, f"{place}.{name}")
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            found.append(f"{place} has more than {schema['maxItems']} items")
        for number, one in enumerate(value):
            found += problems(one, schema.get("items", {}), root, f"{place}[{number}]")
    return found
