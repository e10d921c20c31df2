"""What is kept of a spend: only what follows from this package's own domains and noise."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest

from privlearn import noise
from privlearn.contract.spends import Spend, is_builtin
from privlearn.losses import GaussianLoss, Loss
from privlearn.noise import (
    CapNoise,
    CategoryNoise,
    ExponentialNoise,
    GaussianNoise,
    GeneralizedGaussianNoise,
    GumbelNoise,
    LaplaceNoise,
    noise_from_dict,
)
from privlearn.rows import domains
from privlearn.rows.domains import (
    Array,
    Ball,
    Box,
    Categories,
    Counted,
    GradientHessian,
    Norm,
    OneOf,
    PSDTrace,
    domain_from_dict,
)
from privlearn.values.adjacency import Adjacency

OURS: tuple[Any, ...] = (
    Ball(1.0, 3),
    Box(0, 1, 2),
    PSDTrace(1.0, 2),
    PSDTrace(1.0, 2, "triangle"),
    OneOf(Ball(1.0, 3), 4),
    Counted(Ball(1.0, 3)),
    GradientHessian(3, 2.0),
    Categories(5),
    GaussianNoise(1.0),
    LaplaceNoise(1.0),
    GumbelNoise(1.0),
    ExponentialNoise(1.0),
    GeneralizedGaussianNoise(1.0, 3),
    CapNoise.half(3, "1"),
    CategoryNoise.at(3, "1"),
)


class Widening:
    """A domain of somebody else's, which changes and says that it is ours."""

    size = 1

    def __init__(self) -> None:
        self.radius = 1.0

    def clip(self, block: Array) -> Array:
        return np.clip(block, -self.radius, self.radius)

    def null(self) -> Array:
        return np.zeros(1)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        return 2 * self.radius

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "ball", "radius": 1.0, "size": 1, "norm": "l2"}


class Halving:
    """Noise of somebody else's, the same."""

    norm: Norm = "l2"

    def __init__(self) -> None:
        self.std = 1.0

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        return GaussianNoise(self.std).loss(sensitivity, adjacency)

    def draw(self, pool: object, shape: tuple[int, ...]) -> Array:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        return GaussianNoise(1.0).to_dict()


def mu_squared(spend: Spend) -> float:
    loss = spend.loss(Adjacency.REPLACE_ONE)
    assert isinstance(loss, GaussianLoss)
    return float(loss.mu_squared)


@pytest.mark.parametrize("module", ["privlearn.domains", "privlearn.rows.domains.balls"])
def test_a_domain_is_not_ours_for_naming_our_module(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Widening, "__module__", module)
    domain = Widening()
    spend = Spend("sum", domain, GaussianNoise(1.0))
    assert mu_squared(spend) == 4
    domain.radius = 2.0
    assert mu_squared(spend) == 16
    assert not spend.derived


@pytest.mark.parametrize("module", ["privlearn.noise", "privlearn.noise.additive"])
def test_noise_is_not_ours_for_naming_our_module(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Halving, "__module__", module)
    family = Halving()
    spend = Spend("sum", Ball(1.0, 1), family)
    assert mu_squared(spend) == 4
    family.std = 0.5
    assert mu_squared(spend) == 16
    assert not spend.derived


@pytest.mark.parametrize("each", OURS, ids=repr)
def test_ours_are_known_by_their_class_wherever_it_stands(each: Any) -> None:
    assert is_builtin(each)
    read = noise_from_dict if "family" in each.to_dict() else domain_from_dict
    assert read(each.to_dict()) == each == pickle.loads(pickle.dumps(each))


def test_every_public_domain_and_noise_is_among_them() -> None:
    public = [getattr(room, name) for room in (domains, noise) for name in room.__all__]
    made = {each for each in public if inspect.isclass(each) and hasattr(each, "to_dict")}
    made = {each for each in made if not getattr(each, "_is_protocol", False)}
    assert made == {type(each) for each in OURS}
