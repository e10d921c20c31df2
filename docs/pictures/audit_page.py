"""Photographs the page of an audit, with ``PYTHONPATH=tests/helpers`` to find its ledger.

It needs Chromium and the extra `test`.  The ledger is that of the tests: nine weeks of sums, one
token that waits and one whose outcome was lost.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from ledgers_to_show import weeks
from playwright.sync_api import sync_playwright

from privlearn.reporting.page import write_page
from privlearn.reporting.report import report
from privlearn_studies.papers.plots import few_colours

HERE = Path(__file__).parent
WIDTH = 900
PICTURES = {
    "audit-page.png": ("light", "header", "#weaknesses"),
    "audit-page-spending.png": ("dark", "#budget", "#spending .charts"),
}
"""By name: the theme, and the first and last element on it."""
MARGIN = 16


def main() -> None:
    """Writes both pictures."""
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        ledger, file = Path(folder) / "shop.db", Path(folder) / "shop.html"
        weeks(ledger)
        write_page(report(ledger), file)
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (scheme, first, last) in PICTURES.items():
            page = browser.new_page(
                viewport={"width": WIDTH, "height": 800},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page.goto(file.as_uri())
            top, bottom = (page.locator(at).bounding_box() for at in (first, last))
            assert top is not None
            assert bottom is not None
            begin = max(top["y"] - MARGIN, 0)
            end = bottom["y"] + bottom["height"] + MARGIN
            clip = {"x": 0, "y": begin, "width": WIDTH, "height": end - begin}
            picture = page.screenshot(full_page=True, clip=clip)  # type: ignore[arg-type]
            (HERE / name).write_bytes(few_colours(picture))
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
