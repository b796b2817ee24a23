"""JSON schemas as llama.cpp reads them: an object has the fields that its schema names, and no
others, unless it says so itself.

By the standard ``additionalProperties`` is true where nothing is said, and a small model told "name
and age" goes on with fields of its own until its tokens are used up.
"""

import json
from typing import Any

_NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose values are schemas by name."""
_LISTS = ("anyOf", "oneOf", "prefixItems", "items")
_ONE = ("items", "additionalProperties", "contains", "additionalItems")
_SAYS = frozenset({"additionalProperties", "unevaluatedProperties"})
_JOINED = frozenset({"allOf", "not", "if", "then", "else", "dependentSchemas"})
"""With these, what one part names another may not know: such a schema stays as it is."""
_BESIDE = frozenset({"anyOf", "oneOf", "$ref"})


def closed(text: str) -> str:
    """The schema ``text`` with ``additionalProperties`` false wherever an object's fields are named
    and nothing is said of others.
    """
    schema = json.loads(text)
    found = _objects(schema)
    if any(_JOINED & one.keys() for one in found):
        return text
    for one in found:
        if isinstance(one.get("properties"), dict) and not (_SAYS | _BESIDE) & one.keys():
            one["additionalProperties"] = False
    return json.dumps(schema, ensure_ascii=False)


def _objects(schema: Any) -> list[dict[str, Any]]:
    """The schema and those within it, but for those that only add to an object's own fields."""
    found: list[dict[str, Any]] = []
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict):
            continue
        found.append(one)
        lists = _LISTS if "properties" not in one else ("prefixItems", "items")
        for word in lists:
            waiting += one[word] if isinstance(one.get(word), list) else ()
        for word in _NAMED:
            named = one.get(word)
            waiting += named.values() if isinstance(named, dict) else ()
        waiting += [one.get(word) for word in _ONE]
    return found
