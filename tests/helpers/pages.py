"""Pages of documentation, run as a reader would: from top to bottom, in an empty folder.

- A ```python block is executed, all of a page in one namespace.
- A block with a name, as in ```python title="mine.py", is also written to a file of that name.
- Of a ```console block (or ```sh), each command line is run in this process; one that ends with
  ``# exits with 3`` must end so, any other with 0.  Commands that set up a machine are passed over;
  one that is not known is an error, so that nothing is passed over in silence.

- What a ```text block shows has been printed by the blocks above it: its words between ``...``, in
  which a number, a hash or a key stands for any other.  One with a title, or with a command
  (``$ ...``), is only shown.
"""

from __future__ import annotations

import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from privlearn.cli.main import main

SETTING_UP = ("pip", "git", "cd", "source", "mkdocs", "python -m venv", "python -m pip")
WRITTEN = ("python", "toml", "json", "csv")
_FENCE = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"[A-Za-z0-9+/=]{24,}|[0-9a-f]{8,}|\d+(?:[.,/:e+-]*\d+)*")
_EXIT = re.compile(r"\s+# exits with (\d+)$")


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    text: str


def blocks_of(page: str) -> Iterator[Block]:
    """The fenced blocks of a page that have a language."""
    for indent, language, options, text in _FENCE.findall(page):
        named = re.search(r'title="([^"]+)"', options)
        plain = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
        yield Block(language, named[1] if named else None, plain)


def commands_of(block: str) -> Iterator[tuple[list[str], int]]:
    """The commands of a console block, with the exit code that each should have."""
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        said = _EXIT.search(line)
        text = _EXIT.sub("", line).removeprefix("$ ")
        words: list[list[str]] = [[]]
        for word in shlex.split(text, comments=True):
            words.append([]) if word == "&&" else words[-1].append(word)
        for number, command in enumerate(filter(None, words), 1):
            yield command, int(said[1]) if said and number == len(words) else 0


def is_runnable(block: Block) -> bool:
    return block.language in ("python", "console", "sh", "bash") or (
        block.title is not None and block.language != "text"
    )


def is_output(block: Block) -> bool:
    """Whether a block shows what those above it print."""
    commands = any(line.startswith("$ ") for line in block.text.splitlines())
    return block.language == "text" and block.title is None and not commands


def words_of(text: str) -> str:
    """What is compared of an output: not its lines, not its numbers, not how wide a table is."""
    words = re.sub(r"[─-╿━]+", " ", text).split()
    return " ".join(_NUMBER.sub("#", word) for word in words)


def not_printed(shown: str, printed: str) -> list[str]:
    """The pieces of an output on a page that are not among what was printed."""
    among = f" {words_of(printed)} "
    pieces = (words_of(piece) for piece in re.split(r"\S*(?:\.\.\.|…)\S*", shown))
    return [piece for piece in pieces if f" {piece} " not in among and piece]


def _exit_of(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> int:
    name, *rest = command
    if name == "privlearn":
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", command)
            try:
                main()
            except SystemExit as end:
                return end.code if isinstance(end.code, int) else int(end.code is not None)
        return 0
    if name == "pytest":
        options = ["-q", "-n", "0", "-p", "no:cacheprovider"]
        if not rest:
            return 0  # the suite that this is part of
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *rest], stdout=subprocess.PIPE, text=True
        )
        print(ran.stdout)
        return ran.returncode
    if name == "python" and len(rest) == 1 and rest[0].endswith(".py"):
        runpy.run_path(rest[0], run_name="__main__")
        return 0
    if " ".join(command).startswith(SETTING_UP):
        return 0
    raise AssertionError(f"not known how to run {command!r}: make it a ```text block")


def run_page(page: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs all blocks of a page in ``folder``; how many there were."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks_of(page):  # a command of another test may have left a module of this name
        monkeypatch.delitem(sys.modules, (block.title or "").removesuffix(".py"), raising=False)
    before = set(sys.modules)
    try:
        return _run(page, name, folder, monkeypatch, module)
    finally:
        for loaded in set(sys.modules) - before:
            if str(getattr(sys.modules[loaded], "__file__", None)).startswith(str(folder)):
                del sys.modules[loaded]  # the next page may have a file of this name


def _run(
    page: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> int:
    found, printed = 0, io.StringIO()
    for block in blocks_of(page):
        if is_output(block) and found:
            missing = not_printed(block.text, printed.getvalue())
            assert not missing, f"{name}: shows what is not printed: {missing}"
        if not is_runnable(block):
            continue
        found += 1
        if block.title is not None:
            assert block.language in WRITTEN, f"{name}: a file of unknown kind: {block.title}"
            (folder / block.title).write_text(block.text, encoding="utf-8")
        if block.language == "python":
            code = compile(block.text, block.title or name, "exec", dont_inherit=True)
            with redirect_stdout(printed), redirect_stderr(printed):
                exec(code, vars(module))
        elif block.title is None:
            for command, wanted in commands_of(block.text):
                with redirect_stdout(printed), redirect_stderr(printed):
                    ended = _exit_of(monkeypatch, command)
                assert ended == wanted, f"{name}: {shlex.join(command)} ended with {ended}"
    return found
