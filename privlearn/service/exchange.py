"""What callers send and receive, by what kind of learner is served: items and choices, arms and
rewards, experts and losses.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from privlearn.learners.contextual import ServedBandit
from privlearn.learners.served import ServedMNL
from privlearn.service.messages import (
    Observe,
    ObserveChoice,
    ObserveReward,
    Offered,
    OfferedArm,
    OfferedItems,
    Recommend,
    RecommendArm,
    RecommendItems,
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


EXCHANGES: Final[dict[Any, Exchange]] = {
    ServedMNL: Exchange(RecommendItems, OfferedItems, ObserveChoice),
    ServedBandit: Exchange(RecommendArm, OfferedArm, ObserveReward),
}
"""By the base of learners; a class of learners is served if it has one of these."""


def exchange_of(kind: type[Any]) -> Exchange | None:
    """The forms of a class of learners; None if none fits."""
    return next((each for base, each in EXCHANGES.items() if issubclass(kind, base)), None)
