"""Which objects of a schema are closed, and which stay as they are."""

import json

import pytest

from spillcache.engine.closed_schema import closed

NAME = {"name": {"type": "string"}}


def test_objects_that_name_their_fields_are_closed_wherever_they_are():
    inner = {"type": "object", "properties": NAME}
    schema = {
        **inner,
        "$defs": {"one": inner},
        "properties": {"list": {"items": inner}, "either": {"anyOf": [inner, {"type": "null"}]}},
    }
    found = json.loads(closed(json.dumps(schema)))
    shut = {**inner, "additionalProperties": False}
    assert found["additionalProperties"] is False
    assert found["$defs"]["one"] == shut
    assert found["properties"]["list"]["items"] == shut
    assert found["properties"]["either"]["anyOf"] == [shut, {"type": "null"}]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": NAME, "additionalProperties": True},
        {"properties": NAME, "additionalProperties": {"type": "integer"}},
        {"properties": NAME, "unevaluatedProperties": False},
        {"properties": NAME, "$ref": "#/$defs/x"},
        {"properties": NAME, "anyOf": [{"properties": {"age": {}}}, {"required": ["name"]}]},
        {"allOf": [{"properties": NAME}, {"properties": {"age": {}}}]},
        {"properties": {"x": {"not": {}}}},
        {"properties": NAME, "if": {"properties": NAME}},
        {"enum": [{"properties": NAME}]},
        {"properties": 1},
        {"items": [1, None]},
        True,
        [],
    ],
)
def test_what_says_so_or_adds_to_others_stays_as_it_is(schema):
    assert json.loads(closed(json.dumps(schema))) == schema
