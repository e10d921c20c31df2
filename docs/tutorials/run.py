"""Runs the tutorials from top to bottom, each in an empty directory with a kernel of its own.

``python docs/tutorials/run.py`` fails if a cell fails or writes to standard error; with ``--write``
the outputs are stored in the notebooks, which is how those that stand there were made.  Names of
notebooks choose some.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

import privlearn

FOLDER = Path(__file__).parent
NEEDS = {"features.ipynb": ("recbole",), "opacus.ipynb": ("opacus", "torch")}
"""Packages of other extras, without which a tutorial is passed over."""
SECONDS = 300
"""A cell that takes longer has failed."""
PACKAGES = f"{Path(privlearn.__file__).parents[1]}{os.sep}"
"""Where modules stand on this machine; tracebacks name them."""
PROGRESS = re.compile(r"[^\n]*\r(?!\n)[^\n]*\n?")
"""Lines that were written over."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class TutorialError(Exception):
    """A cell failed, or printed what must not stand in a tutorial."""


def execute(path: Path) -> NotebookNode:
    """The notebook with new outputs; what it writes is thrown away.

    Raises:
        TutorialError: a cell raised, or printed to standard error.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=ERROR"],  # not that its sockets are of this machine
        )
        try:
            client.execute()
        except CellExecutionError as error:
            raise TutorialError(f"{path.name}: {error}") from None
    places = (PACKAGES, f"{folder}{os.sep}")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(_joined(path, cell, places))
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    return notebook


def _joined(path: Path, cell: NotebookNode, places: Sequence[str]) -> Iterator[NotebookNode]:
    """Outputs with pieces of one stream put together, without ``places`` of this machine."""
    last: NotebookNode | None = None
    for output in cell.outputs:
        if output.output_type == "stream":
            if output.name != "stdout":
                raise TutorialError(f"{path.name}: on standard error:\n{output.text}{cell.source}")
            output.text = PROGRESS.sub("", COLOURS.sub("", output.text))
            for place in places:
                output.text = output.text.replace(place, "")
            if last is not None:
                last.text += output.text
                continue
            last = output
        else:
            last = None
        yield output


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tutorials that were named, or all; 1 if one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="store the outputs")
    given = parser.parse_args(arguments)
    # The commands of this environment come first, and pages are as wide as they are printed.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    failed = 0
    for path in given.notebooks or sorted(FOLDER.glob("*.ipynb")):
        missing = [name for name in NEEDS.get(path.name, ()) if find_spec(name) is None]
        if missing:
            print(f"{path.name}: passed over, as it needs {', '.join(missing)}", flush=True)
            continue
        began = time.monotonic()
        try:
            notebook = execute(path)
        except TutorialError as error:
            failed = 1
            print(error, file=sys.stderr)
            continue
        if given.write:
            nbformat.write(notebook, path)
        print(f"{path.name}: {time.monotonic() - began:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
