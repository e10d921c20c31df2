"""The pair of laws that a loss is about: the mechanism at its worst, itself."""

from __future__ import annotations

from collections.abc import Sequence

from privlearn.checking.exact.distributions import DistributionPair
from privlearn.errors import CheckError
from privlearn.losses import Loss


def distribution_pairs(loss: Loss, orders: Sequence[float]) -> list[DistributionPair]:
    """Laws of the output under the worst neighbours of a loss that is about known laws.

    Raises:
        CheckError: the loss names no law (a list of Rényi bounds), or the law depends on data.
    """
    pairs = loss.worst_pairs(orders)
    if pairs is None:
        raise CheckError(
            f"a {loss.kind} loss does not say which laws it is about: give the mechanism instead"
        )
    return [DistributionPair(p, q, loss.kind) for p, q in pairs]
