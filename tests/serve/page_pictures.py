"""Pictures of the page for docs/page.md: serve a model, ask it, restart it, ask again, and look.

    python tests/serve/page_pictures.py [MODEL]

MODEL: gemma3-270m unless it is named. Writes docs/images/page-light.png and page-dark.png.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

from browser import opened, prefer
from fake_service import wait_until
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from server_process import Server

IMAGES = Path(__file__).parents[2] / "docs" / "images"
COLOURS = 128
LICENCE = (Path(__file__).parents[2] / "LICENSE").read_text()[:6000]
BEGUN = "Monday, Tuesday, Wednesday, Thursday,"
QUESTIONS = ("Who may copy this?", "What is a contribution?", "Is there a warranty?")


def main(model: str) -> None:
    """Ask, restart, ask again, and look."""
    with tempfile.TemporaryDirectory(prefix="page-") as work:
        flags = ("--cache-disk", f"{work}/cache", "--cache-disk-min-free", "0", "-np", "2")
        with contextlib.closing(Server(model, Path(work) / "first", *flags)) as server:
            for question in QUESTIONS:
                ask(server, question)
            server.stop()
        with (
            contextlib.closing(Server(model, Path(work) / "second", *flags)) as server,
            opened(width=1280, height=1480) as browser,
        ):
            for question in QUESTIONS[1:]:
                ask(server, question)
            browser.get(f"{server.url}/")
            most = browser.find_element(By.ID, "most")
            most.clear()
            most.send_keys("12")
            browser.find_element(By.ID, "ask").send_keys(BEGUN, Keys.ENTER)
            for name, words in (("log", "First token after"), ("tree", "shared by 3")):
                shown = browser.find_element(By.ID, name)
                assert wait_until(lambda: words in shown.text, 60)  # noqa: B023
            for scheme in ("light", "dark"):
                prefer(browser, prefers_color_scheme=scheme)
                save(browser, IMAGES / f"page-{scheme}.png")


def ask(server: Server, question: str) -> None:
    """About a long text, so that its beginning is shared."""
    messages = [{"role": "user", "content": f"{LICENCE}\n{question}"}]
    server.ai.chat.completions.create(model="x", messages=messages, max_tokens=24, temperature=0)


def save(browser: object, path: Path) -> None:
    """With few colours, so that it is small."""
    path.parent.mkdir(exist_ok=True)
    browser.save_screenshot(str(path))
    Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["gemma3-270m"]))
