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

from spillcache.serve.answer_channels import MARKS
from spillcache.serve.call_teller import CallTeller, Reader
from spillcache.serve.tool_call import NotACall, ToolCall, called
from spillcache.serve.tool_literals import gemma_call, python_calls
from spillcache.serve.tool_objects import read_arguments, read_bare_json, read_json
from spillcache.serve.tool_source import HEAD_CHARACTERS_MAX, Source, Waiting
from spillcache.serve.tool_tags import ENDS, read_function, read_tagged

_PYTHON_HEAD = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
_PYTHON_BEGUN = re.compile(r"\[?\s*([A-Za-z_][\w.]*\s*)?")
_INDEX = re.compile(r"^(functions\.)?(.*?)(:\d+)?$", re.DOTALL)


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
    channels: bool = False
    """Whether all that a model says, thoughts and words as well, is written in channels: see
    ``answer_channels``.
    """
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


# Names, then arguments.


def read_named(
    source: Source,
    at: int,
    teller: CallTeller,
    *,
    name_of: Callable[[str], tuple[str, str]],
    close: str = "",
) -> Waiting[int]:
    """A name and whatever belongs to it, then its arguments in JSON, maybe in a fence.

    ``name_of`` gives name and id of what stands before the arguments. A call without arguments
    ends with ``close``.
    """
    marks = ("{", close) if close else ("{",)
    end, mark = yield from source.first(at, marks, HEAD_CHARACTERS_MAX)
    name, own = name_of(source.text[at:end])
    if mark == "{":
        return (yield from read_arguments(source, end, teller, name, own))
    teller.tell_all([ToolCall(called(name), "{}", own)], end)
    return end


def read_after(
    source: Source, at: int, teller: CallTeller, *, mark: str, reader: Reader
) -> Waiting[int]:
    """A call behind ``mark``, which opens the first of a section."""
    at = yield from source.need(at, mark)
    return (yield from reader(source, at, teller))


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


def read_mistral(source: Source, at: int, teller: CallTeller) -> Waiting[int]:
    """A list of objects, or since 2025 a name and its arguments. Those lists have ids at the end of
    each call.
    """
    at = yield from source.skip_space(at)
    if source.text[at : at + 1] == "[" and not (
        yield from source.starts(at, ("[ARGS]", "[CALL_ID]"))
    ):
        return (yield from read_json(source, at, teller, late=True))
    return (yield from read_named(source, at, teller, name_of=_mistral_name))


# Code: told when it is complete.


def read_python(source: Source, at: int, teller: CallTeller) -> Waiting[int]:
    """A list of calls in Python."""
    at = yield from source.skip_space(at)
    while not _PYTHON_HEAD.match(source.text, at):
        if not _PYTHON_BEGUN.fullmatch(source.text, at):
            raise NotACall("it does not begin like a list of calls")
        yield from source.more()
    end = yield from source.brackets(at)
    teller.tell_all(python_calls(source.text[at:end]), end)
    return end


def read_code(source: Source, at: int, teller: CallTeller, *, close: str) -> Waiting[int]:
    """Calls in Python, in a list or not, up to ``close``."""
    end = yield from source.until(at, close)
    teller.tell_all(python_calls(source.text[at:end]), end)
    return end


def read_gemma(
    source: Source, at: int, teller: CallTeller, *, close: str, quote: str
) -> Waiting[int]:
    """``call:f{…}`` up to ``close``; ``quote`` stands around texts."""
    end = yield from source.until(at, close)
    teller.tell_all([gemma_call(source.text[at:end], quote)], end)
    return end


# Formats.

_deepseek = partial(read_named, name_of=_deepseek_name, close="<｜tool▁call▁end｜>")
_kimi = partial(read_named, name_of=_kimi_name)

TAGGED = ToolFormat("tagged", {"<tool_call>": read_tagged}, closes=ENDS)
"""Hermes, Qwen, and with other texts inside GLM, Granite and Qwen Coder."""

GENERIC = ToolFormat("generic", {"<tool_call>": read_tagged}, closes=ENDS, generic=True)
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

HARMONY = ToolFormat("harmony", {}, marks=MARKS, channels=True)
"""gpt-oss: a call is a message to a function."""

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

FORMATS = (HARMONY, *dict.fromkeys(format_ for _, format_ in _SIGNS), GENERIC)

_USES_TOOLS = re.compile(r"\btools\b")
_NINE = re.compile(r"length\s*!=\s*9\b")


def tool_format(template: str) -> ToolFormat:
    """The format of a chat template, its Jinja text or a built-in name; GENERIC if it has none."""
    if "<|channel|>" in template:
        return HARMONY
    if not _USES_TOOLS.search(template):
        return GENERIC
    known = next((known for sign, known in _SIGNS if sign in template), GENERIC)
    return replace(known, id_characters=9) if _NINE.search(template) else known
