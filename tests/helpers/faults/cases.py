"""Test cases for the checks: a mechanism or learner, with the check that is run on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.random import Generator
from single_laws import check_one_law, laws_until_failed

from privlearn.checking.exact.check import white_box
from privlearn.checking.laws.domains import check_row_local
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.protocols import InteractionProtocol, User
from privlearn.checking.reports import Evidence
from privlearn.checking.sampling.check import black_box
from privlearn.checking.targets import Claimable, sampling_target
from privlearn.contract.protocols import Accountant
from privlearn.errors import InterferenceError, PrivacyViolation

RandomFunction = Callable[[Any, Generator], Any]
"""A mechanism as a plain function ``f(data, rng)``."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What a check said about a case.

    Attributes:
        caught: whether the check found a fault.
        how: in words, what it found or did.
        evidence: the bound behind it, where the check samples.
    """

    caught: bool
    how: str
    evidence: Evidence | None = None


class CheckCase(Protocol):
    """A mechanism or learner, with the check that is run on it."""

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        """Runs the check; an error of the check itself is raised, never a verdict."""


@dataclass(frozen=True, slots=True)
class SamplingCase:
    """A mechanism or sampling target for `black_box`.

    Args:
        target: what is run; a mechanism brings its own claim, and neighbours are then looked for.
        samples: for both data sets together.
        bits: whether to look at the last bits of numbers; default: where noise is said to be exact.
    """

    target: Any
    samples: int = 5_000
    bits: bool | None = None

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        evidence = black_box(
            self.target,
            samples=self.samples,
            confidence=confidence,
            bits=self.bits,
            seed=seed,
        )
        return CaseResult(evidence.violated, str(evidence), evidence)


def sampling_case(
    mechanism: Any,
    claim: Claimable | None,
    neighbours: tuple[Any, Any],
    *,
    name: str | None = None,
    samples: int = 5_000,
    bits: bool | None = None,
) -> SamplingCase:
    """A function ``f(data, rng)`` or a mechanism, with a pair of neighbours, for `black_box`."""
    target = sampling_target(mechanism, claim, neighbours, name=name)
    return SamplingCase(target, samples, bits=bits)


@dataclass(frozen=True, slots=True)
class ReplayCase:
    """A learner for record / freeze / replay, in both directions."""

    factory: Callable[[Accountant[Any]], Any]
    data: Sequence[User]
    neighbour: Sequence[User]
    protocol: InteractionProtocol | None = None
    probe: Callable[[Any], Any] | None = None

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        """As for every case; nothing is sampled, so ``confidence`` is ignored."""
        for first, second in ((self.data, self.neighbour), (self.neighbour, self.data)):
            try:
                assert_noninterference(
                    self.factory,
                    first,
                    second,
                    seed=seed,
                    protocol=self.protocol,
                    probe=self.probe,
                )
            except InterferenceError as error:
                return CaseResult(True, str(error))
        return CaseResult(False, "replayed on the neighbour, both ways: nothing else changed")


@dataclass(frozen=True, slots=True)
class RowMapCase:
    """A function of blocks of rows, which must act on each row by itself."""

    function: Callable[[Any], Any]
    block: Any
    other: Any

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        """As for every case; nothing is random, so both arguments are ignored."""
        try:
            check_row_local(self.function, self.block, self.other)
        except InterferenceError as error:
            return CaseResult(True, str(error))
        return CaseResult(False, "rows were permuted and replaced: no other row changed")


@dataclass(frozen=True, slots=True)
class ExactCase:
    """A mechanism for the exact comparison with its claim, which defaults to its own loss."""

    mechanism: Callable[[], Any]
    claim: Claimable | None = None

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        """As for every case; nothing is sampled, so both arguments are ignored."""
        try:
            exact = white_box(self.mechanism(), self.claim)
        except PrivacyViolation as error:
            return CaseResult(True, str(error))
        return CaseResult(exact.violated, str(exact))


@dataclass(frozen=True, slots=True)
class LawCase:
    """A mechanism for the laws that accountants and learners rely on.

    Args:
        mechanism: makes it.
        records: see `check_mechanism`.
        only: one of them; default all, up to the first that fails.
    """

    mechanism: Callable[[], Any]
    records: Any = None
    only: Callable[[Any], Any] | None = None

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        if self.only is not None:
            result = check_one_law(self.mechanism(), self.only, records=self.records, seed=seed)
            return CaseResult(result.verdict == "violated", f"{result.check}: {result.detail}")
        report = laws_until_failed(
            self.mechanism(), records=self.records, confidence=confidence, seed=seed
        )
        if report.violated:
            found = report.violated[0]
            return CaseResult(True, f"{report.subject}: {found.check}: {found.detail}")
        report.raise_if_bad()
        return CaseResult(False, report.summary())


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken mechanism and what it would be without the fault.

    Attributes:
        name: unique.
        description: in one sentence, what is wrong.
        source: where it happened or is described.
        broken: the broken one, whose check must find the fault.
        control: the corrected one, on which the same check must pass.
    """

    name: str
    description: str
    source: str
    broken: CheckCase
    control: CheckCase


def sampling_fault(
    name: str,
    description: str,
    source: str,
    broken: RandomFunction,
    control: RandomFunction,
    claim: Claimable,
    pair: tuple[Any, Any],
    *,
    samples: int = 5_000,
) -> Fault:
    """Two functions ``f(data, rng)`` with the same claim: a broken one and the corrected one."""
    corrected = f"{name}, corrected"
    return Fault(
        name,
        description,
        source,
        sampling_case(broken, claim, pair, name=name, samples=samples),
        sampling_case(control, claim, pair, name=corrected, samples=samples),
    )
