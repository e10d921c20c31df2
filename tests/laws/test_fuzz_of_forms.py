"""Blocks of every form into mechanisms: what fits no record is never paid for, values say nothing.

A form is dtype × shape × container.  Of each block several versions are tried that differ in values
only: numbers, the largest ones, and (of floats) NaN and infinity.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np
import polars
import pytest

from privlearn.accountants import CentralAccountant, LocalAccountant
from privlearn.errors import PrivlearnError
from privlearn.learners import DPTOFW
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import (
    BallReport,
    CategoryReport,
    LinearObjective,
    NoisyReport,
    NoisySum,
    ObjectivePerturbation,
    PrefixSum,
    mechanism,
)
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball, Box, Categories, GradientHessian, OneOf, PSDTrace
from privlearn.rows.record_forms import LEAST

pandas: Any = pytest.importorskip("pandas")
N = 6
USERS = range(N)
DTYPES = ["?", "u8", "i8", "f2", "f8", "f16"]
DTYPES += ["U3", "S3", "M8[s]", "m8[s]", "c16", "f8,f8", "O"]
SHAPES: list[tuple[int, ...]] = [(), (1,), (2,), (3,), (2, 2), (1, 3), (2, 2, 1)]
NUMBERS = "biuf"


def versions(dtype: str, shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Arrays of one form."""
    kind, whole = np.dtype(dtype), (N, *shape)
    if dtype == "O":
        # as many records as say what a list is of
        some = np.full(whole, 1.0).astype(object)
        holes = some.copy()
        holes[LEAST:] = None
        return [some, holes]
    if kind.kind in "US":
        return [np.full(whole, text, kind) for text in ("1.5", "n/a")]
    made = [np.zeros(whole, kind), np.ones(whole, kind)]
    if kind.kind == "f":
        made += [np.full(whole, x, kind) for x in (np.nan, np.inf, np.finfo(kind).max)]
        made[0][-1] = np.nan
    elif kind.kind in "iu":
        made.append(np.full(whole, np.iinfo(kind).max, kind))
    return made


def masked(x: np.ndarray[Any, Any]) -> Any:
    return np.ma.array(x, mask=np.zeros(x.shape, dtype=bool))


def frame(x: np.ndarray[Any, Any]) -> Any:
    if x.ndim != 2:
        raise NotImplementedError
    return pandas.DataFrame({i: x[:, i] for i in range(x.shape[1])})


def polars_frame(x: np.ndarray[Any, Any]) -> Any:
    if x.ndim != 2 or x.dtype.kind not in "biufU" or x.dtype.itemsize == 16:
        raise NotImplementedError
    return polars.DataFrame({f"c{i}": x[:, i] for i in range(x.shape[1])})


def arrow_table(x: np.ndarray[Any, Any]) -> Any:
    return polars_frame(x).to_arrow()


def series(x: np.ndarray[Any, Any]) -> Any:
    if x.ndim != 1 or x.dtype.names:
        raise NotImplementedError
    return pandas.Series(x)


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "array": lambda x: x,
    "columns first": np.asfortranarray,
    "masked": masked,
    "list": lambda x: x.tolist(),
    "list of arrays": list,
    "one field": lambda x: (x,),
    "two fields": lambda x: (x, x.tolist()),
    "with a number": lambda x: (x, np.zeros(N)),
    "with a list": lambda x: (x.tolist(), [0, 1, None, 1, 0, 2]),
    "pandas": frame,
    "polars": polars_frame,
    "arrow": arrow_table,
    "series": series,
}


@mechanism(domain=Box(0, 1, 2), noise=GaussianNoise(1.0))
def added(rows: Any, draw: Any) -> Any:
    return rows.sum(axis=0) + draw((2,))


@dataclass(frozen=True)
class Release:
    """A mechanism, and the shape of each array of its records; None is any length."""

    mechanism: Any
    takes: tuple[tuple[int | None, ...], ...]

    def __call__(self, rows: Rows[Any], token: Any) -> object:
        if hasattr(self.mechanism, "release"):
            return self.mechanism.release(rows, token)
        with self.mechanism.open(token) as stream:
            stream.append(Rows.null(range(1)))
            return stream.append(rows.slice(range(1, N)))


GAUSS = GaussianNoise(1e9)
RELEASES = {
    "ball": Release(NoisySum(Ball(1.0, 2), GAUSS), ((2,),)),
    "box": Release(NoisySum(Box(0.0, 1.0, 1), LaplaceNoise(1e9)), ((1,),)),
    "categories": Release(NoisySum(Categories(3), GAUSS), ((),)),
    "gradients": Release(NoisySum(GradientHessian(2), GAUSS), ((None, 4),)),
    "matrices": Release(NoisySum(PSDTrace(1.0, 2), GAUSS), ((None, 2),)),
    "one of": Release(NoisySum(OneOf(Box(0, 1, 2), 2), GAUSS), ((2,), ())),
    "function": Release(added, ((2,),)),
    "stream": Release(PrefixSum.calibrated(Ball(1.0, 3), ZCDP(1), horizon=N), ((3,),)),
    "fit": Release(
        ObjectivePerturbation.calibrated(LinearObjective.logistic(2), ZCDP(1), max_rows=N),
        ((2,), ()),
    ),
    "report": Release(BallReport.best(2, 1.0, 1), ((2,),)),
    "answers": Release(CategoryReport(3, 0.5), ((),)),
    "noisy report": Release(NoisyReport(Box(0, 1, 1), LaplaceNoise(1.0)), ((1,),)),
}


