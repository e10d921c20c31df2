"""Reruns the numerical study of Cho and Sun (2025): published noise beside proved noise.

Every run is charged, and certified, at what its noise really costs.  Users are simulated and so is
the noise, which therefore protects nobody: results are for reading, not for release.

A folder holds, per figure, ``FIGURE.jsonl`` (one line per finished run; the first line has the
settings), ``FIGURE.json`` (the numbers behind tables and plot), ``FIGURE.md`` and ``FIGURE.png``.
Whatever was finished before is not run again, and the files do not depend on what was interrupted,
nor on the number of processes.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shlex
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import privlearn.accountants
import privlearn.learners
import privlearn.mechanisms
from privlearn._validate import count
from privlearn.datasets.expedia import SIDE_INFORMATION, ExpediaSearches, load_expedia
from privlearn.errors import DataError
from privlearn.papers.cho_sun import figures as _figures
from privlearn.papers.cho_sun import report as _reproduction
from privlearn.papers.cho_sun import study
from privlearn.papers.cho_sun.findings import Finding, Runs, findings
from privlearn.papers.cho_sun.study import Cell, Design, Result

Progress = Callable[[str, int, int, str], Callable[[int], None]]
"""Starts a bar with a name, a length, what is done already and a unit; the result advances it."""

WRITERS = ("command.py", "errata.py", "figures.py", "findings.py", "report.py")
"""Modules of the studies on which no run depends."""
LAYERS = ("accountants", "learners", "mechanisms")
NOT_RUN = ("checking", "cli", "reporting", "runs")
"""Rooms on which no run of a study depends."""


@final
@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for; None stands for the figure's own default."""

    figure: str
    replicates: int | None = None
    horizon: int | None = None
    jobs: int = 2
    seed: int = 11001
    out: Path = Path("reproduction")
    data: Path | None = None
    declare_public: bool = False


class Files(NamedTuple):
    """What a figure leaves in its folder."""

    runs: Path
    numbers: Path
    report: Path
    plot: Path


class Reproduction(NamedTuple):
    """A finished figure."""

    files: Files
    findings: list[Finding]


def reproduce_cho_sun(request: Request, progress: Progress) -> Reproduction:
    """Runs what is missing of a figure and writes its files.

    Raises:
        ValueError: a setting is out of range.  DataError: the folder cannot be written or holds
        runs of other settings; the data cannot be read.
    """
    figure, replicates, horizon = _checked(request)
    searches = _searches(request, progress) if figure == "expedia" else None
    design = study.design(figure, horizon, request.seed, searches)
    files = _files(request.out, figure)
    book = _Book.open(files.runs, _reproduction.settings(design) | {"code": _code()})
    tasks = [(cell, r) for r in range(replicates) for cell in design.cells]
    _run(book, design, tasks, request.jobs, searches, progress)
    runs = Runs(
        {cell: [book.done[cell.key, r] for r in range(replicates)] for cell in design.cells}
    )
    found = findings(figure, runs)
    _write(files.numbers, _reproduction.numbers(design, replicates, runs, found))
    told = command(request, replicates, horizon)
    _write(files.report, _reproduction.markdown(told, design, replicates, runs, found))
    _figures.draw(files.plot, design, runs)
    return Reproduction(files, found)


# What was asked for --------------------------------------------------------------------------


def _checked(request: Request) -> tuple[str, int, int]:
    figure = request.figure
    if figure not in study.FIGURES:
        raise ValueError(f"figure = {figure!r}: must be one of {', '.join(study.FIGURES)}")
    real = figure == "expedia"
    replicates = request.replicates
    if replicates is None:
        replicates = study.EXPEDIA_REPLICATES if real else study.REPLICATES
    horizon = request.horizon
    if horizon is None:
        horizon = study.EXPEDIA_HORIZON if real else study.HORIZON
    count(replicates=replicates)
    count(jobs=request.jobs)
    count(seed=request.seed, at_least=0)
    first = study.EXPEDIA_INITIAL_ROUNDS if real else study.INITIAL_ROUNDS
    if count(horizon=horizon) <= first:
        raise ValueError(
            f"horizon = {horizon}: must be above T0 = {first}, the random rounds of {figure}"
        )
    if real and request.data is None:
        raise ValueError("data: expedia needs your own copy of the file, --data train.csv")
    if real and not request.declare_public:
        listed = "; ".join(text.removeprefix("Expedia searches: ") for text in SIDE_INFORMATION)
        raise ValueError(
            "declare_public: add --declare-public if these statistics of the people who searched, "
            f"which are used without noise, may be public: {listed}"
        )
    if not real and request.data is not None:
        raise ValueError(f"data = {request.data}: only expedia reads a file, {figure} simulates")
    return figure, replicates, horizon


def _searches(request: Request, progress: Progress) -> ExpediaSearches:
    assert request.data is not None
    try:
        size = request.data.stat().st_size
    except OSError as error:
        raise DataError(f"{request.data} cannot be read: {error.strerror}") from None
    advance = progress("reading the searches", 2 * size, 0, " bytes")
    return load_expedia(request.data, declare_public=request.declare_public, progress=advance)


