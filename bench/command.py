"""How a benchmark that starts servers runs as a command."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from spillcache.cli.bench_server import terminable
from spillcache.errors import SpillcacheError


def run(main: Callable[[], int]) -> NoReturn:
    """Exit with what ``main`` returns, or with a sentence; SIGTERM ends its servers, too."""
    try:
        with terminable():
            sys.exit(main())
    except SpillcacheError as error:
        sys.exit(f"bench/{Path(sys.argv[0]).name}: error: {error}")
