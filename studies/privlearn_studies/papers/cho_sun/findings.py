"""What the paper found, checked on the runs: paired differences, their errors, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, final

import numpy as np

from privlearn.rows.domains import Array
from privlearn_studies.papers.cho_sun.experiments import (
    CORRECTED,
    CORRECTED_SAME,
    DIM,
    DIMS,
    EXPEDIA_RHOS,
    LABELS,
    MAX_ITEMS,
    MLE_PERCENTS,
    NON_PRIVATE,
    ONE_PASS,
    POINTS,
    PRINTED,
    PRINTED_FEW,
    PROVED,
    PROVED_SAME,
    PUBLISHED,
    PUBLISHED_FEW,
    RANDOM,
    RHOS,
    SIZE_RHOS,
    SIZES,
    ChoSunCell,
    ChoSunResult,
)

CLEAR = 2.0
"""Standard errors beyond which a paired difference counts; ours."""

PAPER, OURS = "paper", "ours"

SETTINGS = {"rho": "ρ = {}", "mle": "{}% to the MLE", "dim": "d = {}", "max_items": "K = {}"}
"""What a cell may vary, in words."""

SWEPT = {"fig4": "mle", "fig5": "dim", "fig6": "max_items"}
"""What a figure varies beside learner and ρ, or share of the budget."""


class ReplicateSummary(NamedTuple):
    """Mean of replicates and its standard error (NaN for a single one)."""

    mean: float
    se: float

    def __str__(self) -> str:
        digits = 2 if abs(self.mean) < 20 else 1
        error = "n/a" if math.isnan(self.se) else f"{self.se:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {error}"


def summary(values: Array) -> ReplicateSummary:
    """Mean and standard error; of paired differences if differences are given."""
    spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return ReplicateSummary(float(values.mean()), spread / math.sqrt(len(values)))


@final
class ChoSunRuns:
    """All runs of a figure: the replicates of every cell, in order."""

    def __init__(self, results: Mapping[ChoSunCell, Sequence[ChoSunResult]]) -> None:
        self.results = results

    def regret(self, cell: ChoSunCell) -> Array:
        """Total regret by replicate, shape (R,)."""
        return np.array([result.regret for result in self.results[cell]])

    def curve(self, cell: ChoSunCell) -> Array:
        """Cumulative regret by replicate, shape (R, `POINTS` + 1), from 0."""
        return np.array([[0.0, *result.curve] for result in self.results[cell]])

    def cell(self, learner: str, **wanted: Any) -> ChoSunCell:
        """The one cell of a learner with these settings."""
        (found,) = self.cells(learner, **wanted)
        return found

    def cells(self, learner: str, **wanted: Any) -> list[ChoSunCell]:
        """All cells of a learner with these settings."""
        return [
            cell
            for cell in self.results
            if cell.learner == learner
            and all(getattr(cell, name) == value for name, value in wanted.items())
        ]


@final
@dataclass(frozen=True, slots=True)
class RegretComparison:
    """One paired difference; the finding says that it is below zero."""

    text: str
    difference: ReplicateSummary

    @property
    def outcome(self) -> Literal["for", "unclear", "against"]:
        """Whether it is clearly below zero, clearly above, or neither."""
        mean, se = self.difference
        if mean < -CLEAR * se:
            return "for"
        return "against" if mean > CLEAR * se else "unclear"


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """A statement about one learner, and the comparisons it stands on."""

    source: str
    """`PAPER`, or `OURS` for a statement that the paper does not make."""
    claim: str
    learner: str
    comparisons: tuple[RegretComparison, ...]

    def count(self, outcome: str) -> int:
        """Comparisons with an outcome."""
        return sum(c.outcome == outcome for c in self.comparisons)

    @property
    def verdict(self) -> str:
        """``yes`` if all comparisons are clearly for it; ``no`` if none is and some are against."""
        n, good, bad = len(self.comparisons), self.count("for"), self.count("against")
        if good == n:
            return "yes"
        if good and bad:
            return f"mixed: {good} for, {bad} against"
        if good:
            return f"in part: {good} of {n}"
        return f"no: {bad} against" if bad else "not seen"


def findings(figure: str, runs: ChoSunRuns) -> list[Finding]:
    """All findings of a figure, with verdicts computed from the runs."""
    made = {"fig4": _figure_4, "fig5": _figure_5, "fig6": _figure_6, "fig7": _figure_7}
    return list(made.get(figure, _expedia)(runs))


def _finding(
    claim: str, learner: str, comparisons: Iterable[RegretComparison], source: str = PAPER
) -> Finding:
    return Finding(source, claim, learner, tuple(comparisons))


def _less(runs: ChoSunRuns, text: str, better: ChoSunCell, worse: ChoSunCell) -> RegretComparison:
    return RegretComparison(text, summary(runs.regret(better) - runs.regret(worse)))


_STEPS = {"rho": "ρ = {} → {}", "mle": "{}% → {}% to the MLE", "max_items": "K = {} → {}"}


def _steps(
    runs: ChoSunRuns,
    learner: str,
    varied: str,
    pairs: Iterable[tuple[Any, Any]],
    settings: Iterable[Mapping[str, Any]] = ({},),
) -> list[RegretComparison]:
    """In every setting, the second value of each pair against the first."""
    steps = list(pairs)
    return [
        _less(
            runs,
            _STEPS[varied].format(*pair) + _said(setting),
            *(runs.cell(learner, **setting, **{varied: value}) for value in reversed(pair)),
        )
        for setting in settings
        for pair in steps
    ]


def _falls_with_rho(
    runs: ChoSunRuns,
    learner: str,
    rhos: Sequence[str],
    settings: Iterable[Mapping[str, Any]] = ({},),
) -> Finding:
    steps = _steps(runs, learner, "rho", pairwise(rhos), settings)
    return _finding("regret falls with ρ", learner, steps)


def _change(
    runs: ChoSunRuns, learner: str, varied: str, low: Any, high: Any, **setting: Any
) -> Array:
    """Regret at the high value minus that at the low one, by replicate."""
    more, less = (
        runs.regret(runs.cell(learner, **setting, **{varied: value})) for value in (high, low)
    )
    change: Array = more - less
    return change


def _said(setting: Mapping[str, Any]) -> str:
    return "".join(f", {SETTINGS[name].format(value)}" for name, value in setting.items())


def _cell(cell: ChoSunCell) -> str:
    """A cell's settings, the usual d and K left out."""
    usual = {"dim": DIM, "max_items": MAX_ITEMS}
    settings = {name: getattr(cell, name) for name in SETTINGS}
    return _said({k: v for k, v in settings.items() if v not in (None, usual.get(k))})[2:]


