"""What a person does in Dagster's pages: goes to one, clicks, types, reads.

By what one sees (roles, texts) and not by how a page is made. A page shows what is new by itself, but not all of it, so
whoever waits for something loads it again now and then, as people do; a wait ends as soon as it is there.

Threads: the test's own.
"""

from __future__ import annotations

import re
import time
from typing import Final

from playwright.sync_api import Locator, Page, expect
from playwright.sync_api import TimeoutError as NotThere

from tests.browser_kit import Screen
from tests.dagster_dev_kit import DagsterDev
from tests.patience import SECONDS

__all__ = ["Person"]

_RELOAD_MILLISECONDS: Final = 5_000
_RUN_PAGE: Final = re.compile("/runs/[0-9a-f]")
_ENDED: Final = re.compile(r"RUN_(SUCCESS|FAILURE|CANCELED)")
expect.set_options(timeout=SECONDS * 1000)  # for all that is expected on a page; it ends as soon as it is there
_DRAWN: Final = """canvas => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return pixels.some(value => value > 0);
}"""


class Person:
    """Somebody who looks after a streaming job in a browser.

    Args:
        screen: the window.
        dagster: whose pages are shown.
    """

    def __init__(self, screen: Screen, dagster: DagsterDev) -> None:
        self.screen = screen
        self._dagster = dagster

    @property
    def page(self) -> Page:
        return self.screen.page

    def open_asset(self, asset: str, view: str = "overview") -> None:
        """Go to an asset, named like ``flights/savepoint``."""
        self._open(self._dagster.page(f"assets/{asset}?view={view}"))
        expect(self.page.get_by_role("button", name="Materialize").first).to_be_visible()

    def open_schedule(self, name: str) -> None:
        """Go to a schedule."""
        self._open(self._dagster.location_page(f"schedules/{name}"))
        expect(self.page.get_by_text("Execution timezone")).to_be_visible()

    def leave(self) -> None:
        """Look at no page of Dagster: an open one asks for news all the time, which takes a fifth of a processor."""
        self.page.goto("about:blank")

    def see(self, seen: Locator) -> Locator:
        """Wait until something is shown, and load the page again now and then; it must come."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                seen.first.wait_for(timeout=_RELOAD_MILLISECONDS)
            except NotThere:
                if time.monotonic() > deadline:
                    raise
                self.page.reload()
            else:
                return seen.first

    # Assets.

    def materialize(self) -> None:
        """Press the button on an asset's page, and follow the message to the run."""
        self.page.get_by_role("button", name="Materialize").first.click()
        self._go_to_run()

    def metadata(self, name: str) -> Locator:
        """The value of an entry on an asset's page, as it is shown."""
        return self._entry(name).get_by_role("cell").nth(2)

    def scroll_to(self, name: str) -> None:
        """Bring an entry on an asset's page into sight."""
        self._entry(name).get_by_role("cell").first.scroll_into_view_if_needed()

    def show_plots(self) -> None:
        """Let an asset's page show plots of its numbers, instead of a table."""
        self.page.get_by_role("button", name="Plots").click()

    def sees_plot(self, name: str) -> None:
        """There is a plot of that entry, and something is drawn in it."""
        title = self.page.get_by_text(f"coord_control/{name}", exact=True)
        title.scroll_into_view_if_needed()
        plot = title.locator("xpath=following::canvas[1]")
        expect(plot).to_be_visible()
        assert plot.evaluate(_DRAWN), f"nothing is drawn in the plot of {name}"

    def choose_check(self, name: str) -> None:
        """Click at a check in the list on an asset's page."""
        self.page.get_by_text(name, exact=True).first.click()
        expect(self.page.get_by_text("Latest execution")).to_be_visible()

    def execute_check(self) -> None:
        """Let the chosen check be made now, and follow the message to the run."""
        self.page.get_by_role("button", name=re.compile("Execute$")).click()
        self._go_to_run()

    # Runs.

    def open_run(self, link: Locator) -> None:
        """Follow a link to a run that would open in a tab of its own."""
        self._open(self._dagster.page(str(link.get_attribute("href")).lstrip("/")))

    def launch(self, job: str, config: str) -> None:
        """Type a config into the launchpad of a job, and launch it; shows the run."""
        self._open(self._dagster.location_page(f"jobs/{job}/playground"))
        expect(self.page.get_by_text("No errors")).to_be_visible()  # what it offers by itself is there
        self.page.locator(".CodeMirror").first.click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(config)
        self.page.get_by_role("button", name="Launch Run").click()
        self.page.wait_for_url(_RUN_PAGE)

    def sees_line(self, text: str | re.Pattern[str]) -> Locator:
        """A line of the run's log."""
        line = self.page.get_by_text(text).first
        line.wait_for(timeout=SECONDS * 1000)
        return line

    def sees_success(self) -> None:
        """The run ends, and well."""
        assert self.sees_line(_ENDED).inner_text() == "RUN_SUCCESS"

    def filter_log(self, text: str) -> None:
        """Show only those lines of the run's log that have this text."""
        self.page.get_by_placeholder("Filter").fill(text)

    # Schedules.

    def switch_schedule(self) -> None:
        """On, or off."""
        self.page.get_by_role("row", name="Running").locator("label").click()

    # Parts.

    def _entry(self, name: str) -> Locator:
        key = self.page.get_by_text(f"coord_control/{name}", exact=True)
        return self.page.get_by_role("row").filter(has=key).first

    def _open(self, url: str) -> None:
        self.page.goto(url, wait_until="domcontentloaded")

    def _go_to_run(self) -> None:
        self.page.get_by_role("link", name="View", exact=True).click()
        self.page.wait_for_url(_RUN_PAGE)
