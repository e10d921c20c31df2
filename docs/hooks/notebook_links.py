"""Links in tutorials lead to pages of the site, and each page of a notebook to its file.

A notebook links to `../glossary.md`, which is right in the repository and in an editor.  The plugin
that shows notebooks leaves such links as they are; here they become those of the pages.
"""

from __future__ import annotations

import posixpath
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r'(<a\b[^>]*\bhref=")([^":#]+\.(?:md|ipynb))((?:#[^"]*)?")')


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page that is a notebook, and adds one to the notebook.

    Raises:
        PluginError: a link to no page.
    """
    uri = page.file.src_uri
    if not uri.endswith(".ipynb"):
        return html

    def moved(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        target = files.get_file_from_path(
            posixpath.normpath(posixpath.join(posixpath.dirname(uri), link))
        )
        if target is None:
            raise PluginError(f"{uri}: links to {link}, which is no page")
        return f"{before}{target.url_relative_to(page.file)}{after}"

    name = posixpath.basename(uri)  # the plugin copies it beside its page
    download = f'<p><a href="{name}" download>Download this notebook</a></p>\n'
    return download + _LINK.sub(moved, html)
