"""The pages of a real ``coordctl ui`` in a real browser; the driver beside it has a real agent and scripted work.

What only a browser can say: that the page changes by itself, that a button does what it says, that everything has a
name and can be read in both colour schemes and on a narrow screen. Screenshots of all of it lie in ``test-artifacts``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect

from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import CheckpointResult
from coord_control.protocol.status import GatewayStatus, JobStatus
from coord_control.storage.records import CommandKind
from tests.agent_kit import ScriptedDriver, control_settings, make_agent, open_store
from tests.browser_kit import Screen, browser
from tests.control_kit import opened
from tests.patience import SECONDS
from tests.ui.story import FAILED, NEWEST, SLOW, put_stopped, put_story

TOKEN: Final = "a token that nobody guesses"
LIVE: Final = "live"  # the job with a driver; the other one only has a history
PAGES: Final = {
    "jobs": "",
    "job": "jobs/flights",
    "checkpoint": f"jobs/flights/checkpoints/{SLOW}",
    "under-way": f"jobs/flights/checkpoints/{NEWEST}",
    "failed": f"jobs/flights/checkpoints/{FAILED}",
}
LEAST_CONTRAST: Final = 4.5


class HoldingDriver(ScriptedDriver):
    """Its gateways hold what it is told."""

    blocked: dict[int, int]

    def __init__(self, root: Path) -> None:
        super().__init__(root, LIVE, is_automatic=False)
        self.blocked = {}

    def status(self) -> JobStatus:
        status = super().status()
        [operator] = status.operators
        gateways = tuple(self._gateway(gateway) for gateway in operator.gateways)
        return replace(status, operators=(replace(operator, gateways=gateways),))

    def _gateway(self, gateway: GatewayStatus) -> GatewayStatus:
        blocked = self.blocked.get(gateway.subtask, 0)
        return replace(gateway, is_open=not blocked, blocked=blocked, blocked_total=blocked)


@dataclass(frozen=True, slots=True)
class Place:
    """A served page, the driver behind it, and a browser before it."""

    address: str
    driver: HoldingDriver
    client: ControlClient
    browser: Browser

    def open(self, path: str, **window: Any) -> Page:
        page = self.browser.new_page(**window)
        page.set_default_timeout(SECONDS * 1000)
        page.goto(self.address + path)
        return page


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The real command, as a process; gives its address."""
    token = folder / "token"
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "coord_control.cli", "ui", "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "COORD_CONTROL": f"sqlite:///{folder / 'control.db'}", "COLUMNS": "200"}
    with subprocess.Popen(
        [*command, "--actions", "--token-file", str(token)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert found is not None, line
            yield found[0]
        finally:
            process.terminate()
            rest = process.communicate(timeout=SECONDS)[0]
    assert "Traceback" not in rest
    assert TOKEN not in line + rest


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("ui")
    with opened(folder) as store:
        put_story(store)
        put_stopped(store, "invoices")
    settings = control_settings(folder / "control.db")
    driver = HoldingDriver(folder / "jobs")
    agent = make_agent(driver, settings, open_store(settings))
    agent.start()
    try:
        with ControlClient(settings=settings) as client, served(folder) as address, browser() as started:
            yield Place(address, driver, client, started)
    finally:
        agent.close()


@pytest.fixture
def page(place: Place) -> Iterator[Page]:
    found = place.open(f"jobs/{LIVE}")
    yield found
    found.close()


# It lives.


def test_a_page_follows_a_checkpoint_that_blocks_events(place: Place, page: Page) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    expect(page.get_by_text("events are blocked now")).to_have_count(0)
    command = place.client.trigger_checkpoint(LIVE)
    place.driver.blocked = {1: 7}
    notice = page.locator(".blocked-now")
    expect(notice).to_contain_text("7 events are blocked now")
    expect(notice).to_contain_text("7 at 1 closed of 2 gateways of threshold")
    place.driver.blocked = {0: 2, 1: 9}
    expect(notice).to_contain_text("11 events are blocked now")
    row = page.locator("#history tbody tr").first
    expect(row).to_contain_text("in progress")
    number = int(row.locator("th").inner_text())
    other = place.open(f"jobs/{LIVE}/checkpoints/{number}")
    expect(other.locator("#passed")).to_be_visible()
    place.driver.blocked = {}
    place.driver.complete(number)
    done = place.client.wait(command, timeout=SECONDS)
    assert isinstance(done, CheckpointResult)
    expect(notice).to_have_count(0)
    expect(row).to_contain_text("completed")
    expect(other.get_by_role("heading", level=1)).to_contain_text("completed")
    expect(other.locator("#restore-command")).to_have_text(f"coordctl restore {LIVE} {number}")
    expect(other.locator("svg.timeline .lane.subtask")).to_have_count(2)
    expect(other.locator("body")).to_have_attribute("data-refresh", "0")
    other.close()
    assert errors == []


def test_a_page_can_be_paused_and_keeps_the_focus(place: Place, page: Page) -> None:
    page.locator("#history-caption").wait_for()
    place.driver.blocked = {0: 1}
    expect(page.locator(".blocked-now")).to_be_visible()
    link = page.locator(".trail a")
    link.focus()
    held = page.locator(".blocked-now a, #operators .scroll").first
    held.focus()
    place.driver.blocked = {0: 5}
    expect(page.locator("#operators .cell.blocked title")).to_have_text("subtask 0: closed, 5 events blocked")
    expect(held).to_be_focused()
    page.get_by_role("button", name="Pause").click()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    place.driver.blocked = {}
    deadline = time.monotonic() + SECONDS
    while any(each.blocked_now for each in place.client.job(LIVE).operators) and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    expect(page.locator(".blocked-now")).to_be_visible()
    assert len(requests) <= 1  # one may have been on its way
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".blocked-now")).to_have_count(0)


