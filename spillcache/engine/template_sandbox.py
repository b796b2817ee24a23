"""A Jinja sandbox whose templates also have a bounded cost: they come from files nobody vetted.

Jinja's sandbox keeps a template from reaching Python. It does not keep it from looping for hours,
from filling the memory, or from staying in one C function for minutes, where no clock can reach it.
So each render has a ``Budget``, and every value that a template makes is admitted by it: written
out, it is no longer than the largest text, and it is not nested deeply. Then whatever C does with
such values (compare, hash, sort, print) takes time in proportion to that length, and between two
such steps the clock is looked at. What is left over is not offered: ``|center``, ``str.format``,
``%`` on text and their like, keys of a dict that are not text.
"""

import functools
import json
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, nodes, pass_context, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import do_sort
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from spillcache.engine.call_arguments import CallArguments
from spillcache.engine.template_budget import BUDGET, ITEM_BYTES, Budget, checked_bits
from spillcache.engine.template_rewrite import metered

_FILTERS = (
    *("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first"),
    *("float", "int", "items", "last", "length", "list", "lower", "max", "min", "reverse", "safe"),
    *("string", "title", "upper"),
)
_LAZY_FILTERS = ("map", "reject", "rejectattr", "select", "selectattr", "unique")
"""These may go through many items before they yield one."""

