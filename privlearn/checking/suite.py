"""`privlearn check`: every check on everything that is shipped, or on your own.

Each subject is checked in every way that applies to it: exactly (white box), by sampling (black
box), against the laws of mechanisms, by replay on neighbouring users.  A finding states what was
claimed, what was computed exactly, and the lower bound that samples allow.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.checking.laws.check import checked, is_mechanism
from privlearn.checking.looks import Sampling
from privlearn.checking.replay.learners import check_learner
from privlearn.checking.reports import CheckReport, Finding, Verdict
from privlearn.checking.targets import SamplingTarget
from privlearn.errors import CheckError, InterferenceError
from privlearn.learners import (
    DPHDB,
    DPMNL,
    DPPOFW,
    DPTOFW,
    HeldPolicy,
    Learner,
    NoisySGD,
    OnePassNewtonGLM,
    OnePassNewtonMNL,
    PrivateArms,
    PrivateExperts,
    PrivateLeastSquares,
    PrivateTest,
    WhitenedDescent,
)
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.mechanisms import (
    AboveThreshold,
    AnytimeBLT,
    BallReport,
    BandedBLT,
    BatchedPrefixSum,
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
    PhaseSum,
    PrefixSum,
    ProjectedReport,
    ReportNoisyMax,
    ReportQuantiles,
    SimplexVertices,
)
from privlearn.mechanisms.constraint_sets import LpBall, Simplex
from privlearn.mechanisms.factorization import Factorization
from privlearn.rows.domains import Ball, Box, Counted, GradientHessian, OneOf, PSDTrace
from privlearn.values.packages import MECHANISMS, look_up
from privlearn.values.packages import announced as announced_names
from privlearn.values.participation import Participation
from privlearn.values.validate import count

HORIZON = 24  # Rows of the streams that are checked

LEAST_SAMPLES = 1_000  # Fewer would not do for all pairs of neighbours that are tried

PAIRS = 16  # Of neighbours for every learner, besides the long runs


@dataclass(frozen=True, slots=True)
class Settings:
    """How thoroughly to check.

    Args:
        confidence: of each sampling bound; one in 1/(1−confidence) correct subjects is accused.
        samples: outputs per sampling check; default as in `check_mechanism`.
        seed: of samples and of simulated noise.

    Raises:
        CheckError: a number is out of range.
    """

    confidence: float = 0.999
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 < self.confidence < 1:
            raise CheckError(f"confidence = {self.confidence!r}: must lie between 0.5 and 1")
        if self.samples is not None and self.samples < LEAST_SAMPLES:
            raise CheckError(f"samples = {self.samples!r}: must be at least {LEAST_SAMPLES}")


Check = Callable[[Settings], CheckReport]


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
        "phase-sum/laplace": partial(PhaseSum.calibrated, Box(-0.5, 0.5, 1), PureDP(1), horizon=6),
        "phase-sum/gaussian": partial(PhaseSum.calibrated, Box(0, 1, 1), rho, horizon=6),
        "phase-sum/signs": partial(
            PhaseSum.calibrated, Box(0, 1, 1), PureDP("0.5"), horizon=6, outputs=3
        ),
    }


def _arms(rho: ZCDP) -> dict[str, Callable[[], Any]]:
    ball = Ball(1.0, 2)
    choice = ReportNoisyMax.calibrated(CrossPolytope(2), 1.0, rho)
    return {
        "one-of-k/gaussian-sum": partial(OneOfK.calibrated, ball, rho, arms=3),
        "one-of-k/report-noisy-max": partial(OneOfK, choice, 2),
        "one-of-k/batched-prefix-sum": partial(
            BatchedPrefixSum.calibrated, OneOf(GradientHessian(2, weight=1.5), 2), rho, sizes=(3, 2)
        ),
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


class _InTurn:
    """A policy that names one arm after the other."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self) -> int:
        return self._turn % 2

    def learn(self, arm: int, mean: float, weight: int) -> None:
        self._turn += 1


def _by_sign(contexts: Any) -> Any:
    return (contexts[:, 0] > 0).astype(int)


