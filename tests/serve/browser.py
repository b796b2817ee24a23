"""Headless Chromium, as Debian packages it: ``apt-get install chromium chromium-driver``."""

import contextlib
import os
import shutil
import tempfile

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "needs chromium and chromium-driver"


@contextlib.contextmanager
def opened(width=1280, height=1500):
    """A browser with a profile of its own, gone afterwards; it loads nothing by itself."""
    with tempfile.TemporaryDirectory(prefix="browser") as home:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        # A fresh container has no user namespaces and a small /dev/shm.
        for flag in (
            "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage",
            "disable-background-networking", "no-first-run", "hide-scrollbars",
            f"user-data-dir={home}/profile", f"window-size={width},{height}",
        ):  # fmt: skip
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # HOME: it writes there, whatever the profile is.
        service = Service(DRIVER, env={**os.environ, "HOME": home})
        browser = webdriver.Chrome(options, service)
        try:
            yield browser
        finally:
            browser.quit()


def prefer(browser, **features):
    """Set what the user prefers, such as ``prefers_color_scheme="dark"``."""
    named = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})
