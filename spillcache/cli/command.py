"""Commands as typer makes them, with plainer help, and with words checked before they are parsed.

Typer's parser would read ``-hf x`` as ``-h -f x``, and ``--cache-disk --port 0`` as a directory
called ``--port``.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from typer.core import TyperCommand, TyperGroup

from spillcache.cli.config_file import IGNORED
from spillcache.cli.llama_flags import (
    ALIASES,
    IGNORED_SWITCHES,
    IGNORED_VALUES,
    REFUSED,
    is_harmless,
)
from spillcache.cli.llama_variables import ignored_variables
from spillcache.errors import ConfigError

_NUMBER = re.compile(r"-\d[\d.]*")


class Command(TyperCommand):
    """A command whose help names no type for what takes no value, and no variables."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The same, dressed for the help."""
        return _dressed(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check, then parse; raises ConfigError for a flag whose value is missing."""
        options = _options(self.get_params(ctx))
        return super().parse_args(ctx, self._checked(ctx, args, options))

    def _checked(
        self,
        ctx: Any,  # noqa: ARG002 — for those below
        words: list[str],
        options: Mapping[str, Any],
    ) -> list[str]:
        return checked(words, options)


class Group(TyperGroup):
    """A group of commands, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The same, dressed for the help."""
        return _dressed(super().get_params(ctx))


class ServeCommand(Command):
    """``serve``: understands llama-server's command lines."""

    def _checked(self, ctx: Any, words: list[str], options: Mapping[str, Any]) -> list[str]:
        ours, ignored = ours_of(words)
        variables = {str(option.envvar) for option in options.values()}
        ctx.meta[IGNORED] = ignored + ignored_variables(os.environ, variables)
        return checked(ours, options, unknown=lambda flag: _no_such_flag(flag, options))


class BenchCommand(Command):
    """A bench: flags of the server go after ``--``."""

    def _checked(self, ctx: Any, words: list[str], options: Mapping[str, Any]) -> list[str]:
        def unknown(flag: str) -> ConfigError:
            return ConfigError(
                f"{flag}: no such flag of {ctx.command_path}; flags of the server go after --, "
                f"as in: {ctx.command_path} -- -fa off"
            )

        return checked(words, options, unknown=unknown)


def checked(
    words: list[str],
    options: Mapping[str, Any],
    unknown: Callable[[str], ConfigError] | None = None,
) -> list[str]:
    """``words``, if no option swallows the next one; raises ConfigError if one does.

    ``unknown`` makes the error for flags that are none of ``options``.
    """
    at = 0
    while at < len(words) and words[at] != "--":
        word = words[at]
        name, given, _ = word.partition("=")
        at += 1
        if not is_flag(word):
            continue
        option = options.get(name)
        if option is None:
            if unknown is not None:
                raise unknown(name)
            continue
        if given or option.is_flag:
            continue
        if at == len(words) or is_flag(words[at]):
            raise ConfigError(f"{name} needs {_a_value(option)}")
        at += 1
    return words


def ours_of(words: list[str]) -> tuple[list[str], list[str]]:
    """``words`` without llama-server's flags that mean nothing here, and those, as typed.

    Raises ConfigError for those that mean something that is not offered.
    """
    ours: list[str] = []
    ignored: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        name, given, value = word.partition("=")
        at += 1
        following = value if given else "".join(words[at : at + 1])
        harmless = is_harmless(name, following)
        if name in REFUSED and not harmless:
            raise ConfigError(f"{name} is not supported: {REFUSED[name]}")
        if name in IGNORED_SWITCHES:
            ignored.append(word)
        elif name in IGNORED_VALUES or harmless:
            ignored.append(word)
            if not given and at < len(words) and not is_flag(words[at]):
                ignored[-1] += f" {words[at]}"
                at += 1
        elif name in ALIASES:
            ours.append(ALIASES[name] + given + value)
        else:
            ours.append(word)
    return ours, ignored


def is_flag(word: str) -> bool:
    """Whether a word is a flag, rather than a value; ``-1`` is a value."""
    return word.startswith("-") and word != "-" and _NUMBER.fullmatch(word) is None


def _no_such_flag(flag: str, options: Mapping[str, Any]) -> ConfigError:
    near = difflib.get_close_matches(flag, options, 1)
    hint = f"did you mean {near[0]}?" if near else "see spillcache serve --help"
    return ConfigError(f"{flag}: no such flag; {hint}")


def _a_value(option: Any) -> str:
    value = str(option.metavar or "a value")
    if option.metavar is None or not value.isalpha():
        return value
    if value == "N":
        return "a number"
    return f"{'an' if value[0] in 'AEIOU' else 'a'} {value}"


def _options(params: list[Any]) -> dict[str, Any]:
    return {
        name: param
        for param in params
        if param.param_type_name == "option"
        for name in (*param.opts, *param.secondary_opts)
    }


def _dressed(params: list[Any]) -> list[Any]:
    for param in params:
        if param.param_type_name == "option":
            param.show_envvar = False
            if param.is_flag and param.metavar is None:
                param.metavar = ""
        else:
            param.display_type_rich = _no_type
    return params


def _no_type(ctx: Any) -> None:
    """What an argument's type is called in the help: its name says enough."""
