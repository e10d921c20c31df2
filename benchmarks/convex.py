"""Private convex optimisation: DP-TOFW and DP-POFW beside their baselines, and their speed.

    python benchmarks/convex.py [--only main|more|descent|speed] [--seeds 20] [--jobs 2]

Everything is at (1, 1/T)-DP, exactly where noise is Gaussian, but for the printed noise, whose true
ε is given.  Seed s draws the stream and the noise, the same stream for all learners.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from reporting import Table, in_parallel, parser, write

from privlearn.accountants import CentralAccountant
from privlearn.learners import NoisySGD, WhitenedDescent
from privlearn.learners.pofw import DPPOFW
from privlearn.learners.tofw import DPTOFW
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.losses.conversion import gaussian_mu_squared
from privlearn.mechanisms.constraint_sets import LpBall
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn_studies.papers.han2022 import competitors as convex
from privlearn_studies.simulated import regression
from privlearn_studies.simulated.regression import LinearStream, linear_stream

FIRST_SEED = 7300
INF = math.inf
SIX = [(1000, 5), (1000, 10), (1000, 20), (2000, 10), (5000, 10), (10_000, 10)]
STEEP = tuple(np.geomspace(5, 1, 10).tolist())
MIXED = (5.0, 1.0) * 5

TARGETS: dict[tuple[str, float], list[float | None]] = {
    (convex.PLAIN, 1.5): [0.02, 0.08, 0.22, 0.02, 0.004, 0.0015],
    (convex.BUFFERED, 1.5): [0.0005, 0.004, 0.04, 0.0006, 0.0002, 0.0001],
    (convex.BUFFERED, INF): [None, 0.035, 0.24, 0.006, 0.0015, 0.0005],
    (convex.SFW, 1.5): [0.035, 0.13, 0.33, 0.08, 0.045, 0.028],
}


class Setting(NamedTuple):
    """A law of streams."""

    p: float
    horizon: int
    dim: int
    theta: tuple[float, ...] | None = None
    scales: tuple[float, ...] | None = None
    noise: float = regression.LABEL_NOISE

    def stream(self, seed: int) -> LinearStream:
        """One stream."""
        return linear_stream(
            seed,
            horizon=self.horizon,
            dim=self.dim,
            p=self.p,
            theta=self.theta,
            scales=self.scales,
            noise=self.noise,
        )

    def text(self) -> str:
        """p, T, d and what is unusual."""
        parts = [f"p = {'∞' if self.p == INF else f'{self.p:g}'}, T = {self.horizon:,}"]
        parts.append(f"d = {self.dim}")
        if self.scales:
            order = {STEEP: "5…1", STEEP[::-1]: "1…5", MIXED: "5, 1, 5, …"}[self.scales]
            parts.append(f"columns {order}")
        if self.theta:
            parts.append("unequal θ")
        if self.noise != regression.LABEL_NOISE:
            parts.append(f"noise {self.noise:g}")
        return ", ".join(parts)


class Row(NamedTuple):
    """A learner in a setting."""

    name: str
    setting: Setting


def compete(row: Row, seed: int) -> convex.CompetitionResult:
    """One run."""
    return convex.compete(row.name, row.setting.stream(seed), seed)


def main_rows() -> list[Row]:
    """The six cells of the issue for p = 1.5 and ∞."""
    rows = []
    for p in (1.5, INF):
        for horizon, dim in SIX:
            names = [convex.PLAIN, convex.BUFFERED, convex.SFW]
            if p == 1.5:
                names.append(convex.SFW_GENERALIZED)
            if horizon == 1000:
                names += [convex.SGD, convex.PRINTED, convex.TRUE_NOISE, convex.NO_NOISE]
            if horizon == 1000 and p == 1.5:
                names.append(convex.MIRROR)
            rows += [Row(name, Setting(p, horizon, dim)) for name in names]
    return rows


def more_rows() -> list[Row]:
    """Other exponents, dimensions, columns and θ."""
    settings = [Setting(p, t, 10) for p in (1.25, 4.0) for t in (1000, 10_000)]
    settings += [Setting(p, t, 50) for p in (1.5, INF) for t in (1000, 10_000)]
    settings += [Setting(1.5, 5000, 10, None, s) for s in (STEEP, STEEP[::-1], MIXED)]
    settings += [Setting(INF, 5000, 10, None, s) for s in (STEEP, STEEP[::-1])]
    settings += [Setting(p, 1000, 10, regression.UNEQUAL) for p in (1.5, INF)]
    settings += [Setting(1.5, 10_000, 10, regression.UNEQUAL), Setting(1.5, 1000, 10, noise=0.2)]
    names = (convex.PLAIN, convex.BUFFERED, convex.SFW)
    rows = [Row(name, setting) for setting in settings for name in names]
    sparse = [Setting(1.0, *cell) for cell in [*SIX, (10_000, 50)]]
    sparse += [Setting(1.0, t, 10, regression.UNEQUAL) for t in (1000, 10_000)]
    rivals = (convex.POFW, convex.CHOICES, convex.SFW, convex.SGD)
    return rows + [
        Row(name, setting)
        for setting in sparse
        for name in rivals
        if name != convex.SGD or setting.horizon <= 1000
    ]


def short(value: float) -> str:
    """Two significant digits, with no exponent."""
    if value <= 0:
        return "0"
    return f"{value:.{max(1 - math.floor(math.log10(value)), 0)}f}"


def run(rows: list[Row], seeds: int, jobs: int) -> dict[Row, list[convex.CompetitionResult]]:
    """All rows on all seeds."""
    tasks = [(row, FIRST_SEED + s) for row in rows for s in range(seeds)]
    outcomes = iter(in_parallel(compete, tasks, jobs))
    return {row: [next(outcomes) for _ in range(seeds)] for row in rows}


def told(outcomes: list[convex.CompetitionResult]) -> str:
    """Mean ± standard deviation of SubOpt."""
    values = np.array([outcome.suboptimality for outcome in outcomes])
    return f"{short(float(values.mean()))} ± {short(float(values.std(ddof=1)))}"


def table(title: str, found: dict[Row, list[convex.CompetitionResult]], names: list[str]) -> Table:
    """Settings by learners."""
    rows = []
    for setting in dict.fromkeys(row.setting for row in found):
        cells = [found.get(Row(name, setting)) for name in names]
        if any(cells):
            rows.append([setting.text(), *("" if c is None else told(c) for c in cells)])
    return Table(title, ["SubOpt, mean ± sd", *names], rows)


def judged(found: dict[Row, list[convex.CompetitionResult]]) -> Table:
    """Targets of the issue."""
    rows = []
    for (name, p), targets in TARGETS.items():
        for cell, target in zip(SIX, targets, strict=True):
            if target is None:
                continue
            outcomes = found[Row(name, Setting(p, *cell))]
            mean = float(np.mean([outcome.suboptimality for outcome in outcomes]))
            verdict = "met" if mean <= target else "**NOT met**"
            rows.append(
                [f"{name}, {Setting(p, *cell).text()}", f"≤ {target:g}", short(mean), verdict]
            )
    return Table("Targets", ["what", "target", "measured", ""], rows)


def prices(found: dict[Row, list[convex.CompetitionResult]]) -> Table:
    """The true ε of the printed noise."""
    rows = [
        [row.setting.text(), "1", f"{outcomes[0].epsilon:.3g}"]
        for row, outcomes in found.items()
        if row.name == convex.PRINTED
    ]
    return Table("Printed noise, ε at δ = 1/T", ["setting", "claimed", "certified"], rows)


def anytime(name: str, seed: int) -> list[float]:
    """SubOpt at T/16, T/8, T/4, T/2 and T."""
    stream = Setting(1.5, 10_000, 10).stream(seed)
    found = []
    with CentralAccountant(
        convex.budget(name, stream),
        users=range(stream.horizon),
        noise=NoiseSource.simulation(seed),
    ) as accountant:
        player = convex.learner(name, stream).start(accountant)
        begin = 0
        for end in (625, 1250, 2500, 5000, 10_000):
            player.partial_fit(stream.features[begin:end], stream.labels[begin:end])
            found.append(stream.suboptimality(player.coef_))
            begin = end
    return found


def anytime_table(seeds: int, jobs: int) -> Table:
    """The released θ before the end."""
    rows = []
    for name in (convex.PLAIN, convex.BUFFERED):
        tasks = [(name, FIRST_SEED + s) for s in range(seeds)]
        means = np.mean(in_parallel(anytime, tasks, jobs), axis=0)
        rows.append([name, *(short(float(mean)) for mean in means)])
    header = ["p = 1.5, T = 10,000, d = 10", "T/16", "T/8", "T/4", "T/2", "T"]
    return Table("Mean SubOpt of the θ released at", header, rows)


# Learners that read all rows many times --------------------------------------------------------

STEEPNESS = 5.0
"""Of logistic labels: their log-odds are this times x·θ*."""
DESCENT, PLAIN_DESCENT = "WhitenedDescent", "NoisySGD"
WAYS = (DESCENT, PLAIN_DESCENT, "whitened", "buffered")


def descent_settings(loss: str) -> list[Setting]:
    """Seven cells, and for the squared loss two more with unequal columns; all at p = 2."""
    cells = [Setting(2.0, *cell) for cell in (*SIX, (10_000, 50))]
    if loss == "squared":
        cells += [Setting(2.0, 5000, 10, None, scales) for scales in (STEEP, MIXED)]
    return cells


def fitted(way: str, loss: str, x: Array, y: Array, seed: int) -> tuple[Array, float]:
    """θ and intercept, at (1, 1/T)."""
    horizon, dim = x.shape
    reach = 2 * (STEEPNESS if loss == "logistic" else 1.0)
    with CentralAccountant(
        GaussianDP.from_mu_squared(gaussian_mu_squared(1.0, 1 / horizon)),
        users=range(horizon),
        noise=NoiseSource.simulation(seed),
    ) as accountant:
        if way == DESCENT:  # rows of which only the norm is known
            scale = math.sqrt(dim) / 2
            learner = WhitenedDescent(dim, loss, row_norm=scale).start(accountant)
            learner.partial_fit(scale * x, y)
            return scale * learner.coef_, float(np.asarray(learner.intercept_))
        options: dict[str, Any] = {"p": 2, "radius": reach, "loss": loss}
        player: Any
        if way == PLAIN_DESCENT:
            player = NoisySGD(dim, **options)
        else:
            player = DPTOFW(dim, **options | {"method": way})
        return player.start(accountant).partial_fit(x, y).coef_, 0.0


def excess(way: str, loss: str, setting: Setting, seed: int) -> float:
    """Excess risk over that of θ = 0, on test rows, with the noise of labels integrated out."""
    stream = setting.stream(seed)
    y, factor = np.clip(stream.labels, -1.0, 1.0), 1.0
    if loss == "logistic":
        factor = STEEPNESS
        odds = 1 / (1 + np.exp(-factor * (stream.features @ stream.theta)))
        y = (np.random.default_rng([seed, 103]).random(len(odds)) < odds).astype(np.float64)
    theta, intercept = fitted(way, loss, stream.features, y, seed)
    truth = factor * (stream.test @ stream.theta)

    def risk(scores: Array) -> float:
        if loss == "squared":
            return float(((scores - truth) ** 2).mean())
        return float((np.logaddexp(0.0, scores) - scores / (1 + np.exp(-truth))).mean())

    least = risk(truth)
    return (risk(stream.test @ theta + intercept) - least) / (risk(0 * truth) - least)


def descent_table(loss: str, seeds: int, jobs: int) -> tuple[Table, dict[str, Any]]:
    """Mean ± standard error of each, and the descent's ratio to the best of the others."""
    settings = descent_settings(loss)
    tasks = [
        (way, loss, setting, FIRST_SEED + s)
        for setting in settings
        for way in WAYS
        for s in range(seeds)
    ]
    found = np.reshape(in_parallel(excess, tasks, jobs), (len(settings), len(WAYS), seeds))
    rows, numbers = [], {}
    for setting, values in zip(settings, found, strict=True):
        means, errors = values.mean(axis=1), values.std(axis=1, ddof=1) / math.sqrt(seeds)
        shown = [f"{short(m)} ± {short(e)}" for m, e in zip(means, errors, strict=True)]
        best = 1 + int(means[1:].argmin())
        lost = values[0] - values[best]
        spread = float(lost.std(ddof=1) / math.sqrt(seeds))
        place = "first" if means[0] <= means[best] else "tied" if lost.mean() <= 2 * spread else ""
        rows.append([setting.text(), *shown, f"{means[0] / means[best]:.2f}", place])
        numbers[setting.text()] = dict(zip(WAYS, values.tolist(), strict=True))
    header = [f"{loss}: SubOpt", *WAYS, "descent / best of the others", ""]
    return Table(f"{loss} loss, offline and one pass", header, rows), numbers


