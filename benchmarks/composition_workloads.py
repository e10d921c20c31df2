"""Compositions that people ask about, and how each library says them.

A workload is a list of steps, (kind, numbers, count), with its δ and where it is from.  A kind has
one function for each library that has it; a library without the kind has no answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Step = tuple[str, tuple[Any, ...], int]
Relation = Literal["add-remove", "replace-one"]


@dataclass(frozen=True)
class Workload:
    """One question: ε at δ of the steps, run in this order or in any.

    Attributes:
        name: of the row.
        source: the page, paper or thread that it is from.
        relation: of neighbours; it matters for sampled steps only.
    """

    name: str
    source: str
    steps: tuple[Step, ...]
    delta: float = 1e-6
    relation: Relation = "add-remove"
    order: Literal["listed", "any"] = "listed"


def _steps(kind: str, values: Iterable[float], count: int = 1) -> tuple[Step, ...]:
    return tuple((kind, (value,), count) for value in values)


def _sampled(q: float, sigma: float, count: int) -> tuple[Step, ...]:
    return (("sampled Gaussian", (q, sigma), count),)


def _range(start: float, end: float, number: int) -> list[float]:
    return [float(x) for x in np.linspace(start, end, number)]


_MIXED = (
    *_steps("Gaussian", _range(10, 30, 50)),
    *_steps("Laplace", _range(20, 60, 200)),
    *_steps("bounded range", [0.5 / math.sqrt(t) for t in range(1, 501)]),
)

WORKLOADS: tuple[Workload, ...] = (
    # plain noise
    Workload("1 Gaussian σ 1", "Balle, Wang 2018", _steps("Gaussian", [1.0]), 1e-5),
    Workload("1 Gaussian σ .3", "Balle, Wang 2018", _steps("Gaussian", [0.3]), 1e-5),
    Workload("17 Gaussians σ 4", "this library's page", _steps("Gaussian", [4.0], 17)),
    Workload("1000 Gaussians σ 20", "issue 35", _steps("Gaussian", [20.0], 1000)),
    Workload("1e6 Gaussians σ 1000", "dp-accounting tests", _steps("Gaussian", [1e3], 10**6)),
    Workload("1 Laplace b 1", "OpenDP guide", _steps("Laplace", [1.0])),
    Workload("10 Laplace b 5", "OpenDP guide", _steps("Laplace", [5.0], 10)),
    Workload("100 Laplace b 10", "Kairouz et al. 2015", _steps("Laplace", [10.0], 100)),
    Workload("1000 Laplace b 50", "Kairouz et al. 2015", _steps("Laplace", [50.0], 1000)),
    Workload("1e5 Laplace b 1000", "Sommer et al. 2019", _steps("Laplace", [1e3], 10**5)),
    Workload(
        "1000 different Laplace", "this library's page", _steps("Laplace", _range(20, 60, 1000))
    ),
    Workload("50 pure ε .1", "Kairouz et al. 2015", _steps("pure", [0.1], 50)),
    Workload("1000 pure ε .01", "Murtagh, Vadhan 2016", _steps("pure", [0.01], 1000)),
    Workload("100 responses ε 1", "dp-accounting tests", (("response", (1.0, 2), 100),), 1e-8),
    Workload("30 responses ε .5, k 10", "local reports", (("response", (0.5, 10), 30),)),
    Workload("one (1, 1e-8), 20 times", "Kairouz et al. 2015", (("approx", (0.2, 1e-8), 20),)),
    Workload("ten (0, .001)", "issue 35", (("approx", (0.0, 0.001), 10),), 0.02),
    Workload(
        "(1, .1) + (2, .2)",
        "issue 35",
        (("approx", (1.0, 0.1), 1), ("approx", (2.0, 0.2), 1)),
        0.28,
    ),
    Workload(
        "Gaussian + one (1e-90, .01)",
        "issue 35",
        (("Gaussian", (1.0,), 1), ("approx", (1e-90, 0.01), 1)),
        0.02,
    ),
    Workload("zCDP ρ .1", "Census 2020", (("zCDP", (0.1,), 1),)),
    Workload("zCDP ρ 2.63", "Census 2020", (("zCDP", (2.63,), 1),), 1e-10),
    # integers
    Workload("50 discrete Laplace 1/5", "OpenDP integers", (("discrete Laplace", (0.2, 1), 50),)),
    Workload(
        "100 discrete Laplace .1, Δ 3", "OpenDP integers", (("discrete Laplace", (0.1, 3), 100),)
    ),
    Workload("1 discrete Gaussian σ .7", "issue 35", _steps("discrete Gaussian", [0.7])),
    Workload(
        "10 discrete Gaussian σ 2", "Canonne et al. 2020", _steps("discrete Gaussian", [2.0], 10)
    ),
    Workload("1000 discrete Gaussian σ 20", "issue 35", _steps("discrete Gaussian", [20.0], 1000)),
    # selections
    Workload("100 permute-and-flip .1", "issue 35", _steps("permute-and-flip", [0.1], 100)),
    Workload("20 bounded range .2", "Dong et al. 2020", _steps("bounded range", [0.2], 20)),
    Workload("500 bounded range .1", "Dong et al. 2020", _steps("bounded range", [0.1], 500)),
    Workload(
        "50 Gaussians + 50 bounded range",
        "issue 35",
        (("Gaussian", (10.0,), 50), ("bounded range", (0.1,), 50)),
    ),
    Workload("50 G, 200 L, 500 EM, in this order", "issue 35", _MIXED),
    Workload("50 G, 200 L, 500 EM, in any order", "issue 35", _MIXED, order="any"),
    # DP-SGD
    Workload("MNIST: q .01, σ 1.1, 6,000", "Opacus tutorial", _sampled(0.01, 1.1, 6000), 1e-5),
    Workload(
        "CIFAR-10: q .0102, σ 1.5, 9,000", "Opacus tutorial", _sampled(512 / 50000, 1.5, 9000), 1e-5
    ),
    Workload(
        "De et al.: q .082, σ 9.4, 1,000", "De et al. 2022", _sampled(4096 / 50000, 9.4, 1000), 1e-5
    ),
    Workload(
        "De et al.: q .328, σ 21, 250", "De et al. 2022", _sampled(16384 / 50000, 21.1, 250), 1e-5
    ),
    Workload(
        "ImageNet: q .0128, σ 2.5, 70,000",
        "De et al. 2022",
        _sampled(16384 / 1281167, 2.5, 70000),
        8e-7,
    ),
    Workload("q .001, σ .6, 20,000", "Abadi et al. 2016", _sampled(0.001, 0.6, 20000), 1e-5),
    Workload("q .01, σ 4, 10,000", "Abadi et al. 2016", _sampled(0.01, 4.0, 10000), 1e-5),
    Workload("q .01, σ 1, 10,000", "this library's page", _sampled(0.01, 1.0, 10000)),
    Workload("q .01, σ 1, 10,000, δ 1e-10", "issue 35", _sampled(0.01, 1.0, 10000), 1e-10),
    Workload("q .01, σ 1, 10,000, δ 1e-15", "issue 35", _sampled(0.01, 1.0, 10000), 1e-15),
    Workload("q .01, σ .3, 1,000", "issue 35", _sampled(0.01, 0.3, 1000)),
    Workload("q .02, σ .5, 500", "Gopi et al. 2021", _sampled(0.02, 0.5, 500)),
    Workload("q .1, σ .8, 100", "Gopi et al. 2021", _sampled(0.1, 0.8, 100)),
    Workload("q .5, σ 5, 300", "Gopi et al. 2021", _sampled(0.5, 5.0, 300)),
    Workload("q .9, σ 10, 1,000", "Gopi et al. 2021", _sampled(0.9, 10.0, 1000)),
    Workload("q .001, σ 1, 1", "Opacus issues", _sampled(0.001, 1.0, 1)),
    Workload("q 1e-4, σ .8, 1e5", "federated language models", _sampled(1e-4, 0.8, 10**5), 1e-9),
    Workload("q 4e-6, σ .5, 1e6", "large language models", _sampled(4e-6, 0.5, 10**6), 1e-9),
    Workload(
        "twenty phases",
        "issue 35",
        tuple(s for i in range(20) for s in _sampled(0.01, round(0.8 + 0.06 * i, 2), 100)),
    ),
    Workload(
        "warm-up, then training",
        "Opacus schedulers",
        (*_sampled(0.005, 2.0, 1000), *_sampled(0.02, 1.0, 2000)),
        1e-5,
    ),
    Workload(
        "training and a table",
        "issue 36",
        (*_sampled(0.01, 1.0, 3000), ("Laplace", (2.0,), 3), ("Gaussian", (3.0,), 4)),
        1e-5,
    ),
    # other sampling
    Workload(
        "replace-one: q .01, σ 2, 1,000",
        "dp-accounting tests",
        _sampled(0.01, 2.0, 1000),
        1e-6,
        "replace-one",
    ),
    Workload(
        "sampled Laplace: q .01, b 1, 1,000", "issue 35", (("sampled Laplace", (0.01, 1.0), 1000),)
    ),
    Workload(
        "sampled Laplace: q .1, b 5, 100", "Zhu, Wang 2019", (("sampled Laplace", (0.1, 5.0), 100),)
    ),
    Workload(
        "batches of 100 of 10,000, σ 2, 1,000",
        "Wang et al. 2019",
        (("batch Gaussian", (10_000, 100, 2.0), 1000),),
        1e-6,
        "replace-one",
    ),
    Workload(
        "truncated at 150: n 10,000, q .01, σ 1, 1,000",
        "Ganesh 2024",
        (("truncated Gaussian", (10_000, 0.01, 150, 1.0), 1000),),
    ),
    Workload(
        "mixture 0/1/2, σ 1, 1",
        "Choquette-Choo et al. 2023",
        (("mixture", (1.0, (0.0, 1.0, 2.0), (0.5, 0.3, 0.2)), 1),),
    ),
    Workload(
        "mixture 0/1/2, σ 5, 100",
        "Choquette-Choo et al. 2023",
        (("mixture", (5.0, (0.0, 1.0, 2.0), (0.8, 0.15, 0.05)), 100),),
    ),
    Workload(
        "mixture 0/1, q .1, σ 2, 1,000",
        "Choquette-Choo et al. 2023",
        (("mixture", (2.0, (0.0, 1.0), (0.9, 0.1)), 1000),),
    ),
    # long and thin
    Workload("1e9 × q 1e-6, σ 10", "extremes", _sampled(1e-6, 10.0, 10**9)),
    Workload("1e12 Gaussians σ 1e7", "extremes", _steps("Gaussian", [1e7], 10**12)),
    Workload("1 Laplace b .01, δ 1e-300", "extremes", _steps("Laplace", [0.01]), 1e-300),
    Workload("100 Gaussians σ 10, δ 1e-200", "extremes", _steps("Gaussian", [10.0], 100), 1e-200),
)

Say = Callable[..., Any]


def losses(relation: Relation) -> dict[str, Say]:
    """Our losses."""
    from fractions import Fraction as F

    from privlearn import losses as ls
    from privlearn.values.adjacency import Adjacency

    to = {"adjacency": Adjacency.REPLACE_ONE if relation == "replace-one" else Adjacency.ADD_REMOVE}

    def gaussian(std: float) -> ls.GaussianLoss:
        return ls.GaussianLoss(1 / F(std) ** 2, adjacency=Adjacency.ADD_REMOVE)

    return {
        "Gaussian": lambda s: ls.GaussianLoss(1 / F(s) ** 2, **to),
        "Laplace": lambda b: ls.LaplaceLoss(1 / F(b), **to),
        "pure": lambda e: ls.PureLoss(F(e), **to),
        "response": lambda e, k: ls.RandomizedResponse(F(e), k, **to),
        "approx": lambda e, d: ls.ApproxLoss(max(F(e), F(1, 10**90)), d, **to),
        "zCDP": lambda r: ls.ZCDPLoss(F(r), **to),
        "discrete Laplace": lambda e, s: ls.DiscreteLaplace(F(e) * s, s, **to),
        "discrete Gaussian": lambda s: ls.DiscreteGaussian(1, F(s), **to),
        "permute-and-flip": lambda e: ls.LaplaceLoss(F(e), **to),
        "bounded range": lambda e: ls.BoundedRangeLoss(F(e), **to),
        "sampled Gaussian": lambda q, s: (
            ls.SubsampledGaussian(F(s), F(q), **to)
            if relation == "add-remove"
            # two records differ by twice the norm of one
            else ls.PoissonSampled(gaussian(s), F(q), **to)
        ),
        "sampled Laplace": lambda q, b: ls.PoissonSampled(ls.LaplaceLoss(1 / F(b), **to), F(q)),
        "batch Gaussian": lambda n, m, s: ls.FixedBatch(ls.GaussianLoss(1 / F(s) ** 2), n, m),
        "truncated Gaussian": lambda n, q, m, s: ls.TruncatedPoisson(gaussian(s), F(q), n, m, **to),
        "mixture": lambda s, sizes, shares: ls.GaussianMixture(sizes, shares, F(s), **to),
    }


def events() -> dict[str, Say]:
    """Events of dp-accounting."""
    from dp_accounting import dp_event as dp

    return {
        "Gaussian": dp.GaussianDpEvent,
        "Laplace": dp.LaplaceDpEvent,
        "response": lambda e, k: dp.RandomizedResponseDpEvent(k / (math.exp(e) + k - 1), k),
        "zCDP": dp.ZCDpEvent,
        "discrete Laplace": dp.DiscreteLaplaceDpEvent,
        "sampled Gaussian": lambda q, s: dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(s)),
        "sampled Laplace": lambda q, b: dp.PoissonSampledDpEvent(q, dp.LaplaceDpEvent(b)),
        "batch Gaussian": lambda n, m, s: dp.SampledWithoutReplacementDpEvent(
            n, m, dp.GaussianDpEvent(s)
        ),
        "truncated Gaussian": dp.TruncatedSubsampledGaussianDpEvent,
        "mixture": dp.MixtureOfGaussiansDpEvent,
    }


def distributions() -> dict[str, Say]:
    """Privacy loss distributions of dp-accounting, for what has no event."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    return {
        "Gaussian": pld.from_gaussian_mechanism,
        "Laplace": pld.from_laplace_mechanism,
        "pure": lambda e: pld.from_privacy_parameters(DifferentialPrivacyParameters(e, 0)),
        "bounded range": lambda e: pld.from_privacy_parameters(DifferentialPrivacyParameters(e, 0)),
        "permute-and-flip": lambda e: pld.from_privacy_parameters(
            DifferentialPrivacyParameters(e, 0)
        ),
        "approx": lambda e, d: pld.from_privacy_parameters(DifferentialPrivacyParameters(e, d)),
        "discrete Gaussian": lambda s: pld.from_discrete_gaussian_mechanism(s, 1),
    }


def random_variables() -> dict[str, Say]:
    """Those of prv-accountant."""
    import prv_accountant as prv

    return {
        "Gaussian": prv.GaussianMechanism,
        "Laplace": lambda b: prv.LaplaceMechanism(mu=1 / b),
        "pure": prv.PureDPMechanism,
        "approx": prv.ApproximateDPMechanism,
        "sampled Gaussian": lambda q, s: prv.PoissonSubsampledGaussianMechanism(
            noise_multiplier=s, sampling_probability=q
        ),
    }
