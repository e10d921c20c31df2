"""Every check on everything that is shipped, by name, for `privlearn check`.

Each subject is checked in every way that applies to it: exactly (white box), by sampling (black
box), against the laws of mechanisms, by replay on neighbouring users.  A finding states what was
claimed, what was computed exactly, and the lower bound that samples allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from privlearn import learners as le
from privlearn import mechanisms as me
from privlearn.checking.laws.check import Sampling, checked
from privlearn.checking.replay.learners import check_learner
from privlearn.checking.reports import CheckReport, Finding, Verdict
from privlearn.errors import CheckError, InterferenceError
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.mechanisms.constraint_sets import LpBall, Simplex
from privlearn.mechanisms.factorization import Factorization
from privlearn.rows.domains import Ball, Box, Counted, GradientHessian, OneOf, PSDTrace
from privlearn.values.participation import Participation

HORIZON = 24  # Rows of the streams that are checked
LEAST_SAMPLES = 1_000  # Fewer would not do for all pairs of neighbours that are tried
PAIRS = 16  # Of neighbours for every learner, besides the long runs
Check = Callable[[Sampling], CheckReport]
Makers = dict[str, Callable[[], Any]]


def settings(confidence: float = 0.999, samples: int | None = None, seed: int = 0) -> Sampling:
    """How thoroughly to check; one in 1/(1−confidence) correct subjects is accused. Raises
    CheckError: a number is out of range."""
    if samples is not None and samples < LEAST_SAMPLES:
        raise CheckError(f"samples = {samples!r}: must be at least {LEAST_SAMPLES}")
    return Sampling(samples, confidence, seed)


def shipped_mechanisms() -> Makers:
    """A small instance of every mechanism, by name."""
    rho = ZCDP("0.5")
    return _sums(rho) | _minimisers() | _choices(rho) | _phases_and_arms(rho) | _reports()


def _sums(rho: ZCDP) -> Makers:
    ball, norm_3 = Ball(1.0, 3), Ball(1.0, 2, 3.0)
    total, prefix = me.NoisySum.calibrated, me.PrefixSum.calibrated
    generalized = partial(total, noise="generalized-gaussian")
    streams: dict[str, Factorization] = {
        "blt": me.BufferedToeplitz.fitted(HORIZON),
        "tree": me.BinaryTree(HORIZON),
        "anytime": me.AnytimeBLT(),
        "banded": me.BandedBLT(
            HORIZON, 8, (0.5, -0.2, 0.15), (0.6, 0.3, 0.01), (0.9, 1.0, 0.55, 0.4), (1.0, 0.9, 0.7)
        ),
    }
    return {
        "gaussian-sum/ball": lambda: total(ball, rho),
        "gaussian-sum/box": lambda: total(Box(-1.0, 2.0, 2), rho),
        "gaussian-sum/counted": lambda: total(Counted(ball), rho),
        "gaussian-sum/gram": lambda: total(PSDTrace(4.0, 3), rho),
        "generalized-gaussian-sum/l3": lambda: generalized(norm_3, rho, exponent=3.0),
        "generalized-gaussian-sum/linf": lambda: generalized(
            Ball(1.0, 2, "linf"), rho, exponent=4.0
        ),
        "prefix-sum/l3": lambda: prefix(
            norm_3, rho, factorization=me.BinaryTree(HORIZON), exponent=3.0
        ),
        **{
            f"prefix-sum/{name}": partial(prefix, ball, rho, factorization=factorization)
            for name, factorization in streams.items()
        },
    }


def _minimisers() -> Makers:
    linear, made = me.LinearObjective, me.ObjectivePerturbation.calibrated
    objectives: dict[str, me.Objective[Any]] = {  # of one number: there the exact law is known
        "logistic-1d": linear.logistic(1),
        "logistic": linear.logistic(2),
        "poisson": linear.poisson(1, max_rate=3.0),
        "huber": linear.huber(1),
        "multinomial": me.MultinomialLogit(max_items=2, dim=1),
        "envelope": me.LipschitzEnvelope(linear.logistic(1), 0.5),
    }
    return {
        f"objective-perturbation/{name}": partial(made, objective, ZCDP("0.2"), max_rows=20)
        for name, objective in objectives.items()
    }


def _choices(rho: ZCDP) -> Makers:
    corners = me.ExplicitVertices(np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]]))
    cross, choice = me.CrossPolytope(2), me.ReportNoisyMax.calibrated
    batches, stream = me.NoisyMaxBatches.calibrated, me.NoisyMaxStream.calibrated
    sizes: dict[str, Any] = {"sizes": (1, HORIZON - 1), "weights": (1, 2), "growth": (1024, 1536)}
    return {
        "report-noisy-max/gumbel": lambda: choice(cross, 1.0, rho),
        "report-noisy-max/gumbel-two-picks": lambda: choice(cross, 1.0, rho, top=2),
        "report-noisy-max/polytope": lambda: choice(corners, 1.0, rho, norm="l2"),
        "report-noisy-max/laplace": lambda: choice(cross, 1.0, rho, noise="laplace"),
        "report-noisy-max/exponential": lambda: choice(
            me.SimplexVertices(3), 1.0, rho, noise="exponential"
        ),
        "report-quantiles/three": lambda: me.ReportQuantiles.calibrated(
            ("0.25", "0.5", "0.75"), rho, cells=8
        ),
        "above-threshold/three": lambda: me.AboveThreshold.calibrated(3, 2.0, rho),
        "noisy-max-batches/gumbel": partial(batches, cross, 1.0, rho, **sizes),
        "noisy-max-stream/gumbel": lambda: stream(cross, 1.0, rho, horizon=HORIZON),
    }


def _phases_and_arms(rho: ZCDP) -> Makers:
    phases, unit = partial(me.PhaseSum.calibrated, horizon=6), Box(0, 1, 1)
    choice = me.ReportNoisyMax.calibrated(me.CrossPolytope(2), 1.0, rho)
    models = OneOf(GradientHessian(2, weight=1.5), 2)
    return {
        "phase-sum/laplace": lambda: phases(Box(-0.5, 0.5, 1), PureDP(1)),
        "phase-sum/gaussian": lambda: phases(unit, rho),
        "phase-sum/signs": lambda: phases(unit, PureDP("0.5"), outputs=3),
        "one-of-k/gaussian-sum": lambda: me.OneOfK.calibrated(Ball(1.0, 2), rho, arms=3),
        "one-of-k/report-noisy-max": lambda: me.OneOfK(choice, 2),
        "one-of-k/batched-prefix-sum": lambda: me.BatchedPrefixSum.calibrated(
            models, rho, sizes=(3, 2)
        ),
    }


def _reports() -> Makers:
    mu, report, ball = GaussianDP.from_mu_squared("0.5"), me.NoisyReport.calibrated, me.BallReport
    return {
        "ball-report/duchi": lambda: ball.duchi(3, 1.0, 1),
        "ball-report/privunit": lambda: ball.privunit(4, 1.0, 2),
        "ball-report/privunit-g": lambda: ball.privunit_g(3, 1.0, 1),
        "ball-report/one-number": lambda: ball.best(1, 1.0, 1),
        "projected-report/privunit": lambda: me.ProjectedReport.privunit(5, 1.0, 2, size=2),
        "gaussian-report/ball": lambda: report(Ball(1.0, 3), mu),
        "gaussian-report/gram": lambda: report(PSDTrace(1.5, 3), mu),
        "laplace-report/box": lambda: report(Box(-1.0, 1.0, 2), PureDP(1), noise="laplace"),
        "category-report/three": lambda: me.CategoryReport.calibrated(3, 1),
        "one-of-k-report/ball": lambda: me.OneOfKReport(ball.best(2, 1.0, 1), 3),
        "one-of-k-report/gaussian": lambda: me.OneOfKReport(report(Ball(1.0, 2), mu), 2),
    }


class _InTurn:
    """A policy that names one arm after the other."""

    _turn = 0

    def choose(self) -> int:
        return self._turn % 2

    def learn(self, arm: int, mean: float, weight: int) -> None:
        self._turn += 1


def _by_sign(contexts: Any) -> Any:
    return (contexts[:, 0] > 0).astype(int)


def shipped_learners() -> dict[str, tuple[le.Learner, dict[str, Any]]]:
    """Learners of every kind, with further arguments of `check_learner`, by name."""
    mnl = partial(le.DPMNL, initial_rounds=4, max_updates=2, gram_share=0.5, exploration=1.0)
    mnl = partial(mnl, n_items=6, dim=2, max_items=3)
    newton = le.OnePassNewtonMNL(n_items=6, dim=2, max_items=3, first_batch=4)
    glm = partial(le.OnePassNewtonGLM, first_batch=4, longest_batch=4)
    bandit = le.DPHDB(n_arms=2, dim=4, first_epoch=4)
    arms = le.PrivateArms(2, first_phase=2)
    test = le.PrivateTest(reward_range=(-1, 1), random_state=1)
    public = {"rule": Participation(most=2, pattern="public")}
    experts = partial(le.PrivateExperts, 2, first_block=4)
    policies = [_by_sign, _by_sign]
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
        "PrivateLeastSquares": (le.PrivateLeastSquares(n_arms=2, dim=4), {}),
        "PrivateArms": (arms, pure),
        "PrivateArms/returning": (arms, public),
        "HeldPolicy": (le.HeldPolicy(_InTurn(), n_arms=2, hold=2), pure),
        "PrivateTest": (test, {**pure, "users": 110}),
        "PrivateExperts": (experts(), {"users": 16}),
        "PrivateExperts/policies": (
            experts(policies=policies, n_actions=2, dim=4),
            {**pure, "users": 16},
        ),
        "DPTOFW": (le.DPTOFW(4), {}),
        "DPTOFW/plain": (le.DPTOFW(4, method="plain"), {}),
        "DPTOFW/whitened": (le.DPTOFW(4, method="whitened", constant=0.5), {}),
        "DPPOFW/thresholds": (le.DPPOFW(LpBall(4, 1, 2.0), method="thresholds"), {}),
        "DPPOFW/choices": (le.DPPOFW(LpBall(4, 1, 2.0), method="choices"), {}),
        "DPPOFW/vertices": (le.DPPOFW(Simplex(4), loss="logistic"), {}),
        "NoisySGD": (le.NoisySGD(4, passes=4), {}),
        "WhitenedDescent": (le.WhitenedDescent(4, "squared", row_norm=1.0), {}),
    }


def catalogue() -> dict[str, Check]:
    """Everything that can be asked for by name."""
    entries: dict[str, Check] = {}
    for name, make in shipped_mechanisms().items():
        entries[name] = partial(mechanism_report, name, make)
    for name, (learner, options) in shipped_learners().items():
        entries[f"learner/{name}"] = partial(replayed, f"learner/{name}", learner, options)
    return entries


def mechanism_report(name: str, make: Callable[[], Any], how: Sampling) -> CheckReport:
    """A mechanism's exact loss, its samples, and its laws as one finding."""
    report = checked(make(), name=name, how=how)
    looks = [finding for finding in report if not finding.check.startswith("check_")]
    laws = CheckReport(name, tuple(finding for finding in report if finding not in looks))
    bad, held = laws.violated or laws.undone, sum(law.verdict == "holds" for law in laws)
    told = "; ".join(f"{law.check}: {law.detail}" for law in bad) or f"{held} laws"
    verdict, seconds = bad[0].verdict if bad else "holds", sum(law.seconds for law in laws)
    together = [Finding("laws", verdict, told, seconds=seconds)] if laws.findings else []
    return CheckReport(name, (*looks, *together))


def replayed(
    name: str, learner: le.Learner, options: Mapping[str, Any], how: Sampling
) -> CheckReport:
    """What `check_learner` finds, refuted or not."""
    try:
        found = check_learner(learner, pairs=PAIRS, seed=how.seed, **options)
    except (InterferenceError, CheckError) as error:
        verdict: Verdict = "violated" if isinstance(error, InterferenceError) else "not done"
        text = "; ".join([str(error), *getattr(error, "__notes__", [])])
        return CheckReport(name, (Finding("replay", verdict, text),))
    return replace(found, subject=name)