# Speed -----------------------------------------------------------------------------------------


class Rate(NamedTuple):
    """Rows per second, best of five, of the clock on the wall and of this process."""

    wall: float
    cpu: float


def per_second(make: Callable[[], Any], x: Any, y: Any, *, block: bool) -> Rate:
    """How fast rows are learned from, `start` apart."""
    walls, cpus = [], []
    for _ in range(5):
        accountant = CentralAccountant(
            ZCDP(1), users=range(len(y)), noise=NoiseSource.simulation(1)
        )
        player = make().start(accountant)
        wall, cpu = time.perf_counter(), time.process_time()
        if block:
            player.partial_fit(x, y)
        else:
            for i in range(len(y)):
                player.partial_fit(x[i], float(y[i]))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return Rate(len(y) / min(walls), len(y) / min(cpus))


def speed_table() -> tuple[Table, dict[str, Rate]]:
    """Rows per second against the issue's targets."""
    rows: list[list[str]] = []
    numbers: dict[str, Rate] = {}

    def add(what: str, target: int, rate: Rate) -> None:
        numbers[what] = rate
        verdict = "met" if rate.cpu >= target else "**NOT met**"
        rows.append([what, f"≥ {target:,}", f"{rate.wall:,.0f}", f"{rate.cpu:,.0f}", verdict])

    for dim in (5, 20):
        stream = linear_stream(1, horizon=20_000, dim=dim, p=1.5)
        x, y = stream.features, stream.labels
        for method in ("plain", "buffered"):

            def make(dim: int = dim, method: Any = method) -> DPTOFW:
                return DPTOFW(dim, p=1.5, method=method)

            what = f"DP-TOFW, {method}, d = {dim}"
            add(f"{what}, one block", 50_000, per_second(make, x, y, block=True))
            few = (x[:5000], y[:5000])
            add(f"{what}, one by one", 10_000, per_second(make, *few, block=False))
    dim = 10_000
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1000, dim))
    for way in ("choices", "thresholds"):

        def sparse(method: Any = way) -> DPPOFW:
            return DPPOFW(LpBall(dim, 1, 2.0), method=method)

        y = x[:, 0]
        what = f"DP-POFW, {way}, d = {dim:,}"
        add(f"{what}, one block", 500, per_second(sparse, x, y, block=True))
        add(f"{what}, one by one", 500, per_second(sparse, x[:500], y[:500], block=False))
    header = ["what", "target", "per second", "per CPU second", "in CPU time"]
    return Table("Rows per second", header, rows), numbers


