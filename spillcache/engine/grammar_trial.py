"""Whether a grammar can be compiled, found out in a child process: some of a few hundred characters
keep llguidance busy for hours (allOf over twenty patterns), others end the process (rules or
references that nest by the thousand), and nothing can stop it from outside.

    python -m spillcache.engine.grammar_trial gbnf|json_schema < GRAMMAR

It exits with 0 when compiling came to an end, be it with an error, and dies of a signal otherwise.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from spillcache.engine.gbnf import lark_of
from spillcache.errors import EngineError, Overloaded, RequestError
from spillcache.own_child import module_command, own_environment

if TYPE_CHECKING:
    from spillcache.engine.base import GrammarKind

COMPILE_S_MAX = 1.0
"""Of CPU time."""
_WALL_S_MAX = 30.0
"""On a machine that has other things to do, too."""
_STACK_BYTES = 1 << 20
"""An eighth of what threads of the server have."""
_MEMORY_BYTES = 2 << 30
_NICE = 5
_KNOWN_MAX = 256
WAITING_MAX = 4
"""Grammars that are tried or wait for it: so long others wait, and so does the server's end."""
_OF_SIZE = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGKILL})
"""How a child ends whose stack or memory was not enough."""

_SLOW = (
    f"compiling it takes more than {COMPILE_S_MAX:g} s; use fewer alternatives (allOf, anyOf), "
    "patterns, and properties in one object"
)
_LARGE = (
    "it is too large, or its rules or references nest too deeply, to be compiled; make it smaller"
)

_PLAIN_GBNF_CHARACTERS = 2048
_PLAIN_SCHEMA_CHARACTERS = 1 << 14
_PLAIN_OBJECTS = 256
_PLAIN_WORDS = frozenset(
    """
    $defs $ref $schema additionalProperties anyOf const default definitions deprecated
    description enum examples items maxItems maxLength maximum minItems minLength minimum properties
    required strict title type
    """.split()  # noqa: SIM905 — a list of words reads better
)
"""Keywords whose cost grows no faster than the schema, more or less."""
_PLAIN_REFERENCE = re.compile(r"#|#/(\$defs|definitions)/[^/]+")
_JSON_OPTIONS: Any = {
    # As llama.cpp reads it: one of them, whether or not another would fit as well.
    "coerce_one_of": True,
    # Likewise: a blank, or a line break or two with what indents the next line. Else a model may go
    # on with blanks until its tokens are used up.
    "whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})?",
}


def matcher_of(api: Any, tokenizer: Any, kind: "GrammarKind", text: str) -> Any:
    """llguidance's matcher, which may hold an error. Raises RequestError for faulty GBNF."""
    if kind == "gbnf":
        grammar = api.LLMatcher.grammar_from_lark(lark_of(text))
    else:
        grammar = api.LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)
    limits = api.LLParserLimits(verbose_errors=False)
    return api.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


class GrammarTrials:
    """Tries grammars before the server compiles them, one at a time. Any thread."""

    def __init__(self) -> None:
        self._trying = threading.Lock()
        self._looking = threading.Lock()
        self._under_way: dict[bytes, Future[str]] = {}
        self._known: OrderedDict[bytes, str] = OrderedDict()
        """By digest of the grammar: what is wrong with it, or ""."""

    def check(self, kind: "GrammarKind", text: str) -> None:
        """Raise RequestError for what takes too long, too much memory, or too deep a stack.

        What is small and plain is not tried. Overloaded where too many wait; EngineError where no
        child process can be had.
        """
        if is_plain(kind, text):
            return
        name = hashlib.blake2b(f"{kind} {text}".encode(errors="replace")).digest()
        fault = self._find(name)
        if fault is None:
            fault = self._found_out(name, kind, text)
        if fault:
            field = "grammar" if kind == "gbnf" else "json_schema"
            raise RequestError(f"{field}: {fault}", field)

    def _found_out(self, name: bytes, kind: "GrammarKind", text: str) -> str:
        """What a trial says; who asks for the same grammar meanwhile waits for the same trial."""
        with self._looking:
            if name in self._known:
                return self._known[name]
            others = self._under_way.get(name)
            if others is None and len(self._under_way) >= WAITING_MAX:
                raise Overloaded(
                    f"{WAITING_MAX} grammars are being tried, or wait for it; try again later"
                )
            trial = self._under_way.setdefault(name, Future())
        if others is not None:
            return others.result()
        try:
            with self._trying:
                fault = _tried(kind, text)
            self._keep(name, fault)
            trial.set_result(fault)
        except BaseException as error:
            trial.set_exception(error)
            raise
        finally:
            with self._looking:
                del self._under_way[name]
        return fault

    def _find(self, name: bytes) -> str | None:
        with self._looking:
            if name in self._known:
                self._known.move_to_end(name)
            return self._known.get(name)

    def _keep(self, name: bytes, fault: str) -> None:
        with self._looking:
            self._known[name] = fault
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)


