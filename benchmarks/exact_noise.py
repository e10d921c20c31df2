"""The exact sampler: speed beside others, both of its paths, its laws, and its running time.

    OMP_NUM_THREADS=1 python benchmarks/exact_noise.py [--quick]

CPU times are minima of several tries within one run.  OpenDP and diffprivlib are timed where they
are installed.  Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import numpy as np
from scipy import stats

from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.noise.exact.fast import floors
from privlearn.noise.exact.pool import Keystream, Kind, NoisePool, SeededWords, variates
from privlearn.noise.exact.slow import Bits, exact_floor
from privlearn.noise.exact.tables import FLOOR_BITS, shipped_tables
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

KINDS: tuple[Kind, ...] = get_args(Kind)
SIZES = (15, 1000, 100_000)
LAWS = dict(zip(KINDS, (stats.norm, stats.laplace, stats.expon, stats.gumbel_r), strict=True))
TRIES = 7


def cpu(call: Callable[[], object], times: int) -> float:
    """Least CPU time of one call, seconds."""
    best = np.inf
    for _ in range(TRIES):
        start = time.process_time()
        for _ in range(times):
            call()
        best = min(best, (time.process_time() - start) / times)
    return float(best)


def box_muller(words: Keystream) -> Callable[[int], Any]:
    """What privlearn did before: uniforms of 52 bits, whose normals end at 8.57."""

    def draw(n: int) -> Any:
        pairs = (n + 1) // 2
        uniforms = ((words.words(2 * pairs) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        radius = np.sqrt(-2.0 * np.log(uniforms[:pairs]))
        angle = 2 * np.pi * uniforms[pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n]

    return draw


def zeros_released(release: Any, n: int) -> Any:
    """Noise of a mechanism that adds it to a list of numbers."""
    return release([0.0] * n)


def other_samplers() -> dict[str, Callable[[int], Any]]:
    """Named samplers of ``n`` numbers."""
    generator, pool = np.random.default_rng(0), NoisePool(Keystream())
    found: dict[str, Callable[[int], Any]] = {
        f"privlearn, exact {kind}": partial(pool.floors, kind) for kind in KINDS
    }
    found["privlearn before, Box-Muller"] = box_muller(Keystream())
    found["NumPy, standard_normal"] = generator.standard_normal
    found["NumPy, laplace"] = lambda n: generator.laplace(size=n)
    try:
        dp = importlib.import_module("opendp.prelude")
        dp.enable_features("contrib")
        for name, make in (("gaussian", dp.m.make_gaussian), ("laplace", dp.m.make_laplace)):
            space = (
                dp.vector_domain(dp.atom_domain(T=float, nan=False)),
                dp.l2_distance(T=float) if name == "gaussian" else dp.l1_distance(T=float),
            )
            release = make(*space, scale=1.0)
            found[f"OpenDP, {name}"] = partial(zeros_released, release)
    except ImportError:
        print("OpenDP is not installed")
    try:
        library = importlib.import_module("diffprivlib.mechanisms")
        one = library.Gaussian(epsilon=0.5, delta=1e-6, sensitivity=1.0)
        found["diffprivlib, Gaussian"] = lambda n: [one.randomise(0.0) for _ in range(n)]
    except ImportError:
        print("diffprivlib is not installed")
    return found


def speeds() -> None:
    """Of all samplers, at three sizes."""
    print("\nmillion a second of CPU (µs a call), filling of the pool included")
    for name, draw in other_samplers().items():
        cells = []
        slow = name.startswith(("OpenDP", "diffprivlib"))
        for n in SIZES[: 2 if slow else 3]:
            draw(n)
            took = cpu(partial(draw, n), 1 if slow else max(400_000 // n, 1))
            cells.append(f"{n}: {n / took / 1e6:.3g} M/s ({took * 1e6:.3g})")
        print(f"  {name:32} {'   '.join(cells)}")


def releases() -> None:
    """A whole noisy sum of 1000 rows of 15 numbers: clipping, sum and noise."""
    mechanism = NoisySum(Ball(1.0, 15), GaussianNoise(3.0))
    data = np.random.default_rng(0).normal(size=(1000, 15)) / 3
    rows = Rows.seal(data, users=range(1000))
    book = CentralAccountant(ZCDP(10**9), users=range(1000), ledger=Ledger.memory())

    def release() -> None:
        token = book.issue(mechanism.loss(), users=range(1000), label="sum")
        mechanism.release(rows, token)

    took = cpu(release, 200)
    print(f"\nnoisy sum of 1000 x 15, issue, spend and release: {took * 1e6:.0f} µs of CPU")


def both_paths(words: int) -> None:
    """Forced slow against fast, and the share of slow draws."""
    print(f"\nforced slow = fast on {words} words of each table; slow share of 10^7")
    for table in shipped_tables():
        source = SeededWords(1)
        drawn = source.words(words)
        found, extended = floors(table, drawn, source.more)
        wrong = 0
        for i, word in enumerate(drawn.tolist()):
            known = extended.get(i) or Bits(word >> 1, 63)
            wrong += exact_floor(table.family, known, source.more, FLOOR_BITS) != found[i]
        slow = sum(len(floors(table, source.words(10**6), source.more)[1]) for _ in range(10))
        print(f"  {table.family.name:14} wrong: {wrong}   slow: {slow / 1e7:.2g}")


def laws(n: int) -> None:
    """χ² over 1000 cells of equal probability, and of the ten last bits."""
    print(f"\nχ² of {n} draws, 1000 cells: p, and of the last ten bits")
    levels = np.arange(1, 1000) / 1000
    for place, kind in enumerate(KINDS):
        cells, last = np.zeros(1000), np.zeros(1024)
        source, ends = SeededWords(100 + place), LAWS[kind].ppf(levels)
        for _ in range(n // 10**6):
            drawn = variates(kind, source, 10**6).floors
            cells += np.bincount(np.searchsorted(ends, (drawn + 0.5) * 2.0**-40), minlength=1000)
            last += np.bincount(drawn & 1023, minlength=1024)
        p, q = (stats.chisquare(counts).pvalue for counts in (cells, last))
        print(f"  {kind:12} {p:.3f}   {q:.3f}")


def running_time(n: int) -> None:
    """Rank correlation of a draw's size with its time."""
    print(f"\nSpearman(|noise|, time) of {n} single draws, rank correlation and p")
    pool, unpooled = NoisePool(Keystream()), Keystream()
    draws: dict[str, Callable[[], Any]] = {
        "out of the pool": lambda: pool.floors("normal", 1),
        "each by itself": lambda: variates("normal", unpooled, 1).floors,
    }
    for name, draw in draws.items():
        sizes, times = np.empty(n), np.empty(n)
        for i in range(n):
            start = time.perf_counter_ns()
            drawn = draw()
            times[i] = time.perf_counter_ns() - start
            sizes[i] = abs(int(drawn[0]))
        found = stats.spearmanr(sizes, times)
        print(f"  {name:18} {found.statistic:+.4f}   p = {found.pvalue:.3f}")


def main() -> None:
    """Runs everything."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--quick", action="store_true", help="a hundredth of the draws")
    quick = options.parse_args().quick
    start = time.perf_counter()
    shipped_tables()
    print(f"tables mapped and hashed in {(time.perf_counter() - start) * 1e3:.1f} ms")
    speeds()
    releases()
    both_paths(1000 if quick else 100_000)
    laws(10**6 if quick else 10**7)
    running_time(10**4 if quick else 10**5)


if __name__ == "__main__":
    main()
