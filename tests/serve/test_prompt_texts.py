"""Prompts that go on from earlier ones: the same tokens, and only the new text is tokenised."""

import random

import pytest
from test_turn import NAMES, Words, spelled

from spillcache.errors import RequestError
from spillcache.serve import prompt_texts as module
from spillcache.serve.prompt_texts import PromptTexts
from spillcache.serve.token_memory import TokenMemory
from spillcache.serve.turn import Turn

LONG = "<user>" + "hello world " * 500
MARK = b"<end>"


class Counting(Words):
    """Counts the characters that it is given."""

    def __init__(self):
        super().__init__()
        self.characters = 0

    def tokenize(self, text, **options):
        self.characters += len(text)
        return super().tokenize(text, **options)


def tokens_of(words, memory, text, **turn):
    words.characters = 0
    return Turn(words, memory, **turn).tokens(text, add_special=True)


def test_only_what_is_new_is_tokenised():
    words, memory = Counting(), TokenMemory()
    first, second = LONG + "<end><bot>", LONG + "<end><bot>hello<end><user>he"
    tokens_of(words, memory, first)
    assert words.characters == len(first)
    tokens = tokens_of(words, memory, second)
    assert words.characters == len("<bot>hello<end><user>he")
    assert tokens == words.tokenize(second, add_special=True, parse_special=True)


@pytest.mark.parametrize(
    "turn", [{"salt": b"other"}, {"reads": False}], ids=["other salt", "reads nothing"]
)
def test_who_may_not_take_it_tokenises(turn):
    words, memory = Counting(), TokenMemory()
    tokens_of(words, memory, LONG + "<end><bot>")
    tokens_of(words, memory, LONG + "<end><bot>", **turn)
    assert words.characters > len(LONG)


def test_who_stores_nothing_leaves_nothing():
    words, memory = Counting(), TokenMemory()
    tokens_of(words, memory, LONG + "<end><bot>", stores=False)
    tokens_of(words, memory, LONG + "<end><bot>")
    assert words.characters > len(LONG)


def test_tokens_are_those_of_the_whole_text(monkeypatch):
    monkeypatch.setattr(module, "_TEXT_BYTES_MIN", 1)
    words, memory = Words(), TokenMemory()
    rng = random.Random(8)
    scraps = [*NAMES.values(), "hello", "he", "llo", " world", "\n\n", "é", "<", "end>"]
    texts = ["<user>"]
    for _ in range(2000):
        text = rng.choice(texts) + "".join(rng.choice(scraps) for _ in range(rng.randrange(6)))
        assert tokens_of(words, memory, text) == words.tokenize(
            text, add_special=True, parse_special=True
        )
        texts = [*texts, text][-50:]


def test_known_answers_and_known_prompts_go_together(monkeypatch):
    monkeypatch.setattr(module, "_TEXT_BYTES_MIN", 1)
    words, memory = Words(), TokenMemory()
    text, history = LONG + "<end><bot>", []
    for _ in range(5):
        turn = Turn(words, memory)
        tokens = turn.tokens(text, add_special=True)
        assert tokens[: len(history)] == history
        turn.learn(spelled("hello world"))
        history = tokens + spelled("hello world")
        text += "hello world<end><user>he<end><bot>"


def test_a_conversation_takes_room_once():
    texts = PromptTexts()
    texts.put(b"a", b"x" * 5000, MARK, [1, 2])
    texts.put(b"b", b"x" * 5000, MARK, [1, 2])
    texts.put(b"a", b"x" * 6000, MARK, [1, 2, 3])
    assert texts.longest(b"a", b"x" * 5000 + MARK) is None
    assert texts.longest(b"a", b"x" * 6000 + MARK).tokens == [1, 2, 3]
    assert texts.longest(b"b", b"x" * 5000 + MARK).tokens == [1, 2]
    assert texts.longest(b"b", b"x" * 5000 + b"<bot>") is None


def test_the_least_recently_used_goes_first():
    texts = PromptTexts(limit_bytes=3 * 5100)
    for letter in b"abc":
        texts.put(b"", bytes([letter]) * 5000, MARK, [letter])
    assert texts.longest(b"", b"a" * 5000 + MARK)
    texts.put(b"", b"d" * 5000, MARK, [1])
    kept = [letter for letter in b"abcd" if texts.longest(b"", bytes([letter]) * 5000 + MARK)]
    assert bytes(kept) == b"acd"
    texts.put(b"", b"e" * 50_000, MARK, [1])
    assert texts.longest(b"", b"e" * 50_000 + MARK) is None


def test_short_texts_are_not_kept():
    texts = PromptTexts()
    texts.put(b"", b"short", MARK, [1])
    assert texts.longest(b"", b"short" + MARK) is None


def test_half_a_character_is_the_tokenisers_to_refuse():
    class Strict(Words):
        def tokenize(self, text, **options):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise RequestError("not Unicode") from error
            return super().tokenize(text, **options)

    memory = TokenMemory()
    tokens_of_it = Turn(Strict(), memory).tokens
    tokens_of_it(LONG + "<end><bot>", add_special=True)
    for text in ("\ud800", LONG + "<end><bot>\ud800"):
        with pytest.raises(RequestError):
            Turn(Strict(), memory).tokens(text, add_special=True)
