"""Whether a sampling check could have seen a fault of factor 2: it is tried on a planted one.

A bound far below the claim may mean that the mechanism is better than it says, or that neighbours,
outputs or samples show nothing.  To tell, the same check is done again with a fault of the same
shape: a claim of half as much (for which the outputs that are there will do), or half the noise, on
the same neighbours, with as many samples.  If neither is refuted, the check had no power, and that
it refuted nothing says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from privlearn.checking.evidence import Evidence
from privlearn.checking.reduced_noise import FACTOR
from privlearn.checking.sampling.check import black_box
from privlearn.checking.targets import SamplingTarget
from privlearn.errors import CheckError

_RUNS = 2  # Planted faults that all have to be refuted
MORE = 4  # How many times as many samples are taken where there is no power with the first
_CLEARLY = 1.25  # Times the claim; one planted fault is enough if it is found to lose so much
_HOPEFUL = 0.25  # Of what a planted fault had to exceed: with less, more samples would not do it
_MINUTES = 10.0


@dataclass(frozen=True, slots=True)
class Power:
    """What a check makes of a planted fault of factor 2."""

    planted: str
    seen: int
    runs: int
    bounds: tuple[float, ...]
    claimed: float
    samples: int

    @property
    def share(self) -> float:
        return self.seen / self.runs

    @property
    def enough(self) -> bool:
        return self.seen == self.runs

    def __str__(self) -> str:
        bounds = ", ".join(f"{bound:.3g}" for bound in self.bounds)
        verb = "would have been seen" if self.enough else "WOULD NOT HAVE BEEN SEEN"
        return (
            f"a fault of factor {FACTOR:g} {verb}: {self.planted}, refuted {self.seen} of "
            f"{self.runs} times with {self.samples} samples (the bound was {bounds}, and has to "
            f"exceed {self.claimed:.3g})"
        )


Check = Callable[[SamplingTarget[Any], int, int], Evidence]
"""Does the same check again with a subject, a seed, and so many samples."""


def power_of_halving(evidence: Evidence) -> Power:
    """Whether the outputs that are there refute half the claim."""
    half = evidence.claimed / FACTOR
    seen = int(evidence.bound > half)
    return Power("half the claim", seen, 1, (evidence.bound,), half, evidence.samples)


def power_of(subject: SamplingTarget[Any], evidence: Evidence, check: Check, samples: int) -> Power:
    """Whether a check that found ``evidence`` would have seen a fault of factor 2."""
    halved = power_of_halving(evidence)
    if halved.enough or subject.start_reduced is None:
        return halved
    planted = replace(subject, start=subject.start_reduced, start_reduced=None)
    planted_evidence: list[Evidence] = []
    for seed in range(evidence.seed, evidence.seed + _RUNS):
        try:
            planted_evidence.append(check(planted, seed, samples))
        except CheckError:  # its noise has no scale, or without enough of it nothing runs
            return halved
        if (
            not planted_evidence[-1].violated
            or planted_evidence[-1].bound > _CLEARLY * evidence.claimed
        ):
            break
    bounds, seen = (
        tuple(each.bound for each in planted_evidence),
        sum(each.violated for each in planted_evidence),
    )
    return Power("half its noise", seen, len(planted_evidence), bounds, evidence.claimed, samples)


def with_power(
    subject: SamplingTarget[Any], first: Evidence, *, samples: int, confidence: float
) -> tuple[Evidence, Power | None]:
    """What was found, or is found with more samples where these had no power, and the power.

    Of a claim that is refuted there is no need to know the power.
    """

    def check(tried: SamplingTarget[Any], seed: int, number: int) -> Evidence:
        return black_box(
            tried, samples=number, confidence=confidence, seed=seed, seconds=60 * _MINUTES
        )

    if first.violated:
        return first, None
    power = power_of(subject, first, check, samples)
    if power.enough:
        return first, power
    if max(power.bounds) < _HOPEFUL * power.claimed:
        return first, power
    seed, more = first.seed + _RUNS, MORE * samples
    if power.claimed == first.claimed:  # half the noise: first see whether more samples help
        power = power_of(subject, replace(first, bound=0.0, seed=seed), check, more)
        if not power.enough:
            return first, power
        second = check(subject, seed, more)
    else:
        second = check(subject, seed, more)
        power = power_of_halving(second)
    return second, None if second.violated else power


def weakness(evidence: Evidence) -> str:
    """What has to be said of a bound that refutes not even half the claim; else nothing."""
    if evidence.violated or power_of_halving(evidence).enough:
        return ""
    return (
        "weak: the same outputs do not refute half the claim either, so that a fault of factor 2 "
        "may have gone unseen; more samples or other neighbours may show it"
    )


def noted(evidence: Evidence) -> Evidence:
    """The evidence, with a note where it is weak."""
    text = weakness(evidence)
    return replace(evidence, notes=(*evidence.notes, text)) if text else evidence
