"""How models mark what they think before they answer, read from their chat templates."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thinking:
    """The texts around a model's thoughts."""

    opens: str
    closes: str

    def is_open(self, prompt: str) -> bool:
        """Whether the prompt ends with the opening, so that an answer begins with thoughts."""
        return prompt.rstrip().endswith(self.opens.rstrip())


_KINDS = (
    Thinking("<think>", "</think>"),
    Thinking("[THINK]", "[/THINK]"),
    Thinking("<|START_THINKING|>", "<|END_THINKING|>"),
    Thinking("<|channel>thought", "<channel|>"),
    Thinking("<seed:think>", "</seed:think>"),
)


def thinking_of(template: str) -> Thinking | None:
    """How the model of this template marks thoughts; None where the template knows none."""
    return next((kind for kind in _KINDS if kind.closes in template), None)
