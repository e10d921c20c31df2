"""What can stand in the zoo: things that one of the checks can be pointed at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from privlearn.checking.evidence import Evidence
from privlearn.checking.exact.check import white_box
from privlearn.checking.laws.check import check_mechanism
from privlearn.checking.laws.row_maps import check_row_local
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.protocols import Assorting, User
from privlearn.checking.sampling.check import black_box
from privlearn.checking.targets import Claimable, Subject, subject_of
from privlearn.errors import InterferenceError, PrivacyViolation
from privlearn.protocols import Accountant


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check said about an exhibit.

    Attributes:
        caught: whether the check found a fault.
        how: in words, what it found or did.
        evidence: the bound behind it, where the check samples.
    """

    caught: bool
    how: str
    evidence: Evidence | None = None


class Exhibit(Protocol):
    """One thing that a check can be pointed at."""

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> Verdict:
        """Runs the check; an error of the check itself is raised, never a verdict."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A subject for the black box.

    Args:
        subject: what is run, with its claim and neighbours.
        samples: in both worlds together.
        sequential: whether to test while sampling.
        witness: only where no learner could see the leak; the animal says why.
        bits: whether to look at the last bits of numbers.
    """

    subject: Subject[Any]
    samples: int = 5_000
    sequential: bool = False
    witness: Callable[[Any], float] | None = None
    bits: bool = False

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> Verdict:
        evidence = black_box(
            self.subject,
            samples=self.samples,
            sequential=self.sequential,
            confidence=confidence,
            witness=self.witness,
            bits=self.bits,
            seed=seed,
        )
        return Verdict(evidence.violated, str(evidence), evidence)


def sampled(
    mechanism: Any,
    claim: Claimable | None,
    neighbours: tuple[Any, Any],
    *,
    name: str | None = None,
    samples: int = 5_000,
    witness: Callable[[Any], float] | None = None,
    bits: bool = False,
) -> Sampled:
    """A function ``f(data, rng)`` or a mechanism, with a pair of neighbours, for the black box."""
    subject = subject_of(mechanism, claim, neighbours, name=name)
    return Sampled(subject, samples, witness=witness, bits=bits)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A learner for record / freeze / replay, in both directions."""

    factory: Callable[[Accountant[Any]], Assorting]
    data: Sequence[User]
    neighbour: Sequence[User]

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> Verdict:
        """As for every exhibit; nothing is sampled, so ``confidence`` plays no part."""
        for first, second in ((self.data, self.neighbour), (self.neighbour, self.data)):
            try:
                assert_noninterference(self.factory, first, second, seed=seed)
            except InterferenceError as error:
                return Verdict(True, str(error))
        return Verdict(False, "replayed on the neighbour, both ways: nothing else changed")


@dataclass(frozen=True, slots=True)
class RowMap:
    """A function of blocks of rows, which must act on each row by itself."""

    function: Callable[[Any], Any]
    block: Any
    other: Any

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> Verdict:
        """As for every exhibit; nothing is random, so neither argument plays a part."""
        try:
            check_row_local(self.function, self.block, self.other)
        except InterferenceError as error:
            return Verdict(True, str(error))
        return Verdict(False, "rows were permuted and replaced: no other row changed")


@dataclass(frozen=True, slots=True)
class White:
    """A mechanism for the exact comparison with its claim, which defaults to its own loss."""

    mechanism: Callable[[], Any]
    claim: Claimable | None = None

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> Verdict:
        """As for every exhibit; nothing is sampled, so neither argument plays a part."""
        try:
            exact = white_box(self.mechanism(), self.claim)
        except PrivacyViolation as error:
            return Verdict(True, str(error))
        return Verdict(exact.violated, str(exact))


@dataclass(frozen=True, slots=True)
class Lawful:
    """A mechanism for all the laws that accountants and learners rely on.

    Args:
        mechanism: makes it.
        records: see `check_mechanism`.
    """

    mechanism: Callable[[], Any]
    records: Any = None

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> Verdict:
        try:
            report = check_mechanism(
                self.mechanism(), records=self.records, confidence=confidence, seed=seed
            )
        except PrivacyViolation as error:
            return Verdict(True, str(error))
        return Verdict(False, report.summary())


@dataclass(frozen=True, slots=True)
class Examined:
    """Something that can be looked at: ``fault()`` names what is wrong, or returns None."""

    fault: Callable[[], str | None]

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> Verdict:
        """As for every exhibit; nothing is random, so neither argument plays a part."""
        found = self.fault()
        return Verdict(found is not None, found or "looked at: nothing is wrong")


@dataclass(frozen=True, slots=True)
class Made:
    """An exhibit that is put together at the check, by code that may have been changed for it."""

    make: Callable[[], Exhibit]

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> Verdict:
        return self.make().check(confidence=confidence, seed=seed)


@dataclass(frozen=True, slots=True)
class Animal:
    """A broken mechanism and what it would be without the fault.

    Attributes:
        name: unique.
        fault: in one sentence, what is wrong.
        source: where it happened or is described.
        exhibit: the broken one, which its check must catch.
        control: the corrected one, on which the same check must stay silent.
    """

    name: str
    fault: str
    source: str
    exhibit: Exhibit
    control: Exhibit


def sampled_animal(
    name: str,
    fault: str,
    source: str,
    broken: Callable[[Any, np.random.Generator], Any],
    control: Callable[[Any, np.random.Generator], Any],
    claim: Claimable,
    pair: tuple[Any, Any],
    *,
    samples: int = 5_000,
) -> Animal:
    """Two functions ``f(data, rng)`` with the same claim: a broken one and the corrected one."""
    corrected = f"{name}, corrected"
    return Animal(
        name,
        fault,
        source,
        sampled(broken, claim, pair, name=name, samples=samples),
        sampled(control, claim, pair, name=corrected, samples=samples),
    )
