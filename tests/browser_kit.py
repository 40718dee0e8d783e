"""A real Chromium for tests of pages, driven by Playwright; it is the system's own, nothing is downloaded.

Screenshots are kept in ``test-artifacts`` in the checkout, for people to look at; git does not see them.

Threads: the test's own; a browser belongs to the thread that has started it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

from tests.patience import SECONDS

__all__ = ["Screen", "browser", "chromium", "keep"]

_ARTIFACTS: Final = Path(__file__).resolve().parents[1] / "test-artifacts"
#: The same names as in scripts/requirements.
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Screen:
    """A window of a browser.

    Args:
        folder: below ``test-artifacts``, for its screenshots.
    """

    def __init__(self, browser: Browser, folder: str) -> None:
        self.page: Page = browser.new_page(viewport={"width": 1280, "height": 900})
        self.page.set_default_timeout(SECONDS * 1000)
        self._folder = _ARTIFACTS / folder
        self._folder.mkdir(parents=True, exist_ok=True)

    def shoot(self, name: str) -> Path:
        """Keep what is on the screen now."""
        path = self._folder / f"{name}.png"
        self.page.screenshot(path=path, animations="disabled")
        return path


def keep(content: str, folder: str, name: str) -> None:
    """Keep a page for people, and for pictures of it."""
    path = _ARTIFACTS / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def chromium() -> str:
    """Where it is: the program that CHROMIUM names, or the system's."""
    found = [path for name in (os.environ.get("CHROMIUM", ""), *_NAMES) if name and (path := shutil.which(name))]
    assert found, "there is no Chromium; `make test` names the command that installs it"
    return found[0]


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium without a window; ended afterwards."""
    # Its sandbox needs rights that root in a container does not have.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        try:
            yield started
        finally:
            started.close()