def book_for(release: Any) -> Any:
    local = "report" in type(release.mechanism).__name__.lower()
    account = LocalAccountant if local else CentralAccountant
    cap: Any = PureDP(10**6) if local else ZCDP(10**6)
    return account(cap, users=USERS, noise=NoiseSource.simulation(0))


def outcome(release: Release, block: Any, book: Any) -> tuple[str, tuple[str, ...]]:
    """What everybody sees: the error, and what was written."""
    token = book.issue(release.mechanism.loss(), users=USERS, label="fuzz")
    before = len(book.ledger.entries)
    told = ""
    try:
        release(Rows.seal(block, users=USERS), token)
    except (PrivlearnError, TypeError) as error:
        told = f"{type(error).__name__}: {error}"
    entries = book.ledger.entries[before:]
    return told, tuple(entry.entry for entry in entries)


def fits(release: Release, container: str, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether some values of this form make a record that can be used."""
    if container in ("two fields", "with a number", "with a list"):
        shapes = [shape, shape if container == "two fields" else ()]
    else:
        shapes = [shape]
    if container == "one field" or len(shapes) != len(release.takes):
        return False
    listed = container in ("list", "list of arrays", "with a list", "two fields")
    kind = np.dtype(dtype).kind
    number = kind in NUMBERS or kind == "O"
    tables = ("pandas", "polars", "arrow", "series")
    if (listed and container != "two fields") or container in tables:
        number = number or kind in "US"  # contents, which may be a number
    return number and all(
        len(have) == len(want) and all(w in (None, h) for h, w in zip(have, want, strict=True))
        for have, want in zip(shapes, release.takes, strict=True)
    )


def blocks() -> Iterator[tuple[str, str, tuple[int, ...], list[Any]]]:
    for (name, make), dtype, shape in product(CONTAINERS.items(), DTYPES, SHAPES):
        if dtype == "f8,f8" and name in ("list", "two fields", "with a list", "masked", "pandas"):
            continue  # lists of tuples are lists of numbers
        try:
            made = [make(x) for x in versions(dtype, shape)]
        except NotImplementedError:
            continue
        if np.dtype(dtype).kind in "US" and name not in ("array", "columns first", "one field"):
            made = made[:1]  # that all text is no number is said
        yield name, dtype, shape, made


def test_no_form_that_fits_no_record_is_paid_for_and_none_tells_of_values() -> None:
    cases = 0
    names = list(RELEASES)
    books = {name: book_for(RELEASES[name]) for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, (container, dtype, shape, made) in enumerate(blocks()):
            for name in {names[number % len(names)], names[number * 7 % 5], "ball"}:
                release = RELEASES[name]
                seen = {outcome(release, block, books[name]) for block in made}
                about = (name, container, dtype, shape, seen)
                assert len(seen) == 1, about
                ((told, entries),) = seen
                assert bool(told) is not fits(release, container, dtype, shape), about
                if hasattr(release.mechanism, "release"):  # a stream has paid when it is opened
                    assert ("spend" in entries) is not bool(told), about
                cases += 1
    assert cases >= 2000


LEARNERS: dict[str, Callable[[Any], Any]] = {
    "one pass": lambda book: DPTOFW(2).start(book),
    "plain": lambda book: DPTOFW(2, method="plain").start(book),
}


@pytest.mark.parametrize(("name", "part"), [("one pass", "x"), ("plain", "y")])
def test_learners_pay_for_no_form_that_fits_no_record_either(name: str, part: str) -> None:
    takes: tuple[tuple[int | None, ...], ...] = ((2,),) if part == "x" else ((),)
    for container, dtype, shape, made in islice(blocks(), 0, None, 5):
        if dtype == "S3":  # of learners it is no number in a list, and contents in a series
            continue
        seen = set()
        for block in made:
            book: Any = CentralAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0))
            learner, told = LEARNERS[name](book), ""
            before = len(book.ledger.entries)
            try:
                learner.partial_fit(
                    *((block, np.ones(N)) if part == "x" else (np.ones((N, 2)), block))
                )
            except (PrivlearnError, TypeError, ValueError) as error:
                told = f"{type(error).__name__}: {error}"
            entries = tuple(entry.entry for entry in book.ledger.entries[before:])
            seen.add((told, learner.clock_, entries))
        about = (name, part, container, dtype, shape, seen)
        assert len(seen) == 1, about
        ((told, clock, entries),) = seen
        fit = fits(Release(None, takes), container, dtype, shape)
        if np.dtype(dtype).kind in "US":  # text is no target, and an array of it no row
            fit &= part == "x" and container != "list of arrays"
        assert bool(told) is not fit, about
        assert clock == (N if fit else 0), about
        assert fit or "spend" not in entries, about
