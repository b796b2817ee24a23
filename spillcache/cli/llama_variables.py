"""llama-server's variables (LLAMA_ARG_…) of flags that are not ours: as their flags, they are
ignored, with a line that says so, or refused with why.
"""

from collections.abc import Collection, Mapping

from spillcache.cli.llama_flags import REFUSED, is_harmless
from spillcache.errors import ConfigError

_PREFIX = "LLAMA_ARG_"
_OFF = frozenset({"", "0", "false", "off", "disabled"})
"""Values by which llama-server's variables leave something off."""
_FLAGS: Mapping[str, str] = {
    "DRAFT_MAX": "--draft-max",
    "MODELS_AUTOLOAD": "--models-autoload",
    "STATIC_PATH": "--path",
    "THINK": "--reasoning-format",
    "THINK_BUDGET": "--reasoning-budget",
    "HFD_REPO": "--hf-repo-draft",
    "HF_REPO_V": "--hf-repo-v",
    "HF_FILE_V": "--hf-file-v",
}
"""Variables that are called otherwise than their flags."""


def ignored_variables(environment: Mapping[str, str], ours: Collection[str]) -> list[str]:
    """Names of those that are set and mean nothing here, all but ``ours``.

    Raises ConfigError for one that asks for what is not offered.
    """
    ignored = []
    for name in sorted(environment):
        if not name.startswith(_PREFIX) or name in ours:
            continue
        rest, value = name.removeprefix(_PREFIX), environment[name].strip().lower()
        flag = _FLAGS.get(rest, "--" + rest.lower().replace("_", "-"))
        asks = value not in _OFF and not is_harmless(flag, value)
        if asks and flag in REFUSED:
            raise ConfigError(
                f"{name} is set, and {flag} is not supported: {REFUSED[flag]}; unset the variable"
            )
        ignored.append(name)
    return ignored