def test_a_page_that_gets_no_answer_says_so_and_recovers(page: Page) -> None:
    page.route("**/jobs/**", lambda route: route.abort())
    expect(page.locator("#live-news")).to_have_text("No answer: this page is not up to date.")
    page.unroute("**/jobs/**")
    expect(page.locator("#live-news")).to_have_text("")


# The buttons.


def test_buttons_need_the_token_and_do_what_they_say(place: Place, page: Page) -> None:
    before = len(place.client.commands(LIVE))
    page.locator("#token").fill("a guess")
    page.get_by_role("button", name="Take a savepoint").click()
    expect(page.get_by_role("alert")).to_contain_text("The token is not the one")
    assert len(place.client.commands(LIVE)) == before
    page.goto(f"{place.address}jobs/{LIVE}")
    page.locator("#token").fill(TOKEN)
    page.get_by_label("Label").fill("by-hand")
    page.get_by_role("button", name="Take a savepoint").click()
    expect(page.locator("#asked")).to_contain_text("Trigger savepoint")
    [command] = place.client.commands(LIVE, kind=CommandKind.TRIGGER_SAVEPOINT)
    assert command.payload["label"] == "by-hand"
    assert command.requested_by.endswith("(page)")
    expect(page.locator("#token")).to_have_value(TOKEN)  # this tab remembers it
    page.get_by_role("button", name=re.compile("Abort checkpoint")).click()
    expect(page.locator("#asked")).to_contain_text("Abort: completed")
    expect(page.locator("#history tbody tr").first).to_contain_text("aborted")
    expect(page.get_by_role("button", name=re.compile("Abort checkpoint"))).to_have_count(0)


def test_a_live_value_is_changed_with_a_form_that_says_what_is_wrong(place: Place) -> None:
    screen = Screen(place.browser, "ui")
    page = screen.page
    page.goto(f"{place.address}jobs/{LIVE}")
    page.locator("summary", has_text="Change limits").click()
    form = page.locator("details[open] form")
    page.locator("summary", has_text="Send Threshold to threshold").click()
    expect(page.locator("details[open]")).to_have_count(2)
    minutes = form.get_by_label("minutes").first
    expect(minutes).to_have_value("30")
    minutes.fill("")
    form.get_by_label("Token").first.fill(TOKEN)
    expect(page.locator("#token")).to_have_value(TOKEN)  # it is the same for all forms
    screen.shoot("forms")
    form.get_by_role("button", name="Change limits").click()
    expect(page.locator("details[open] .problem").last).to_have_text("Enter a value.")
    expect(form.get_by_label("minutes")).to_have_attribute("aria-invalid", "true")
    screen.shoot("form-with-a-problem")
    form.get_by_label("minutes").fill("45")
    expect(form.get_by_label("Token")).to_have_value(TOKEN)
    form.get_by_role("button", name="Change limits").click()
    expect(page.locator("#asked")).to_contain_text("Set live: completed")
    expect(page.locator("#live")).to_contain_text("30 \u2192 45")
    page.locator("#live").scroll_into_view_if_needed()
    screen.shoot("live-values")
    assert place.client.job(LIVE).live_values[0].value == {"minutes": 45}
    # A change that somebody else makes shows by itself, while a form is open.
    page.locator("summary", has_text="Change limits").click()
    page.get_by_label("minutes").first.fill("99")
    place.client.set(LIVE, "limits", {"minutes": 50})
    expect(page.locator("#live")).to_contain_text("45 \u2192 50")
    expect(page.get_by_label("minutes").first).to_have_value("99")
    page.close()


def test_the_command_that_restores_can_be_copied(place: Place) -> None:
    context = place.browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(place.address + PAGES["checkpoint"])
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == f"coordctl restore flights {SLOW}"
    context.close()


