import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import llama_cpp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import BOS, CHATML, EOS, FIRST_BYTE, IM_END, IM_START, ModelShelf

from spillcache.config import EngineConfig
from spillcache.engine.llama_library import library, load_model
from spillcache.engine.llama_text import LlamaText
from spillcache.errors import ConfigError, EngineError, RequestError


@pytest.fixture(scope="module")
def model(gguf_model: ModelShelf) -> Iterator[Any]:
    lib = library()
    model = load_model(lib, EngineConfig(gguf_model("llama")))
    yield model
    lib.api.llama_model_free(model)


@pytest.fixture(scope="module")
def text(model: Any) -> LlamaText:
    return LlamaText(llama_cpp, model, None)


def test_what_the_vocabulary_says(text: LlamaText) -> None:
    assert text.size == 512
    assert (text.bos_token, text.eos_token) == ("<s>", "</s>")
    assert text.template.source == CHATML
    assert text.is_end(EOS)
    assert text.is_end(IM_END)
    assert not text.is_end(BOS)
    assert not text.is_end(FIRST_BYTE)


SPACE = "\u2581"
"""What a SentencePiece vocabulary writes for a space: it can't tell the two apart."""


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SPACE), max_size=60))
def test_text_survives_a_round_trip(text: LlamaText, words: str) -> None:
    ids = text.tokenize(words, add_special=False, parse_special=False)
    assert text.detokenize(ids) == words
    assert b"".join(text.token_bytes(token) for token in ids) == words.encode()


def test_the_vocabularys_sign_for_a_space_is_a_space(text: LlamaText) -> None:
    ids = text.tokenize(f"a{SPACE}b", add_special=False, parse_special=False)
    assert ids == text.tokenize("a b", add_special=False, parse_special=False)
    assert text.detokenize(ids) == "a b"


def test_special_tokens_only_where_they_are_meant(text: LlamaText) -> None:
    def ids(add: bool, parse: bool) -> list[int]:
        return text.tokenize("<|im_start|>x", add_special=add, parse_special=parse)

    x = FIRST_BYTE + ord("x")
    assert ids(False, True) == [IM_START, x]
    assert ids(True, True) == [BOS, IM_START, x]
    literal = ids(False, False)
    assert IM_START not in literal
    assert text.detokenize(literal) == "<|im_start|>x"
    assert text.detokenize([BOS, IM_START, x, EOS]) == "x", "control tokens are no text"
    assert text.token_bytes(IM_START) == b""
    assert text.token_bytes(IM_START, special=True) == b"<|im_start|>"


def test_nothing_is_no_tokens(text: LlamaText) -> None:
    assert text.tokenize("", add_special=False, parse_special=False) == []
    assert text.tokenize("", add_special=True, parse_special=False) == [BOS]
    assert text.detokenize([]) == ""


def test_bytes_that_are_not_utf8_become_replacements(text: LlamaText) -> None:
    assert text.token_bytes(FIRST_BYTE + 0xC3) == b"\xc3"
    assert text.detokenize([FIRST_BYTE + 0xC3]) == "\ufffd"
    assert text.detokenize([FIRST_BYTE + 0xC3, FIRST_BYTE + 0xA9]) == "é"


@pytest.mark.parametrize("bad", ["\ud800", "a\udfffb"])
def test_a_lone_surrogate_is_the_requests_fault(text: LlamaText, bad: str) -> None:
    with pytest.raises(RequestError, match="lone surrogate"):
        text.tokenize(bad, add_special=True, parse_special=True)


def test_a_nul_is_a_character_like_others(text: LlamaText) -> None:
    ids = text.tokenize("a\0b", add_special=False, parse_special=False)
    assert text.detokenize(ids) == "a\0b"


class Narrow:
    """llama.cpp's functions, as if every answer needed more room than was offered first."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.rooms: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(llama_cpp, name)

    def _answer(self, room: int, count: int) -> int:
        self.rooms.append(room)
        if self.refusals:
            self.refusals -= 1
            return -3 * room
        return count

    def llama_tokenize(self, *args: Any) -> int:
        return self._answer(args[4], llama_cpp.llama_tokenize(*args))

    def llama_token_to_piece(self, *args: Any) -> int:
        return self._answer(args[3], llama_cpp.llama_token_to_piece(*args))


def test_it_makes_room_once(text: LlamaText, model: Any) -> None:
    narrow = Narrow(0)
    patient = LlamaText(narrow, model, "chatml")
    narrow.rooms.clear()
    narrow.refusals = 1
    assert patient.tokenize("abc", add_special=False, parse_special=False) == [
        FIRST_BYTE + b for b in b"abc"
    ]
    assert narrow.rooms == [19, 57]
    narrow.refusals = 1
    assert patient.token_bytes(FIRST_BYTE + 65) == b"A"
    assert narrow.rooms[2:] == [64, 192]
    narrow.refusals = 2
    with pytest.raises(EngineError, match="tokenise"):
        patient.tokenize("abc", add_special=False, parse_special=False)
    narrow.refusals = 2
    with pytest.raises(EngineError, match="spell token 71"):
        patient.token_bytes(71)


def test_a_model_without_names_and_template(model: Any) -> None:
    """No BOS, no EOS, no template of its own: the vocabulary's tokens decide."""

    class Bare(Narrow):
        def llama_vocab_bos(self, _: Any) -> int:
            return -1

        llama_vocab_eos = llama_vocab_bos

        def llama_model_chat_template(self, *_: Any) -> None:
            return None

    bare = LlamaText(Bare(0), model, None)
    assert (bare.bos_token, bare.eos_token) == ("", "")
    assert bare.template.source == "chatml"


def test_the_template_that_was_asked_for_wins(model: Any) -> None:
    text = LlamaText(llama_cpp, model, "{{ messages[0].content }}!")
    said = [{"role": "user", "content": "hi"}]
    assert text.chat_prompt(said, add_generation_prompt=True) == "hi!"
    with pytest.raises(ConfigError, match="--chat-template"):
        LlamaText(llama_cpp, model, "nosuch")


def test_a_closed_engine_refuses_and_does_not_crash(model: Any) -> None:
    text = LlamaText(llama_cpp, model, None)
    failures: list[BaseException] = []
    started = threading.Event()

    def work() -> None:
        try:
            while True:
                text.tokenize("hello", add_special=True, parse_special=True)
                started.set()
        except EngineError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(10)
    text.close()
    thread.join(10)
    assert [str(error) for error in failures] == ["the engine is closed"]
    for call in (lambda: text.token_bytes(5), lambda: text.detokenize([5]), lambda: text.is_end(5)):
        with pytest.raises(EngineError, match="closed"):
            call()
    text.close()
    assert SimpleNamespace(size=text.size).size == 512
