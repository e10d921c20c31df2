"""No page loads anything from another host: readers of a site on privacy are not told on."""

from __future__ import annotations

import logging
import re

from mkdocs.structure.pages import Page

_LOG = logging.getLogger("mkdocs.hooks.nothing_from_elsewhere")
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?((?:https?:)?//[^\"'\s>]*)"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon))"
    r"[^>]*\bhref=[\"']?((?:https?:)?//[^\"'\s>]*)"
    r"|@import\s+(?:url\()?[\"']?((?:https?:)?//[^\"'\s)]*)",
    re.IGNORECASE,
)


def loaded(html: str) -> list[str]:
    """Addresses on other hosts that a browser would ask for by itself."""
    return [address for found in _LOADED.findall(html) for address in found if address]


def on_post_page(output: str, page: Page, **_: object) -> str:
    for address in loaded(output):
        _LOG.warning("%s loads %s", page.file.src_uri, address)
    return output
