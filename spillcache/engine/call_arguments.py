"""A tool call's arguments for chat templates: some take an object, others its JSON text."""

import json
from typing import Any


class CallArguments(dict[str, Any]):
    """An object that reads as ``source``, its JSON text, wherever a template writes it out.

    ``source``: None for the text that templates would make of it.
    """

    def __init__(self, value: dict[str, Any], source: str | None = None) -> None:
        super().__init__(value)
        self.source = json.dumps(value, ensure_ascii=False) if source is None else source

    def __str__(self) -> str:
        return self.source

    def __add__(self, other: Any) -> Any:
        return self.source + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return other + self.source if isinstance(other, str) else NotImplemented
