"""What callers send and receive, by what kind of learner is served: items and choices, arms and
rewards, experts and losses.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from privlearn.learners.contextual import ServedBandit
from privlearn.learners.one_pass_newton_glm import OnePassNewtonGLM
from privlearn.learners.phases import PhaseLearner
from privlearn.learners.private_arms import PrivateArms
from privlearn.learners.private_experts import PrivateExperts
from privlearn.learners.private_test import PrivateTest
from privlearn.learners.served import ServedMNL
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP
from privlearn.service.messages import (
    ABTestResults,
    ArmResults,
    ExpertResults,
    GLMResults,
    Observe,
    ObserveChoice,
    ObserveLosses,
    ObserveReward,
    Offered,
    OfferedAction,
    OfferedArm,
    OfferedExpert,
    OfferedItems,
    Recommend,
    RecommendAction,
    RecommendArm,
    RecommendItems,
    RecommendNext,
    Results,
)


class Exchange(NamedTuple):
    """The forms of one kind of learner.

    `recommend` has a field for each of the learner's ``data_shapes``; `results` is None where a
    service tells none.
    """

    recommend: type[Recommend]
    offered: type[Offered]
    observe: type[Observe]
    results: type[Results] | None = None
    currency: type[Currency] = GaussianDP
    """That an (ε, δ) promise is counted in."""


EXCHANGES: Final[dict[Any, Exchange]] = {
    OnePassNewtonGLM: Exchange(RecommendAction, OfferedAction, ObserveReward, GLMResults),
    ServedMNL: Exchange(RecommendItems, OfferedItems, ObserveChoice),
    ServedBandit: Exchange(RecommendArm, OfferedArm, ObserveReward),
    PrivateArms: Exchange(RecommendNext, OfferedArm, ObserveReward, ArmResults),
    PrivateTest: Exchange(RecommendNext, OfferedArm, ObserveReward, ABTestResults),
    PhaseLearner: Exchange(RecommendNext, OfferedArm, ObserveReward),
    PrivateExperts: Exchange(RecommendNext, OfferedExpert, ObserveLosses, ExpertResults, ZCDP),
}
"""By the base of learners, the nearest first; a class of learners is served if it has one."""


def exchange_of(kind: type[Any]) -> Exchange | None:
    """The forms of a class of learners; None if none fits."""
    return next((each for base, each in EXCHANGES.items() if issubclass(kind, base)), None)


_RESULTS: Final[TypeAdapter[Results]] = TypeAdapter(
    ArmResults | ABTestResults | ExpertResults | GLMResults
)


def results_in(told: Any) -> Results:
    """What a service tells of its learner, in the form that it has.

    Raises:
        ValidationError: it has none of them.
    """
    return _RESULTS.validate_python(told)
