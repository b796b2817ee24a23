"""Cut or whole, a text has the same tokens: by llama.cpp's rule, and by llama.cpp itself."""

import itertools
from pathlib import Path

import gguf
import llama_cpp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import CHATML, CONTROL_TOKENS, KINDS

from spillcache.config import EngineConfig
from spillcache.engine import llama_text, special_texts
from spillcache.engine.llama_library import library, load_model
from spillcache.engine.llama_text import LlamaText
from spillcache.engine.special_texts import Special, SpecialTexts

SPACE = " \t\n\v\f\r"


def partition(specials, text, *, parse_special):
    """Special tokens and the texts between them, as llama.cpp's tokenizer_st_partition."""
    fragments = [text] if text else []
    for special in sorted(specials, key=lambda each: -len(each.text)):
        if not special.text or (special.control and not parse_special):
            continue
        fragments = [
            piece
            for fragment in fragments
            for piece in (
                [fragment] if isinstance(fragment, int) else list(split(special, fragment))
            )
        ]
    return fragments


def split(special, fragment):
    """One fragment at each place of one special token; bytes, and the token."""
    space = SPACE.encode()
    while (at := fragment.find(special.text)) >= 0:
        left = fragment[:at]
        yield from filter(None, [left.rstrip(space) if special.lstrip else left])
        yield special.token
        fragment = fragment[at + len(special.text) :]
        if special.rstrip:
            fragment = fragment.lstrip(space)
    if fragment:
        yield fragment


WORDS = st.text("ab<>\n ", max_size=4) | st.sampled_from(["<a>", "<b>", "\n\n", "\n\n\n", "\n"])


@st.composite
def vocabularies(draw):
    texts = draw(st.lists(WORDS, max_size=8))
    rare = st.sampled_from([False, False, False, False, True])
    return [
        Special(index, text.encode(), draw(st.booleans()), draw(rare), draw(rare))
        for index, text in enumerate(texts)
    ]


@settings(max_examples=1500, deadline=None)
@given(vocabularies(), st.data(), st.booleans())
def test_the_parts_are_partitioned_as_the_whole(specials, data, parse):
    known = [special.text.decode() for special in specials]
    words = st.sampled_from([*known, *"ab<> \n"])
    raw = "".join(data.draw(st.lists(words, max_size=30))).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(special_texts, "PART_SPECIALS", data.draw(st.integers(1, 3)))
        texts = SpecialTexts(specials)
        found = []
        for part in texts.parts(raw, parse_special=parse):
            if isinstance(part, int):
                found.append(part)
            else:
                assert part.raw
                found += partition(specials, part.raw, parse_special=part.parse_special)
    assert found == partition(specials, raw, parse_special=parse)
    tokens = [piece for piece in partition(specials, raw, parse_special=True) if piece in range(99)]
    assert texts.count(raw, 99) <= len(tokens)


def test_what_is_cut_at_and_what_is_counted():
    words = [
        b"<s>",
        b"<sep>",
        b"<a",
        b"a>",
        b"<pad>",
        b"x<pad>y",
        *(b"\n" * size for size in (1, 2)),
    ]
    texts = SpecialTexts([Special(i, word, control=i < 2) for i, word in enumerate(words)])
    parts = list(texts.parts(b"1<s>2\n\n\n<sep><a><s><pad>", parse_special=True))
    assert [part if isinstance(part, int) else part.raw for part in parts] == [
        b"1", 0, b"2\n\n\n", 1, b"<a>", 0, b"<pad>",
    ]  # fmt: skip
    assert not any(part.parse_special for part in parts if not isinstance(part, int))
    assert texts.count(b"<s>\n\n\n<a><pad>", 99) == 3
    assert texts.count(b"<s>" * 10, 4) == 5
    (plain,) = texts.parts(b"<s>1<s>", parse_special=False)
    assert plain == special_texts.Part(b"<s>1<s>", parse_special=False)


