"""Simulated users of assortment learners, one by one and in blocks, for several test files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from privlearn.learners.serving import Arrival
from privlearn.ledger.entries import FunctionsEntry
from privlearn.mechanisms.choice_model import NO_ITEM, Items
from privlearn.rows.domains import Array

N_ITEMS, DIM, SHOWN, HORIZON = 6, 2, 3, 60
PREFERENCES = np.array([1.5, -1.0])


def users(seed: int = 0, n: int = HORIZON) -> tuple[Array, Array, Array]:
    """Features, revenues, and the uniform number that decides each user's choice."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, N_ITEMS, DIM)), rng.random((n, N_ITEMS)), rng.random((n, 1))


def choose(features: Array, shown: Items, uniform: float) -> int | None:
    """One user's logit choice by inverse distribution function."""
    items = shown[shown != NO_ITEM]
    with np.errstate(all="ignore"):
        weights = np.exp(features[items] @ PREFERENCES)
        edges = np.cumsum(weights) / (1 + weights.sum())
    place = int((edges < uniform).sum())
    return int(items[place]) if place < len(items) else None


class Crowd:
    """The users' side of the block path; remembers what each of them was shown."""

    def __init__(self) -> None:
        self.shown: list[list[int]] = []

    def respond(self, own: Arrival, shown: Items) -> Items:
        self.shown.extend(row[row != NO_ITEM].tolist() for row in shown)
        choices = [
            choose(x, items, float(u[0]))
            for x, items, u in zip(own.features, shown, own.private, strict=True)
        ]
        return np.array([NO_ITEM if choice is None else choice for choice in choices])


def one_by_one(
    learner: Any, features: Array, uniforms: Array, revenues: Array | None = None
) -> list[list[int]]:
    """Serves the users one after the other; what each of them was shown."""
    shown = []
    for i, (x, u) in enumerate(zip(features, uniforms, strict=True)):
        items = learner.select(x) if revenues is None else learner.select(x, revenues[i])
        shown.append(items.tolist())
        learner.observe(choose(x, items, float(u[0])))
    return shown


def bodies(learner: Any) -> list[str]:
    """The ledger without the accountant's random name, and without the name of who answers."""
    accountant: Any = learner._accountant
    return [
        json.dumps(entry.body(), sort_keys=True).replace(accountant.id, "accountant")
        for entry in accountant.ledger.entries
        if not isinstance(entry, FunctionsEntry)
    ]
