"""How model families write tool calls: read from what their chat templates say.

A format is the texts that open a call, how each is read, and what may stand between calls. The
readers take what models really write: a fence too many, a closing mark too few. Names of the
formats are those of the families that brought them up; each is described in public documentation
of its models.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from spillcache.serve.tool_call import (
    NotACall,
    ToolCall,
    arguments_in_json,
    call_of,
    calls_in_json,
)
from spillcache.serve.tool_literals import gemma_call, python_calls
from spillcache.serve.tool_source import Source, Waiting

Calls = tuple[list[ToolCall], int]
"""Calls that were read, and where they end."""
Reader = Callable[[Source, int], Waiting[Calls]]
"""Reads calls from behind the text that opened them; raises NotACall."""

_FENCES = ("```json", "```")
_PYTHON_HEAD = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
_PYTHON_BEGUN = re.compile(r"\[?\s*([A-Za-z_][\w.]*\s*)?")
_JSON_HEAD = re.compile(r"\{\s*\"(name|type|function|id|parameters|arguments|tool_name)\"")
_JSON_BEGUN = re.compile(r"\{?\s*\"?[a-z_]{0,10}")
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,128})>\n?(.*?)\n?</parameter>", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\n]{1,128})>(.*?)(?:</function>\s*)?", re.DOTALL)
_PAIR = re.compile(r"<arg_key>([^<\n]{1,128})</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_INDEX = re.compile(r"^(functions\.)?(.*?)(:\d+)?$", re.DOTALL)
_HEAD_CHARACTERS_MAX = 512


@dataclass(frozen=True, slots=True, eq=False)
class ToolFormat:
    """One way to write calls."""

    name: str
    opens: Mapping[str, Reader]
    """Texts that open calls, and how what follows is read."""
    closes: tuple[str, ...] = ()
    """Texts that mean nothing behind a call."""
    marks: tuple[str, ...] = ()
    """Other texts that may be control tokens, and must be seen."""
    bare: Reader | None = None
    """Reads calls that nothing opens: only where an answer begins with one, and of known tools."""
    stops: tuple[str, ...] = ()
    """Texts that end the answer."""
    id_characters: int = 0
    """How long a call's id must be, in letters and digits; 0: the template does not mind."""
    generic: bool = False
    """Whether the template knows nothing of tools, so that messages must tell of them."""

    @property
    def spelled(self) -> tuple[str, ...]:
        """All texts that the parser must see, though they may be control tokens."""
        return (*self.opens, *self.closes, *self.marks, *self.stops)


# JSON.


def read_json(source: Source, at: int) -> Waiting[Calls]:
    """An object or a list of objects, maybe in a fence."""
    at = yield from source.skip_space(at)
    fence = yield from source.starts(at, _FENCES)
    at = yield from source.skip_space(at + len(fence))
    if source.text[at : at + 1] not in {"{", "["}:
        raise NotACall("there is no JSON")
    end = yield from source.value(at)
    calls = calls_in_json(source.text[at:end])
    if fence:
        closing = yield from source.skip_space(end)
        end = closing + len((yield from source.starts(closing, ("```",)))) or end
    return calls, end


def read_bare_json(source: Source, at: int) -> Waiting[Calls]:
    """As ``read_json``, but soon over where an object does not begin like a call."""
    while not _JSON_HEAD.match(source.text, at):
        if not _JSON_BEGUN.fullmatch(source.text, at):
            raise NotACall("it does not begin like a call")
        yield from source.more()
    return (yield from read_json(source, at))


def read_named(
    source: Source, at: int, name_of: Callable[[str], tuple[str, str]], close: str = ""
) -> Waiting[Calls]:
    """A name and whatever belongs to it, then its arguments in JSON, maybe in a fence.

    ``name_of`` gives name and id of what stands before the arguments. A call without arguments
    ends with ``close``.
    """
    start = at
    while True:
        brace = source.text.find("{", at, at + _HEAD_CHARACTERS_MAX)
        closed = source.text.find(close, at) if close else -1
        if closed >= 0 and not 0 <= brace < closed:
            name, own = name_of(source.text[start:closed])
            return [ToolCall(call_of(name, {}).name, "{}", own)], closed
        if brace >= 0:
            break
        if len(source.text) - at >= _HEAD_CHARACTERS_MAX:
            raise NotACall("a name is too long")
        yield from source.more()
    name, own = name_of(source.text[start:brace])
    end = yield from source.value(brace)
    call = arguments_in_json(name, source.text[brace:end])
    return [ToolCall(call.name, call.arguments, own)], end


def read_after(source: Source, at: int, mark: str, reader: Reader) -> Waiting[Calls]:
    """A call behind ``mark``, which opens the first of a section."""
    at = yield from source.skip_space(at)
    if not (yield from source.starts(at, (mark,))):
        raise NotACall(f"{mark} is missing")
    return (yield from reader(source, at + len(mark)))


