"""The page in headless Chromium: axe, themes, phone and paper, and a network that is never asked.

They are skipped where there is no Chromium, unless PRIVLEARN_BROWSER_TESTS=required.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ledgers_to_show import KINDS

from privlearn.reporting.page import write_page
from privlearn.reporting.report import report

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 360, "height": 740}
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
CUT = "[...document.querySelectorAll('table')].some(t => t.scrollWidth > t.parentNode.clientWidth)"
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
ACTIVE = "document.activeElement.getAttribute('href') || document.activeElement.id"


def cannot(why: str) -> None:
    """Skips, or fails where these tests have to run."""
    if os.environ.get("PRIVLEARN_BROWSER_TESTS") == "required":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def axe() -> Any:
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError as error:
        cannot(f"axe-playwright-python is not installed: {error}")
    return Axe()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        cannot(f"no Chromium on the path, by none of the names {', '.join(NAMES)}")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        cannot(f"playwright is not installed: {error}")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=[*FLAGS])
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("pages")
    for kind in ("weeks", "tampered", "hostile"):
        KINDS[kind](folder / f"{kind}.db")
        after = 0 if kind == "weeks" else None  # so that spends are listed
        write_page(report(folder / f"{kind}.db", after=after), folder / f"{kind}.html")
    return folder


@pytest.fixture
def opened(browser: Any, pages: Path) -> Iterator[Any]:
    """Opens a page by its kind; no other request, no message and no error may come of it."""
    page = browser.new_page(viewport=DESKTOP)
    heard: list[str] = []
    page.on("request", lambda request: heard.append(request.url))
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("dialog", lambda dialog: heard.append(dialog.message))
    asked: list[str] = []

    def load(kind: str) -> Any:
        asked.append((pages / f"{kind}.html").as_uri())
        page.goto(asked[-1])
        return page

    yield load
    assert heard == asked
    page.close()


def violations(axe: Any, page: Any) -> list[str]:
    """What axe finds, by rule and place."""
    options = {"resultTypes": ["violations"]}
    found = axe.run(page, options=options).response["violations"]
    return [f"{rule['id']}: {node['html']}" for rule in found for node in rule["nodes"]]


def test_light_dark_phone_and_paper(axe: Any, opened: Any, tmp_path: Path) -> None:
    page = opened("weeks")
    assert not violations(axe, page)
    assert page.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(BACKGROUND) == "rgb(19, 22, 27)"
    page.set_viewport_size(PHONE)
    assert page.evaluate(OVERFLOW) == 0, "only commands scroll sideways"
    assert page.get_by_text("One by one").first.is_visible()
    assert not page.evaluate(CUT)
    assert not violations(axe, page)
    page.emulate_media(media="print")
    assert page.evaluate(BACKGROUND) == "rgb(255, 255, 255)", "dark is for screens"
    assert not page.get_by_role("navigation").is_visible()
    assert page.get_by_text("Posterior odds").is_visible(), "what is folded is printed"
    page.emulate_media(media="screen")
    assert not page.get_by_text("Posterior odds").is_visible()
    assert page.pdf(path=tmp_path / "page.pdf")[:5] == b"%PDF-"


def test_warnings_and_hostile_text(axe: Any, opened: Any) -> None:
    assert not violations(axe, opened("tampered"))
    page = opened("hostile")
    page.set_viewport_size(PHONE)
    assert page.evaluate(OVERFLOW) == 0
    assert not violations(axe, page)
    assert page.get_by_text("<script>alert(1)</script>").count() >= 1, "as text"


def test_the_policy_stops_what_is_not_the_pages_own(browser: Any, pages: Path) -> None:
    page = browser.new_page()
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.goto((pages / "hostile.html").as_uri())
    before = page.evaluate(BACKGROUND)
    page.evaluate("document.body.setAttribute('style', 'background: rgb(1, 2, 3)')")
    page.evaluate("document.body.append(document.createElement('script'))")
    page.evaluate("document.scripts[0].text = \"document.title = 'in'\"")
    assert page.evaluate(BACKGROUND) == before
    assert page.title() != "in"
    assert [text.split()[0] for text in heard] == ["Applying", "Executing"]
    page.close()


def test_the_keyboard_reaches_what_can_be_used(opened: Any) -> None:
    page = opened("weeks")
    page.keyboard.press("Tab")
    assert page.evaluate(ACTIVE) == "#main"
    page.keyboard.press("Enter")
    assert page.evaluate(ACTIVE) == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid", "where one is can be seen"
    page.keyboard.press("Enter")
    assert page.get_by_text("Posterior odds").is_visible()
