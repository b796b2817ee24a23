"""Answers, read as the server reads them."""

from spillcache.serve.answer_parser import AnswerParser, calls_of, words_of


def pieces_of(text, format_, tools, thinking=None, *, size=None, thinks=False):
    """What comes of an answer that arrives ``size`` characters at a time; None: at once."""
    parser = AnswerParser(
        format_,
        tools,
        thinking,
        thinks=thinks,
        channels=format_ is not None and format_.channels,
    )
    size = size or max(1, len(text))
    pieces = [
        piece for at in range(0, len(text), size) for piece in parser.push(text[at : at + size])
    ]
    return pieces + parser.finish()


def parse_answer(text, format_, tools, size=None):
    """The content and the calls of an answer."""
    pieces = pieces_of(text, format_, tools, size=size)
    return words_of(pieces), calls_of(pieces)