def _learns(runs: ChoSunRuns, learner: str, cells: Sequence[ChoSunCell]) -> Finding:
    def against_random() -> Iterator[RegretComparison]:
        for cell in cells:
            (random,) = runs.cells(RANDOM, dim=cell.dim, max_items=cell.max_items)
            yield _less(runs, _cell(cell), cell, random)

    return _finding("regret is below that of random items", learner, against_random(), OURS)


def _flattens(runs: ChoSunRuns, learner: str, cells: Iterable[ChoSunCell], claim: str) -> Finding:
    """Regret of the last quarter of users against that of the second quarter."""
    quarter = POINTS // 4

    def comparisons() -> Iterator[RegretComparison]:
        for cell in cells:
            curve = runs.curve(cell)
            last = curve[:, -1] - curve[:, -1 - quarter]
            second = curve[:, 2 * quarter] - curve[:, quarter]
            yield RegretComparison(_cell(cell), summary(last - second))

    return _finding(claim, learner, comparisons())


_SUBLINEAR = "regret grows sublinearly (last against second quarter)"


def _figure_4(runs: ChoSunRuns) -> Iterator[Finding]:
    shares: list[dict[str, Any]] = [{"mle": percent} for percent in MLE_PERCENTS]
    for learner in (PUBLISHED, PROVED):
        yield _falls_with_rho(runs, learner, RHOS, shares)
    yield _falls_with_rho(runs, ONE_PASS, RHOS)
    low, *_, high = MLE_PERCENTS
    rhos = [{"rho": rho} for rho in RHOS]
    for learner in (PUBLISHED, PROVED):
        ends = _steps(runs, learner, "mle", [(low, high)], rhos)
        yield _finding(f"{high}% to the MLE is better than {low}%", learner, ends)
        steps = _steps(runs, learner, "mle", pairwise(MLE_PERCENTS), rhos)
        yield _finding("every step towards the MLE is better", learner, steps)
    for learner in (PUBLISHED, PROVED, ONE_PASS):
        yield _learns(runs, learner, runs.cells(learner))


def _figure_5(runs: ChoSunRuns) -> Iterator[Finding]:
    low, *_, high = DIMS
    for learner in (PUBLISHED, PROVED):
        yield _flattens(
            runs, learner, runs.cells(learner, mle=90), f"with 90% to the MLE {_SUBLINEAR}"
        )
    yield _flattens(runs, ONE_PASS, runs.cells(ONE_PASS), _SUBLINEAR)
    for learner in (PUBLISHED, PROVED):
        yield _finding(
            "90% to the MLE is better than 10% at every d",
            learner,
            [
                _less(runs, f"d = {d}", *(runs.cell(learner, mle=m, dim=d) for m in (90, 10)))
                for d in DIMS
            ],
        )
    for learner in (PUBLISHED, PROVED):
        growth = {mle: _change(runs, learner, "dim", low, high, mle=mle) for mle in (90, 10)}
        text = f"(d = {high} minus d = {low}) at 90% minus the same at 10%"
        yield _finding(
            "regret grows less with d at 90% than at 10%",
            learner,
            [RegretComparison(text, summary(growth[90] - growth[10]))],
        )
    for learner in (PUBLISHED, PROVED, ONE_PASS):
        yield _learns(runs, learner, runs.cells(learner))


