"""JSON schemas of many kinds, for answers that are held to them.

A model of random weights answers: so every text, list and recursion here has a bound, or is likely
to end soon.
"""

from typing import Any


def closed(**properties: Any) -> dict[str, Any]:
    """An object with all of these and no more, as ``strict`` wants it."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def several(items: Any, least: int = 0, most: int = 4) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


WORD = {"type": "string", "maxLength": 12}
SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
NODE = {"$ref": "#/$defs/node"}

SCHEMAS: dict[str, dict[str, Any]] = {
    "an object": closed(name=WORD, age=SMALL),
    "objects in objects": closed(a=closed(b=closed(c=closed(d=SMALL, e=WORD)), f=SMALL), g=WORD),
    "a list with bounds": closed(tags=several(WORD, 1, 3)),
    "lists of lists": closed(rows=several(several(SMALL, 2, 2), 1, 3)),
    "a list of objects": closed(items=several(closed(id=SMALL, label=WORD), 1, 3)),
    "an enum": closed(colour={"enum": ["red", "green", "blue", 'a "quoted" one']}),
    "an enum of many types": closed(
        value={"enum": [1, -2.5, "three", None, True, [4], {"five": 6}]}
    ),
    "constants": closed(kind={"const": "point"}, version={"const": 3}, x=SMALL),
    "any of several": closed(
        shape={
            "anyOf": [
                closed(kind={"const": "circle"}, radius=SMALL),
                closed(kind={"const": "box"}, width=SMALL, height=SMALL),
            ]
        }
    ),
    "references": {
        "$defs": {"person": closed(name=WORD, age=SMALL)},
        **closed(
            owner={"$ref": "#/$defs/person"}, others=several({"$ref": "#/$defs/person"}, 0, 2)
        ),
    },
    "whole numbers": closed(
        small={"type": "integer", "minimum": -5, "maximum": 5},
        over={"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 13},
        any={"type": "integer"},
    ),
    "numbers": closed(
        share={"type": "number", "minimum": 0, "maximum": 1},
        degrees={"type": "number", "minimum": -273.15, "maximum": 100.5},
    ),
    "patterns": closed(
        plate={"type": "string", "pattern": "^[A-Z]{1,3}-[0-9]{2,4}$"},
        colour={"type": "string", "pattern": "^#([0-9a-f]{6}|[0-9a-f]{3})$"},
    ),
    "lengths": closed(
        short={"type": "string", "maxLength": 3},
        long={"type": "string", "minLength": 20, "maxLength": 25},
        exact={"type": "string", "minLength": 8, "maxLength": 8},
    ),
    "formats": closed(
        day={"type": "string", "format": "date"},
        id={"type": "string", "format": "uuid"},
        host={"type": "string", "format": "ipv4"},
    ),
    "null or not": closed(
        a={"type": ["string", "null"], "maxLength": 6},
        b={"anyOf": [SMALL, {"type": "null"}]},
        c={"type": "null"},
    ),
    "properties that may lack": {
        "type": "object",
        "properties": {"a": SMALL, "b": WORD, "c": {"type": "boolean"}, "d": SMALL},
        "required": ["b"],
        "additionalProperties": False,
    },
    "tuples": closed(
        pair={
            "type": "array",
            "prefixItems": [WORD, SMALL, {"type": "boolean"}],
            "items": False,
            "minItems": 3,
        }
    ),
    "a recursion": {
        "$defs": {"node": closed(value=SMALL, next={"anyOf": [{"type": "null"}, NODE]})},
        **closed(head=NODE),
    },
    "names by a pattern": {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
        "patternProperties": {"^[a-d]{1,4}$": {"type": "integer", "minimum": 0, "maximum": 9}},
        "additionalProperties": False,
    },
}