def test_without_script_everything_is_there_but_what_needs_it(place: Place) -> None:
    context = place.browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(place.address + PAGES["checkpoint"])
    expect(page.locator("svg.timeline")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    page.get_by_role("link", name="events blocked").click()
    expect(page.locator("#subtasks tbody tr").first).to_contain_text("31")
    context.close()


# Everybody can read it.

#: In the page: the smallest contrast of any text with what is behind it, and whose it is.
_CONTRAST: Final = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => rgb.slice(0, 3)
    .map((each) => each / 255)
    .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (element) => {
    for (let each = element; each !== null; each = each.parentElement) {
      const found = channels(getComputedStyle(each).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
      if (found[3] !== 0) throw new Error("a background that lets something through: " + each.className);
    }
    throw new Error("nothing is behind the page");
  };
  const within = (text) => { // what is written into a bar has the bar behind it
    const bar = text.classList.contains("inside") ? text.parentElement.querySelector(".bar") : null;
    return bar === null ? behind(text) : channels(getComputedStyle(bar).fill);
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const isDrawn = element instanceof SVGElement;
    if (isDrawn && element.localName !== "text") continue;
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== "");
    if (!hasText || element.checkVisibility && !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const [a, b] = [channels(isDrawn ? style.fill : style.color), within(element)].map(luminance);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([ratio, `${element.localName}.${element.getAttribute("class")}`]);
  }
  return found.sort((one, other) => one[0] - other[0])[0];
}"""

#: In the page: whatever has no name, and whatever a keyboard or a screen reader would stumble over.
_UNNAMED: Final = """() => {
  const problems = [];
  const text = (id) => document.getElementById(id)?.textContent.trim() ?? "";
  const named = (element) => (element.getAttribute("aria-label") ?? "").trim()
    || (element.getAttribute("aria-labelledby") ?? "").split(" ").map(text).join(" ").trim();
  for (const each of document.querySelectorAll("a, button")) {
    if (!named(each) && !each.textContent.trim()) problems.push(`no name: ${each.outerHTML.slice(0, 80)}`);
  }
  for (const each of document.querySelectorAll("input:not([type=hidden])")) {
    if (!named(each) && each.labels.length === 0) problems.push(`no label: ${each.outerHTML}`);
  }
  for (const each of document.querySelectorAll("img")) {
    if (!each.hasAttribute("alt")) problems.push(`no alt: ${each.outerHTML}`);
  }
  for (const each of document.querySelectorAll("svg")) {
    if (each.closest("[aria-hidden=true]")) continue;
    const parts = [...each.querySelectorAll(":scope > title, :scope > desc")].map((part) => part.textContent.trim());
    if (each.getAttribute("role") !== "img" || parts.length < 2 || parts.includes("") || !named(each)) {
      problems.push(`an image without words: ${each.outerHTML.slice(0, 120)}`);
    }
  }
  for (const each of document.querySelectorAll("table")) {
    if (!each.caption?.textContent.trim()) problems.push("a table without a caption");
    if ([...each.querySelectorAll("th")].some((head) => !head.scope)) problems.push("a heading without a scope");
    const wide = new Set([...each.rows].map((row) => [...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0)));
    if (wide.size !== 1) problems.push(`rows of ${[...wide]} cells: ${each.caption?.textContent}`);
  }
  for (const each of document.querySelectorAll("[role=region], progress, section")) {
    if (!named(each) && each.matches("[role=region], progress")) problems.push(`no name: ${each.className}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  for (const each of document.querySelectorAll("[aria-labelledby]")) {
    for (const id of each.getAttribute("aria-labelledby").split(" ")) {
      if (ids.filter((other) => other === id).length !== 1) problems.push(`points nowhere: ${id}`);
    }
  }
  if (new Set(ids).size !== ids.length) problems.push(`ids twice: ${ids.filter((id, at) => ids.indexOf(id) !== at)}`);
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((each) => Number(each.localName[1]));
  if (levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1) problems.push(`headings: ${levels}`);
  if (!document.documentElement.lang || !document.title) problems.push("no language, or no title");
  return problems;
}"""


@pytest.mark.parametrize("name", PAGES)
def test_every_page_can_be_read_in_light_and_dark_on_wide_and_narrow_screens(place: Place, name: str) -> None:
    screen = Screen(place.browser, "ui")
    screen.page.emulate_media(reduced_motion="reduce")
    screen.page.goto(place.address + PAGES[name])
    seen = set()
    for scheme in ("light", "dark"):
        screen.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        seen.add(screen.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        ratio, where = screen.page.evaluate(_CONTRAST)
        assert ratio >= LEAST_CONTRAST, (scheme, where)
        for width in (1280, 360) if scheme == "light" else (360,):  # where things stand is the same in both
            screen.page.set_viewport_size({"width": width, "height": 900})
            assert screen.page.evaluate("document.documentElement.scrollWidth") <= width, (scheme, width)
            screen.shoot(f"{name}-{scheme}-{width}")
    assert len(seen) == 2
    screen.page.close()


@pytest.mark.parametrize("name", [*PAGES, "nowhere"])
def test_everything_on_a_page_has_a_name_and_a_place(place: Place, name: str) -> None:
    page = place.open(PAGES.get(name, name))
    assert page.evaluate(_UNNAMED) == []
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.getElementById('main').contains(document.activeElement)")
    page.close()