def main() -> None:
    """Runs what is asked for and writes its tables."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--only", choices=("main", "more", "descent", "speed"))
    chosen = options.parse_args()
    begin = time.perf_counter()
    if chosen.only in (None, "main"):
        found = run(main_rows(), chosen.seeds, chosen.jobs)
        names = [convex.PLAIN, convex.BUFFERED, convex.SFW]
        others = [convex.SFW_GENERALIZED, convex.SGD, convex.MIRROR]
        published = [convex.PRINTED, convex.TRUE_NOISE, convex.NO_NOISE]
        tables = [
            judged(found),
            table("Ours and NoisySFW", found, names),
            table("Other baselines", found, others),
            table("The published algorithm", found, published),
            prices(found),
            anytime_table(chosen.seeds, chosen.jobs),
        ]
        write("convex", tables, numbers(found, begin), NOTE)
    if chosen.only in (None, "more"):
        found = run(more_rows(), chosen.seeds, chosen.jobs)
        names = [convex.PLAIN, convex.BUFFERED, convex.SFW]
        sparse = [convex.POFW, convex.CHOICES, convex.SFW, convex.SGD]
        dense = {row: o for row, o in found.items() if row.setting.p > 1}
        tables = [
            table("Other settings", dense, names),
            table("p = 1", {r: o for r, o in found.items() if r not in dense}, sparse),
        ]
        write("convex_more", tables, numbers(found, begin), NOTE)
    if chosen.only in (None, "descent"):
        both = {
            loss: descent_table(loss, chosen.seeds, chosen.jobs) for loss in ("logistic", "squared")
        }
        write(
            "convex_descent",
            [one for one, _ in both.values()],
            {"first seed": FIRST_SEED, "subopt": {loss: by for loss, (_, by) in both.items()}},
            f"Seeds {FIRST_SEED} and on; (1, 1/T), exact; mean ± standard error.",
        )
    if chosen.only in (None, "speed"):
        made, measured = speed_table()
        write("convex_speed", [made], {"rows per second": measured})


NOTE = (
    f"Seeds {FIRST_SEED} and on, on which nothing was tuned. NoisySFW has constants tuned for "
    "every cell by itself, among them the radius 1 = ‖θ*‖ where ours search in radius 2; elsewhere "
    "those of the nearest tuned cell. NoisySGD is offline. p = ∞ with d = 5 is no evidence: θ* "
    "lies in the direction of a vertex, on which Frank-Wolfe stops exactly."
)


def numbers(found: dict[Row, list[convex.CompetitionResult]], begin: float) -> dict[str, Any]:
    """What is behind the tables."""
    return {
        "first seed": FIRST_SEED,
        "seconds": round(time.perf_counter() - begin, 1),
        "subopt": {
            f"{row.name} | {row.setting.text()}": [o.suboptimality for o in outcomes]
            for row, outcomes in found.items()
        },
        "epsilon": {
            f"{row.name} | {row.setting.text()}": outcomes[0].epsilon
            for row, outcomes in found.items()
        },
    }


if __name__ == "__main__":
    main()