def shipped_learners() -> dict[str, tuple[Learner, dict[str, Any]]]:
    """Learners of every kind, with further arguments of `check_learner`, by name."""
    mnl = partial(DPMNL, initial_rounds=4, max_updates=2, gram_share=0.5, exploration=1.0)
    mnl = partial(mnl, n_items=6, dim=2, max_items=3)
    newton = OnePassNewtonMNL(n_items=6, dim=2, max_items=3, first_batch=4)
    glm = partial(OnePassNewtonGLM, first_batch=4, longest_batch=4)
    bandit = DPHDB(n_arms=2, dim=4, first_epoch=4)
    arms, test = PrivateArms(2, first_phase=2), PrivateTest(reward_range=(-1, 1), random_state=1)
    public = {"rule": Participation(most=2, pattern="public")}
    experts = partial(PrivateExperts, 2, first_block=4)
    rich, pure = {"budget": ZCDP(100)}, {"budget": PureDP(1)}
    pooled = {"rule": Participation(most=2, pooled=True)}
    return {
        "OnePassNewtonMNL": (newton, {}),
        "OnePassNewtonMNL/pooled": (newton, pooled),
        "DPMNL/public-times": (mnl(trigger="public"), rich),
        "DPMNL/by-determinant": (mnl(trigger="determinant"), rich),
        "DPMNL/returning": (mnl(trigger="public"), {**rich, "rule": Participation(2, apart=3)}),
        "OnePassNewtonGLM/slates": (glm(6, 2), {}),
        "OnePassNewtonGLM/contexts": (glm(2, 4, per_action=True), rich),
        "OnePassNewtonGLM/pooled": (glm(6, 2), pooled),
        "DPHDB": (bandit, {}),
        "DPHDB/returning": (bandit, {"rule": Participation(most=2)}),
        "PrivateLeastSquares": (PrivateLeastSquares(n_arms=2, dim=4), {}),
        "PrivateArms": (arms, pure),
        "PrivateArms/returning": (arms, public),
        "HeldPolicy": (HeldPolicy(_InTurn(), n_arms=2, hold=2), pure),
        "PrivateTest": (test, {**pure, "users": 110}),
        "PrivateExperts": (experts(), {"users": 16}),
        "PrivateExperts/policies": (
            experts(policies=[_by_sign, _by_sign], n_actions=2, dim=4),
            {**pure, "users": 16},
        ),
        "DPTOFW": (DPTOFW(4), {}),
        "DPTOFW/plain": (DPTOFW(4, method="plain"), {}),
        "DPTOFW/whitened": (DPTOFW(4, method="whitened", constant=0.5), {}),
        "DPPOFW/thresholds": (DPPOFW(LpBall(4, 1, 2.0), method="thresholds"), {}),
        "DPPOFW/choices": (DPPOFW(LpBall(4, 1, 2.0), method="choices"), {}),
        "DPPOFW/vertices": (DPPOFW(Simplex(4), loss="logistic"), {}),
        "NoisySGD": (NoisySGD(4, passes=4), {}),
        "WhitenedDescent": (WhitenedDescent(4, "squared", row_norm=1.0), {}),
    }


def catalogue() -> dict[str, Check]:
    """Everything that can be asked for by name."""
    entries: dict[str, Check] = {}
    for name, make in shipped_mechanisms().items():
        entries[name] = partial(_made, name, make)
    for name, (learner, options) in shipped_learners().items():
        entries[f"learner/{name}"] = partial(replayed, f"learner/{name}", learner, options)
    return entries


def is_known(name: str) -> bool:
    """Whether a name is of something that this package checks, or of a group of such."""
    return name == "all" or any(key == name or key.startswith(f"{name}/") for key in catalogue())


def chosen(names: Sequence[str]) -> dict[str, Check]:
    """The checks of a name, of all names below it (``prefix-sum``), or of ``all``.

    Names that are not of this package may be those of mechanisms that other packages announce.

    Raises:
        CheckError: nothing is called that.
        PackageError: two packages announce it.
    """
    known = catalogue()
    selected: dict[str, Check] = {}
    for name in names:
        if ".py:" in name:
            selected[name] = partial(own, name)
            continue
        if name.endswith(".py"):
            raise CheckError(f"{name}: say what in it is to be checked, {name}:NAME")
        matching = {
            key: checks
            for key, checks in known.items()
            if name in ("all", key) or key.startswith(f"{name}/")
        }
        if not matching and look_up(MECHANISMS, name) is not None:
            matching = {name: partial(announced, name)}
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
    checks: Mapping[str, Check],
    settings: Settings,
    progress: Callable[[CheckReport], None] = lambda report: None,
    *,
    jobs: int = 1,
) -> tuple[CheckReport, ...]:
    """Runs the checks; the findings do not depend on ``jobs``, but for the seconds.

    Args:
        checks: by name, see `chosen`.
        settings: for all of them.
        progress: is given each report when it is made.
        jobs: processes.
    """
    reports = []
    for report in _in_order(checks, settings, jobs):
        progress(report)
        reports.append(report)
    return tuple(reports)


