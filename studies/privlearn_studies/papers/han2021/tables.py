"""What the reports on Han et al. (2021) say in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from privlearn_studies.papers.han2021 import experiments
from privlearn_studies.papers.han2021.experiments import Han2021Cell, Han2021Result
from privlearn_studies.papers.tables import first_half, markdown_table, mean_sd

Han2021Runs = dict[Han2021Cell, list[Han2021Result]]

WHAT_IS_WHAT = (
    "*LDP-SGD* and *LDP-OLS* are this library's, each with one public rule for all panels. *As "
    "run* is the authors' public code, with its constants; *as printed* is the algorithm of the "
    "paper. *Published* has the noise of Zheng et al. (2020), *tight* the least noise of (ε, δ). "
    "ε is what the ledgers of devices and server prove, replace-one, for every user: published "
    "noise costs less than its claim. Regret is in expected reward."
)


def _plus_minus(results: Sequence[Han2021Result]) -> str:
    """Mean ± standard deviation."""
    mean, sd = mean_sd(results)
    digits = 1 if mean < 10 else 0
    return _number(mean) + ("" if math.isnan(sd) else f" ± {sd:,.{digits}f}")


def _number(value: float) -> str:
    return f"{value:,.{1 if value < 10 else 0}f}"


def _proved(result: Han2021Result) -> str:
    if result.epsilon is None:
        return "none"
    at = f", δ = {result.delta:g}" if result.delta else ""
    return f"ε = {math.ceil(result.epsilon * 1000 - 1e-3) / 1000:.3f}{at}"


def panels(runs: Han2021Runs) -> dict[tuple[str, float], dict[str, list[Han2021Result]]]:
    """Results by player, for every (setting, ε)."""
    found: dict[tuple[str, float], dict[str, list[Han2021Result]]] = {}
    for cell, results in runs.items():
        found.setdefault((cell.setting, cell.epsilon), {})[cell.player] = results
    return found


def summary(runs: Han2021Runs) -> list[str]:
    """Our learners beside the best of the others, for every (setting, ε)."""
    lines = []
    for (setting, epsilon), players in panels(runs).items():
        means = {player: mean_sd(results).mean for player, results in players.items()}
        rivals = [name for name in means if name in experiments.PRIVATE[2:]]
        best = min(rivals, key=means.__getitem__)
        ours = [name for name in (experiments.SGD, experiments.OLS) if name in means]
        shown = ", ".join(f"{name} {means[name]:,.0f}" for name in ours)
        lines.append(
            f"{experiments.SETTINGS[setting].text}, ε = {epsilon:g}: {shown}; of the others, the "
            f"best is {best} with {means[best]:,.0f}; random {means[experiments.RANDOM]:,.0f}"
        )
    return lines


def report_parts(runs: Han2021Runs, horizon: int) -> Iterator[str]:
    """What is what, and a table for every (setting, ε)."""
    yield "## What is what"
    yield WHAT_IS_WHAT
    for (setting, epsilon), players in panels(runs).items():
        chosen = experiments.SETTINGS[setting]
        yield (
            f"## {chosen.text}: regret after {horizon:,} users at ε = {epsilon:g}, "
            f"δ = {chosen.delta:g}"
        )
        yield markdown_table(
            ["learner", "regret", "of it in the first half", "proved"],
            [
                [player, _plus_minus(results), _number(first_half(results)), _proved(results[0])]
                for player, results in players.items()
            ],
        )
