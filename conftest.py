"""What all tests share: the same examples on every run, one thread, bytecode, files in memory,
small pictures, a learner.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from postgres import Server

    from privlearn.learners.local.protocol import LocalBanditConfig

# Modules are compiled once, not by every worker and every process that a test starts: that took a
# tenth of all time where the environment forbids bytecode.  Git ignores what is written.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Files of tests lie in memory where there is room: half of the time of a durable ledger's test is
# waiting for a disk, of which no test asserts anything.  Workers have it from who started them.
MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes; containers often have far less there."""
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
# Sockets lie there as well: their paths have at most 107 bytes, and a test's own folder takes 85.
if len(os.fsencode(tempfile.gettempdir())) > 20:
    os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"

# Every core has a worker of its own already: further threads of linear algebra would only wait for
# each other.  The plugin of this package has imported numpy by now; what tests start has not.
os.environ.setdefault("OMP_NUM_THREADS", "1")
importlib.import_module("threadpoolctl").threadpool_limits(int(os.environ["OMP_NUM_THREADS"]))

os.environ.pop("COLUMNS", None)  # what is printed is as wide as a file's, on every machine

settings = importlib.import_module("hypothesis").settings  # here, as it has a hundred modules
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def _commands_are_parsed_once() -> Iterator[None]:
    """The command line is the same for all tests; reading its signatures takes 30 ms a time."""
    import typer.testing
    from typer.main import get_command

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", lru_cache(get_command))
        yield


_UNLESS_ASKED = "not expensive"
"""What pyproject.toml gives as `-m`; whoever gives another one decides alone."""
_CALIBRATED = "mechanisms", "privlearn/checking", "privlearn/noise", "studies"


def pytest_configure(config: pytest.Config) -> None:
    """Tests with the mark `calibration` run when one of the folders they are about changed.

    Workers get the choice of the process that starts them.
    """
    if config.option.markexpr == _UNLESS_ASKED and not _changed(config.rootpath, _CALIBRATED):
        config.option.markexpr += " and not calibration"


def _changed(root: Path, folders: Sequence[str]) -> bool:
    """Whether a file there is not as on the main branch; never without git."""

    def git(*command: str) -> str:
        try:
            told = subprocess.run(("git", *command), cwd=root, capture_output=True, text=True)
        except OSError:
            return ""
        return "" if told.returncode else told.stdout.strip()

    bases = (git("merge-base", "HEAD", main) for main in ("origin/main", "main"))
    base = next(filter(None, bases), "HEAD")
    new = git("ls-files", "--others", "--exclude-standard", "--", *folders)
    return bool(new or git("diff", "--name-only", base, "--", *folders))


_OTHER_PROCESSES = "tests/survival/", "tests/typing/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that are one long wait come first: as the last ones they would keep a core idle."""
    items.sort(key=lambda item: not item.nodeid.startswith(_OTHER_PROCESSES))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thirteen thousand tests and their modules stay to the end: nobody looks for garbage there."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of this process's own."""
    from postgres import started

    with started() as server:
        yield server


@pytest.fixture(scope="module")
def quick_pictures() -> Iterator[Callable[..., None]]:
    """Pictures in a tenth of the time: a coarse one, with panels where they are put first.

    Everything is drawn, but no layout is looked for.  The value is the real `Figure.savefig`, with
    which every module that uses this draws at least one picture as users see it.
    """
    from matplotlib.figure import Figure

    real = Figure.savefig

    def savefig(figure: Figure, path: Any, **options: Any) -> None:
        figure.set_layout_engine(None)  # "none" would draw all of it once before it draws it
        real(figure, path, **{**options, "dpi": 20})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield real


@pytest.fixture
def full_pictures(quick_pictures: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures as users see them, in a module that draws quick ones."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", quick_pictures)


@pytest.fixture(scope="session")
def bandit() -> Callable[..., LocalBanditConfig]:
    """Makes configurations of a local learner that averages reward times context."""
    from running_means import running_mean

    return running_mean
