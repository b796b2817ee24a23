"""Whatever a field holds, the answer is an answer or a sentence: never a 500."""

import json

import pytest

from spillcache.engine.base import FimTokens
from spillcache.serve.schema import ChatBody, InfillBody, NativeBody

ODD = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, -(2**63) - 1, 0.5, -0.0, 1e-320, 1e308, "", "x",
    "\u0000", "\ud800", "é" * 50, [], [[]], [None], ["a", 1, None], [[1, 2, 3]], {}, {"a": None},
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}, {"1": True}, [[1e9, "x"]],
    [["\ud800", 1]], {"\ud800": False}, [{"id": 0, "scale": 1e308}],
]  # fmt: skip
ROUTES = {
    "/completion": (NativeBody, {"prompt": "a"}),
    "/infill": (InfillBody, {"input_prefix": "a", "input_suffix": "b"}),
    "/v1/chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "a"}]}),
}


@pytest.mark.parametrize("path", ROUTES)
def test_no_value_of_a_field_is_a_server_error(http, service, path):
    service.engine.fim = FimTokens(1, 2, 3)
    kind, plain = ROUTES[path]
    for name in kind.model_fields:
        for value in ODD:
            response = http.post(path, content=json.dumps({**plain, name: value}))
            assert response.status_code in {200, 400, 501}, (name, value, response.text)
