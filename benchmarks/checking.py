"""What the checking kit sees, with how many samples, how often it is wrong, and its own time.

    OMP_NUM_THREADS=1 PYTHONPATH=tests/helpers python benchmarks/checking.py

Power: the share of runs that refute the claim.  Directions of the shift are drawn anew in every
run.  Alarms: the share of correct mechanisms, exactly at their claim, that are accused at
confidence 0.95; the binomial 99.9% band around 5% is printed beside it.  Own time: CPU seconds of
a check less those of drawing as many outputs, median.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from faults.few_inputs import FEW_INPUT_FAULTS
from reporting import Table, in_parallel, parser, write
from scipy.stats import binom

from privlearn.checking.exact.check import white_box
from privlearn.checking.replay.learners import check_learner
from privlearn.checking.reports import Evidence
from privlearn.checking.sampling.check import black_box
from privlearn.checking.suite import shipped_learners, shipped_mechanisms
from privlearn.checking.targets import Claimable
from privlearn.errors import CheckError
from privlearn.losses import LaplaceLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP
from privlearn.rows.domains import Array

SEED = 15_001
Draw = Callable[[Any, np.random.Generator], Any]


def normal(std: float, dim: int) -> Draw:
    return lambda x, rng: x + std * rng.standard_normal(dim)


def tree_stream(std: float, length: int) -> Draw:
    """Running sums of a stream under one noise per node of a binary tree."""
    levels = length.bit_length()
    nodes = [
        [(level, (t >> level) - 1) for level in range(levels) if (t >> level) & 1]
        for t in range(1, length + 1)
    ]
    sizes = [length >> level for level in range(levels)]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    use = np.zeros((length, int(starts[-1])))
    for t, used in enumerate(nodes):
        for level, place in used:
            use[t, starts[level] + place] = 1.0

    def draw(x: Array, rng: np.random.Generator) -> Array:
        return np.asarray(np.cumsum(x) + std * (use @ rng.standard_normal(use.shape[1])))

    return draw


def direction(dim: int, run: int) -> tuple[Array, Array]:
    e = np.random.default_rng([SEED, dim, run]).standard_normal(dim)
    return e / np.linalg.norm(e), np.zeros(dim)


def runs(
    draw: Draw, claim: Claimable, pairs: list[tuple[Any, Any]], **options: Any
) -> tuple[list[Evidence], float]:
    """The evidence for each pair, and the median of the kit's own CPU seconds."""
    found, own = [], []
    for run, pair in enumerate(pairs):
        before = time.process_time()
        evidence = black_box(draw, claim, pair, seed=SEED + run, confidence=0.95, **options)
        spent = time.process_time() - before
        rng = np.random.default_rng(run)
        before = time.process_time()
        for _ in range(evidence.samples):
            draw(pair[0], rng)
        own.append(spent - (time.process_time() - before))
        found.append(evidence)
    return found, float(np.median(own))


