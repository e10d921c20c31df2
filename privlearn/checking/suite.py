"""`privlearn check`: every check on everything that is shipped, or on your own.

Each subject is checked in every way that applies to it: exactly (white box), by sampling (black
box), against the laws of mechanisms, by replay on neighbouring users.  A finding states what was
claimed, what was computed exactly, and the lower bound that samples allow.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from privlearn.checking.evidence import Evidence
from privlearn.checking.exact.check import ExactResult
from privlearn.checking.laws.check import check_mechanism, target_of_samples
from privlearn.checking.power import with_power
from privlearn.checking.reduced_noise import FACTOR
from privlearn.checking.replay.shipped_learners import (
    LEARNER_CASES,
    PEOPLE_CASES,
    LearnerCase,
    replay_pairs,
    replay_people,
)
from privlearn.checking.sampling.check import black_box
from privlearn.checking.targets import SamplingTarget
from privlearn.errors import CheckError, InterferenceError
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.mechanisms import (
    AboveThreshold,
    AnytimeBLT,
    BallReport,
    BandedBLT,
    BinaryTree,
    BufferedToeplitz,
    CategoryReport,
    CrossPolytope,
    ExplicitVertices,
    LinearObjective,
    LipschitzEnvelope,
    MultinomialLogit,
    NoisyMaxBatches,
    NoisyMaxStream,
    NoisyReport,
    NoisySum,
    Objective,
    ObjectivePerturbation,
    OneOfK,
    OneOfKReport,
    PrefixSum,
    ProjectedReport,
    ReportNoisyMax,
    ReportQuantiles,
    SimplexVertices,
)
from privlearn.mechanisms.factorization import Factorization
from privlearn.rows.domains import Ball, Box, Counted, OneOf, PSDTrace
from privlearn.values.packages import MECHANISMS, look_up
from privlearn.values.packages import announced as announced_names
from privlearn.values.validate import count

Conclusion = Literal["holds", "VIOLATED", "not refuted", "not done"]
BAD: frozenset[Conclusion] = frozenset({"VIOLATED", "not done"})

HORIZON = 24  # Rows of the streams that are checked

LEAST_SAMPLES = 1_000  # Fewer would not do for all pairs of neighbours that are tried

ENOUGH = 0.75  # Of the power of a check that is worth something

PAIRS = 200  # Generated pairs of neighbours for every learner, divided among the ways of running it


class CheckFinding(BaseModel):
    """One line of the report.

    Attributes:
        subject: what was checked.
        check: how.
        result: "holds" was computed exactly or tried in full; "not refuted" is all that samples
            can say.
        unit: of the three numbers.
        claimed: the promise.
        exact: the loss on the worst neighbours, computed.
        bound: the loss is at least this, with ``confidence``.
        confidence: of the bound.
        samples: outputs drawn, or pairs replayed.
        power: estimated probability that a fault of factor 2 would have been found, for checks that
            may have too little: of sampling, and of a window of a stream.
        planted: the fault that it was estimated from, in words.
        seconds: taken.
        detail: the rest, in words.
    """

    model_config = ConfigDict(frozen=True)

    subject: str
    check: str
    result: Conclusion
    unit: str = ""
    claimed: float | None = None
    exact: float | None = None
    bound: float | None = None
    confidence: float | None = None
    samples: int | None = None
    power: float | None = None
    planted: str = ""
    seconds: float
    detail: str = ""

    @property
    def bad(self) -> bool:
        return self.result in BAD

    @property
    def conclusive(self) -> bool:
        """Whether it says something that a fault of factor 2 was not found."""
        return self.check == "exact" or (self.power is not None and self.power >= ENOUGH)


class CheckReport(BaseModel):
    """All findings, subject by subject."""

    model_config = ConfigDict(frozen=True)

    findings: tuple[CheckFinding, ...]
    seed: int
    seconds: float

    @property
    def passed(self) -> bool:
        return not any(finding.bad for finding in self.findings)

    @property
    def powerless(self) -> tuple[str, ...]:
        """Subjects of which no check would have found a fault of factor 2."""
        tried = dict.fromkeys(f.subject for f in self.findings if f.power is not None)
        sure = {f.subject for f in self.findings if f.conclusive or f.bad}
        return tuple(name for name in tried if name not in sure)


@dataclass(frozen=True, slots=True)
class Settings:
    """How thoroughly to check.

    Args:
        confidence: of each sampling bound; one in 1/(1−confidence) correct subjects is accused.
        samples: outputs per sampling check.
        seed: of samples and of simulated noise.

    Raises:
        CheckError: a number is out of range.
    """

    confidence: float = 0.999
    samples: int = 5_000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 < self.confidence < 1:
            raise CheckError(f"confidence = {self.confidence!r}: must lie between 0.5 and 1")
        if self.samples < LEAST_SAMPLES:
            raise CheckError(f"samples = {self.samples!r}: must be at least {LEAST_SAMPLES}")


Checks = Callable[[Settings], Iterator[CheckFinding]]


def shipped_mechanisms() -> dict[str, Callable[[], Any]]:
    """A small instance of every mechanism, by name."""
    rho, fine = ZCDP("0.5"), ZCDP("0.2")
    ball, matrix = Ball(1.0, 3), PSDTrace(4.0, 3)
    streams: dict[str, Factorization] = {
        "blt": BufferedToeplitz.fitted(HORIZON),
        "tree": BinaryTree(HORIZON),
        "anytime": AnytimeBLT(),
        "banded": BandedBLT(
            HORIZON, 8, (0.5, -0.2, 0.15), (0.6, 0.3, 0.01), (0.9, 1.0, 0.55, 0.4), (1.0, 0.9, 0.7)
        ),
    }
    objectives: dict[str, Objective[Any]] = {
        "logistic-1d": LinearObjective.logistic(1),
        "logistic": LinearObjective.logistic(2),
        "poisson": LinearObjective.poisson(2, max_rate=3.0),
        "huber": LinearObjective.huber(2),
        "multinomial": MultinomialLogit(max_items=2, dim=2),
        "envelope": LipschitzEnvelope(LinearObjective.logistic(2), 0.5),
    }
    made: dict[str, Callable[[], Any]] = {
        "gaussian-sum/ball": partial(NoisySum.calibrated, ball, rho),
        "gaussian-sum/box": partial(NoisySum.calibrated, Box(-1.0, 2.0, 2), rho),
        "gaussian-sum/counted": partial(NoisySum.calibrated, Counted(ball), rho),
        "gaussian-sum/gram": partial(NoisySum.calibrated, matrix, rho),
    }
    for name, factorization in streams.items():
        made[f"prefix-sum/{name}"] = partial(
            PrefixSum.calibrated, ball, rho, factorization=factorization
        )
    for name, objective in objectives.items():
        made[f"objective-perturbation/{name}"] = partial(
            ObjectivePerturbation.calibrated, objective, fine, max_rows=20
        )
    return made | _choices(rho) | _arms(rho) | _reports()


def _choices(rho: ZCDP) -> dict[str, Callable[[], Any]]:
    corners = ExplicitVertices(np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]]))
    choice = ReportNoisyMax.calibrated
    return {
        "report-noisy-max/gumbel": partial(choice, CrossPolytope(2), 1.0, rho),
        "report-noisy-max/gumbel-two-picks": partial(choice, CrossPolytope(2), 1.0, rho, top=2),
        "report-noisy-max/polytope": partial(choice, corners, 1.0, rho, norm="l2"),
        "report-noisy-max/laplace": partial(choice, CrossPolytope(2), 1.0, rho, noise="laplace"),
        "report-noisy-max/exponential": partial(
            choice, SimplexVertices(3), 1.0, rho, noise="exponential"
        ),
        "report-quantiles/three": partial(
            ReportQuantiles.calibrated, ("0.25", "0.5", "0.75"), rho, cells=8
        ),
        "above-threshold/three": partial(AboveThreshold.calibrated, 3, 2.0, rho),
        "generalized-gaussian-sum/l3": partial(
            NoisySum.calibrated, Ball(1.0, 2, 3.0), rho, noise="generalized-gaussian", exponent=3.0
        ),
        "generalized-gaussian-sum/linf": partial(
            NoisySum.calibrated,
            Ball(1.0, 2, "linf"),
            rho,
            noise="generalized-gaussian",
            exponent=4.0,
        ),
        "prefix-sum/l3": partial(
            PrefixSum.calibrated,
            Ball(1.0, 2, 3.0),
            rho,
            factorization=BinaryTree(HORIZON),
            exponent=3.0,
        ),
        "noisy-max-batches/gumbel": partial(
            NoisyMaxBatches.calibrated,
            CrossPolytope(2),
            1.0,
            rho,
            sizes=(1, HORIZON - 1),
            weights=(1, 2),
            growth=(1024, 1536),
        ),
        "noisy-max-stream/gumbel": partial(
            NoisyMaxStream.calibrated, CrossPolytope(2), 1.0, rho, horizon=HORIZON
        ),
    }


def _arms(rho: ZCDP) -> dict[str, Callable[[], Any]]:
    ball = Ball(1.0, 2)
    choice = ReportNoisyMax.calibrated(CrossPolytope(2), 1.0, rho)
    return {
        "one-of-k/gaussian-sum": partial(OneOfK.calibrated, ball, rho, arms=3),
        "one-of-k/report-noisy-max": partial(OneOfK, choice, 2),
        "one-of-k/prefix-sum": partial(PrefixSum.calibrated, OneOf(ball, 2), rho, horizon=HORIZON),
    }


def _reports() -> dict[str, Callable[[], Any]]:
    mu, ball = GaussianDP.from_mu_squared("0.5"), Ball(1.0, 3)
    return {
        "ball-report/duchi": partial(BallReport.duchi, 3, 1.0, 1),
        "ball-report/privunit": partial(BallReport.privunit, 4, 1.0, 2),
        "ball-report/privunit-g": partial(BallReport.privunit_g, 3, 1.0, 1),
        "ball-report/one-number": partial(BallReport.best, 1, 1.0, 1),
        "projected-report/privunit": partial(ProjectedReport.privunit, 5, 1.0, 2, size=2),
        "gaussian-report/ball": partial(NoisyReport.calibrated, ball, mu),
        "gaussian-report/gram": partial(NoisyReport.calibrated, PSDTrace(1.5, 3), mu),
        "laplace-report/box": partial(
            NoisyReport.calibrated, Box(-1.0, 1.0, 2), PureDP(1), noise="laplace"
        ),
        "category-report/three": partial(CategoryReport.calibrated, 3, 1),
        "one-of-k-report/ball": lambda: OneOfKReport(BallReport.best(2, 1.0, 1), 3),
        "one-of-k-report/gaussian": lambda: OneOfKReport(
            NoisyReport.calibrated(Ball(1.0, 2), mu), 2
        ),
    }


def catalogue() -> dict[str, Checks]:
    """Everything that can be asked for by name."""
    entries: dict[str, Checks] = {}
    for name, make in shipped_mechanisms().items():
        entries[name] = partial(_made, name, make)
    for case in (*LEARNER_CASES, *PEOPLE_CASES):
        entries[f"learner/{case}"] = partial(replay_findings, case)
    return entries


def is_known(name: str) -> bool:
    """Whether a name is of something that this package checks, or of a group of such."""
    return name == "all" or any(key == name or key.startswith(f"{name}/") for key in catalogue())


def chosen(names: Sequence[str]) -> dict[str, Checks]:
    """The checks of a name, of all names below it (``prefix-sum``), or of ``all``.

    Names that are not of this package may be those of mechanisms that other packages announce.

    Raises:
        CheckError: nothing is called that.
        PackageError: two packages announce it.
    """
    known = catalogue()
    selected: dict[str, Checks] = {}
    for name in names:
        if ".py:" in name:
            selected[name] = partial(own_findings, name)
            continue
        if name.endswith(".py"):
            raise CheckError(f"{name}: say what in it is to be checked, {name}:NAME")
        matching = {
            key: checks
            for key, checks in known.items()
            if name in ("all", key) or key.startswith(f"{name}/")
        }
        if not matching and look_up(MECHANISMS, name) is not None:
            matching = {name: partial(announced_findings, name)}
        if not matching:
            groups = sorted({key.partition("/")[0] for key in known})
            close = get_close_matches(name, [*groups, *known, *announced_names(MECHANISMS)], 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise CheckError(
                f"nothing is called {name!r}{hint}; known: all, {', '.join(groups)}, a name below "
                "one of these (`privlearn check --list`), or path/to/module.py:Factory"
            )
        selected |= matching
    return selected


def run(
    checks: Mapping[str, Checks],
    settings: Settings,
    progress: Callable[[str], None] = lambda name: None,
    *,
    jobs: int = 1,
) -> CheckReport:
    """Runs the checks; the findings do not depend on ``jobs``, but for the seconds.

    Args:
        checks: by name, see `chosen`.
        settings: for all of them.
        progress: is told each name when it is done.
        jobs: processes.
    """
    began = time.perf_counter()
    findings: list[CheckFinding] = []
    for name, results in zip(checks, _in_order(checks, settings, jobs), strict=True):
        progress(name)
        findings += results
    return CheckReport(
        findings=tuple(findings), seed=settings.seed, seconds=time.perf_counter() - began
    )


def _in_order(
    checks: Mapping[str, Checks], settings: Settings, jobs: int
) -> Iterator[list[CheckFinding]]:
    if count(jobs=jobs) == 1:
        yield from (list(check(settings)) for check in checks.values())
        return
    from joblib import Parallel, delayed

    tasks = (delayed(_named_findings)(name, settings) for name in checks)
    yield from Parallel(n_jobs=jobs, return_as="generator")(tasks)


def _named_findings(name: str, settings: Settings) -> list[CheckFinding]:
    return list(chosen([name])[name](settings))


def _made(name: str, make: Callable[[], Any], settings: Settings) -> Iterator[CheckFinding]:
    return mechanism_findings(name, make(), settings)


def mechanism_findings(name: str, mechanism: Any, settings: Settings) -> Iterator[CheckFinding]:
    """All laws of a mechanism, its exact divergence and its samples among them."""
    began = time.perf_counter()
    options: dict[str, Any] = {
        "samples": settings.samples,
        "confidence": settings.confidence,
        "seed": settings.seed,
        "name": name,
    }
    report = check_mechanism(mechanism, **options, raise_error=False)
    spent, computed = 0.0, False
    for result in report:
        if isinstance(result.evidence, ExactResult):
            spent += result.evidence.seconds
            yield (line := _of_exact(name, result.evidence))
            computed = computed or line.conclusive
        elif isinstance(result.evidence, Evidence):
            line = _of_evidence(name, result.evidence)
            if not (computed or line.bad):
                subject = target_of_samples(mechanism, **options)
                line = _powered(name, subject, result.evidence, settings)
            spent += line.seconds
            yield line
    passed = sum(result.verdict == "passed" for result in report)
    broken = [*report.failed, *report.undone]
    yield CheckFinding(
        subject=name,
        check="laws",
        result="VIOLATED" if report.failed else "not done" if broken else "holds",
        seconds=max(time.perf_counter() - began - spent, 0.0),
        detail="; ".join(f"{r.name}: {r.detail}" for r in broken) or f"{passed} laws",
    )


def _of_exact(name: str, exact: ExactResult) -> CheckFinding:
    worst = exact.worst
    result: Conclusion = "holds" if exact.whole else "not refuted"
    how = ("tight" if exact.tight else "not tight") if exact.whole else "NOT THE WHOLE STREAM"
    where = f", {exact.looked}" if exact.looked else ""
    return CheckFinding(
        subject=name,
        check="exact" if exact.whole else "window",
        result="VIOLATED" if exact.violated else result,
        unit=worst.measure,
        claimed=_finite(worst.claimed),
        exact=_finite(worst.exact) if exact.whole else None,
        bound=None if exact.whole else _finite(worst.exact),
        power=None if exact.whole else float(worst.ratio < FACTOR),
        planted="" if exact.whole else f"half the claim, which has a slack of {worst.ratio:.3g}",
        seconds=exact.seconds,
        detail=f"{how}; numerical error {exact.error:.0e}; least slack for {worst.pair}{where}",
    )


def _of_evidence(name: str, evidence: Evidence) -> CheckFinding:
    return CheckFinding(
        subject=name,
        check="samples",
        result="VIOLATED" if evidence.violated else "not refuted",
        unit=evidence.unit,
        claimed=_finite(evidence.claimed),
        bound=_finite(evidence.bound),
        confidence=evidence.confidence,
        samples=evidence.samples,
        seconds=evidence.seconds,
        detail="; ".join([evidence.event, *evidence.notes]),
    )


def _powered(
    name: str, subject: SamplingTarget[Any], evidence: Evidence, settings: Settings
) -> CheckFinding:
    began = time.perf_counter()
    final, power = with_power(
        subject, evidence, samples=settings.samples, confidence=settings.confidence
    )
    seconds = evidence.seconds + time.perf_counter() - began
    line = _of_evidence(name, final).model_copy(update={"seconds": seconds})
    if power is None:
        return line
    return line.model_copy(update={"power": power.share, "planted": str(power)})


def _finite(number: float) -> float | None:
    """JSON has no infinity; a report leaves such a number out and says so in words."""
    return number if math.isfinite(number) else None


def replay_findings(case: LearnerCase, settings: Settings) -> Iterator[CheckFinding]:
    """Replays of a learner on generated neighbours; a quarter as many of people who return."""
    known, replayed, share = LEARNER_CASES, replay_pairs, PAIRS
    if "rule" in case.options:
        known, replayed, share = PEOPLE_CASES, replay_people, PAIRS // 4
    cases = sum(other.learner == case.learner for other in known) or 1
    began, pairs = time.perf_counter(), math.ceil(share / (cases * case.cost))
    free = case.options.get("may_spend_nothing", False)  # it claims a loss of 0, which has no half
    result: Conclusion
    power: float | None = None
    try:
        replays = replayed(case, pairs, seed=settings.seed)
        result, detail = "holds", f"{replays.moved} pairs moved something that was paid for"
        power = None if replays.moved or free else 0.0
    except InterferenceError as error:
        result, detail = "VIOLATED", "; ".join([str(error), *getattr(error, "__notes__", [])])
    yield CheckFinding(
        subject=f"learner/{case}",
        check="replay",
        result=result,
        samples=pairs,
        power=power,
        planted="" if power is None else "no pair moved anything that was paid for",
        seconds=time.perf_counter() - began,
        detail=detail,
    )


def own_findings(where: str, settings: Settings) -> Iterator[CheckFinding]:
    """Checks what ``path/to/module.py:Factory`` makes.

    That is a mechanism, a `SamplingTarget`, or a `LearnerCase`.
    """
    with _loaded(where) as made:
        yield from _findings(where, where.rpartition(":")[2], made, settings)


def announced_findings(name: str, settings: Settings) -> Iterator[CheckFinding]:
    """Checks what another package announces in the group ``privlearn.mechanisms``."""
    announced = look_up(MECHANISMS, name)
    if announced is None:
        raise CheckError(f"nothing is announced as {name!r}")
    yield from _findings(str(announced), name, _called(str(announced), announced.load()), settings)


def _findings(where: str, name: str, made: Any, settings: Settings) -> Iterator[CheckFinding]:
    if isinstance(made, SamplingTarget):
        evidence = black_box(
            made, samples=settings.samples, confidence=settings.confidence, seed=settings.seed
        )
        yield _powered(made.name, made, evidence, settings)
    elif isinstance(made, LearnerCase):
        yield from replay_findings(made, settings)
    elif hasattr(made, "loss") and (hasattr(made, "release") or hasattr(made, "open")):
        yield from mechanism_findings(name, made, settings)
    else:
        raise CheckError(
            f"{where} is {made!r}: must be, or make when called without arguments, a mechanism "
            "(loss() and release(rows, token) or open(token)), a SamplingTarget, or a LearnerCase"
        )


@contextmanager
def _loaded(where: str) -> Iterator[Any]:
    """What a file makes; in the block its module can be imported, and what lies beside it.

    A file that has the name of another module, such as ``json.py``, does not take its place.
    """
    path, _, attribute = where.rpartition(":")
    if not Path(path).is_file():
        raise CheckError(f"{path}: no such file")
    name = _free_name(Path(path).resolve())
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a name that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(Path(path).resolve().parent)
    beside = [] if folder in sys.path else [folder]
    sys.modules[name] = module  # where dataclasses look for their module
    sys.path += beside  # as by `python path`
    try:
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise CheckError(f"{path}: {type(error).__name__}: {error}") from error
        if not hasattr(module, attribute):
            raise CheckError(f"{path} has no {attribute!r}")
        yield _called(where, getattr(module, attribute))
    finally:
        sys.modules.pop(name, None)
        for added in beside:
            sys.path.remove(added)


def _free_name(path: Path) -> str:
    name = path.stem
    if "." not in name and name not in sys.modules:
        found = importlib.util.find_spec(name)
        if found is None or found.origin == str(path):
            return name
    return f"checked {name.replace('.', ' ')}"


def _called(where: str, made: Any) -> Any:
    if isinstance(made, type) or not (
        isinstance(made, SamplingTarget | LearnerCase)
        or hasattr(made, "release")
        or hasattr(made, "open")
    ):
        try:
            return made()
        except Exception as error:
            raise CheckError(
                f"{where} was called without arguments to make what is to be checked, and fails: "
                f"{type(error).__name__}: {error}.  Wrap a plain function of data in "
                "privlearn.checking.sampling_target(function, claim, neighbours), a learner in a "
                "LearnerCase"
            ) from error
    return made
