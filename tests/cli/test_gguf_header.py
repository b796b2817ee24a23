import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from spillcache.cli.gguf_header import trained_tokens

Facts = list[tuple[str, int, bytes]]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(facts: Facts) -> bytes:
    body = b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in facts)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(facts)) + body


BEFORE: Facts = [
    ("general.architecture", 8, text("llama")),
    ("general.file_type", 4, struct.pack("<I", 7)),
    ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
    ("tokenizer.ggml.scores", 9, struct.pack("<IQff", 6, 2, 0.5, 0.25)),
    ("nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQB", 0, 1, 5)),
]
CONTEXT = ("llama.context_length", 4, struct.pack("<I", 8192))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def to(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return to


@pytest.mark.parametrize("facts", [[CONTEXT], [*BEFORE, CONTEXT]])
def test_the_context_is_found(write: Callable[[bytes], Path], facts: Facts) -> None:
    assert trained_tokens(write(header(facts))) == 8192


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGML",
        b"GGUF",
        header(BEFORE),
        header([*BEFORE, CONTEXT])[:-2],
        header([("odd", 99, b""), CONTEXT]),
        header([("x" * 40, 8, struct.pack("<Q", 1 << 60))]),
    ],
)
def test_what_does_not_tell_is_none(write: Callable[[bytes], Path], data: bytes) -> None:
    assert trained_tokens(write(data)) is None


def test_a_real_one_and_a_missing_one(gguf_model: Callable[..., Path], tmp_path: Path) -> None:
    assert trained_tokens(gguf_model("llama", n_ctx=4096)) == 4096
    assert trained_tokens(tmp_path / "none") is None
