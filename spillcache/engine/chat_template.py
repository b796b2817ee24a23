"""Conversations to prompt text, by the model's own chat template or a built-in one.

A model's template comes with its file, from somebody we don't know: it runs in a sandbox
(``template_sandbox``). Pure text: any thread.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError, UndefinedError

from spillcache.engine.call_arguments import CallArguments
from spillcache.engine.template_budget import Budget
from spillcache.engine.template_sandbox import TemplateRefusal, TemplateSandbox
from spillcache.errors import ConfigError, ModelLoadError, RequestError, Unsupported

CHATML = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
"""``<|im_start|>role``, the content, ``<|im_end|>``."""

GEMMA = (
    "{{- bos_token -}}"
    "{%- set state = namespace(system='') -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}"
    "{%- set state.system = state.system + message.content | trim + '\n\n' -%}"
    "{%- else -%}"
    "{%- set role = 'model' if message.role == 'assistant' else 'user' -%}"
    "{{- '<start_of_turn>' + role + '\n' -}}"
    "{%- if role == 'user' -%}"
    "{{- state.system -}}{%- set state.system = '' -%}"
    "{%- endif -%}"
    "{{- message.content | trim + '<end_of_turn>\n' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if state.system -%}"
    "{{- '<start_of_turn>user\n' + state.system | trim + '<end_of_turn>\n' -}}"
    "{%- endif -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
"""Turns of ``user`` and ``model``; it knows no system role, so that goes before the next user's."""

LLAMA3 = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- set role = 'ipython' if message.role == 'tool' else message.role -%}"
    "{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' -}}"
    "{{- message.content | trim + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{%- endif -%}"
)
"""Headers and ``<|eot_id|>``; tool results come from ``ipython``."""

BUILTIN: Mapping[str, str] = {"chatml": CHATML, "gemma": GEMMA, "llama3": LLAMA3}

ROLES = ("system", "developer", "user", "assistant", "tool")

_KIND_SHOWN = 40
_SOURCE_CHARACTERS_MAX = 1 << 20
_RENDER_STEPS = 2_000_000
_RENDER_S = 10.0
_RENDER_CHARACTERS_MIN = 1 << 20
_RENDER_MEMORY_MIN = 1 << 28
_REASON_CHARACTERS_MAX = 300

_SANDBOX = TemplateSandbox()


class ChatTemplate:
    """A compiled template; ``source`` is its Jinja text or a built-in name.

    Raises ModelLoadError when the text is not a template.
    """

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        text = BUILTIN.get(source, source)
        if len(text) > _SOURCE_CHARACTERS_MAX:
            raise ModelLoadError("the chat template is longer than 1 MiB; give --chat-template")
        try:
            self._render = _SANDBOX.compile_template(text)
        except TemplateSyntaxError as error:
            raise ModelLoadError(
                f"the chat template has an error in line {error.lineno}: {error.message}; "
                "give another with --chat-template"
            ) from error
        except Exception as error:
            # Anything: nesting that no parser takes, numbers that Python does not read.
            raise ModelLoadError(
                f"the chat template can't be compiled ({type(error).__name__}); "
                "give another with --chat-template"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation; ``variables``: more that the template may ask for.

        Messages are OpenAI's: ``role`` (see ROLES), ``content`` (text, text parts, or None) and
        ``tool_calls``; so are ``tools``.
        Raises RequestError when a message or the template itself says no, Unsupported for media.
        """
        plain = [plain_message(message, index) for index, message in enumerate(messages)]
        known = {
            **(variables or {}),
            "messages": plain,
            "add_generation_prompt": add_generation_prompt,
            "tools": list(tools) if tools else None,
            "documents": None,
            **self._tokens,
        }
        try:
            said = sum(len(str(one)) for one in (*plain, *(tools or ())))
            characters = _RENDER_CHARACTERS_MIN + 4 * said
            budget = Budget(
                steps=_RENDER_STEPS,
                seconds=_RENDER_S,
                characters=characters,
                memory=_RENDER_MEMORY_MIN + 32 * characters,
            )
            return self._render(known, budget)
        except Exception as error:
            # Anything: the template is somebody else's program, and these are its faults.
            raise RequestError(_refusal(error), "messages") from error


def pick_template(
    model_template: str | None, requested: str | None, has_token: Callable[[str], bool]
) -> str:
    """The ``source`` for a ChatTemplate: what is asked for, else the model's own, else by its
    tokens.

    ``requested`` is a built-in name or Jinja text; raises ConfigError when it is neither.
    ``has_token`` tells whether a text is one token of the vocabulary.
    """
    if requested:
        if requested not in BUILTIN and "{" not in requested:
            raise ConfigError(
                f"--chat-template: {requested!r} is not a template; "
                f"give Jinja text or one of {', '.join(BUILTIN)}"
            )
        return requested
    if model_template:
        return model_template
    if has_token("<start_of_turn>"):
        return "gemma"
    return "llama3" if has_token("<|start_header_id|>") else "chatml"


def plain_message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A message as templates expect it: a known role, the content one text, arguments decoded.

    ``index`` is its place, for errors. Raises RequestError and Unsupported.
    """
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(
            f"messages[{index}].role must be one of {', '.join(ROLES)}", f"messages[{index}].role"
        )
    plain = {key: value for key, value in message.items() if value is not None}
    plain["role"] = "system" if role == "developer" else role
    plain["content"] = _plain_content(message.get("content"), f"messages[{index}].content")
    if isinstance(calls := plain.get("tool_calls"), list):
        param = f"messages[{index}].tool_calls"
        plain["tool_calls"] = [_decoded_call(call, param) for call in calls]
    return plain


def _plain_content(content: Any, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{param} must be text or a list of parts", param)
    return "".join(_part_text(part, f"{param}[{index}]") for index, part in enumerate(content))


def only_text(param: str, kind: str) -> Unsupported:
    """The error for a part of a message that is an image, a file, or the like."""
    return Unsupported(
        f"{param}: this server reads text only, and this is of type {kind[:_KIND_SHOWN]!r}; leave "
        "it out, or send what it says as text",
        param,
    )


def _part_text(part: Any, param: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("text", "input_text", "output_text", "refusal"):
        text = part.get("refusal" if kind == "refusal" else "text")
        if isinstance(text, str):
            return text
        raise RequestError(f"{param} of type {kind} needs its text", param)
    if isinstance(kind, str):
        raise only_text(param, kind)
    raise RequestError(f"{param} must be an object with a type", param)


def _decoded_call(call: Any, param: str) -> Any:
    """OpenAI sends a call's arguments as JSON text; templates expect the object."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = call["function"]
    try:
        arguments = function["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        if type(arguments) is dict:
            arguments = CallArguments(arguments)
        return {**call, "function": {**function, "arguments": arguments}}
    except (KeyError, TypeError, ValueError):
        return call
    except RecursionError as error:
        raise RequestError(f"{param}: the arguments are nested too deeply", param) from error


def _refusal(error: Exception) -> str:
    if isinstance(error, TemplateRefusal | SecurityError | UndefinedError):
        reason = str(error)[:_REASON_CHARACTERS_MAX].rstrip(".")
    else:
        # A Python error's words may quote the prompt.
        reason = type(error).__name__
    return f"the model's chat template refuses these messages: {reason}"