def _figure_6(runs: ChoSunRuns) -> Iterator[Finding]:
    low, *_, high = SIZES
    pairs = {
        f"K = {high} has less regret than K = {low}": [(low, high)],
        "every step to a larger K lowers regret": list(pairwise(SIZES)),
    }
    for claim, chosen in pairs.items():
        for learner in (PUBLISHED, PROVED, ONE_PASS, NON_PRIVATE, RANDOM):
            free = learner in (NON_PRIVATE, RANDOM)
            rhos: list[dict[str, Any]] = [{}] if free else [{"rho": rho} for rho in SIZE_RHOS]
            steps = _steps(runs, learner, "max_items", chosen, rhos)
            yield _finding(claim, learner, steps, OURS if free else PAPER)
    for learner in (PUBLISHED, PROVED, ONE_PASS):
        yield _finding(
            f"K = {high} leaves a smaller part of random items' regret than K = {low}",
            learner,
            [
                RegretComparison(
                    f"ρ = {rho}",
                    summary(_part(runs, learner, rho, high) - _part(runs, learner, rho, low)),
                )
                for rho in SIZE_RHOS
            ],
            OURS,
        )
    strict, *_, loose = SIZE_RHOS
    for learner in (PUBLISHED, PROVED, ONE_PASS):
        change = {
            rho: _change(runs, learner, "max_items", low, high, rho=rho) for rho in (strict, loose)
        }
        text = f"(K = {high} minus K = {low}) at ρ = {strict} minus the same at ρ = {loose}"
        yield _finding(
            f"the gain from a larger K is largest at ρ = {strict}",
            learner,
            [RegretComparison(text, summary(change[strict] - change[loose]))],
        )
    sizes: list[dict[str, Any]] = [{"max_items": size} for size in SIZES]
    for learner in (PUBLISHED, PROVED, ONE_PASS):
        yield _falls_with_rho(runs, learner, SIZE_RHOS, sizes)
    for learner in (PUBLISHED, PROVED, ONE_PASS):
        yield _learns(runs, learner, runs.cells(learner))


def _part(runs: ChoSunRuns, learner: str, rho: str, size: int) -> Array:
    """Regret as a part of that of random items, by replicate."""
    own = runs.regret(runs.cell(learner, rho=rho, max_items=size))
    part: Array = own / runs.regret(runs.cell(RANDOM, max_items=size))
    return part


_RIVALS = (
    (PUBLISHED, PRINTED, PAPER),
    (PUBLISHED_FEW, PRINTED_FEW, PAPER),
    (PROVED, PRINTED, OURS),
    (PROVED, CORRECTED, OURS),
    (PROVED_SAME, CORRECTED_SAME, OURS),
    (ONE_PASS, CORRECTED_SAME, OURS),
)
"""Learner, rival and who says that the learner has less regret."""


def _against_rivals(runs: ChoSunRuns, rhos: Sequence[str]) -> Iterator[Finding]:
    for learner, rival, source in _RIVALS:
        comparisons = [
            _less(runs, f"ρ = {rho}", runs.cell(learner, rho=rho), runs.cell(rival, rho=rho))
            for rho in rhos
        ]
        yield _finding(f"less regret than {LABELS[rival]}", learner, comparisons, source)


def _private_rivals() -> list[str]:
    return [learner for learner in LABELS if learner not in (NON_PRIVATE, RANDOM)]


def _figure_7(runs: ChoSunRuns) -> Iterator[Finding]:
    yield from _against_rivals(runs, RHOS)
    for learner in _private_rivals():
        yield _falls_with_rho(runs, learner, RHOS)
    for learner in _private_rivals():
        yield _learns(runs, learner, runs.cells(learner))


def _expedia(runs: ChoSunRuns) -> Iterator[Finding]:
    rhos = EXPEDIA_RHOS
    yield from _against_rivals(runs, rhos)
    for learner, rival, source in _RIVALS:
        gaps = {
            rho: runs.regret(runs.cell(learner, rho=rho)) - runs.regret(runs.cell(rival, rho=rho))
            for rho in rhos
        }
        widening = [
            RegretComparison(
                f"gap at ρ = {high} minus gap at {low}", summary(gaps[high] - gaps[low])
            )
            for low, high in pairwise(rhos)
        ]
        yield _finding(f"the lead over {LABELS[rival]} widens with ρ", learner, widening, source)
    for learner in _private_rivals():
        cells = [runs.cell(learner, rho=rho) for rho in rhos[1:]]
        yield _flattens(runs, learner, cells, f"for ρ >= {rhos[1]} {_SUBLINEAR}")
    for learner in _private_rivals():
        yield _falls_with_rho(runs, learner, rhos)
    for learner in _private_rivals():
        yield _learns(runs, learner, runs.cells(learner))
