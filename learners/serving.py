"""What an MNL learner does for one user: choose items from a public belief, and read the answer.

Everything here is row-local: it acts on blocks of users, each row by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privlearn.learners.assortment import ascending, best_assortments, largest_utilities
from privlearn.learners.newton import Belief
from privlearn.mechanisms.choice_model import NO_ITEM, Answer, Items, clip_items, utilities
from privlearn.rows.domains import Array


class Arrival(NamedTuple):
    """A user's own data on arrival; arrays of one user, or of a block with a leading axis."""

    features: Array
    """shape (N, d)."""
    revenues: Array
    """shape (N,); all equal if only sales count."""
    ties: Array
    """Public random keys that break ties, shape (N,)."""
    private: Array
    """Whatever else is the user's own, shape (m,), such as coefficients or uniform numbers; only
    ``respond`` reads it."""


Respond = Callable[[Arrival, Items], Items]
"""The users' side: block of own data and shown items (n, K) to chosen items (n,) or `NO_ITEM`."""


def finite(features: Array, revenues: Array) -> NDArray[np.bool_]:
    """Which rows have only finite numbers, shape (n,); called where numbers may overflow."""
    # a sum is finite only if all of its terms are
    found = np.isfinite(np.add.reduce(features, axis=(1, 2)) + np.add.reduce(revenues, axis=1))
    if np.count_nonzero(found) < len(found):
        found = np.isfinite(features).all(axis=(1, 2)) & np.isfinite(revenues).all(axis=1)
    return np.asarray(found)


def default_items(n: int, max_items: int) -> Items:
    """What users with unusable data are shown: the first items, shape (n, K)."""
    return np.broadcast_to(np.arange(max_items), (n, max_items))


def random_items(ties: Array, max_items: int) -> Items:
    """K items at random from public coins, shape (n, N); ascending, shape (n, K)."""
    return np.sort(np.argsort(ties, axis=1)[:, :max_items], axis=1)


@np.errstate(all="ignore")  # a warning would tell of sealed data
def optimistic_items(
    own: Arrival,
    belief: Belief,
    *,
    max_items: int,
    exploration: float,
    scale: float,
    shuffled: bool = False,
    centred: bool = True,
    coins: bool = False,
) -> Items:
    """The best assortment for each user if utilities are as high as the belief allows.

    Centred over the user's items, the bonus ``exploration``·‖x‖_{P⁻¹} moves items against each
    other and not against the outside option.

    Args:
        own: block of n users.
        belief: the public belief about θ.
        max_items: K.
        exploration: α >= 0.
        scale: public divisor of the features.
        shuffled: break ties by ``own.ties``, for as long as items may look alike.
        centred: whether the bonus is centred.
        coins: whether each bonus is multiplied by ½ and the item's number in ``own.ties``.

    Returns:
        shape (n, K), ascending, filled up with `NO_ITEM`.
    """
    features, revenues = own.features, own.revenues
    good = finite(features, revenues)
    if not (all_good := np.count_nonzero(good) == len(good)):
        features = np.where(good[:, None, None], features, 0.0)
        revenues = np.where(good[:, None], revenues, 1.0)
    features = clip_items(features, scale)
    values = utilities(features, belief.mean)
    if exploration > 0:
        bonus = exploration * belief.spread(features)
        if coins:
            bonus *= 0.5 + own.ties
        if centred:
            bonus -= np.add.reduce(bonus, axis=1, keepdims=True) / bonus.shape[1]
        values += bonus
    if shuffled:
        order = np.argsort(own.ties, axis=1)
        places = _best(
            np.take_along_axis(values, order, 1), np.take_along_axis(revenues, order, 1), max_items
        )
        chosen = np.take_along_axis(order, np.maximum(places, 0), 1)
        items = ascending(np.where(places == NO_ITEM, NO_ITEM, chosen))
    else:
        items = _best(values, revenues, max_items)
    if all_good:
        return items
    return np.where(good[:, None], items, default_items(len(items), max_items))


def _best(values: Array, revenues: Array, max_items: int) -> Items:
    # Decided row by row: nobody's revenues may change how another user's ties are broken.
    first = revenues[:, :1]
    alike = np.logical_and.reduce(revenues == first, axis=1) & (first[:, 0] > 0)
    if np.count_nonzero(alike) == len(alike):
        return largest_utilities(values, max_items)
    items = np.empty((len(values), max_items), dtype=np.int64)
    items[alike] = largest_utilities(values[alike], max_items)
    items[~alike] = best_assortments(values[~alike], revenues[~alike], max_items)
    return items


@np.errstate(all="ignore")  # as in optimistic_items
def answered(own: Arrival, shown: Items, choice: Items, *, outside: bool, scale: float) -> Answer:
    """The rows to learn from; a choice that was not on offer makes its row NaN, hence null.

    Args:
        own: block of n users.
        shown: what they were shown, shape (n, K).
        choice: item chosen, or `NO_ITEM`; shape (n,).
        outside: whether choosing nothing is an answer.
        scale: public divisor of the features.
    """
    offered = shown != NO_ITEM
    features = own.features[np.arange(len(shown))[:, None], np.maximum(shown, 0)]
    features = np.where(offered[..., None], clip_items(features, scale), 0.0)
    hits = (shown == choice[:, None]) & offered
    bought = hits.any(axis=1)
    valid = finite(own.features, own.revenues) & (bought | ((choice == NO_ITEM) & outside))
    return Answer(
        features=np.where(valid[:, None, None], features, np.nan),
        offered=offered.astype(np.float64),
        choice=np.where(bought, hits.argmax(axis=1), NO_ITEM),
    )
