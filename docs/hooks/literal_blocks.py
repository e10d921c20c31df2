"""Docstrings announce a block of code by two colons, of which readers see one or none."""

from __future__ import annotations


def on_page_content(html: str, **_: object) -> str:
    """Takes the colons away that Markdown leaves before the block."""
    return html.replace("<p>::</p>\n", "").replace("::</p>", ":</p>")
