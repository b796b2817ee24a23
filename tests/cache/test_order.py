"""Who goes first, and who stays longer."""

from hypothesis import given
from hypothesis import strategies as st

from spillcache.cache.order import FEWEST_AHEAD, MOST_AHEAD, Order, Pause


def anybody(_: str) -> bool:
    return True


def used(order: Order[str], keys: str, now: float) -> None:
    for key in keys:
        if key not in order:
            order.add(key, now)
        order.use(key, now)


def departures(order: Order[str]) -> str:
    gone = ""
    while (first := order.first(anybody)) is not None:
        gone += first
        order.forget(first)
    return gone


def test_what_is_used_once_goes_by_its_last_use() -> None:
    order: Order[str] = Order()
    used(order, "ab", 1.0)
    used(order, "c", 2.0)
    order.add("a", 3.0)
    assert departures(order) == "bca"
    assert len(order) == 0
    assert order.first(anybody) is None


def test_what_is_used_twice_stays_a_pause_longer() -> None:
    order: Order[str] = Order()
    used(order, "a", 0.0)
    assert order.use("a", 10.0) == 0.0, "when it was used before"
    order.pause.after(10.0)
    assert order.ahead_s == 10.0
    for name, second in (("b", 15.0), ("c", 20.0), ("d", 20.1), ("e", 30.0)):
        used(order, name, second)
    assert departures(order) == "bcade", "as if used at 20"


def come_back(order: Order[str], key: str, times: int, uses: int) -> None:
    """It is used so often, evicted, and comes back; again and again."""
    for _ in range(times):
        for _ in range(uses):
            used(order, key, 0.0)
        order.forget(key)
    order.add(key, 0.0)


def test_what_was_used_twice_and_comes_back_should_have_stayed_longer() -> None:
    order: Order[str] = Order()
    order.pause.after(10.0)
    come_back(order, "a", 50, 2)
    longer = order.ahead_s
    assert 10.0 < longer < 20.0
    come_back(order, "a", 3000, 2)
    assert order.ahead_s == 10 * MOST_AHEAD


def test_what_was_used_once_and_comes_back_wants_room() -> None:
    order: Order[str] = Order()
    order.pause.after(10.0)
    for number in range(50):
        used(order, chr(0x4E00 + number), 0.0)
        order.forget(chr(0x4E00 + number))
        order.add(chr(0x4E00 + number), 1.0)
        order.forget(chr(0x4E00 + number))
    shorter = order.ahead_s
    assert 5.0 < shorter < 10.0
    for number in range(5000):
        used(order, chr(0x4E00 + number), 0.0)
        order.forget(chr(0x4E00 + number))
        order.add(chr(0x4E00 + number), 1.0)
        order.forget(chr(0x4E00 + number))
    assert order.ahead_s == 10 * FEWEST_AHEAD


def test_the_rarer_kind_weighs_more() -> None:
    """Ninety were evicted after one use and ten after two, and a tenth of each came back: there is
    no reason to change anything; it was in proportion.
    """
    order: Order[str] = Order()
    order.pause.after(10.0)
    for number in range(100):
        for _ in range(1 if number < 90 else 2):
            used(order, chr(0x4E00 + number), 0.0)
        order.forget(chr(0x4E00 + number))
    for number in (*range(9), 99):
        order.add(chr(0x4E00 + number), 1.0)
    assert abs(order.ahead_s - 10.0) < 0.1


def test_without_pauses_it_is_plain_lru() -> None:
    order: Order[str] = Order()
    used(order, "a", 0.0)
    used(order, "a", 1.0)
    used(order, "b", 2.0)
    assert departures(order) == "ab"


def test_what_comes_back_soon_after_it_went_counts_as_used_before() -> None:
    order: Order[str] = Order()
    used(order, "a", 0.0)
    order.forget("a")
    order.pause.after(100.0)
    used(order, "a", 1.0)
    used(order, "b", 2.0)
    assert departures(order) == "ba"


def test_one_off_prompts_do_not_push_out_what_is_used_again() -> None:
    """Room for four: a conversation that comes every third time, and prompts that come once."""
    order: Order[str] = Order()
    hits = 0
    for turn in range(60):
        now = float(turn)
        key = "conversation" if turn % 3 == 0 else f"once {turn}"
        hits += key in order
        if key not in order:
            order.add(key, now)
        before = order.use(key, now)
        if before is not None:
            order.pause.after(now - before)
        if turn == 30:  # many at once
            for extra in range(3):
                used(order, f"{extra}", now)
        while len(order) > 4:
            first = order.first(lambda k, key=key: k != key)
            assert first is not None
            order.forget(first)
    assert hits == 19, "all but the first"


def test_what_may_not_go_is_passed() -> None:
    order: Order[str] = Order()
    for name in "aab":
        used(order, name, 1.0)
    order.pause.after(5.0)
    assert order.first(lambda key: key == "a") == "a"
    assert order.first(lambda key: key == "b") == "b"
    assert order.first(lambda _: False) is None


def test_adding_again_is_no_use() -> None:
    order: Order[str] = Order()
    used(order, "a", 1.0)
    used(order, "a", 2.0)
    order.add("a", 3.0)
    order.add("b", 4.0)
    order.add("b", 5.0)
    assert order.use("b", 6.0) is None, "its first"
    assert order.use("a", 7.0) == 3.0


def one_by_one(order: Order[int], keys: list[int], now: float) -> int:
    """What ``use_chain`` is to do."""
    known, pauses = len(keys), list[float]()
    for index in reversed(range(len(keys))):
        if keys[index] in order:
            before = order.use(keys[index], now)
            if before is not None:
                pauses.append(now - before)
            elif index == known - 1:
                known = index
    if pauses:
        order.pause.after(sum(pauses) / len(pauses), len(pauses))
    return known


STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, 12), max_size=6)),
    st.tuples(st.just("use"), st.lists(st.integers(0, 12), max_size=12, unique=True)),
    st.tuples(st.just("forget"), st.lists(st.integers(0, 12), max_size=3)),
)


@given(st.lists(STEPS, max_size=30))
def test_a_chain_is_used_as_its_blocks_one_by_one(steps: list[tuple[str, list[int]]]) -> None:
    whole, single = Order[int](), Order[int]()
    for now, (what, keys) in enumerate(steps):
        if what == "use":
            known = whole.use_chain(keys, float(now))
            assert known == one_by_one(single, keys, float(now))
        for order in (whole, single):
            for key in keys if what != "use" else ():
                if what == "add":
                    order.add(key, float(now))
                else:
                    order.forget(key)
        assert whole.latest(99) == single.latest(99)
        assert abs(whole.ahead_s - single.ahead_s) < 1e-6
    assert whole._once == single._once
    assert whole._again == single._again


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 50)), min_size=1, max_size=40))
def test_the_pause_is_a_mean_by_blocks(pauses: list[tuple[float, int]]) -> None:
    pause = Pause()
    for seconds, blocks in pauses:
        pause.after(seconds, blocks)
    mean = sum(s * b for s, b in pauses) / sum(b for _, b in pauses)
    assert abs(pause.mean_s - mean) <= 1e-6 * max(1.0, mean)


def test_the_pause_follows_what_is_new() -> None:
    pause = Pause()
    pause.after(100.0, 1_000_000)
    pause.after(-1.0, 1_000_000)
    assert pause.mean_s == 0.0
