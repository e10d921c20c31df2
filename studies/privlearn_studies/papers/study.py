"""Plays cells with several seeds, keeps every finished run, and writes what follows from them.

A folder holds, per study, ``NAME.jsonl`` (one line per finished run; the first line has the
settings), ``NAME.json`` (the numbers behind tables and plot), ``NAME.md`` and ``NAME.png``.
Whatever was finished before is not run again, and the files do not depend on what was interrupted,
nor on the number of processes.  Users are simulated and so is the noise, which therefore protects
nobody: results are for reading, not for release.
"""

from __future__ import annotations

import json
import os
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, final

from privlearn.errors import DataError
from privlearn_studies.papers.plots import drawn_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Progress = Callable[[str, int, int, str], Callable[[int], None]]
"""Starts a bar with a name, a length, what is done already and a unit; the result advances it."""


class Cell(Protocol):
    """One learner in one setting, played with several seeds."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form, unique within a study."""


C = TypeVar("C", bound=Cell)
R = TypeVar("R", bound=tuple[Any, ...])
"""A `NamedTuple`: the result of one run."""


class Files(NamedTuple):
    """What a study leaves in its folder."""

    runs: Path
    numbers: Path
    report: Path
    plot: Path


S = TypeVar("S")


class Reproduction(NamedTuple, Generic[S]):
    """A finished table or figure, and what was found in it."""

    files: Files
    summary: list[S]


def _seed(seed: int) -> dict[str, Any]:
    return {"seed": seed}


@final
@dataclass(frozen=True)
class Study(Generic[C, R]):
    """Cells, how one is played, and where results are kept."""

    name: str
    """Of the files and of the bar."""
    out: Path
    settings: dict[str, Any]
    """All that results depend on, the seeds apart."""
    cells: Sequence[C]
    result: type[R]
    play: Callable[[C, int], R]
    """One run of one cell with one seed."""
    seeds: Callable[[int], dict[str, Any]] = _seed
    """What the line of a run says of its seed."""

    @property
    def files(self) -> Files:
        """Where everything is."""
        return Files(*(self.out / f"{self.name}.{form}" for form in ("jsonl", "json", "md", "png")))

    def run(self, seeds: Sequence[int], jobs: int, progress: Progress) -> dict[C, list[R]]:
        """Runs what is missing; the results of each cell, one per seed.

        Raises:
            DataError: the folder cannot be written, or holds damaged runs or those of other
                settings.
        """
        with _writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        finished = Finished.open(self.files.runs, self.settings, self.result)
        runs = {(cell, seed): self._run(cell, seed) for seed in seeds for cell in self.cells}
        missing = {task: run for task, run in runs.items() if run not in finished}
        advance = progress(self.name, len(runs), len(runs) - len(missing), " runs")
        if missing:
            with _in_processes(self.play, missing, jobs) as results:
                for run, result in zip(missing.values(), results, strict=True):
                    finished.add(run, result)
                    advance(1)
        return {cell: [finished[runs[cell, seed]] for seed in seeds] for cell in self.cells}

    def _run(self, cell: C, seed: int) -> dict[str, Any]:
        return {"cell": cell.to_dict(), **self.seeds(seed)}

    def write(self, numbers: dict[str, Any], report: str, draw: Callable[[Figure], None]) -> Files:
        """Writes what follows from the runs."""
        _replace(self.files.numbers, compact_json(numbers).encode())
        _replace(self.files.report, report.encode())
        _replace(self.files.plot, drawn_png(draw))
        return self.files


# Runs that are kept --------------------------------------------------------------------------


