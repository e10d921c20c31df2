"""The best assortment of at most K items under a multinomial logit, exactly."""

from __future__ import annotations

from typing import cast

import numpy as np

from privlearn.mechanisms.choice_model import NO_ITEM, Items
from privlearn.rows.domains import Array
from privlearn.values.validate import count

_MOST_PASSES = 200
_BARELY_ABOVE = 1 + 1e-14
_WIDE = 1_000  # items from which on rows are solved one by one


def best_assortments(utilities: Array, revenues: Array, max_items: int) -> Items:
    """Maximises Σ_{i∈S} r_i e^{z_i} / (1 + Σ_{i∈S} e^{z_i}) over |S| <= max_items, row by row.

    Dinkelbach's method (1967): S(λ) takes the up to K largest positive e^{z_i}(r_i − λ), one
    `argpartition` per pass; λ ← revenue of S(λ) increases to the optimum and stops there (up to a
    relative 1e-14, for rounding) after finitely many passes, because there are finitely many sets.

    Args:
        utilities: z, shape (n, N), finite.
        revenues: r, shape (n, N), any sign.
        max_items: K, 1 <= K <= N.

    Returns:
        Item indices in ascending order, shape (n, K), filled up with `NO_ITEM` at the end.

    Raises:
        ValueError: K out of range, or shapes differ.
    """
    n_rows, n_items = utilities.shape
    if count(max_items=max_items) > n_items:
        raise ValueError(f"max_items = {max_items}: must be at most the {n_items} items")
    if revenues.shape != utilities.shape:
        raise ValueError(f"revenues of shape {revenues.shape} for utilities {utilities.shape}")
    best = np.full((n_rows, max_items), NO_ITEM, dtype=np.int64)
    if n_items > _WIDE:
        for row in range(n_rows):
            items = _best_of_many(utilities[row], revenues[row], max_items)
            best[row, : len(items)] = items
        return best
    weights = _weights(utilities)
    active = np.arange(n_rows)
    rate = np.zeros(n_rows)
    for _ in range(_MOST_PASSES):
        # Items that earn λ up to rounding are left out: no better set contains them, and a huge
        # weight would turn their rounding error into the largest gain.
        gains = weights * (revenues - rate[:, None] * _BARELY_ABOVE)
        top = _largest(gains, max_items)
        at = np.arange(len(top))[:, None], top
        kept = gains[at] > 0
        chosen = weights[at] * kept
        value = (chosen * revenues[at]).sum(1) / (1.0 + chosen.sum(1))
        going = value > rate
        best[active[going]] = np.where(kept, top, NO_ITEM)[going]
        if not going.any():
            return ascending(best)
        if not going.all():
            active, weights, revenues = active[going], weights[going], revenues[going]
        rate = value[going]
    raise AssertionError("Dinkelbach's method must stop: every pass has a strictly better set")


def _weights(utilities: Array) -> Array:
    return cast(Array, np.exp(np.clip(utilities, -500.0, 500.0)))


def _best_of_many(utilities: Array, revenues: Array, max_items: int) -> Items:
    """The same for one row of many items; most of them are dropped before their exponential.

    The best revenue from the first `_WIDE` items bounds the optimum λ* from below, and an item with
    revenue at most λ* is in no best set.
    """
    best, rate = np.arange(0), 0.0
    for items in (np.arange(_WIDE), np.arange(len(utilities))):
        items = items[revenues[items] > rate * _BARELY_ABOVE]
        weights, prices = _weights(utilities[items]), revenues[items]
        for _ in range(_MOST_PASSES):
            gains = weights * (prices - rate * _BARELY_ABOVE)
            top = _largest(gains[None], min(max_items, len(items)))[0]
            top = top[gains[top] > 0]
            chosen = weights[top]
            value = float((chosen * prices[top]).sum() / (1.0 + chosen.sum()))
            if not value > rate:
                break
            best, rate = items[top], value
        else:
            raise AssertionError("as in best_assortments")
    return np.sort(best)


def _largest(values: Array, k: int) -> Items:
    n_items = values.shape[1]
    if k == n_items:
        return np.broadcast_to(np.arange(n_items), values.shape).astype(np.int64)
    return values.argpartition(n_items - k, axis=1)[:, n_items - k :]


def ascending(items: Items) -> Items:
    """Sorts each row, shape (n, K), with `NO_ITEM` at the end."""
    last = np.iinfo(np.int64).max
    ordered = np.sort(np.where(items == NO_ITEM, last, items), axis=1)
    return np.where(ordered == last, NO_ITEM, ordered)


def largest_utilities(utilities: Array, max_items: int) -> Items:
    """The best assortments when all revenues are equal and positive: the K largest utilities.

    Args:
        utilities: shape (n, N).  max_items: K, at most N.

    Returns:
        Item indices in ascending order, shape (n, K).
    """
    found = _largest(utilities, max_items)
    found.sort(axis=1)
    return found
