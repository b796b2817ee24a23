"""A Jinja sandbox whose templates also have a bounded cost: they come from files nobody vetted.

Jinja's sandbox keeps a template from reaching Python. It does not keep it from looping for hours or
from building a string that fills the memory. So each render has a ``Budget``: steps (loop rounds,
calls), seconds, and characters in any one text. Loops and concatenations are rewritten to pass
through it; operators, methods and filters that make much out of little are measured before they
run, or are not offered (``ljust``, ``|center``, ``|batch``: their result is as long as they say).
"""

import json
import re
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_BUDGET = "__budget__"

_PLAIN_FILTERS = (
    *("abs", "attr", "count", "d", "default", "dictsort", "first", "groupby", "items", "last"),
    *("length", "list", "map", "max", "min", "reject", "rejectattr", "reverse", "safe", "select"),
    *("selectattr", "sort", "unique"),
)
_TEXT_FILTERS = (
    *("capitalize", "e", "escape", "float", "int", "lower", "string", "striptags", "title"),
    *("trim", "upper"),
)
"""These turn what they are given into text first: it is measured before."""

_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "to_bytes", "translate", "zfill"})
_WIDE_FIELD = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)|\{[^{}]*:[^{}]*(?:\d{4}|\{)")
_WIDEST_INDENT = 64
_LARGEST_INT_BITS = 4096
_METHODS = (types.BuiltinMethodType, types.MethodType)
_FORMAT_CHARACTERS = 1 << 24
_SCALAR_CHARACTERS = 32


class TemplateRefusal(Exception):
    """The template called ``raise_exception``: it does not know these messages."""


class Budget:
    """What one render may cost. Raises SecurityError when it is used up; for one thread."""

    def __init__(self, *, steps: int, seconds: float, characters: int) -> None:
        self.characters = characters
        """The most characters in one text, and items in one list."""
        self._steps = steps
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def spend(self, steps: int = 1) -> None:
        """Count ``steps`` and look at the clock."""
        self._steps -= steps
        if self._steps < 0:
            raise SecurityError("it takes too many steps")
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it takes longer than {self._seconds:g} s")

    def check_size(self, size: int) -> None:
        """Refuse a text of ``size`` characters (or a list of as many items)."""
        if size > self.characters:
            raise SecurityError("it makes too much text")

    def text(self, value: Any) -> str:
        """``str(value)``, measured first."""
        _weigh(value, self.characters)
        return str(value)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates, set up as the transformers library does. Any thread."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

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
        own = self.filters
        self.filters = {name: own[name] for name in _PLAIN_FILTERS}
        self.filters |= {name: _measured(own[name]) for name in _TEXT_FILTERS}
        self.filters |= {
            "indent": _indent,
            "join": _join,
            "replace": _replace,
            "tojson": _tojson,
            "_counted": _counted,
            "_joined": _joined,
        }
        self.globals = {
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "range": _range,
            "strftime_now": _strftime_now,
        }

    def compile_template(self, source: str) -> Callable[[Mapping[str, Any], Budget], str]:
        """Compile; the result renders with variables under a budget.

        Raises jinja2.TemplateSyntaxError, and RecursionError for absurd nesting. The result raises
        whatever a template can provoke: SecurityError, TemplateRefusal, any Python error.
        """
        template = self.from_string(_Metered().visit(self.parse(source)))

        def render(variables: Mapping[str, Any], budget: Budget) -> str:
            out: list[str] = []
            size = 0
            for piece in template.generate({**variables, _BUDGET: budget}):
                size += len(piece)
                budget.check_size(size)
                budget.spend()
                out.append(piece)
            return "".join(out)

        return render

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's rule, and no methods that pad to any width."""
        return attr not in _PADDING and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` as Jinja wraps it, measured."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_format(_FORMAT_CHARACTERS, value.__self__, [args, kwargs])
            return wrapped(*args, **kwargs)

        return checked

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator, once the size of its result is known to be in bounds."""
        budget = _budget(context)
        budget.spend()
        _OPERATOR_CHECKS[operator](budget, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call, counted; ``str.replace`` and ``str.join`` are measured first."""
        budget = _budget(context)
        budget.spend()
        if isinstance(obj, _METHODS) and isinstance(obj.__self__, str):
            if obj.__name__ == "replace" and len(args) >= 2:
                _check_replace(budget, obj.__self__, *args[:2])
            elif obj.__name__ == "join" and args:
                args = ([budget.text(item) for item in args[0]],)
                _check_join(budget, args[0], obj.__self__)
        return super().call(context, obj, *args, **kwargs)


class _Metered(NodeTransformer):
    """Sends what loops iterate over, and what ``~`` joins, through the budget."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  (the visitor's convention)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_joined")


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (as the base declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _budget(context: Context) -> Budget:
    # ``parent`` holds what the render was given: a template's own ``set`` can't replace it.
    budget: Budget = context.parent[_BUDGET]
    return budget


def _weigh(value: Any, limit: int) -> int:
    """About how many characters ``str(value)`` has; raises SecurityError past ``limit``."""
    if isinstance(value, str):
        weight = len(value)
    elif isinstance(value, Namespace):
        raise SecurityError("it shows a namespace")
    elif isinstance(value, Mapping):
        weight = _weigh(value.items(), limit)
    elif isinstance(value, Collection) and not isinstance(value, range):
        weight = 2
        for item in value:
            weight += 2 + _weigh(item, limit - weight)
    else:
        weight = _SCALAR_CHARACTERS
    if weight > limit:
        raise SecurityError("it makes too much text")
    return weight


# Checks: each raises SecurityError when the result would be too large.


def _check_sum(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, Collection) and isinstance(right, Collection):
        budget.check_size(len(left) + len(right))


def _check_product(budget: Budget, left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Collection) and isinstance(other, int):
            budget.check_size(len(one) * other)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_power(budget: Budget, left: Any, right: Any) -> None:  # noqa: ARG001  (one signature)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))


def _check_bits(bits: int) -> None:
    if bits > _LARGEST_INT_BITS:
        raise SecurityError("it makes a number that is too large")


def _check_remainder(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, str):
        _check_format(budget.characters, left, right)


def _check_format(limit: int, form: str, values: Any) -> None:
    if _WIDE_FIELD.search(form):
        raise SecurityError("it pads a field to a large width")
    _weigh(values, limit // max(1, form.count("%") + form.count("{")))


def _check_replace(budget: Budget, text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        budget.check_size(len(text) + text.count(old) * len(new))


def _check_join(budget: Budget, texts: list[str], separator: str) -> None:
    budget.check_size(sum(map(len, texts)) + len(separator) * len(texts))


_OPERATOR_CHECKS: Mapping[str, Callable[[Budget, Any, Any], None]] = {
    "+": _check_sum,
    "*": _check_product,
    "**": _check_power,
    "%": _check_remainder,
}


# Filters and functions of templates.


@pass_context
def _shown(context: Context, value: Any) -> Any:
    """What ``{{ … }}`` prints."""
    return value if isinstance(value, str) else _budget(context).text(value)


def _measured(own: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def measured(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        _weigh(value, _budget(context).characters)
        return own(value, *args, **kwargs)

    return measured


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    budget = _budget(context)
    for item in items:
        budget.spend()
        yield item


@pass_context
def _joined(context: Context, items: list[Any]) -> str:
    budget = _budget(context)
    budget.spend()
    texts = [budget.text(item) for item in items]
    _check_join(budget, texts, "")
    return "".join(texts)


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    budget, environment = _budget(context), context.environment
    if attribute is not None:
        value = [environment.getitem(item, attribute) for item in value]
    texts = [budget.text(item) for item in value]
    _check_join(budget, texts, str(d))
    return str(d).join(texts)


@pass_context
def _replace(context: Context, s: Any, old: str, new: str, count: int | None = None) -> str:
    budget = _budget(context)
    text = budget.text(s)
    _check_replace(budget, text, old, new)
    return text.replace(old, new, -1 if count is None else count)


@pass_context
def _indent(
    context: Context,
    s: str,
    width: int | str = 4,
    first: bool = False,
    blank: bool = False,
) -> str:
    lines = s.split("\n")
    margin = width if isinstance(width, str) else " " * _narrow(width)
    _check_join(_budget(context), lines, margin + "\n")
    return "\n".join(
        margin + line if (line or blank) and (number or first) else line
        for number, line in enumerate(lines)
    )


@pass_context
def _tojson(  # noqa: PLR0917  (templates may give them in order)
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As the transformers library does it: no HTML escapes."""
    _weigh(value, _budget(context).characters)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=None if indent is None else _narrow(indent),
        separators=separators,
        sort_keys=sort_keys,
    )


def _narrow(indent: int) -> int:
    if indent > _WIDEST_INDENT:
        raise SecurityError("it indents too far")
    return indent


@pass_context
def _range(context: Context, *args: int) -> range:
    numbers = range(*args)
    budget = _budget(context)
    budget.check_size(len(numbers))
    budget.spend(len(numbers))
    return numbers


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