def power(quick: bool) -> Table:
    few, many = (20, 40) if quick else (60, 200)
    under, length = float(np.sqrt(0.9)), 256
    first = np.zeros(length)
    first[0] = 1.0
    # One user of a stream is in log2(256) + 1 = 9 nodes.
    honest = float(np.sqrt(length.bit_length()))
    tasks: list[tuple[str, Draw, int | None, int, dict[str, Any], str]] = []
    for d in (1, 15):
        half, ten = normal(0.5, d), normal(under, d)
        most: dict[str, Any] = {"samples": 75_000}
        tasks += [
            (f"half of σ, d={d}", half, d, many, {"samples": 300}, "95% in 300"),
            (f"ρ 10% too small, d={d}", ten, d, few, most, "75,000"),
        ]
    for name, std in (("log T forgotten", 1.0), ("half the noise", honest / 2)):
        draw = tree_stream(std, length)
        tasks.append(
            (f"stream T=256, {name}", draw, None, few // 2, {"samples": 2_000}, "2,000, 1 s")
        )
    rows = []
    for name, draw, dim, n, options, asked in tasks:
        pairs = [(first, np.zeros(length)) if dim is None else direction(dim, r) for r in range(n)]
        found, own = runs(draw, GaussianDP(1), pairs, **options)
        caught = np.mean([evidence.violated for evidence in found])
        samples = np.median([evidence.samples for evidence in found])
        rows.append([name, str(n), f"{caught:.0%}", f"{samples:.0f}", f"{own:.3f}", asked])
    return Table("Power", ("task", "runs", "caught", "samples", "own CPU s", "asked for"), rows)


def coin(x: int, rng: np.random.Generator) -> int:
    """Randomised response at ε = 1."""
    return int(rng.random() < 1 / (1 + np.exp(-1.0))) ^ x


def extremal(x: int, rng: np.random.Generator) -> int:
    """The law that dominates every (1, 0.01)-DP pair."""
    return 2 + x if rng.random() < 0.01 else coin(x, rng)


def laplace(x: float, rng: np.random.Generator) -> float:
    """Scale 1."""
    return float(x + rng.laplace())


CONTROLS: list[tuple[str, Draw, Claimable, tuple[Any, Any]]] = [
    ("Gaussian, μ=1, d=1", normal(1.0, 1), GaussianDP(1), (np.ones(1), np.zeros(1))),
    ("Gaussian, μ=1, d=5", normal(1.0, 5), GaussianDP(1), (np.eye(5)[0], np.zeros(5))),
    ("Gaussian, ρ=1/2", normal(1.0, 1), ZCDP("0.5"), (np.ones(1), np.zeros(1))),
    ("Laplace, ε=1", laplace, PureDP(1), (1.0, 0.0)),
    ("Laplace, its curve", laplace, LaplaceLoss(1), (1.0, 0.0)),
    ("randomised response, ε=1", coin, PureDP(1), (0, 1)),
    ("the extremal law of (1, 0.01)-DP", extremal, ApproxDP(1, "0.01"), (0, 1)),
]


def accused(control: int, options: dict[str, Any], run: int) -> bool:
    _, draw, claim, pair = CONTROLS[control]
    return black_box(draw, claim, pair, seed=SEED + run, confidence=0.95, **options).violated


def alarms(jobs: int, runs: int) -> Table:
    rows = []
    for i, (name, *_) in enumerate(CONTROLS):
        low, high = (float(binom.ppf(x, runs, 0.05)) / runs for x in (0.0005, 0.9995))
        options = {"samples": 400}
        share = np.mean(in_parallel(accused, ((i, options, run) for run in range(runs)), jobs))
        rows.append([name, str(runs), f"{share:.2%}", f"{low:.2%} to {high:.2%}"])
    return Table("Alarms on correct mechanisms", ("control", "runs", "accused", "99.9% band"), rows)


def unaided_run(name: str, broken: bool, samples: int, run: int) -> bool:
    *_, wrong, right = FEW_INPUT_FAULTS[name]
    mechanism = wrong if broken else right
    return black_box(mechanism, samples=samples, seed=SEED + run, confidence=0.95).violated


def unaided(jobs: int, runs: int) -> Table:
    """Mechanisms without given neighbours, only by samples."""
    rows = []
    for name in FEW_INPUT_FAULTS:
        caught = in_parallel(unaided_run, ((name, True, 5_000, r) for r in range(runs // 10)), jobs)
        accused = in_parallel(unaided_run, ((name, False, 1_000, r) for r in range(runs)), jobs)
        exactly = ""
        with contextlib.suppress(CheckError):  # no law that can be written down
            exactly = "caught" if white_box(FEW_INPUT_FAULTS[name][2]).violated else "missed"
        share = f"{np.mean(caught):.0%} of {runs // 10}"
        rows.append([name, share, exactly, f"{np.sum(accused)} of {runs}"])
    columns = ("fault", "caught in 5,000 samples", "exactly", "control accused in 1,000 samples")
    return Table("Default neighbours", columns, rows)


def sometimes(rate: float) -> Draw:
    """Laplace noise at ε = 1, but the raw number now and then."""
    return lambda x, rng: float(x if rng.random() < rate else x + rng.laplace())


def rare(runs: int) -> Table:
    rows = []
    for rate, samples in ((0.02, 5_000), (0.004, 30_000), (0.0, 5_000)):
        found = [
            black_box(sometimes(rate), PureDP(1), (1.0, 0.0), samples=samples, seed=SEED + run)
            for run in range(runs)
        ]
        caught = np.mean([evidence.violated for evidence in found])
        rows.append([f"{rate:g}", f"{samples}", str(runs), f"{caught:.0%}"])
    return Table("A raw value now and then", ("rate", "samples", "runs", "refuted"), rows)


def exact() -> Table:
    rows = []
    for name, make in shipped_mechanisms().items():
        mechanism = make()
        before = time.process_time()
        try:
            found = white_box(mechanism)
        except CheckError:  # its law is none that can be written down: by sampling only
            continue
        spent = time.process_time() - before
        tight = "tight" if found.tight else ""
        rows.append([name, f"{found.worst.ratio:.6f}", f"{found.error:.0e}", f"{spent:.2f}", tight])
    return Table(
        "Exact divergences", ("mechanism", "claimed/exact", "error", "CPU s", "tight"), rows
    )


def replays(quick: bool) -> Table:
    rows = []
    n = 20 if quick else 50
    for name, (learner, options) in shipped_learners().items():
        before = time.process_time()
        check_learner(learner, pairs=n, seed=SEED, **options)
        rows.append([name, str(n), f"{time.process_time() - before:.2f}"])
    return Table("Replay", ("learner", "pairs", "CPU s"), rows)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--quick", action="store_true", help="fewer runs, for a first look")
    options.add_argument("--alarms", type=int, default=3_000, help="runs per correct mechanism")
    given = options.parse_args()
    tables = [
        power(given.quick),
        alarms(given.jobs, given.alarms),
        unaided(given.jobs, 20 if given.quick else 100),
        rare(10 if given.quick else 40),
        exact(),
        replays(given.quick),
    ]
    write("checking", tables, {"seed": SEED, "quick": given.quick, "alarms": given.alarms})


if __name__ == "__main__":
    main()
