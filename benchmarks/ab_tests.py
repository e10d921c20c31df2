"""A/B tests with continuous monitoring: users until a decision, false positives, coverage.

    python benchmarks/ab_tests.py [--replicates 4000] [--jobs 2] [--only users|null|...]

Runs are simulated side by side: binomial sums of blocks, exact noise of the library from a seed,
and the library's own blocks, tilts and e-processes.  ``learner`` checks that `PrivateTest` itself
gives the same.  DP-SPRT (``pip install dpsprt``) is compared where it is installed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from reporting import Table, in_parallel, parser, summary, write

from privlearn.accountants import JointAccountant
from privlearn.learners import PrivateTest
from privlearn.learners.e_process import (
    Assume,
    BlockNoise,
    EProcess,
    Pairs,
    corrected,
    first_pairs,
    pairs_of_block,
    passes,
    shift_bound,
    tilts,
)
from privlearn.ledger import Ledger
from privlearn.losses.budgets import PureDP
from privlearn.noise import LaplaceNoise
from privlearn.noise.exact.pool import NoiseSource
from privlearn.rows.domains import Array

ALPHA = 0.05
BITS = 40
FIRST_SEED = 3200
"""No default was chosen on these seeds."""
EPSILONS = (None, 3.0, 1.0, 0.5, 0.1)


@dataclass(frozen=True)
class Case:
    """Mean rewards of the control and of all other arms, what is declared, and the horizon."""

    means: tuple[float, ...]
    rate: float | None
    horizon: int
    assume: Assume = "iid"
    most: float = math.inf
    """Mean users that are the target at ε = 1."""

    @property
    def text(self) -> str:
        told: str = self.assume if self.assume == "coin" else ""
        told += "" if self.rate is None else f"rate_at_most={self.rate:g}"
        arms = " / ".join(f"{mean:g}" for mean in self.means)
        return f"{arms}{' ' * bool(told)}{told}"


EFFECTS = (
    Case((0.5, 0.55), None, 30_000, most=5_200),
    Case((0.5, 0.52), None, 200_000),
    Case((0.1, 0.12), None, 200_000),
    Case((0.1, 0.12), 0.2, 150_000),
    Case((0.02, 0.024), 0.04, 800_000),
)
NULLS = (
    Case((0.5, 0.5), None, 100_000),
    Case((0.1, 0.1), None, 100_000),
    Case((0.1, 0.1), 0.1, 100_000),
    Case((0.02, 0.02), 0.02, 400_000),
    Case((0.02, 0.02), 0.04, 400_000),
)


def noise_of(epsilon: float | None, arms: int) -> BlockNoise:
    """What `PrivateTest` has on the difference of a block."""
    law = None if epsilon is None else LaplaceNoise(1 / epsilon)
    grid = 0.0 if law is None else law.scale * 2.0**-BITS
    return BlockNoise(law, 1 if arms == 2 else 2, grid)


def blocks(
    case: Case, noise: BlockNoise, pairs: Pairs, runs: int, seed: int
) -> Iterator[tuple[int, int, Array]]:
    """Users so far, pairs, and noisy differences, shape (runs, arms − 1), of each block."""
    rng, pool = np.random.default_rng(seed), NoiseSource.simulation(seed).pool()
    arms, users, number = len(case.means), 0, 0
    first = first_pairs(pairs, noise)
    while users + arms <= case.horizon:
        n = min(pairs_of_block(number, first), (case.horizon - users) // arms)
        users, number = users + arms * n, number + 1
        sums = rng.binomial(n, case.means, (runs, arms)).astype(float)
        if arms == 2:
            sums = sums[:, 1:] - sums[:, :1]
        if noise.law is not None:
            sums += noise.grid * noise.law.integers(pool, sums.shape, BITS)[:].astype(float)
        yield users, n, sums if arms == 2 else sums[:, 1:] - sums[:, :1]


def decided(case: Case, epsilon: float | None, runs: int, seed: int) -> tuple[Array, Array]:
    """When each run's first statement was made (horizon if never), and of each arm the last one.

    Statements: 1, "better than the control", −1, "worse", or 0; shape (runs, arms − 1).
    """
    arms = len(case.means)
    pairs, noise = Pairs(case.rate, case.assume), noise_of(epsilon, arms)
    process = EProcess(pairs, noise, tilts(pairs, case.horizon // arms, ALPHA), (runs, arms - 1))
    when, said = np.full(runs, case.horizon), np.zeros((runs, arms - 1))
    for users, n, sums in blocks(case, noise, pairs, runs, seed):
        process.add(sums, n)
        made = passes(corrected(process.log_sides), ALPHA)
        new = made.any(axis=(1, 2)) & (when == case.horizon)
        when[new] = users
        said = np.where(said == 0, made @ np.array([1.0, -1.0]), said)
    return when.astype(float), said


def split(runs: int, seed: int, size: int = 500) -> list[tuple[int, int]]:
    return [(min(size, runs - at), seed + at) for at in range(0, runs, size)]


def many(case: Case, epsilon: float | None, runs: int, seed: int, jobs: int) -> Any:
    tasks = [(case, epsilon, *part) for part in split(runs, seed)]
    found = in_parallel(decided, tasks, jobs)
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


def users(runs: int, jobs: int) -> tuple[list[Table], dict[str, Any]]:
    rows, numbers = [], {}
    for case in EFFECTS:
        cells, base = [], math.nan
        for epsilon in EPSILONS:
            when, said = many(case, epsilon, runs, FIRST_SEED, jobs)
            found = summary(when)
            base = found.mean if epsilon is None else base
            power, wrong = (said[:, 0] == 1).mean(), (said[:, 0] == -1).mean()
            cells.append(
                f"{np.median(when):.0f} / {found.mean:.0f} ± {found.se:.0f} / "
                f"{np.quantile(when, 0.95):.0f} ({found.mean / base:.2f}x, {power:.3f})"
            )
            numbers[f"{case.text}, {epsilon}"] = {
                "mean": found.mean,
                "se": found.se,
                "median": float(np.median(when)),
                "p95": float(np.quantile(when, 0.95)),
                "worst": float(when.max()),
                "ratio": found.mean / base,
                "power": float(power),
                "wrong way": float(wrong),
            }
        rows.append([case.text, *cells])
    title = f"Users until E >= 20: median / mean / p95 (over no noise, power); {runs} runs"
    header = ["means, declared", *(f"ε={e:g}" if e else "no noise" for e in EPSILONS)]
    return [Table(title, header, rows)], {"users": numbers}


def null(runs: int, jobs: int) -> tuple[list[Table], dict[str, Any]]:
    rows, numbers = [], {}
    for case in NULLS:
        cells = []
        for epsilon in (1.0, 0.5, 0.1):
            _, said = many(case, epsilon, runs, FIRST_SEED + 10**6, jobs)
            wrong = float((said != 0).mean())
            cells.append(f"{wrong:.4f}")
            numbers[f"{case.text}, {epsilon}"] = wrong
        rows.append([case.text, *cells])
    title = f"False positives by the horizon, a look after each block, α = .05; {runs} runs"
    return [Table(title, ["means, declared", "ε=1", "ε=0.5", "ε=0.1"], rows)], {"null": numbers}


def covered(case: Case, epsilon: float, runs: int, seed: int) -> Array:
    """Ends of the intervals at half of the blocks and at the end, shape (2, runs, 2)."""
    pairs, noise = Pairs(case.rate), noise_of(epsilon, 2)
    process = EProcess(pairs, noise, tilts(pairs, case.horizon // 2, ALPHA), (runs,))
    found = [(n, sums[:, 0]) for _, n, sums in blocks(case, noise, pairs, runs, seed)]
    sizes, sums = np.array([n for n, _ in found]), np.array([sums for _, sums in found])
    ends = []
    for part in (slice(len(sizes) // 2), slice(None)):
        low, high = (
            shift_bound(side, sums[part], sizes[part], process=process, alpha=ALPHA / 2)
            for side in (1, -1)
        )
        ends.append(np.stack([low, high], axis=1))
    return np.array(ends)


def intervals(runs: int, jobs: int) -> tuple[list[Table], dict[str, Any]]:
    rows, numbers = [], {}
    for case in (*EFFECTS[:1], *EFFECTS[3:], *NULLS[2:4]):
        runs_here = min(runs, 1_000)
        tasks = [(case, 1.0, *part) for part in split(runs_here, FIRST_SEED + 2 * 10**6, 125)]
        ends = np.concatenate(in_parallel(covered, tasks, jobs), axis=1)
        shift = case.means[1] - case.means[0]
        kept = ((ends[..., 0] <= shift) & (ends[..., 1] >= shift)).mean(axis=1)
        width = np.diff(ends, axis=2)[..., 0].mean(axis=1)
        rows.append([case.text, f"{kept[1]:.3f}", f"{width[0]:.4f}", f"{width[1]:.4f}"])
        numbers[case.text] = {"covered": kept.tolist(), "width": width.tolist()}
    header = ["means, declared", "never ruled out", "width, half of blocks", "at the horizon"]
    title = f"95% intervals at ε = 1: the true difference by the horizon; {runs_here} runs"
    return [Table(title, header, rows)], {"intervals": numbers}


def arms(runs: int, jobs: int) -> tuple[list[Table], dict[str, Any]]:
    rows, numbers = [], {}
    cases = (
        Case((0.5,) * 4, None, 100_000),
        Case((0.1,) * 4, 0.1, 200_000),
        Case((0.5, 0.5, 0.5, 0.55), None, 100_000),
        Case((0.1, 0.1, 0.12, 0.08), 0.2, 300_000),
    )
    for case in cases:
        truth = np.sign(np.round(np.array(case.means[1:]) - case.means[0], 9))
        cells = []
        for epsilon in (None, 1.0, 0.5):
            when, said = many(case, epsilon, runs, FIRST_SEED + 3 * 10**6, jobs)
            false = ((said != 0) & (said != truth)).any(axis=1).mean()
            right = (said == truth)[:, truth != 0].all(axis=1).mean()
            cells.append(f"{false:.4f} / {right:.3f} / {when.mean():.0f}")
            numbers[f"{case.text}, {epsilon}"] = [float(false), float(right), float(when.mean())]
        rows.append([case.text, *cells])
    header = ["means, declared", "no noise", "ε=1", "ε=0.5"]
    title = (
        "Three arms against a control: runs with a false statement / with all true ones / mean "
        f"users until the first; {runs} runs"
    )
    return [Table(title, header, rows)], {"arms": numbers}


def coin(runs: int, jobs: int) -> tuple[list[Table], dict[str, Any]]:
    rows, numbers = [], {}
    for case in (
        Case((0.5, 0.55), None, 60_000, "coin"),
        Case((0.5, 0.52), None, 400_000, "coin"),
        Case((0.5, 0.5), None, 100_000, "coin"),
    ):
        cells = []
        for epsilon in (None, 1.0):
            when, said = many(case, epsilon, runs, FIRST_SEED + 4 * 10**6, jobs)
            cells.append(f"{when.mean():.0f} ({(said != 0).mean():.4f})")
            numbers[f"{case.text}, {epsilon}"] = [float(when.mean()), float((said != 0).mean())]
        rows.append([case.text, *cells])
    title = f"assume='coin': mean users until a decision (share of runs with one); {runs} runs"
    return [Table(title, ["means", "no noise", "ε=1"], rows)], {"coin": numbers}


def dp_sprt(
    means: tuple[float, float], hypotheses: tuple[float, float], users: int, seed: int
) -> tuple[float, int]:
    """Samples until DP-SPRT stops at ε = 1, α = β = .05, and what it accepts.

    Samples are single users, or pairs: 1 where B earned more, 0 where A did, else a fair coin.
    One user changes one sample by at most 1, as its privacy proof asks.
    """
    from dpsprt import dp_sprt_laplace

    rng = np.random.default_rng(seed)
    a, b = (rng.random(users) < mean for mean in means)
    data = b if means[0] == means[1] else np.where(a == b, rng.random(users) < 0.5, b)
    decision, when, _ = dp_sprt_laplace(data.astype(float), *hypotheses, 0.05, 0.05, 1.0, seed)
    return float(when), int(decision)


def sprt(runs: int, jobs: int) -> tuple[list[Table], dict[str, Any]]:
    """DP-SPRT decides between two means of one stream, which it is told; for A/B it is run twice.

    It is ε-DP for one stop, however often it looks, in real arithmetic: what leaves is when it
    stops and for which mean.  Its noise is drawn in doubles.  "Pairs" has its error guarantees for
    an effect of the size and sign that it is told; "all users see B" knows the base rate as well.
    """
    if find_spec("dpsprt") is None:
        return [], {}
    rows, numbers, n = [], {}, min(runs, 400)
    for base, effect, length in ((0.5, 0.05, 40_000), (0.5, 0.02, 150_000), (0.1, 0.02, 300_000)):
        pair = (0.5, 0.5 + effect / 2)
        known = (base, base + effect)
        for text, means, hypotheses, each in (
            ("pairs, effect known", known, pair, 2),
            ("base and effect known, all users see B", (known[1], known[1]), known, 1),
        ):
            tasks = [(means, hypotheses, length, FIRST_SEED + i) for i in range(n)]
            found = in_parallel(dp_sprt, tasks, jobs)
            when = summary(each * samples for samples, _ in found)
            right = float(np.mean([decision == 1 for _, decision in found]))
            shown = f"{when.mean:.0f} ± {when.se:.0f}"
            rows.append([f"{base:g} + {effect:g}: {text}", shown, f"{right:.3f}"])
            numbers[f"{base}+{effect}, {text}"] = [when.mean, when.se, right]
    title = f"DP-SPRT 1.2.0 at ε = 1, α = β = .05: users until it stops; {n} runs"
    return [Table(title, ["hypotheses", "mean users", "right"], rows)], {"sprt": numbers}


def served(means: tuple[float, float], horizon: int, seed: int) -> tuple[float, bool, float]:
    """`PrivateTest` at ε = 1 until it decides: users, whether it did, and CPU seconds per 10⁴."""
    accountant = JointAccountant(
        PureDP(1), users=range(horizon), ledger=Ledger.memory(), noise=NoiseSource.simulation(seed)
    )
    test, rng = PrivateTest(random_state=seed).start(accountant), np.random.default_rng(seed)

    def respond(arms: Any) -> Any:
        return (rng.random(len(arms)) < np.array(means)[arms]).astype(float)

    began = time.process_time()
    while test.decision_ is None and test.clock_ < horizon:
        test.play(test.public_state()["phase"][1] - test.clock_, respond)
    cost = (time.process_time() - began) / test.clock_ * 1e4
    return float(test.clock_), test.decision_ is not None, cost


def learner(runs: int, jobs: int) -> tuple[list[Table], dict[str, Any]]:
    rows, numbers, n = [], {}, min(runs, 400)
    for means, horizon in (((0.5, 0.55), 30_000), ((0.5, 0.5), 20_000)):
        tasks = [(means, horizon, FIRST_SEED + 5 * 10**6 + i) for i in range(n)]
        found = in_parallel(served, tasks, jobs)
        when, said = summary(one[0] for one in found), np.mean([one[1] for one in found])
        cost = summary(one[2] for one in found)
        name = " / ".join(f"{mean:g}" for mean in means)
        rows.append([name, f"{when.mean:.0f} ± {when.se:.0f}", f"{said:.4f}", f"{cost.mean:.3f}"])
        numbers[name] = [when.mean, when.se, float(said), cost.mean]
    header = ["means", "mean users", "decided", "CPU s per 10⁴ users, in blocks"]
    title = f"`PrivateTest` itself at ε = 1, with an accountant and a ledger in memory; {n} runs"
    return [Table(title, header, rows)], {"learner": numbers}


RUN = {
    "users": users,
    "null": null,
    "intervals": intervals,
    "arms": arms,
    "coin": coin,
    "sprt": sprt,
    "learner": learner,
}


def main() -> None:
    arguments = parser(__doc__, replicates=4_000)
    arguments.add_argument("--only", choices=sorted(RUN))
    options = arguments.parse_args()
    tables: list[Table] = []
    numbers: dict[str, Any] = {"first seed": FIRST_SEED, "replicates": options.replicates}
    parts: Sequence[str] = [options.only] if options.only else list(RUN)
    for part in parts:
        began = time.perf_counter()
        made, found = RUN[part](options.replicates, options.jobs)
        print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
        tables += made
        numbers |= found
    write("ab_tests" if options.only is None else f"ab_tests_{options.only}", tables, numbers)


if __name__ == "__main__":
    main()
