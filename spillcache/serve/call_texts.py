"""How a model wrote the arguments of its calls, where that is not how templates write JSON.

A call comes back as an object, or as JSON that the client has written anew. Templates write it in
one way; a model may have written it in another (no spaces, an escape, a line end), and then the
prompt would say something else than the model did. So that text is remembered by the call's id.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3

from spillcache.engine.call_arguments import CallArguments
from spillcache.serve.token_memory import TokenMemory
from spillcache.serve.tool_call import json_text

_CONTEXT = "spillcache v1 call texts"


class CallTexts:
    """Texts of arguments in ``memory``, under a salt; ``reads`` and ``stores``: whether any may be
    used, and kept. Any thread.
    """

    def __init__(
        self, memory: TokenMemory, salt: bytes = b"", *, reads: bool = True, stores: bool = True
    ) -> None:
        self._memory = memory
        self._reads = reads
        self._stores = stores
        self._key = blake3(salt, derive_key_context=_CONTEXT).digest()

    def learn(self, call_id: str, arguments: str) -> None:
        """Remember how these arguments, a JSON object, were written."""
        value = json.loads(arguments)
        if self._stores and json_text(value) != arguments:
            self._memory.put(self._name(call_id, value), arguments.encode())

    def restored(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages, the arguments of their calls as the model wrote them, where that is known.

        Messages and calls that are not what they should be are left to others.
        """
        return [self._message(message) for message in messages]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            return dict(message)
        return {**message, "tool_calls": [self._call(call) for call in calls]}

    def _call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            return call
        arguments = function.get("arguments")
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else arguments
            if not isinstance(value, dict):
                return call
            key = self._name(str(call.get("id")), value)
        except (ValueError, RecursionError, TypeError):
            return call
        known = self._memory.find([key]).get(key) if self._reads else None
        source = None if known is None else known.decode()
        return {
            "type": "function",
            **call,
            "function": {**function, "arguments": CallArguments(value, source)},
        }

    def _name(self, call_id: str, value: Any) -> bytes:
        said = json.dumps([call_id, value], sort_keys=True)
        return blake3(said.encode(), key=self._key).digest()