def is_plain(kind: "GrammarKind", text: str) -> bool:
    """Whether it compiles within milliseconds, whatever it says."""
    if kind == "gbnf":
        return len(text) <= _PLAIN_GBNF_CHARACTERS
    if len(text) > _PLAIN_SCHEMA_CHARACTERS:
        return False
    for number, one in enumerate(_subschemas(json.loads(text))):
        if number == _PLAIN_OBJECTS or not _is_plain_object(one):
            return False
    return True


def _is_plain_object(schema: dict[str, Any]) -> bool:
    if not schema.keys() <= _PLAIN_WORDS:
        return False
    if "anyOf" in schema and ("properties" in schema or "$ref" in schema):
        return False  # worked out as the product of both
    # A reference may lead to what no keyword makes a schema, and a list of items is one of schemas.
    reference = schema.get("$ref", "#")
    leads_on = isinstance(reference, str) and _PLAIN_REFERENCE.fullmatch(reference)
    return bool(leads_on) and not isinstance(schema.get("items"), list)


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and those within it; of what is no schema whatever there is."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict):
            continue
        yield one
        for word in ("properties", "$defs", "definitions"):
            named = one.get(word)
            waiting += named.values() if isinstance(named, dict) else ()
        waiting += one["anyOf"] if isinstance(one.get("anyOf"), list) else ()
        waiting += [one.get("items"), one.get("additionalProperties")]


def _tried(kind: "GrammarKind", text: str) -> str:
    """What is wrong with it; "" if nothing is, or nothing that only a trial can tell."""
    command = module_command("spillcache.engine.grammar_trial", kind)
    try:
        done = subprocess.run(  # noqa: S603 — this very module; the grammar is only its input
            command,
            env=own_environment(),
            input=text.encode(errors="replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_WALL_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _SLOW
    except OSError as error:
        raise EngineError(f"a grammar could not be tried before use: {error.strerror}") from error
    if done.returncode == 0:
        return ""
    if done.returncode == -signal.SIGPROF:
        return _SLOW
    if -done.returncode in _OF_SIZE:
        return _LARGE
    raise EngineError(
        "a grammar could not be tried before use: the process for that ended with "
        f"{done.returncode}; spillcache doctor says whether the engine is sound"
    )


def main(kind: "GrammarKind") -> None:
    """See the module."""
    import resource  # noqa: PLC0415 — not everywhere

    import llguidance as api  # noqa: PLC0415 — an extra

    text = sys.stdin.buffer.read().decode()
    tokenizer = api.LLTokenizer(api.TokenizerWrapper(_Bytes()))
    os.nice(_NICE)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, COMPILE_S_MAX)
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=lambda: _compile(api, tokenizer, kind, text))
    thread.start()
    thread.join()


def _compile(api: Any, tokenizer: Any, kind: "GrammarKind", text: str) -> None:
    try:
        matcher_of(api, tokenizer, kind, text)
    except RequestError:
        return  # the server will find and tell it


class _Bytes:
    """A vocabulary as small as can be: bytes, and an end."""

    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([value]) for value in range(256)), b"")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


if __name__ == "__main__":
    main(sys.argv[1])  # type: ignore[arg-type]  # by ``_tried``
