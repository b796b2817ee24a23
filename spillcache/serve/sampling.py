"""From a request's fields, and the server's defaults, to how its tokens are chosen."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from spillcache.config import RequestDefaults
from spillcache.engine.base import SAMPLERS, Engine, GrammarKind, Guide, SamplingParams
from spillcache.errors import RequestError
from spillcache.serve.sampling_fields import BIASES_MAX, SamplingFields

_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "typical_p",
    "top_n_sigma",
    "min_keep",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "post_sampling_probs",
)
"""Fields that bodies, defaults and SamplingParams call by the same name."""

_SEEDS = 2**32 - 1
"""llama.cpp's seeds are u32, and the last one means "a random one": it is left out."""

_SAMPLER_NAMES: Mapping[str, str] = {name: name for name in SAMPLERS} | {
    "typical_p": "typ_p",
    "typical": "typ_p",
    "typ": "typ_p",
    "top_nsigma": "top_n_sigma",
    "nucleus": "top_p",
    "temp": "temperature",
}
"""By llama-server's names and its second names; ``-`` is as good as ``_``."""
_SAMPLER_LETTERS: Mapping[str, str] = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
}


def sampling_params(body: SamplingFields | None, defaults: RequestDefaults) -> SamplingParams:
    """How tokens are chosen: as the body says, else as ``defaults`` do, else as the engine does.

    Without what needs a vocabulary: biases and the grammar. Raises RequestError for samplers that
    there are not.
    """

    def asked(name: str) -> Any:
        value = getattr(body, name, None)
        return getattr(defaults, name, None) if value is None else value

    seed, samplers = asked("seed"), asked("samplers")
    breakers = asked("dry_sequence_breakers")
    given: dict[str, Any] = {name: asked(name) for name in _FIELDS} | {
        "seed": None if seed is None or seed == -1 else seed % _SEEDS,
        "penalty_last_n": asked("repeat_last_n"),
        "samplers": samplers_of(samplers) if samplers else None,
        "dry_sequence_breakers": None if breakers is None else tuple(breakers),
        "n_probs": None if body is None else body.shares_wanted,
    }
    return SamplingParams(**{key: value for key, value in given.items() if value is not None})


def sampling_for(engine: Engine, body: SamplingFields, defaults: RequestDefaults) -> SamplingParams:
    """All of it. May take long: not on the event loop. Raises RequestError for tokens that there
    are not, and for a grammar that is wrong.
    """
    params = sampling_params(body, defaults)
    biases = body.logit_bias if body.logit_bias is not None else defaults.logit_bias
    return replace(
        params,
        logit_bias=_biases(engine, biases or ()),
        guide=_guide(engine, body, defaults),
    )


def samplers_of(asked: str | Iterable[str]) -> tuple[str, ...]:
    """Samplers by name, or by letter in one text. Raises RequestError for others."""
    known = _SAMPLER_LETTERS if isinstance(asked, str) else _SAMPLER_NAMES
    words = [word.strip().lower().replace("-", "_") for word in asked]
    for word in words:
        if word not in known:
            raise RequestError(
                f"samplers: {word[:32]!r} is none; there are {', '.join(SAMPLERS)}", "samplers"
            )
    return tuple(dict.fromkeys(known[word] for word in words))


def grammar_text(body: SamplingFields, defaults: RequestDefaults) -> tuple[GrammarKind, str] | None:
    """What the answer must follow, if anything: the kind of grammar, and its text.

    Raises RequestError for two at once, and for a ``response_format`` that there is not.
    """
    schema = _format_schema(body.response_format)
    if schema is None:
        schema = body.json_schema
    if body.grammar:
        if schema is not None:
            raise RequestError("grammar: there is a JSON schema, too; send one of them", "grammar")
        return "gbnf", body.grammar
    if schema is not None:
        return "json_schema", json.dumps(schema, ensure_ascii=False)
    return defaults.grammar


def _format_schema(wanted: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    kind = None if wanted is None else wanted.get("type")
    if wanted is None or kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        raise RequestError(
            "response_format.type must be text, json_object or json_schema", "response_format"
        )
    within = wanted.get("json_schema") if kind == "json_schema" else wanted
    schema = within.get("schema") if isinstance(within, Mapping) else None
    if schema is None and kind == "json_object":
        return {"type": "object"}
    if not isinstance(schema, Mapping):
        field = "json_schema.schema" if kind == "json_schema" else "schema"
        raise RequestError(f"response_format.{field} must be an object", "response_format")
    return schema


def _guide(engine: Engine, body: SamplingFields, defaults: RequestDefaults) -> Guide | None:
    found = grammar_text(body, defaults)
    return None if found is None else engine.guide(*found)


def _biases(engine: Engine, asked: Any) -> tuple[tuple[int, float], ...]:
    """By token id; a text is all of its tokens, ``false`` is never."""
    found: dict[int, float] = {}
    for name, bias in asked.items() if isinstance(asked, Mapping) else asked:
        if bias is True:
            raise RequestError("logit_bias: true is no bias; false forbids a token", "logit_bias")
        for token in _tokens(engine, name):
            found[token] = float("-inf") if bias is False else float(bias)
    if len(found) > BIASES_MAX:
        raise RequestError(f"logit_bias: more than {BIASES_MAX} tokens", "logit_bias")
    return tuple(found.items())


def _tokens(engine: Engine, name: int | str) -> list[int]:
    if isinstance(name, str) and name.strip().removeprefix("-").isdecimal():
        name = int(name.strip()[:20])
    if isinstance(name, str):
        return engine.tokenize(name, add_special=False, parse_special=False)
    size = engine.limits.vocabulary
    if not 0 <= name < size:
        raise RequestError(f"logit_bias: token ids must lie in 0 … {size - 1}", "logit_bias")
    return [name]
