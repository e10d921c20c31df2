"""What a sampling check found."""

from __future__ import annotations

from dataclasses import dataclass, field

from privlearn.checking.reports import Coverage


@dataclass(frozen=True, slots=True)
class Evidence:
    """What samples say about a claim: a lower bound with its confidence, never a bare pass.

    Attributes:
        subject: what was run.
        claim: what it promises, as text.
        unit: of the two numbers that follow: "epsilon", "mu", "rho" or "times the claimed curve".
        claimed: the promise.
        bound: the loss is at least this, unless something of probability 1 − confidence happened.
        confidence: of the bound.
        samples: runs on both data sets, those spent on learning the distinguisher included.
        event: what separates the two data sets best.
        p: held-out frequency of the event on the first data set.
        q: the same on the second.
        pair: which pair of neighbours.
        seed: of the run; the same seed gives the same evidence.
        seconds: of all, the subject's own time included.
        notes: what else was seen and is not part of the bound.
        coverage: what was tried.
    """

    subject: str
    claim: str
    unit: str
    claimed: float
    bound: float
    confidence: float
    samples: int
    event: str
    p: float
    q: float
    pair: int
    seed: int
    seconds: float
    notes: tuple[str, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def violated(self) -> bool:
        """Whether the bound is above the claim."""
        return self.bound > self.claimed

    @property
    def summary(self) -> str:
        """The bound, beside the claim."""
        return (
            f"{self.unit} >= {self.bound:.4g} of {self.claimed:.4g} at confidence "
            f"{self.confidence:g} ({self.samples} samples)"
        )

    def __str__(self) -> str:
        verdict = "VIOLATED" if self.violated else "not refuted"
        found = (
            f"{self.subject}: {verdict}. Claimed {self.claim}; {self.unit} is at least "
            f"{self.bound:.4g} with confidence {self.confidence:g} "
            f"({self.samples} samples, {self.seconds:.2f} s)\n"
            f"  event: {self.event}\n"
            f"  happens with frequency {self.p:.4g} on the first data set of pair {self.pair}, "
            f"{self.q:.4g} on the second; seed {self.seed}"
        )
        return "\n  note: ".join([found, *self.notes])