def test_none_and_odd_ones():
    assert list(SpecialTexts([]).parts(b"abc", parse_special=True)) == [
        special_texts.Part(b"abc", parse_special=False)
    ]
    assert not list(SpecialTexts([]).parts(b"", parse_special=True))
    twice = SpecialTexts([Special(7, b"<s>", control=True), Special(8, b"<s>", control=True)])
    (part,) = twice.parts(b"a<s>b", parse_special=True)
    assert part.parse_special, "which of the two is llama.cpp's to say"
    assert SpecialTexts([Special(1, b"x" * 65)]).count(b"x" * 65, 9) == 1, "a run of any length"
    assert SpecialTexts([Special(1, b"xy" * 33)]).count(b"xy" * 33, 9) == 0


# Against llama.cpp.


def vocabulary(path, kind, tokens, types, *, prefix, end):
    """A model file that is nothing but a vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if kind == "gpt2":
        writer.add_tokenizer_pre("default")
        writer.add_token_merges(["a b", "ab a"])
    else:
        writer.add_token_scores([-float(index) for index in range(len(tokens))])
        writer.add_add_space_prefix(prefix)
        writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(end)
    writer.add_chat_template(CHATML)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


SPECIALS = {"<unk>": 2, "<s>": 3, "</s>": 3, "<|im_start|>": 3, "<|im_end|>": 3, "<a": 3, "a>": 4,
            "<b>": 4, "aba": 4, "\n": 4, "\n\n": 4, "\n\n\n": 4, "\t\t": 4}  # fmt: skip
"""Text and type (2: unknown, 3: control, 4: user-defined); two of them overlap."""


def byte_characters():
    """GPT-2's characters for bytes: as they are where they print, others from U+0100."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return own + [256 + index for index in range(256 - len(own))]


def made(directory: Path, name: str) -> Path:
    path = directory / f"{name}.gguf"
    tokens, types = [*SPECIALS], [*SPECIALS.values()]
    if name == "bpe":
        more = [chr(code) for code in byte_characters()] + ["ab"]
        types += [1] * len(more)
    else:
        more = [f"<0x{byte:02X}>" for byte in range(256)] + ["\u2581", "\u2581a", "ab"]
        types += [6] * 256 + [1] * 3
    kind = "gpt2" if name == "bpe" else "llama"
    vocabulary(path, kind, tokens + more, types, prefix=name == "prefix", end=name == "end")
    return path


@pytest.fixture(scope="module", params=["bpe", "prefix", "end", *KINDS, "gemma3-270m"])
def cut(request, gguf_model, tmp_path_factory):
    """The text of a vocabulary."""
    name = request.param
    if name in KINDS:
        path = gguf_model(name)
    elif name == "gemma3-270m":
        path = request.getfixturevalue("demo_model")
    else:
        path = made(tmp_path_factory.mktemp("vocabulary"), name)
    lib = library()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, path
    text = LlamaText(lib.api, model, None)
    yield text
    assert text.close()
    llama_cpp.llama_model_free(model)


RUNS = [char * size for char, size in itertools.product(" \n\t", (1, 2, 3, 5, 40))]
WORDY = ["<unused7>", "<table>", "</td>", "<start_of_turn>", "user", "<", "hello", "é",
         "\u2581\u2581", "ab", "a b", "."]  # fmt: skip
PIECES = st.sampled_from([*CONTROL_TOKENS, *SPECIALS, *RUNS, *WORDY])


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join), st.booleans(), st.booleans(), st.integers(1, 5))
def test_cut_or_whole_the_tokens_are_the_same(cut, words, add_special, parse_special, size):
    whole = cut.tokenize(words, add_special=add_special, parse_special=parse_special)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_text, "LONG_BYTES", 0)
        patch.setattr(special_texts, "PART_SPECIALS", size)
        parts = cut.tokenize(words, add_special=add_special, parse_special=parse_special)
    assert parts == whole
    if parse_special:
        assert cut.least_tokens(words, 10**6) <= len(whole)


def test_a_closed_vocabulary_has_no_long_texts(gguf_model):
    lib = library()
    model = load_model(lib, EngineConfig(gguf_model("llama")))
    text = LlamaText(lib.api, model, None)
    assert text.close()
    text.prepare()  # says nothing
    lib.api.llama_model_free(model)
