"""The fields of a chat that have to do with tools, as OpenAI has them."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

_NAME = re.compile(r"[\w.\-/:]{1,128}")
_TOOLS_MAX = 1024
_CHOICES = ("none", "auto", "required")


def _fault(text: str) -> PydanticCustomError:
    return PydanticCustomError("tools", "{text}", {"text": text})


def _function_name(value: Any) -> str:
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _fault("needs a function with a name of letters, digits and _ - . / :")
    return name


def _check_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    for tool in tools or ():
        if tool.get("type", "function") != "function":
            raise _fault("this server knows tools of type function only")
        _function_name(tool)
        parameters = tool["function"].get("parameters")
        if not (parameters is None or isinstance(parameters, dict)):
            raise _fault("a function's parameters must be a JSON schema, an object")
    return tools


def _check_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, str) and choice not in _CHOICES:
        raise _fault(f"must be one of {', '.join(_CHOICES)}, or name a function")
    if isinstance(choice, dict):
        _function_name(choice)
    return choice


Tools = Annotated[
    Annotated[list[dict[str, Any]], Field(max_length=_TOOLS_MAX, fail_fast=True)] | None,
    AfterValidator(_check_tools),
]
ToolChoice = Annotated[str | dict[str, Any] | None, AfterValidator(_check_choice)]


def chosen_name(choice: str | dict[str, Any] | None) -> str | None:
    """The function that ``tool_choice`` names."""
    return _function_name(choice) if isinstance(choice, dict) else None


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The schemas of the tools' parameters, by name."""
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
