"""Child processes that run one of this package's modules, for work that may end the process."""

import os
import sys
from collections.abc import Mapping


def module_command(module: str, *arguments: str) -> list[str]:
    """How to run ``module``, given with its dots, with ``own_environment``.

    The directory in which the server was started is not searched (-P): a file there that is called
    as a module of Python's would be run in its place.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment() -> Mapping[str, str]:
    """The process's own, with which a child finds modules where this process does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
