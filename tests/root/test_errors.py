import inspect
import re
from pathlib import Path

import pytest

from spillcache import errors
from spillcache.errors import RequestError, SpillcacheError

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, SpillcacheError)
]
DOCS = Path(__file__).parents[2] / "docs" / "errors.md"


def drawn_tree() -> dict[str, tuple[str, str]]:
    """name → (name of the line it hangs from, code), as the docstring of the module draws it."""
    tree: dict[str, tuple[str, str]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ((?:[│├└─]| )*)([A-Z]\w+) .* ([A-Z_]+)$", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        above[depth:] = [match[2]]
        tree[match[2]] = (above[depth - 1] if depth else "Exception", match[3])
    return tree


def test_the_docstring_draws_the_tree() -> None:
    assert drawn_tree() == {
        error.__name__: (error.__bases__[0].__name__, error.code) for error in CLASSES
    }


def test_codes_are_unique_and_stable_in_form() -> None:
    codes = [error.code for error in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code) for code in codes)


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_each_is_documented(error: type[SpillcacheError]) -> None:
    assert f"| `{error.code}` | `{error.__name__}` |" in DOCS.read_text()
    assert error.__doc__


def test_requests_carry_a_status_and_the_field_at_fault() -> None:
    statuses = {error.code: error.status for error in CLASSES if issubclass(error, RequestError)}
    assert statuses == {
        "REQUEST_INVALID": 400,
        "REQUEST_PROMPT_TOO_LONG": 400,
        "REQUEST_UNSUPPORTED": 400,
        "REQUEST_NOT_OFFERED": 501,
        "REQUEST_TOO_LARGE": 413,
        "REQUEST_HEAD_TOO_LARGE": 431,
        "REQUEST_TIMEOUT": 408,
        "REQUEST_FORBIDDEN": 403,
        "REQUEST_UNAUTHORIZED": 401,
        "SERVER_OVERLOADED": 429,
        "SERVER_NOT_READY": 503,
        "SLOT_FILE": 500,
        "SLOT_FILES_OFF": 501,
        "SLOT_NOT_JSON": 415,
        "SLOT_FILE_INVALID": 400,
        "SLOT_FILE_MISSING": 404,
        "SLOT_FILE_NO_ROOM": 507,
        "SLOT_FILE_NO_MEMORY": 503,
        "SLOT_FILE_IO": 500,
    }
    error = RequestError("temperature must be at least 0", "temperature")
    assert (str(error), error.param) == ("temperature must be at least 0", "temperature")
    assert RequestError("no").param is None
