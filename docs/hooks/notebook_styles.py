"""Tutorials share one style sheet.

The plugin that shows notebooks writes JupyterLab's styles, half a megabyte, into every page.  Here
they become one file, which a browser loads once.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

SHEET = "assets/notebooks-{}.css"
LARGE = 100_000
_STYLE = re.compile(r"<style[^>]*>(.*?)</style>", re.DOTALL)
_sheets: list[str] = []


def on_pre_build(config: MkDocsConfig) -> None:
    """A server builds more than once."""
    _sheets.clear()


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to each large style sheet of a notebook, and keeps it."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html

    def linked(match: re.Match[str]) -> str:
        if len(match[1]) < LARGE:
            return match[0]
        if match[1] not in _sheets:
            _sheets.append(match[1])
        name = SHEET.format(_sheets.index(match[1]))
        return f'<link rel="stylesheet" href="{get_relative_url(name, page.url)}">'

    return _STYLE.sub(linked, html)


def on_post_build(config: MkDocsConfig) -> None:
    """Writes the sheets."""
    for number, sheet in enumerate(_sheets):
        file = Path(config.site_dir, SHEET.format(number))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(sheet, "utf-8")
