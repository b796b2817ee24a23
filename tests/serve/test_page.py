"""The page at ``/`` in a real browser: what it shows, how it is used, and what it never does."""

import contextlib
import re
import threading

import pytest
from browser import MISSING, opened, prefer
from fake_service import Script, wait_until
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from server_process import Server

from spillcache.errors import Overloaded

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    # Its connection to the driver is closed by whoever collects it.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CONTRASTS = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
  .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = parse(getComputedStyle(at).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")]
  .filter((e) => e.checkVisibility() && !e.disabled && !["SCRIPT", "STYLE"].includes(e.tagName))
  .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
  .map((e) => {
    const pair = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    return [e.textContent.trim().slice(0, 40), ratio];
  });
"""


@pytest.fixture(scope="module")
def chromium():
    with opened() as browser:
        yield browser


@pytest.fixture
def page(chromium, url):
    """The page over the scripted service."""
    chromium.get(f"{url}/")
    yield chromium
    complaints = chromium.get_log("browser")
    chromium.get("about:blank")
    assert not [each for each in complaints if "status of" not in each["message"]]


def text(browser, name):
    return browser.find_element(By.ID, name).get_property("textContent")


def sees(browser, name, words, timeout_s=15):
    assert wait_until(lambda: words in text(browser, name), timeout_s), text(browser, name)


def ask(browser, words):
    browser.find_element(By.ID, "ask").send_keys(words, Keys.ENTER)


def test_figures_are_shown_and_followed(page, service):
    sees(page, "status", "Up to date")
    assert text(page, "hit-rate") == "–"
    assert "tiny-fake" in text(page, "about")
    service.metrics.prompt_tokens.labels("disk").inc(3000)
    service.metrics.prompt_tokens.labels("computed").inc(1000)
    sees(page, "hit-rate", "75 %")
    sees(page, "reuse", "3,000")
    sees(page, "tiers", "off: none")


def test_an_answer_streams_in_and_is_only_text(page, service):
    evil = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
    service.script = Script(texts=["Look: ", evil, "\n\n**done**"])
    ask(page, "<b>hello</b>")
    sees(page, "log", f"Look: {evil}\n\n**done**!")
    sees(page, "log", "First token after")
    assert "<b>hello</b>" in text(page, "log")
    assert not page.find_elements(By.CSS_SELECTOR, "#log img, #log script, #log b")
    assert page.title == "spillcache"
    ask(page, "and?")
    sees(page, "log", "and?")
    assert wait_until(lambda: len(service.requests) == 2)
    prompt = bytes(t for t in service.last().request.tokens.tolist() if t < 256).decode()
    assert evil in prompt
    assert "and?" in prompt


def test_an_answer_can_be_stopped_and_failures_are_told(page, service):
    service.script = Script(texts=["begun", "never"], hold_at=1)
    ask(page, "hello")
    sees(page, "log", "begun")
    assert page.find_element(By.ID, "log").get_attribute("aria-busy") == "true"
    page.find_element(By.ID, "stop").click()
    sees(page, "chat-status", "Stopped.")
    assert wait_until(lambda: service.last().ticket.cancelled)
    service.script = Script(refuse=Overloaded("256 requests wait already"))
    ask(page, "again")
    sees(page, "chat-status", "256 requests wait already")
    service.script = Script(texts=["half"], rest="")
    page.find_element(By.ID, "anew").click()
    assert text(page, "log") == ""
    ask(page, "anew")
    sees(page, "log", "half")
    assert wait_until(lambda: len(service.requests) == 2)


@pytest.mark.parametrize("service_options", [{"api_keys": ("secret",)}])
def test_the_key_is_asked_for_and_kept_in_the_tab(page):
    sees(page, "status", "an API key is needed")
    field = page.find_element(By.ID, "key")
    field.send_keys("wrong", Keys.ENTER)
    sees(page, "status", "the API key is wrong")
    field.send_keys("secret", Keys.ENTER)
    sees(page, "status", "Up to date")
    assert not page.find_element(By.ID, "key-form").is_displayed()
    ask(page, "hello")
    sees(page, "log", "Hello wörld!")
    assert page.execute_script("return [localStorage.length, document.cookie]") == [0, ""]


def test_updates_can_be_paused(page, service):
    sees(page, "status", "Up to date")
    button = page.find_element(By.ID, "pause")
    button.send_keys(Keys.SPACE)
    sees(page, "status", "Paused")
    assert button.get_attribute("aria-pressed") == "true"
    service.metrics.prompt_tokens.labels("ram").inc(10)
    button.send_keys(Keys.SPACE)
    sees(page, "hit-rate", "100 %")


def test_all_can_be_reached_by_keyboard_and_has_a_name(page):
    sees(page, "status", "Up to date")
    names = []
    for _ in range(20):
        page.switch_to.active_element.send_keys(Keys.TAB)
        focused = page.switch_to.active_element
        if focused.tag_name == "body":
            break
        names.append(focused.accessible_name)
        outline = page.execute_script("return getComputedStyle(arguments[0]).outlineStyle", focused)
        assert outline == "solid"
    assert names == [
        "Skip to the chat box", "Pause updates", "Conversation", "Your message", "Send",
        "New conversation", "At most", "Prefix tree", "Recent requests",
    ]  # fmt: skip
    assert page.find_element(By.TAG_NAME, "main").aria_role == "main"
    assert page.find_element(By.TAG_NAME, "header").aria_role == "banner"
    assert page.find_element(By.ID, "log").aria_role == "log"
    assert len(page.find_elements(By.TAG_NAME, "h1")) == 1
    for section in page.find_elements(By.TAG_NAME, "section"):
        assert section.aria_role == "region"
        assert section.accessible_name
    for table in page.find_elements(By.TAG_NAME, "table"):
        assert table.find_element(By.TAG_NAME, "caption").text
        for header in table.find_elements(By.TAG_NAME, "th"):
            assert header.get_attribute("scope") in {"col", "row"}


def test_it_fits_a_narrow_window(page):
    """As wide as a telephone, or a window at 400 %: nothing is beside it."""
    metrics = {"width": 320, "height": 640, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    sees(page, "status", "Up to date")
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 320
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(page, service, scheme):
    prefer(page, prefers_color_scheme=scheme)
    ask(page, "hello")
    sees(page, "log", "First token after")
    found = page.execute_script(CONTRASTS)
    assert len(found) > 40
    assert not [each for each in found if each[1] < 4.5]
    prefer(page)


@pytest.mark.model
def test_hits_change_while_requests_run_and_the_tree_outlives_a_restart(
    chromium, gguf_model, tmp_path
):
    model, flags = gguf_model("llama"), ("--cache-disk", str(tmp_path / "cache"), "-np", "2")
    flags = (*flags, "--cache-disk-min-free", "0")
    system = {"role": "system", "content": "You are of help to whoever asks. " * 20}

    def chat(server, word):
        messages = [system, {"role": "user", "content": word * 30}]
        body = {"messages": messages, "max_tokens": 8, "ignore_eos": True}
        server.http.post("/v1/chat/completions", json=body).raise_for_status()

    with contextlib.closing(Server(model, tmp_path / "first", *flags)) as server:
        chromium.get(f"{server.url}/")
        sees(chromium, "tree-note", "Nothing is kept yet.")
        chat(server, "one")
        sees(chromium, "hit-rate", "0 %")
        asking = threading.Thread(target=lambda: [chat(server, w) for w in ("two", "three")])
        asking.start()
        assert wait_until(lambda: text(chromium, "hit-rate") not in {"–", "0 %"}, 15)
        asking.join()
        sees(chromium, "tree", "shared by 3")
        sees(chromium, "recent", "live")
        sees(chromium, "recent", "cut off")
        branch = chromium.find_element(By.CSS_SELECTOR, "#tree summary code").text
        leaves = len(chromium.find_elements(By.CSS_SELECTOR, "#tree ul li"))
        assert server.stop() == 0
        sees(chromium, "status", "does not answer")
    port = server.url.rsplit(":", 1)[1]
    with contextlib.closing(Server(model, tmp_path / "second", *flags, "--port", port)) as server:
        sees(chromium, "status", "Up to date")
        assert wait_until(lambda: text(chromium, "hit-rate") == "–", 10), "a new count"
        sees(chromium, "tree", "shared by 3")
        sees(chromium, "tree", "disk")
        assert "RAM" not in text(chromium, "tree")
        assert chromium.find_element(By.CSS_SELECTOR, "#tree summary code").text == branch
        assert len(chromium.find_elements(By.CSS_SELECTOR, "#tree ul li")) == leaves
        chat(server, "one")
        sees(chromium, "recent", "disk")
        details = chromium.find_element(By.CSS_SELECTOR, "#tree summary")
        details.send_keys(Keys.ENTER)  # closed, and so it stays
        chat(server, "four")
        sees(chromium, "tree", "shared by 4")
        assert details.find_element(By.XPATH, "..").get_attribute("open") is None
        assert chromium.switch_to.active_element == details
    # While it stops and starts the server does not answer, or with 503; the page says so.
    away = re.compile(r"ERR_|/cache - Failed to load resource: .* status of 503 ")
    messages = [entry["message"] for entry in chromium.get_log("browser")]
    assert not [message for message in messages if not away.search(message)]
