"""Which key a client has shown, and that all of them are looked at."""

import hmac
from types import SimpleNamespace

from spillcache.serve import api_keys
from spillcache.serve.api_keys import ApiKeys


def test_each_key_is_known_by_its_digest():
    keys = ApiKeys(["one", "two", "ß"])
    found = [keys.find(text.encode()) for text in ("one", "two", "ß")]
    assert len(set(found)) == 3
    assert all(len(digest) == 32 for digest in found)
    assert keys.find(b"three") is keys.find(b"") is keys.find(b"on") is None


def test_a_digest_is_the_same_in_every_run_and_whatever_stands_beside():
    assert ApiKeys(["one"]).find(b"one") == ApiKeys(["x", "one"]).find(b"one")


def test_all_are_compared_whichever_it_is(monkeypatch):
    """In constant time: as many digests, all of one length, for every key that is given."""
    compared = []

    def compare(one, other):
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(api_keys, "hmac", SimpleNamespace(compare_digest=compare))
    keys = ApiKeys(["one", "two", "three"])
    for given in (b"one", b"three", b"x" * 5000, b""):
        compared.clear()
        keys.find(given)
        assert compared == [(32, 32)] * 3