def _code() -> str:
    """Digest of the code that runs depend on: equal versions may still be edited."""
    told = hashlib.sha256()
    root = Path(str(privlearn.__file__)).parent
    layers = (privlearn.accountants, privlearn.learners, privlearn.mechanisms)
    paths = [path for layer in layers for path in Path(str(layer.__file__)).parent.glob("*.py")]
    paths += [
        path
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in (*NOT_RUN, *LAYERS)
        and not (path.relative_to(root).parts[0] == "papers" and path.name in WRITERS)
    ]
    for path in sorted(set(paths)):
        told.update(path.name.encode() + path.read_bytes())
    return told.hexdigest()[:16]


# Runs that are kept --------------------------------------------------------------------------


def _files(out: Path, figure: str) -> Files:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error.strerror}") from None
    return Files(*(out / f"{figure}.{ending}" for ending in ("jsonl", "json", "md", "png")))


@final
class _Book:
    """The finished runs of a figure, one JSON line each; the first line holds the settings.

    Lines are appended whole and made durable one by one.  A last line without an end was torn by a
    crash and is cut off.
    """

    def __init__(self, path: Path, done: dict[tuple[str, int], Result]) -> None:
        self.path, self.done = path, done

    @classmethod
    def open(cls, path: Path, settings: dict[str, Any]) -> _Book:
        """Begins a file, or goes on with one of equal settings.

        Raises:
            DataError: it cannot be read or written, is damaged, or is of other settings.
        """
        try:
            content = path.read_bytes() if path.exists() else b""
            whole = content.rpartition(b"\n")[0]
            lines = whole.split(b"\n") if whole else []
            if lines:
                _compare(path, lines[0], settings)
            done = dict(_read(path, at, line) for at, line in enumerate(lines[1:], start=2))
            with open(path, "r+b" if path.exists() else "xb") as file:
                file.truncate(len(whole) + 1 if lines else 0)
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror}") from None
        book = cls(path, done)
        if not lines:
            book._append({"settings": settings})
        return book

    def add(self, design: Design, cell: Cell, replicate: int, result: Result) -> None:
        """Keeps a finished run."""
        self._append(
            {
                "cell": asdict(cell),
                "replicate": replicate,
                "seeds": {
                    "market": [design.seed, replicate],
                    "noise": design.noise_seed(replicate),
                    "coins": replicate,
                },
                **result._asdict(),
            }
        )
        self.done[cell.key, replicate] = result

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            with open(self.path, "ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror}") from None


def _compare(path: Path, line: bytes, settings: dict[str, Any]) -> None:
    try:
        found = json.loads(line)["settings"]
        differing = [
            name
            for name in dict.fromkeys([*found, *settings])
            if found.get(name) != settings.get(name)
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path}, line 1: these are no settings of a reproduction") from None
    if differing:
        told = "; ".join(
            f"{name} = {_short(found.get(name))} there, {_short(settings.get(name))} now"
            for name in differing
        )
        raise DataError(f"{path} holds runs of other settings ({told}): choose another --out")


def _short(value: Any) -> str:
    text = f"{value!r}"
    return text if len(text) <= 40 else f"{text[:37]}..."


def _read(path: Path, at: int, line: bytes) -> tuple[tuple[str, int], Result]:
    try:
        record = json.loads(line)
        result = Result(*(record[name] for name in Result._fields))
        return (Cell(**record["cell"]).key, int(record["replicate"])), result
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}, line {at}: this is no finished run; remove the line") from None


def _run(
    book: _Book,
    design: Design,
    tasks: Sequence[tuple[Cell, int]],
    jobs: int,
    searches: ExpediaSearches | None,
    progress: Progress,
) -> None:
    from joblib import Parallel, delayed, parallel_config

    left = [(cell, r) for cell, r in tasks if (cell.key, r) not in book.done]
    advance = progress(design.figure, len(tasks), len(tasks) - len(left), " runs")
    if not left:
        return
    with parallel_config(backend="loky", inner_max_num_threads=1):
        workers = Parallel(n_jobs=jobs, return_as="generator", batch_size=1)
        results = workers(delayed(_play)(design, cell, r, searches) for cell, r in left)
        try:
            for (cell, replicate), result in zip(left, results, strict=True):
                book.add(design, cell, replicate, result)
                advance(1)
        except KeyboardInterrupt:
            _stop(results)
            raise


def _stop(results: Any) -> None:
    """Ends the workers; what they had not handed over is lost, and is run again next time."""
    from joblib.externals.loky import get_reusable_executor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results.close()
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _play(design: Design, cell: Cell, replicate: int, searches: ExpediaSearches | None) -> Result:
    with _one_thread():
        return study.play(design, cell, replicate, searches)


def _one_thread() -> AbstractContextManager[Any]:
    """Linear algebra in one thread, where that can be had: sums are then the same everywhere."""
    try:
        limits: AbstractContextManager[Any] = importlib.import_module(
            "threadpoolctl"
        ).threadpool_limits(1)
    except ImportError:
        return nullcontext()
    return limits


# What is written -----------------------------------------------------------------------------


def _write(path: Path, text: str) -> None:
    """Replaces a file as a whole."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def command(request: Request, replicates: int, horizon: int) -> str:
    """The command that makes a figure again, whatever the processes and the folder."""
    parts = ["privlearn", "reproduce", "cho-sun", request.figure]
    parts += ["--replicates", str(replicates), "--horizon", str(horizon)]
    parts += ["--seed", str(request.seed)]
    if request.data is not None:
        parts += ["--data", request.data.name, "--declare-public"]
    return shlex.join(parts)
