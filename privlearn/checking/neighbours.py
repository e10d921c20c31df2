"""Records at the edge of what a user can contribute, in pairs that differ as much as they can.

Records are made raw, many times too large, and get into their domain by its own `clip`: what a
check then sees is what the code does, not what `sensitivity` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, count
from typing import Any

import numpy as np

from privlearn.errors import CheckError
from privlearn.mechanisms import Objective
from privlearn.mechanisms.choice_model import NO_ITEM, Answer
from privlearn.mechanisms.linear_models import Labelled
from privlearn.mechanisms.multinomial import Choices
from privlearn.rows.domains import (
    Array,
    Ball,
    Box,
    Categories,
    Counted,
    Domain,
    GradientHessian,
    OneOf,
    PSDTrace,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import each_leaf, leaves, length, record_at

_TOO_LARGE = 1e3  # How many times too large records are before they are clipped
_NOT_NUMBERS = (math.nan, math.inf, -math.inf)
_MOST = 24  # Pairs that are returned at most


def each_float(block: Any, change: Callable[..., Any]) -> Any:
    """A block of records with its floating-point numbers changed, all else as it is."""

    def changed(leaf: Any) -> Any:
        return np.asarray(change(leaf), dtype=leaf.dtype) if leaf.dtype.kind == "f" else leaf

    return each_leaf(block, changed)


def with_leaf(block: Any, number: int, new: Any) -> Any:
    """A block of records with one of its arrays, counted in field order, exchanged."""
    numbers = count()
    return each_leaf(block, lambda leaf: new if next(numbers) == number else leaf)


def rows_about(
    row: Any, numbers: Sequence[float], *, each: bool = True
) -> Iterator[tuple[str, Any]]:
    """Rows, as blocks of one, that hold some numbers, and what they hold.

    Args:
        row: whose form they have.
        numbers: put into all entries of one of its arrays, together with what is no number.
        each: into the last entry alone, too.
    """
    for number, leaf in enumerate(leaves(row)):
        where = "" if not isinstance(row, tuple) else f" in part {number}"
        for value in _for(leaf.dtype, numbers):
            filled = np.full_like(leaf, value)
            yield f"{value!r}{where}", with_leaf(row, number, filled)
            if leaf.size > 1 and each:
                one = np.array(leaf)
                one.reshape(-1)[-1] = value
                yield f"one {value!r}{where}", with_leaf(row, number, one)


def _for(dtype: np.dtype[Any], numbers: Sequence[float]) -> list[Any]:
    if dtype.kind == "f":
        largest = float(np.finfo(dtype).max)
        with np.errstate(over="ignore"):
            made = [float(dtype.type(x)) for x in (*numbers, largest, -largest)]
        distinct = {(x, math.copysign(1.0, x)): x for x in made if math.isfinite(x)}
        return [*distinct.values(), *_NOT_NUMBERS]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        whole = [int(x) for x in numbers if math.isfinite(x) and x == int(x)]
        inside = [x for x in whole if limits.min <= x <= limits.max]
        return list(dict.fromkeys([*inside, int(limits.min), int(limits.max)]))
    if dtype.kind == "b":
        return [False, True]
    return [""] if dtype.kind == "U" else []


def worst_pairs(
    domain: Domain[Any] | Objective[Any],
    *,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> list[tuple[Any, Any]]:
    """Pairs of records, as blocks of length 1, whose contributions differ most; worst first.

    Args:
        domain: a shipped domain; or an objective on one, whose pairs are ordered by the distance of
            their gradients instead.
        adjacency: under zero-out every second record counts as the null record (it is all NaN);
            under add-remove every second block is empty.

    Raises:
        CheckError: a domain that did not come with this package.
    """
    objective = domain if isinstance(domain, Objective) else None
    space = domain.domain if isinstance(domain, Objective) else domain
    block = extreme_records(space)
    last = length(block) - 1  # the null record
    pairs = list(combinations(range(last + 1), 2))
    if adjacency is not Adjacency.REPLACE_ONE:
        pairs = [(i, last) for i in range(last)]
    far = _distances(space.clip(block), pairs, objective)
    width = int(adjacency is not Adjacency.ADD_REMOVE)
    order = np.argsort(-far, kind="stable")  # simple records first
    return [
        (record_at(block, slice(i, i + 1)), record_at(block, slice(j, j + width)))
        for i, j in (pairs[k] for k in order[:_MOST] if far[k] > 0)
    ]


def _distances(
    contributions: Array, pairs: list[tuple[int, int]], objective: Objective[Any] | None
) -> Array:
    """How far each pair is apart, over the largest such distance, in the norm that shows it best.

    For an objective in ℓ2 between gradients, at the θ that shows it best.
    """
    first, second = np.array(pairs).T
    if objective is None:
        apart = contributions[first] - contributions[second]
        by_norm = np.array([np.abs(apart).sum(axis=1), np.linalg.norm(apart, axis=1)])
        scaled = by_norm / np.maximum(by_norm.max(axis=1, keepdims=True), 1e-300)
        # the farthest in ℓ2 comes first, among equals (rounding aside) the farthest in ℓ1
        return np.asarray(np.round(np.maximum(scaled[0], scaled[1] + 1e-5 * scaled[0]), 9))
    most = np.zeros(len(pairs))
    axes = np.concatenate([np.eye(objective.dim), -np.eye(objective.dim)])
    for size in (0.0, 1.0, 5.0):
        for theta in size * axes[: None if size else 1]:
            slopes = objective.gradients(contributions, theta)
            most = np.maximum(most, np.linalg.norm(slopes[first] - slopes[second], axis=1))
    return np.asarray(np.round(most / max(float(most.max()), 1e-300), 9))


def extreme_records(domain: Domain[Any], *, seed: int = 0) -> Any:
    """A block of records that `clip` puts at the edge of the domain; the last one is null."""
    rng = np.random.default_rng(seed)
    match domain:
        case Ball():
            return _signed(_directions(domain.size, rng), domain.radius * _TOO_LARGE)
        case Box():
            middle, half = (domain.low + domain.high) / 2, (domain.high - domain.low) / 2
            edge = middle + half * _TOO_LARGE * np.sign(_signed(_directions(domain.size, rng), 1.0))
            return np.concatenate([edge[:-1], edge[-1:] * np.nan])
        case PSDTrace():
            return _factors(domain, rng)
        case GradientHessian():
            return _lines(domain)
        case Counted():
            inner = extreme_records(domain.inner, seed=seed)
            return np.concatenate([inner[:-1], np.full_like(inner[-1:], np.nan)])
        case OneOf():
            inner = extreme_records(domain.inner, seed=seed)
            real = np.arange(length(inner) - 1)
            twice = record_at(inner, np.concatenate([np.repeat(real, 2), [length(inner) - 1]]))
            return twice, (np.arange(2 * len(real) + 1) + 1) // 2 % 2 * (domain.arms - 1)
        case Categories():
            some = np.arange(min(domain.size, 6))
            return np.concatenate([some, some[:0] if len(some) % 2 == 0 else [0], [domain.size]])
        case Labelled():
            x = _signed(_directions(domain.dim, rng), domain.radius * _TOO_LARGE)
            twice = np.repeat(x, 2, axis=0)[:-1]
            low = np.arange(len(twice)) % 2 == 1
            return twice, np.where(low, domain.low - 1.0, domain.high + 1.0)
        case Choices():
            return _choices(domain, rng)
    raise CheckError(
        f"{type(domain).__name__}: the worst records of this domain are known to its author only; "
        "give pairs of neighbouring records yourself (neighbours=[(block, block), ...])"
    )


def _directions(size: int, rng: np.random.Generator) -> Array:
    unit = np.eye(size)
    many = [np.ones(size), unit[0], unit[-1], unit[0] - 0.5 * unit[-1], rng.standard_normal(size)]
    directions = np.array(many[:1] if size == 1 else many)
    return np.asarray(directions / np.linalg.norm(directions, axis=1, keepdims=True))


def _signed(directions: Array, scale: float) -> Array:
    both = np.stack([directions, -directions], axis=1).reshape(-1, directions.shape[1])
    return np.concatenate([both * scale, np.full((1, directions.shape[1]), np.nan)])


def _factors(domain: PSDTrace, rng: np.random.Generator) -> Array:
    """Factors (n, 2, dim): single vectors, two at once, and none."""
    scale = np.sqrt(domain.trace) * _TOO_LARGE
    single = _directions(domain.dim, rng)
    if domain.dim > 1:
        unit = np.eye(domain.dim)
        single = np.concatenate([unit[:2], [unit[0] + unit[1], unit[0] - unit[1]], single])
    block = np.zeros((len(single) + 1, 2, domain.dim))
    block[:-1, 0] = single
    block[-2, 1] = rng.standard_normal(domain.dim) if domain.dim > 1 else 0.0
    block[-1] = np.nan
    return np.asarray(block * scale)


def _lines(domain: GradientHessian) -> Array:
    """Records (n, 2, dim + 2): single lines along an axis and at the worst angle, two at once."""
    x, turned = np.zeros((2, domain.dim))
    angle = math.acos(min(0.5 / domain.weight**2, math.sqrt(0.5))) if domain.dim > 1 else 0.0
    x[0] = 1.0
    turned[[-1, 0]] = math.sin(angle), math.cos(angle)
    lines = [(x, 1, 1), (x, -1, 0), (turned, -1, 1), (x, -1, 1), (turned, 1, 0), (turned, 0, 1)]
    block = np.zeros((len(lines) + 2, 2, domain.dim + 2))
    block[:-2, 0] = [[*features, s, h] for features, s, h in lines]
    block[-2, 0, :-1], block[-2, 1] = [*x, -1], [*turned, 0, 1]
    block[-1] = np.nan
    return np.asarray(block * _TOO_LARGE)


def _choices(domain: Choices, rng: np.random.Generator) -> Answer:
    k, d = domain.max_items, domain.dim
    directions, signs = list(_directions(d, rng)), np.where(np.arange(k) % 2 == 0, 1.0, -1.0)
    if d > 1:  # two long gradients that are nearly opposite at one θ, along the second axis
        tilt = np.zeros(d)
        tilt[:2] = 1.0, 0.25
        directions[:0] = [tilt, tilt * np.where(np.arange(d) == 0, -1.0, 1.0)]
    features, choices = [], []
    for direction in directions:
        for turn in (1.0, -1.0):
            picks = [0, *([1] if k > 1 and turn == 1.0 else []), *([NO_ITEM] * domain.outside)]
            features += [turn * signs[:, None] * direction * _TOO_LARGE] * len(picks)
            choices += picks
    features.append(np.full((k, d), np.nan))
    choices.append(0)
    n = len(features)
    return Answer(np.array(features), np.ones((n, k)), np.array(choices, dtype=np.int64))