def _mistral_name(head: str) -> tuple[str, str]:
    name, _, rest = head.partition("[CALL_ID]")
    own = rest.partition("[ARGS]")[0].strip()
    return name.partition("[ARGS]")[0].strip(), own if own.isalnum() else ""


def _deepseek_name(head: str) -> tuple[str, str]:
    first, _, second = head.partition("<｜tool▁sep｜>")
    second = second.strip().removesuffix("```json").removesuffix("```").strip()
    return second or first.strip(), ""


def _kimi_name(head: str) -> tuple[str, str]:
    own = head.partition("<|tool_call_argument_begin|>")[0].strip()
    found = _INDEX.match(own)
    return (found[2] if found else own), own


def _functionary_name(head: str) -> tuple[str, str]:
    return head.strip().removesuffix(">").strip(), ""


def read_mistral(source: Source, at: int) -> Waiting[Calls]:
    """A list of objects, or since 2025 a name and its arguments."""
    at = yield from source.skip_space(at)
    if source.text[at : at + 1] == "[" and not (
        yield from source.starts(at, ("[ARGS]", "[CALL_ID]"))
    ):
        return (yield from read_json(source, at))
    return (yield from read_named(source, at, _mistral_name))


# Tags.


def read_tagged(source: Source, at: int) -> Waiting[Calls]:
    """What stands in ``<tool_call>``: JSON, ``<function=…>`` with parameters, or pairs of keys and
    values.
    """
    at = yield from source.skip_space(at)
    if source.text[at : at + 1] in {"{", "["} or (yield from source.starts(at, _FENCES)):
        return (yield from read_json(source, at))
    end = yield from source.until(at, "</tool_call>")
    text = source.text[at:end]
    call = _parameters(text) if text.startswith("<function=") else _pairs(text)
    return [call], end


def read_function(source: Source, at: int) -> Waiting[Calls]:
    """What follows ``<function=``: JSON arguments, or parameters in tags of their own."""
    end = yield from source.until(at, ">")
    start = yield from source.skip_space(end + 1)
    if source.text[start : start + 1] == "{":
        return (yield from read_named(source, at, _functionary_name))
    close = yield from source.until(start, "</function>")
    return [_parameters("<function=" + source.text[at:close])], close


def _parameters(text: str) -> ToolCall:
    found = _FUNCTION.fullmatch(text.rstrip())
    if found is None:
        raise NotACall("it is no function")
    given = {name.strip(): value for name, value in _PARAMETER.findall(found[2])}
    return call_of(found[1], given, untyped=True)


def _pairs(text: str) -> ToolCall:
    name, mark, rest = text.partition("<arg_key>")
    given = {key.strip(): value for key, value in _PAIR.findall(mark + rest)}
    return call_of(name, given, untyped=True)


# Code.


def read_python(source: Source, at: int) -> Waiting[Calls]:
    """A list of calls in Python."""
    at = yield from source.skip_space(at)
    while not _PYTHON_HEAD.match(source.text, at):
        if not _PYTHON_BEGUN.fullmatch(source.text, at):
            raise NotACall("it does not begin like a list of calls")
        yield from source.more()
    end = yield from source.value(at, python=True)
    return python_calls(source.text[at:end]), end


def read_code(source: Source, at: int, close: str) -> Waiting[Calls]:
    """Calls in Python, in a list or not, up to ``close``."""
    end = yield from source.until(at, close)
    return python_calls(source.text[at:end]), end


def read_gemma(source: Source, at: int, close: str, quote: str) -> Waiting[Calls]:
    """``call:f{…}`` up to ``close``; ``quote`` stands around texts."""
    end = yield from source.until(at, close)
    return [gemma_call(source.text[at:end], quote)], end


# Formats.

_deepseek = partial(read_named, name_of=_deepseek_name, close="<｜tool▁call▁end｜>")
_kimi = partial(read_named, name_of=_kimi_name)

TAGGED = ToolFormat("tagged", {"<tool_call>": read_tagged}, closes=("</tool_call>",))
"""Hermes, Qwen, and with other texts inside GLM, Granite and Qwen Coder."""

GENERIC = ToolFormat(
    "generic", {"<tool_call>": read_tagged}, closes=("</tool_call>",), generic=True
)
"""For templates that know no tools: messages tell of them."""

HELD = ToolFormat("held", {"<tool_call>": read_tagged}, bare=read_bare_json)
"""What an answer looks like that is held to ``tool_prompt.call_schema``: a bare object."""

