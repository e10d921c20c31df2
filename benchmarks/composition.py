"""(ε, δ) of compositions: ours and dp-accounting's, numbers and times.

    OMP_NUM_THREADS=1 PYTHONPATH=tests/helpers python benchmarks/composition.py

δ = 1e-6.  Everything runs in one process, one after the other; times are CPU times of one
thread, the least of a few tries, without imports, with our caches cleared before each.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from functools import _lru_cache_wrapper
from typing import Any

import dp_accounting as dp
import numpy as np
from contour import delta_by_contour, mixture
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.rdp import RdpAccountant
from reporting import Table, parser, write

from privlearn.accountants.calibration import least_noise
from privlearn.accountants.epsilon_delta import Order, RoundedNumber, evaluate
from privlearn.accountants.tight_composition import QUICK
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DiscreteGaussian,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    RandomizedResponse,
    SubsampledGaussian,
    ZCDPLoss,
)
from privlearn.losses.budgets import ApproxDP

DELTA = 1e-6
Parts = list[tuple[Loss, int]]
Row = list[str]


def exactly(value: float) -> Fraction:
    return Fraction(value)


GAUSSIANS = [(s, GaussianLoss(1 / exactly(s) ** 2)) for s in np.linspace(10, 30, 50).tolist()]
LAPLACES = [(b, LaplaceLoss(1 / exactly(b))) for b in np.linspace(20, 60, 200).tolist()]
RANGES = [(e, BoundedRangeLoss(exactly(e))) for e in (0.5 / math.sqrt(t) for t in range(1, 501))]
MIXED: Parts = [(loss, 1) for _, loss in [*GAUSSIANS, *LAPLACES, *RANGES]]


def clear_caches() -> None:
    """Forgets every answer that the package remembers."""
    for name, module in list(sys.modules.items()):
        if name.startswith("privlearn."):
            for value in list(vars(module).values()):
                if isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()


def timed(call: Callable[[], Any], tries: int) -> tuple[Any, float]:
    """The last answer and the least CPU time."""
    times: list[float] = []
    while len(times) < tries or sum(times) < 0.05:
        clear_caches()
        start = time.process_time()
        answer = call()
        times.append(time.process_time() - start)
    return answer, min(times)


def shown(seconds: float) -> str:
    return f"{seconds * 1000:.2g} ms" if seconds < 0.0995 else f"{seconds:.2f} s"


def ours(parts: Parts, order: Order = "listed", tries: int = 2) -> tuple[RoundedNumber, float]:
    return timed(lambda: evaluate(parts, order=order).epsilon(DELTA), tries)


def theirs(accountant: Any, events: list[tuple[Any, int]]) -> tuple[float, float]:
    """ε by an accountant of dp-accounting."""

    def call() -> float:
        made = accountant()
        for event, count in events:
            made.compose(event, count)
        return float(made.get_epsilon(DELTA))

    return timed(call, 1)


def mixed_by_pld() -> tuple[float, float]:
    """The accountant takes no ε-DP black box beside the others, so its distributions are used."""

    def call() -> float:
        laws = [pld.from_gaussian_mechanism(s) for s, _ in GAUSSIANS]
        laws += [pld.from_laplace_mechanism(b) for b, _ in LAPLACES]
        laws += [
            pld.from_privacy_parameters(DifferentialPrivacyParameters(e, 0)) for e, _ in RANGES
        ]
        total = laws[0]
        for law in laws[1:]:
            total = total.compose(law)
        return float(total.get_epsilon_for_delta(DELTA))

    return timed(call, 1)


def against_peers() -> tuple[list[Row], dict[str, Any]]:
    gaussians = [(dp.GaussianDpEvent(s), 1) for s, _ in GAUSSIANS]
    laplaces = [(dp.LaplaceDpEvent(b), 1) for b, _ in LAPLACES]
    zcdp = [(dp.ZCDpEvent(e * e / 8), 1) for e, _ in RANGES]
    sampled = [(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1)), 10_000)]
    tasks: list[tuple[str, Parts, Order, Any, Any, str]] = [
        (
            "1000 x Gaussian, multiplier 20",
            [(GaussianLoss("1/400"), 1000)],
            "listed",
            [(dp.GaussianDpEvent(20), 1000)],
            [(dp.GaussianDpEvent(20), 1000)],
            "8.3062 in < 1 ms",
        ),
        (
            "17 x Gaussian, multiplier 4",
            [(GaussianLoss("1/16"), 17)],
            "listed",
            [(dp.GaussianDpEvent(4), 17)],
            [(dp.GaussianDpEvent(4), 17)],
            "5.0582",
        ),
        (
            "mixed workload, listed order",
            MIXED,
            "listed",
            mixed_by_pld,
            gaussians + laplaces + zcdp,
            "4.148 to 4.25",
        ),
        ("mixed workload, any order", MIXED, "any", None, None, ">= 4.195"),
        (
            "subsampled Gaussian, q .01, σ 1, 10,000",
            [(SubsampledGaussian(1, "0.01"), 10_000)],
            "listed",
            sampled,
            sampled,
            "6.9074",
        ),
    ]
    for rho, goal in ((".1", "2.14194"), (".5", "5.22153"), ("1", "7.76622"), ("5", "20.55195")):
        event = [(dp.ZCDpEvent(float(rho)), 1)]
        tasks.append((f"zCDP, ρ = {rho}", [(ZCDPLoss(rho), 1)], "listed", None, event, goal))
    rows: list[Row] = []
    numbers: dict[str, Any] = {}
    for name, parts, order, by_pld, by_rdp, goal in tasks:
        answer, seconds = ours(parts, order)
        row = [name, f"{answer.value:.7g}", shown(seconds), answer.method]
        found: dict[str, Any] = {"ours": list(answer), "seconds": seconds}
        for title, accountant, events in (
            ("pld", PLDAccountant, by_pld),
            ("rdp", RdpAccountant, by_rdp),
        ):
            if events is None:
                row.append("")
                continue
            value, spent = events() if callable(events) else theirs(accountant, events)
            row.append(f"{value:.7g} ({shown(spent)})")
            found[title] = {"epsilon": value, "seconds": spent}
        rows.append([*row, goal])
        numbers[name] = found
    rows.append(calibration(numbers))
    rows.append(importing(numbers))
    return rows, numbers


def calibration(numbers: dict[str, Any]) -> Row:
    """The least σ with which 1000 Gaussians keep ε = 1."""
    promise = ApproxDP(1, "1e-6")
    made, seconds = timed(lambda: least_noise([(GaussianLoss(1), 1)], promise, count=1000), 5)

    def peer() -> float:
        return float(
            dp.calibrate_dp_mechanism(
                RdpAccountant,
                lambda s: dp.SelfComposedDpEvent(dp.GaussianDpEvent(s), 1000),
                1.0,
                DELTA,
                dp.ExplicitBracketInterval(10.0, 1000.0),
            )
        )

    sigma, spent = timed(peer, 1)
    numbers["sigma"] = {"ours": float(made.factor), "seconds": seconds, "rdp": sigma}
    name = "σ for ε = 1, 1000 Gaussians"
    found = f"{float(made.factor):.7g}"
    peers = ["out of memory", f"{sigma:.7g} ({shown(spent)})"]
    return [name, found, shown(seconds), "gaussian", *peers, "133.5961 in < 1 ms"]


def importing(numbers: dict[str, Any]) -> Row:
    """CPU seconds of an import, the least of five."""

    def cost(module: str) -> float:
        code = (
            f"import time; a = time.process_time(); import {module}; print(time.process_time() - a)"
        )
        command = [sys.executable, "-W", "ignore", "-c", code]
        return min(float(subprocess.check_output(command)) for _ in range(5))

    mine, peer = cost("privlearn"), cost("dp_accounting")
    numbers["import"] = {"privlearn": mine, "dp_accounting": peer}
    return ["import, CPU", "", f"{mine:.2f} s", "", f"{peer:.2f} s", f"{peer:.2f} s", "<= 0.35 s"]


def alone() -> tuple[list[Row], dict[str, Any]]:
    distinct: Parts = [
        *((LaplaceLoss(1 / exactly(b)), 1) for b in np.linspace(20, 60, 500).tolist()),
        *((RandomizedResponse(1 / exactly(b), 3), 1) for b in np.linspace(20, 60, 300).tolist()),
        *((GaussianLoss(1 / exactly(s) ** 2), 1) for s in np.linspace(30, 60, 200).tolist()),
    ]
    noise: Parts = [(loss, 1) for _, loss in [*GAUSSIANS, *LAPLACES]]
    ranged: Parts = [(loss, 1) for _, loss in RANGES]
    pair: Parts = [(GaussianLoss("0.01"), 1), (BoundedRangeLoss("0.1"), 1)]
    many = [(LaplaceLoss(1 / exactly(b)), 1) for b in np.linspace(20, 60, 1000).tolist()]
    tasks: list[tuple[str, Parts, Order]] = [
        ("mixed workload, rising bounded ranges", noise + ranged[::-1], "listed"),
        ("mixed workload, bounded ranges first", ranged + noise, "listed"),
        ("1000 different Laplace, b 20..60", list(many), "listed"),
        ("1000 different: Laplace, 3-ary response, Gaussian", distinct, "listed"),
        ("10,000 x bounded range .01", [(BoundedRangeLoss("0.01"), 10_000)], "any"),
        ("2,000 x bounded range .02", [(BoundedRangeLoss("0.02"), 2_000)], "any"),
        ("500 x bounded range .1", [(BoundedRangeLoss("0.1"), 500)], "any"),
        ("100 x (Gaussian μ = .1, bounded range .1)", pair * 100, "listed"),
    ]
    rows: list[Row] = []
    numbers: dict[str, Any] = {}
    for name, parts, order in tasks:
        answer, seconds = ours(parts, order, 1)
        curves = evaluate(parts, order=order, effort=0).epsilon(DELTA).value
        low = answer.value - answer.error_bound
        ends = f"[{low:.4f}, {answer.value:.4f}]"
        rows.append([name, ends, shown(seconds), answer.method, f"{curves:.4f}"])
        numbers[name] = {"ours": list(answer), "seconds": seconds, "renyi": curves}
    return rows, numbers


def quick_and_thorough() -> tuple[list[Row], dict[str, Any]]:
    """The two efforts on what used to fall to Rényi curves."""
    phases: Parts = [
        (SubsampledGaussian(Fraction(80 + 6 * i, 100), "0.01"), 100) for i in range(20)
    ]
    tasks: list[tuple[str, Parts]] = [
        ("1000 x subsampled, σ .3, q .01", [(SubsampledGaussian("0.3", "0.01"), 1000)]),
        ("twenty phases, σ .8 to 1.94, 100 steps each", phases),
        ("1000 x discrete Gaussian, σ 20", [(DiscreteGaussian(1, 20), 1000)]),
        ("discrete Gaussian, σ .7", [(DiscreteGaussian(1, "0.7"), 1)]),
        ("100 x permute-and-flip, ε .1", [(LaplaceLoss("0.1"), 100)]),
        (
            "Gaussian and an (ε, δ) of (1e-90, 1e-7)",
            [(ApproxLoss("1e-90", "1e-7"), 1), (GaussianLoss(1), 1)],
        ),
    ]
    rows: list[Row] = []
    numbers: dict[str, Any] = {}
    for name, parts in tasks:
        quick, short = timed(
            lambda parts=parts: evaluate(parts, effort=QUICK).epsilon(DELTA),  # type: ignore[misc]
            2,
        )
        best, long = ours(parts)
        rows.append([name, f"{quick.value:.6g}", shown(short), f"{best.value:.6g}", shown(long)])
        numbers[name] = {"quick": list(quick), "thorough": list(best), "seconds": [short, long]}
    return rows, numbers


def study(count: int = 300) -> tuple[Row, dict[str, float]]:
    """Random mixtures: how many answers lie below a contour integral, and the widest interval."""
    rng, below, gaps = np.random.default_rng(300), 0, []
    for _ in range(count):
        parts, delta = mixture(rng), float(10.0 ** rng.uniform(-9, -3))
        answer = evaluate(parts).epsilon(delta)
        below += delta_by_contour(parts, answer.value) > delta * (1 + 1e-8)
        gaps.append(answer.error_bound / answer.value)
    found = {"mixtures": count, "below": below, "median": float(np.median(gaps)), "most": max(gaps)}
    return [str(count), str(below), f"{found['median']:.2g}", f"{found['most']:.2g}"], found


def main() -> None:
    parser(__doc__).parse_args()
    peers, peer_numbers = against_peers()
    own, own_numbers = alone()
    efforts, effort_numbers = quick_and_thorough()
    mixtures, mixture_numbers = study()
    version = getattr(dp, "__version__", "0.6.0")
    tables = [
        Table(
            f"ε at δ = 1e-6 against dp-accounting {version}",
            ["task", "ours", "CPU", "method", "PLD", "RDP", "target"],
            peers,
        ),
        Table(
            "The interval that holds the exact adaptive worst case, δ = 1e-6",
            ["task", "interval", "CPU", "method", "by Rényi curves"],
            own,
        ),
        Table(
            "ε at δ = 1e-6 by the two efforts",
            ["task", "quick", "CPU", "thorough", "CPU"],
            efforts,
        ),
        Table(
            "Random mixtures against contour integrals",
            ["mixtures", "below the truth", "median interval over ε", "largest"],
            [mixtures],
        ),
    ]
    notes = (
        "Mixed workload: 50 Gaussians (σ 10 to 30), 200 Laplace (b 20 to 60), 500 exponential "
        "mechanisms with ε = 0.5/√t.  dp-accounting has no event for bounded range: its PLD gets "
        "ε-DP black boxes, its RDP η²/8-zCDP.  Times are CPU times of one thread.  The mixed "
        "workload in listed order: "
        + "[{:.4f}, {:.4f}]; in any order [{:.4f}, {:.4f}].".format(
            *(
                end
                for order in ("listed", "any")
                for value, error, _ in [peer_numbers[f"mixed workload, {order} order"]["ours"]]
                for end in (value - error, value)
            )
        )
    )
    write(
        "composition",
        tables,
        {
            "peers": peer_numbers,
            "alone": own_numbers,
            "efforts": effort_numbers,
            "mixtures": mixture_numbers,
        },
        notes,
    )


if __name__ == "__main__":
    main()
