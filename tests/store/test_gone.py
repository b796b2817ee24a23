from spillcache.store.gone import Gone


def test_the_last_names_are_remembered_and_no_more_than_twice_as_many() -> None:
    gone = Gone(100)
    for number in range(1000):
        gone.add(f"block {number}")
        assert f"block {max(0, number - 99)}" in gone
    assert "block 1000" not in gone
    assert sum(f"block {number}" in gone for number in range(1000)) <= 200
