"""The site has pages of files outside `docs/` that its pages link to.

`docs/architecture.md` links to `../CONTRIBUTING.md`, which is right in the repository and leads out
of the site.  Here each such file becomes a page below `repository/`: Markdown as it is, anything
else as a block of code.  What these pages link to follows.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent


def _in_repository(uri: str) -> str:
    """The path of a page's source from the root of the repository."""
    if uri.startswith("repository/"):
        path = uri.removeprefix("repository/")
        return path.removesuffix(".md") if re.search(r"\.\w+\.md$", path) else path
    return f"docs/{uri}"


def _on_site(path: str) -> str:
    """The uri of the page of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def _targets(root: Path, source: str, text: str) -> Iterator[str]:
    for part in _FENCE.split(text)[::2]:
        for _, link, _ in _LINK.findall(part):
            if ":" not in link:
                path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
                if (root / path).is_file():
                    yield path


def _text(root: Path, path: str) -> str:
    text = (root / path).read_text("utf-8")
    if path.endswith(".md"):
        return text
    kind = Path(path).suffix.removeprefix(".")
    return f"# {path}\n\n````{kind}\n{text.rstrip()}\n````\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = _root(config)
    waiting = list(ALWAYS)
    for file in files.documentation_pages():
        if file.src_uri.endswith(".md"):
            source = f"docs/{file.src_uri}"
            waiting += _targets(root, source, file.content_string)
    while waiting:
        path = waiting.pop()
        uri = _on_site(path)
        if path.startswith("docs/") or files.get_file_from_path(uri) is not None:
            continue
        text = _text(root, path)
        files.append(File.generated(config, uri, content=text))
        if path.endswith(".md"):
            waiting += _targets(root, path, text)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    root, uri = _root(config), page.file.src_uri
    here = _in_repository(uri)
    if not here.endswith(".md"):
        return markdown

    def moved(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
        if ":" in link or not (root / path).is_file():
            return match[0]
        there = posixpath.relpath(_on_site(path), posixpath.dirname(uri) or ".")
        return f"{before}{there}{after}"

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts)