LLAMA = ToolFormat(
    "llama",
    {"<|python_tag|>": read_json, "<function=": read_function},
    closes=(";", "</function>"),
    bare=read_bare_json,
)
"""Llama 3: a bare object, or one behind the tag; ``<function=…>`` where the prompt asks for it."""

PYTHONIC = ToolFormat(
    "pythonic",
    {"<|python_start|>": read_python, "<|tool_call_start|>": read_python},
    closes=("<|python_end|>", "<|tool_call_end|>"),
    bare=read_python,
)
"""Llama 3.2 and 4, LFM 2: a list of calls as Python writes them."""

MISTRAL = ToolFormat(
    "mistral",
    {"[TOOL_CALLS]": read_mistral},
    closes=("[/TOOL_CALLS]",),
    marks=("[ARGS]", "[CALL_ID]"),
)

FUNCTION_GEMMA = ToolFormat(
    "functiongemma",
    {"<start_function_call>": partial(read_gemma, close="<end_function_call>", quote="<escape>")},
    closes=("<end_function_call>",),
    marks=("<escape>",),
    stops=("<start_function_response>",),
)

GEMMA4 = ToolFormat(
    "gemma4",
    {"<|tool_call>": partial(read_gemma, close="<tool_call|>", quote='<|"|>')},
    closes=("<tool_call|>",),
    marks=('<|"|>',),
    stops=("<|tool_response>",),
)

GEMMA_CODE = ToolFormat(
    "gemma-code",
    {"```tool_code": partial(read_code, close="```"), "```tool_call": read_json},
    closes=("```",),
)
"""Gemma 3 as its guide prompts it."""

COMMAND = ToolFormat(
    "command",
    {"<|START_ACTION|>": read_json, "Action:": read_json},
    closes=("<|END_ACTION|>",),
)
"""Command R, and R7B and later, which have tokens for it."""

DEEPSEEK = ToolFormat(
    "deepseek",
    {
        "<｜tool▁calls▁begin｜>": partial(
            read_after, mark="<｜tool▁call▁begin｜>", reader=_deepseek
        ),
        "<｜tool▁call▁begin｜>": _deepseek,
    },
    closes=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    marks=("<｜tool▁sep｜>",),
)

KIMI = ToolFormat(
    "kimi",
    {
        "<|tool_calls_section_begin|>": partial(
            read_after, mark="<|tool_call_begin|>", reader=_kimi
        ),
        "<|tool_call_begin|>": _kimi,
    },
    closes=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
    marks=("<|tool_call_argument_begin|>",),
)

PHI = ToolFormat(
    "phi",
    {"<|tool_call|>": read_json, "functools": read_json},
    closes=("<|/tool_call|>",),
)
"""Phi 4, and Granite 3.0, which closes nothing."""

INTERNLM = ToolFormat(
    "internlm",
    {
        "<|action_start|>": partial(read_after, mark="<|plugin|>", reader=read_json),
    },
    closes=("<|action_end|>",),
    marks=("<|plugin|>",),
)

NEMOTRON = ToolFormat("nemotron", {"<TOOLCALL>": read_json}, closes=("</TOOLCALL>",))

_SIGNS: tuple[tuple[str, ToolFormat], ...] = (
    ("<start_function_call>", FUNCTION_GEMMA),
    ("<|tool_call>", GEMMA4),
    ("<｜tool▁call▁begin｜>", DEEPSEEK),
    ("<|tool_call_begin|>", KIMI),
    ("[TOOL_CALLS]", MISTRAL),
    ("<|START_ACTION|>", COMMAND),
    ("Action:", COMMAND),
    ("<|action_start|>", INTERNLM),
    ("<|tool_call_start|>", PYTHONIC),
    ("<|tool_list_start|>", PYTHONIC),
    ("<|python_start|>", PYTHONIC),
    ("[func_name1(", PYTHONIC),
    ("<TOOLCALL>", NEMOTRON),
    ("<tool_call>", TAGGED),
    ("<|tool_call|>", PHI),
    ("<|tool|>", PHI),
    ("functools[", PHI),
    ("```tool_code", GEMMA_CODE),
    ("<|python_tag|>", LLAMA),
    ("<function=", LLAMA),
    ("ipython", LLAMA),
)
"""What a template says that no other family's does; the first that is found decides."""

FORMATS = (*dict.fromkeys(format_ for _, format_ in _SIGNS), GENERIC)

_USES_TOOLS = re.compile(r"\btools\b")
_NINE = re.compile(r"length\s*!=\s*9\b")


def tool_format(template: str) -> ToolFormat:
    """The format of a chat template, its Jinja text or a built-in name; GENERIC if it has none."""
    if not _USES_TOOLS.search(template):
        return GENERIC
    known = next((known for sign, known in _SIGNS if sign in template), GENERIC)
    return replace(known, id_characters=9) if _NINE.search(template) else known