def _in_order(checks: Mapping[str, Check], settings: Settings, jobs: int) -> Iterator[CheckReport]:
    if count(jobs=jobs) == 1:
        yield from (check(settings) for check in checks.values())
        return
    from joblib import Parallel, delayed

    tasks = (delayed(_of_name)(name, settings) for name in checks)
    yield from Parallel(n_jobs=jobs, return_as="generator")(tasks)


def _of_name(name: str, settings: Settings) -> CheckReport:
    return chosen([name])[name](settings)


def _made(name: str, make: Callable[[], Any], settings: Settings) -> CheckReport:
    return mechanism_report(name, make(), settings)


def mechanism_report(name: str, mechanism: Any, settings: Settings) -> CheckReport:
    """A mechanism's exact loss, its samples, and its laws as one finding."""
    how = Sampling(settings.samples, settings.confidence, settings.seed)
    report = checked(mechanism, name=name, how=how)
    looks = [finding for finding in report if not finding.check.startswith("check_")]
    laws = CheckReport(name, tuple(finding for finding in report if finding not in looks))
    bad = laws.violated or laws.undone
    held = sum(law.verdict == "holds" for law in laws)
    together = Finding(
        "laws",
        bad[0].verdict if bad else "holds",
        "; ".join(f"{law.check}: {law.detail}" for law in bad) or f"{held} laws",
        seconds=sum(law.seconds for law in laws),
    )
    return CheckReport(name, (*looks, *([together] if laws.findings else [])))


def replayed(
    name: str, learner: Learner, options: Mapping[str, Any], settings: Settings
) -> CheckReport:
    """What `check_learner` finds, refuted or not."""
    try:
        found = check_learner(learner, pairs=PAIRS, seed=settings.seed, **options)
    except (InterferenceError, CheckError) as error:
        verdict: Verdict = "violated" if isinstance(error, InterferenceError) else "not done"
        text = "; ".join([str(error), *getattr(error, "__notes__", [])])
        return CheckReport(name, (Finding("replay", verdict, text),))
    return replace(found, subject=name)


def own(where: str, settings: Settings) -> CheckReport:
    """Checks what ``path/to/module.py:Factory`` makes.

    That is a mechanism, a `SamplingTarget`, or a learner that was not started.
    """
    with _loaded(where) as made:
        return _report(where, where.rpartition(":")[2], made, settings)


def announced(name: str, settings: Settings) -> CheckReport:
    """Checks what another package announces in the group ``privlearn.mechanisms``."""
    found = look_up(MECHANISMS, name)
    if found is None:
        raise CheckError(f"nothing is announced as {name!r}")
    return _report(str(found), name, _called(str(found), found.load()), settings)


def _report(where: str, name: str, made: Any, settings: Settings) -> CheckReport:
    if isinstance(made, SamplingTarget):
        return mechanism_report(made.name, made, settings)
    if isinstance(made, Learner):
        return replayed(name, made, {}, settings)
    if hasattr(made, "loss") and is_mechanism(made):
        return mechanism_report(name, made, settings)
    raise CheckError(
        f"{where} is {made!r}: must be, or make when called without arguments, a mechanism "
        "(loss() and release(rows, token) or open(token)), a SamplingTarget, or a learner"
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
        isinstance(made, SamplingTarget | Learner)
        or hasattr(made, "release")
        or hasattr(made, "open")
    ):
        try:
            return made()
        except Exception as error:
            raise CheckError(
                f"{where} was called without arguments to make what is to be checked, and fails: "
                f"{type(error).__name__}: {error}.  Wrap a plain function of data in "
                "privlearn.checking.sampling_target(function, claim, neighbours)"
            ) from error
    return made
