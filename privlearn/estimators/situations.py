"""Long tables of choices, one line per item, as one record per choice situation.

Whose lines are whose must not let one decider move another.  A place in the order of first
appearance would: a situation whose lines are all broken shifts everybody behind it.  An id is
therefore hashed to a public batch of the learner by itself, and has a place there by its hash.

Take two tables that differ in the lines of one id, which may say anything, be more or fewer, stand
elsewhere or not at all.  Every other id has the same batch in both.  Within a batch the sum does
not depend on the order, and where there are more ids than places those with the largest hashes have
none, so that the two sums of that batch differ in one record: the id's own, against another content
of it, the null record, or the record of the one id that has a place instead.  That is the
replacement of one record in one batch, which is what a batch pays for, and the other batches are
equal.

The record is that of an id.  A line that claims another's id is that id's line, and a situation
under another id is another record, as with ``people=`` elsewhere; a line without an id is
nobody's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.choice_model import NO_ITEM, Items
from privlearn.rows.domains import Array

NOBODY = -1
RECORD: Final = (
    "one record is one choice situation, all lines with its id, there or not: whoever is in "
    "several situations, or has several ids, has several records"
)
_KEY = b"privlearn choice situations"  # public: the places of ids are not secret


def numbered(ids: Sequence[str | None]) -> Items:
    """Ids as numbers in the order in which they first appear, shape (lines,); `NOBODY` for None."""
    seen: dict[str, int] = {}
    numbers = [NOBODY if name is None else seen.setdefault(name, len(seen)) for name in ids]
    return np.array(numbers, dtype=np.int64)


def places_of_ids(ids: Sequence[str | None], batches: Sequence[range]) -> Items:
    """The place of each line's situation, shape (lines,); `NOBODY` without an id, or without room.

    Args:
        ids: of every line.
        batches: consecutive users who are summed together; places are counted from their first.
    """
    keys = {name: _key(name) for name in dict.fromkeys(ids) if name is not None}
    first, total = batches[0].start, batches[-1].stop - batches[0].start
    ends = [batch.stop - first for batch in batches]
    queues: list[list[tuple[int, str]]] = [[] for _ in batches]
    for name, key in keys.items():
        queues[bisect_right(ends, (key * total) >> 64)].append((key, name))
    places: dict[str | None, int] = {}
    for batch, queue in zip(batches, queues, strict=True):
        names = (name for _, name in sorted(queue))
        places.update(zip(names, range(batch.start - first, batch.stop - first), strict=False))
    return np.array([places.get(name, NOBODY) for name in ids], dtype=np.int64)


def _key(name: str) -> int:
    text = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8, key=_KEY).digest(), "big")


@dataclass(frozen=True, slots=True, repr=False)
class Situations:
    """Choices as `OnePassNewtonMNL.partial_fit` takes them; private.

    A situation that cannot be used, or has no lines, has NaN features; ``messages`` says why.
    """

    features: Array
    """shape (n, K, d); 0 where there is no item."""
    offered: NDArray[np.bool_]
    """shape (n, K)."""
    choices: Items
    """shape (n,): the place of the chosen item, or `NO_ITEM`."""
    messages: list[tuple[int, str]]
    left_out: tuple[tuple[int, str], ...] = ()
    """How many lines or situations are in no record, and why."""


def gathered(
    places: Items,
    inputs: Array,
    chosen: Array,
    *,
    situations: int,
    max_items: int,
    outside: bool,
    told: Sequence[tuple[int, str]] = (),
) -> Situations:
    """The lines of each situation as one record; whatever is wrong costs their own record only.

    Args:
        places: of each line's situation, shape (lines,); lines of `NOBODY` are left out.
        inputs: of each line's item, shape (lines, d); NaN rows cannot be used.
        chosen: 1 for the chosen item, 0 for the others, shape (lines,); NaN cannot be used.
        situations: n, a public number.
        max_items: K, the most items of a situation, public.
        outside: whether nothing may be chosen.
        told: what is wrong with single lines.
    """
    order = np.argsort(places, kind="stable")
    order = order[places[order] != NOBODY]
    at = places[order]
    sizes = np.bincount(at, minlength=situations)
    item = np.arange(len(at)) - (np.cumsum(sizes) - sizes)[at]
    x, y = inputs[order], chosen[order]
    good = np.isfinite(x).all(axis=1) & ((y == 0) | (y == 1))
    bad = np.bincount(at[~good], minlength=situations)
    marks = np.bincount(at[good & (y == 1)], minlength=situations)
    fits = item < max_items
    features = np.zeros((situations, max_items, inputs.shape[1]))
    features[at[fits], item[fits]] = x[fits]
    offered = np.zeros((situations, max_items), dtype=bool)
    offered[at[fits], item[fits]] = True
    choices = np.full(situations, NO_ITEM)
    hit = fits & good & (y == 1)
    choices[at[hit]] = item[hit]
    answers = (marks == 1) | ((marks == 0) & outside)
    null = (sizes == 0) | (sizes > max_items) | (bad > 0) | ~answers
    features[null], offered[null], choices[null] = np.nan, True, NO_ITEM
    reasons = {int(places[line]): text for line, text in reversed(told)}
    messages = []
    for place in np.flatnonzero(null).tolist():
        said = reasons.get(place, "a line of the situation cannot be used")
        if not sizes[place]:
            said = "no situation has this place"
        elif sizes[place] > max_items:
            said = f"{sizes[place]} lines, and a situation has at most {max_items} items"
        elif not bad[place]:
            said = f"{marks[place]} items chosen"
        messages.append((place, said))
    return Situations(features, offered, choices, messages)


def gathered_by_id(
    ids: Sequence[str | None], batches: Sequence[range], inputs: Array, chosen: Array, **form: Any
) -> Situations:
    """As `gathered`, with `places_of_ids`."""
    places = places_of_ids(ids, batches)
    beyond = {name for name, place in zip(ids, places, strict=True) if place == NOBODY} - {None}
    counts = (
        (sum(name is None for name in ids), "lines that name no situation"),
        (len(beyond), "situations without a place: their public number is too small"),
    )
    left_out = tuple(each for each in counts if each[0])
    return replace(gathered(places, inputs, chosen, **form), left_out=left_out)


def centred(features: Array, offered: NDArray[np.bool_]) -> Array:
    """Features (n, K, d) minus their mean over each situation's items.

    That changes no probability where one of the items must be chosen, and shortens what is clipped.
    """
    number = np.maximum(offered.sum(axis=1), 1)[:, None, None]
    mean = np.where(offered[..., None], features, 0.0).sum(axis=1, keepdims=True) / number
    return np.where(offered[..., None], features - mean, features)
