"""Model families for tests of tools: their templates in ``templates/``, written anew from what
their makers document, and how their answers end.
"""

from dataclasses import dataclass
from pathlib import Path

from spillcache.engine.chat_template import ChatTemplate

FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Family:
    """``end``: what a template writes behind an answer; ``talks``: whether an answer may hold both
    words and calls; ``calls``: how many calls an answer may hold.
    """

    format: str
    end: str
    talks: bool = True
    calls: int = 2


FAMILIES = {
    "qwen": Family("tagged", "<|im_end|>\n"),
    "qwen-coder": Family("tagged", "<|im_end|>\n"),
    "glm": Family("tagged", ""),
    "llama3": Family("llama", "<|eot_id|>", talks=False, calls=1),
    "llama4": Family("pythonic", "<|eot|>"),
    "mistral": Family("mistral", "</s>", talks=False),
    "devstral": Family("mistral", "</s>"),
    "functiongemma": Family("functiongemma", ""),
    "command-r7b": Family("command", "<|END_OF_TURN_TOKEN|>", talks=False),
    "deepseek-v3": Family("deepseek", "<｜end▁of▁sentence｜>"),
    "deepseek-v31": Family("deepseek", "<｜end▁of▁sentence｜>"),
    "phi4-mini": Family("phi", "<|end|>"),
    "granite": Family("phi", "<|end_of_text|>\n"),
    "kimi-k2": Family("kimi", "<|im_end|>"),
    "gpt-oss": Family("harmony", "", calls=1),
    "internlm": Family("internlm", "<|im_end|>\n", calls=1),
}


def source_of(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text()


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(source_of(name), "<s>", "</s>")


def tool(name: str, **kinds: str) -> dict:
    """A tool whose parameters have these types."""
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": list(kinds)}
    function = {"name": name, "description": f"Does {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool("weather", city="string", days="integer"),
    tool("write_file", path="string", text="string"),
    tool("plan", steps="array", options="object", dry="boolean", share="number"),
]
SCHEMAS = {one["function"]["name"]: one["function"]["parameters"] for one in TOOLS}


def called(name: str, arguments: str, id_: str = "abcdefgh1") -> dict:
    """A message's call, as a client sends it back."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
