"""What the doctor found, one line each."""

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["ok", "note", "bad"]
_STYLES = {"ok": "green", "note": "yellow", "bad": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``note``: works, but could be better; ``bad``: does not."""

    name: str
    state: State
    text: str
    todo: str = ""
    """What to do about it; "" when all is well."""


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """For machines."""
    return {
        "ready": is_ready(findings),
        "findings": [
            {"name": each.name, "state": each.state, "text": each.text, "todo": each.todo}
            for each in findings
        ],
    }


def is_ready(findings: list[Finding]) -> bool:
    """Whether nothing is bad."""
    return all(each.state != "bad" for each in findings)


def print_finding(finding: Finding) -> None:
    """As soon as it is known."""
    from rich.console import Console  # noqa: PLC0415 — only for people
    from rich.text import Text  # noqa: PLC0415

    line = Text(f"{finding.state:<5}", style=_STYLES[finding.state])
    line.append(f"{finding.name:<12} {finding.text}", style="default")
    Console(highlight=False).print(line, soft_wrap=True)


def print_end(findings: list[Finding]) -> None:
    """READY, or what to do; and what could be better."""
    for state, words in (("note", "could be better"), ("bad", "to do")):
        for each in findings:
            if each.state == state and each.todo:
                print(f"{words}: {each.name}: {each.todo}")
    print("READY" if is_ready(findings) else "NOT READY")