_METHODS = frozenset(
    (
        *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha"),
        *("isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
        *("isprintable", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit"),
        *("rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"),
        *("copy", "get", "items", "keys", "values"),
        *("changed", "cycle"),
    )
)
"""Of texts, of collections, and of ``loop``."""

_SCANS = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"})
"""Their time is the product of both lengths."""

_SCAN_MAX = 1 << 28
_INDENT_MAX = 64
_TIME_FORMAT_MAX = 100
_TIME_FORMAT = re.compile(r"(?:[^%]|%[-_^#:]?[a-zA-Z%])*")
_NAMESPACE_BYTES = 1024
_METHOD_TYPES = (types.BuiltinMethodType, types.MethodType)


class TemplateRefusal(Exception):
    """The template called ``raise_exception``: it does not know these messages."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates, set up as the transformers library does. Any thread."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            finalize=_shown,
            # Constants would be folded when compiling, outside any budget.
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        offered = {name: self.filters[name] for name in (*_FILTERS, *_LAZY_FILTERS)}
        offered |= {"indent": _indent, "join": _join, "replace": _replace, "sort": _sort}
        offered |= {"tojson": _tojson, "trim": _trim, "_made": _same}
        self.filters = {
            name: _admitted(own, lazy=name in _LAZY_FILTERS) for name, own in offered.items()
        }
        self.filters |= {"_copied": _copied, "_counted": _counted, "_joined": _joined}
        self.filters |= {"_key": _key, "_kept": _kept, "_ticked": _ticked}
        self.globals = {
            "dict": _dict,
            "namespace": _namespace,
            "raise_exception": _raise_exception,
            "range": _range,
            "strftime_now": _strftime_now,
        }

    def compile_template(self, source: str) -> Callable[[Mapping[str, Any], Budget], str]:
        """Compile; the result renders with variables under a budget.

        Raises jinja2.TemplateSyntaxError, and what Python makes of absurd sources: RecursionError,
        ValueError and others. The result raises whatever a template can provoke: SecurityError,
        TemplateRefusal, any Python error.
        """
        template = self.from_string(metered(self.parse(source)))

        def render(variables: Mapping[str, Any], budget: Budget) -> str:
            before = BUDGET.set(budget)
            try:
                out: list[str] = []
                size = 0
                for piece in template.generate(variables):
                    size += len(piece)
                    budget.check_size(size)
                    out.append(piece)
                return "".join(out)
            finally:
                BUDGET.reset(before)

        return render

    def concat(self, texts: Iterable[str]) -> str:
        """What a macro or a ``set`` block has put out."""
        return BUDGET.get().join(texts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's rule, and of methods only those whose cost is known."""
        if isinstance(value, _METHOD_TYPES) and attr not in _METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """``str.format`` is a method like any other here: not offered."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the base, with a look at the clock."""
        BUDGET.get().spend(0)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """As the base, with a look at the clock."""
        BUDGET.get().spend(0)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator, once its result is known to be in bounds."""
        budget = BUDGET.get()
        budget.spend()
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Collection) and isinstance(other, int):
                    budget.check_size(len(one) * other)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            checked_bits(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("it uses % on text")
        return budget.admit(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call, counted, its result admitted."""
        budget = BUDGET.get()
        budget.spend()
        if isinstance(obj, Macro) and (obj.catch_varargs or obj.catch_kwargs):
            budget.admit([*args, kwargs])
        elif isinstance(obj, _METHOD_TYPES) and isinstance(obj.__self__, str):
            text = obj.__self__
            budget.charge_copy(text)
            if obj.__name__ == "replace" and len(args) >= 2:
                _check_replace(budget, text, *args[:2])
            elif obj.__name__ == "join" and args:
                return budget.join(map(budget.text, args[0]), text)
            elif obj.__name__ in _SCANS:
                _check_scan(text, *args, *kwargs.values())
        return budget.admit(super().call(context, obj, *args, **kwargs))


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (as the base declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _State(Namespace):
    """A namespace that does not show what it holds: that was not weighed with it."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_replace(budget: Budget, text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        budget.check_size(len(text) + text.count(old) * len(new))


def _check_scan(text: str, *others: Any) -> None:
    if any(isinstance(other, str) and len(text) * len(other) > _SCAN_MAX for other in others):
        raise SecurityError("it searches for too long a text")


# What the rewritten nodes call.


@pass_context  # or Jinja would show constants when compiling
def _shown(context: Context, value: Any) -> str:  # noqa: ARG001
    """What ``{{ … }}`` prints."""
    budget = BUDGET.get()
    budget.spend()
    return budget.text(value)


def _same(value: Any) -> Any:
    return value


def _copied(value: Any) -> Any:
    budget = BUDGET.get()
    budget.spend()
    budget.charge_copy(value)
    return value


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    return BUDGET.get().counted(items)


def _joined(items: list[Any]) -> str:
    budget = BUDGET.get()
    return budget.join(map(budget.text, items))


def _key(value: Any) -> Any:
    # Hashes of other values can be slow, or made to collide.
    if not isinstance(value, str):
        raise SecurityError("it makes a dict whose keys are not text")
    return value


def _kept(value: Any, names: int) -> Any:
    budget = BUDGET.get()
    budget.spend()
    budget.charge(ITEM_BYTES * names)
    return value


def _ticked(value: Any) -> Any:
    BUDGET.get().spend()
    return value


# Filters and functions of templates.


def _admitted(own: Callable[..., Any], *, lazy: bool) -> Callable[..., Any]:
    """A filter that admits what it makes, and makes lists, not iterators."""
    place = int(hasattr(own, "jinja_pass_arg"))

    @functools.wraps(own)
    def admitted(*args: Any, **kwargs: Any) -> Any:
        budget = BUDGET.get()
        budget.spend()
        if lazy and args[place]:
            args = (*args[:place], budget.counted(args[place]), *args[place + 1 :])
        made = own(*args, **kwargs)
        return budget.admit(list(budget.counted(made)) if isinstance(made, Iterator) else made)

    return admitted


@pass_environment
def _join(
    environment: Environment, value: Iterable[Any], d: str = "", attribute: Any = None
) -> str:
    budget = BUDGET.get()
    if attribute is not None:
        value = [environment.getitem(item, attribute) for item in value]
    return budget.join(map(budget.text, value), str(d))


def _replace(s: Any, old: str, new: str, count: int | None = None) -> str:
    budget = BUDGET.get()
    text = budget.text(s)
    _check_replace(budget, text, old, new)
    return text.replace(old, new, -1 if count is None else count)


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    budget = BUDGET.get()
    lines = budget.text(s).split("\n")
    margin = width if isinstance(width, str) else " " * _narrow(width)
    budget.check_size(sum(map(len, lines)) + (len(margin) + 1) * len(lines))
    return "\n".join(
        margin + line if (line or blank) and (number or first) else line
        for number, line in enumerate(lines)
    )


@pass_environment
def _sort(
    environment: Environment,
    value: Iterable[Any],
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: str | int | None = None,
) -> list[Any]:
    # Several attributes would make keys that are larger than the items.
    if isinstance(attribute, str) and "," in attribute:
        raise SecurityError("it sorts by several attributes")
    return do_sort(environment, value, reverse, case_sensitive, attribute)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As the transformers library does it: no HTML escapes."""
    margin = 0 if indent is None else _narrow(indent)
    gap = sum(map(len, separators)) if separators else 0
    BUDGET.get().weigh(value, gap=gap, margin=margin)
    if isinstance(value, CallArguments) and indent is None and not sort_keys:
        return BUDGET.get().text(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _trim(value: Any, chars: str | None = None) -> str:
    text = BUDGET.get().text(value)
    _check_scan(text, chars)
    return text.strip(chars)


def _narrow(indent: int) -> int:
    if indent > _INDENT_MAX:
        raise SecurityError("it indents too far")
    return indent


def _dict(given: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = BUDGET.get().admit({**(given or {}), **more})
    return made


def _namespace(given: Mapping[str, Any] | None = None, /, **more: Any) -> _State:
    BUDGET.get().charge(_NAMESPACE_BYTES)
    return _State(_dict(given, **more))


def _range(*args: int) -> range:
    numbers = range(*args)
    BUDGET.get().check_size(len(numbers))
    return numbers


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(form: str) -> str:
    if len(form) > _TIME_FORMAT_MAX or not _TIME_FORMAT.fullmatch(form):
        raise SecurityError("it asks for a time in an odd format")
    return datetime.now().astimezone().strftime(form)