@final
class Finished(Generic[R]):
    """Finished runs in a file, one JSON line each; the first line holds the settings.

    A run is told by all of its line that is not its result.  Lines are appended whole and made
    durable one by one; a last line without an end was torn by a crash and is cut off.
    """

    def __init__(self, path: Path, result: type[R]) -> None:
        self._path, self._result = path, result
        named: Any = result
        self._fields: tuple[str, ...] = named._fields
        self._results: dict[str, R] = {}

    @classmethod
    def open(cls, path: Path, settings: dict[str, Any], result: type[R]) -> Finished[R]:
        """Begins a file, or goes on with one of equal settings.

        Raises:
            DataError: it cannot be read or written, is damaged, or is of other settings.
        """
        finished = cls(path, result)
        with _writing(path):
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            lines = whole.splitlines()
            if lines:
                _compare(path, lines[0], settings)
            for number, line in enumerate(lines[1:], start=2):
                finished._read(number, line)
            with open(path, "ab") as file:
                file.truncate(len(whole))
        if not lines:
            finished._append({"settings": settings})
        return finished

    def __contains__(self, run: dict[str, Any]) -> bool:
        return json.dumps(run) in self._results

    def __getitem__(self, run: dict[str, Any]) -> R:
        return self._results[json.dumps(run)]

    def add(self, run: dict[str, Any], result: R) -> None:
        """Keeps a finished run."""
        self._append({**run, **dict(zip(self._fields, result, strict=True))})
        self._results[json.dumps(run)] = result

    def _read(self, number: int, line: bytes) -> None:
        try:
            run = json.loads(line)
            result = self._result(*(run.pop(name) for name in self._fields))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(
                f"{self._path}, line {number}: this is no finished run; remove the line"
            ) from None
        self._results[json.dumps(run)] = result

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        with _writing(self._path), open(self._path, "ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def _compare(path: Path, line: bytes, settings: dict[str, Any]) -> None:
    try:
        found = json.loads(line)["settings"]
        names = [name for name in found | settings if found.get(name) != settings.get(name)]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path}, line 1: these are no settings of a reproduction") from None
    if names:
        differences = "; ".join(
            f"{name} = {_short(found.get(name))} there, {_short(settings.get(name))} now"
            for name in names
        )
        raise DataError(
            f"{path} holds runs of other settings ({differences}): choose another --out"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# Processes -----------------------------------------------------------------------------------


@contextmanager
def _in_processes(
    play: Callable[[C, int], R], tasks: Iterable[tuple[C, int]], jobs: int
) -> Iterator[Iterable[R]]:
    """Results in the order of tasks; an interrupt ends the workers.

    What they had not handed over is then lost, and is run again next time.
    """
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky import get_reusable_executor

    with parallel_config(backend="loky", inner_max_num_threads=1):
        workers = Parallel(n_jobs=jobs, return_as="generator", batch_size=1)
        results = workers(delayed(_play)(play, cell, seed) for cell, seed in tasks)
        try:
            yield results
        except KeyboardInterrupt:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results.close()
                get_reusable_executor().shutdown(wait=True, kill_workers=True)
            raise


def _play(play: Callable[[C, int], R], cell: C, seed: int) -> R:
    with _one_thread():
        return play(cell, seed)


def _one_thread() -> AbstractContextManager[Any]:
    """Linear algebra in one thread, where that can be had: sums are then the same everywhere."""
    try:
        limits: AbstractContextManager[Any] = import_module("threadpoolctl").threadpool_limits(1)
    except ImportError:
        return nullcontext()
    return limits


# Files and commands --------------------------------------------------------------------------


def command(*words: object, data: Path | None = None) -> str:
    """A command line of ``privlearn reproduce``; of a data file it has the name only."""
    file = () if data is None else ("--data", data.name, "--declare-public")
    return shlex.join(["privlearn", "reproduce", *map(str, words), *file])


def file_size(path: Path) -> int:
    """Size in bytes of a data file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def compact_json(record: dict[str, Any], *, allow_nan: bool = False) -> str:
    """JSON with a line for every entry of the entries of a record.

    Raises:
        ValueError: a number is not finite, unless they are allowed.
    """

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=allow_nan)

    def lines(value: Any) -> str:
        if isinstance(value, dict) and value:
            entries = [f"{line(str(name))}: {line(entry)}" for name, entry in value.items()]
            return "{\n  " + ",\n  ".join(entries) + "\n }"
        if isinstance(value, list) and isinstance(next(iter(value), None), dict):
            return "[\n  " + ",\n  ".join(map(line, value)) + "\n ]"
        return line(value)

    entries = [f"{line(str(name))}: {lines(value)}" for name, value in record.items()]
    return "{\n " + ",\n ".join(entries) + "\n}\n"


def _replace(path: Path, content: bytes) -> None:
    """Replaces a file as a whole."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_bytes(content)
    unfinished.replace(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from None
