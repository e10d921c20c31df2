"""Noise from its JSON form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from privlearn.noise.additive import GaussianNoise, LaplaceNoise
from privlearn.noise.caps import CapNoise
from privlearn.noise.categories import CategoryNoise
from privlearn.noise.choices import ExponentialNoise, GumbelNoise
from privlearn.noise.generalized_gaussian import GeneralizedGaussianNoise
from privlearn.noise.protocols import Noise
from privlearn.values.json_forms import REAL, TEXT, WHOLE, Form, check_form, named
from privlearn.values.packages import NOISES, Announced, made_from

_READERS: dict[str, tuple[Form, Callable[..., Noise]]] = {
    "gaussian": ({"std": REAL}, GaussianNoise),
    "laplace": ({"scale": REAL}, LaplaceNoise),
    "gumbel": ({"scale": REAL}, GumbelNoise),
    "exponential": ({"scale": REAL}, ExponentialNoise),
    "generalized-gaussian": ({"std": REAL, "exponent": REAL}, GeneralizedGaussianNoise),
    "cap": ({"dim": WHOLE, "threshold": REAL, "probability": REAL, "surface": TEXT}, CapNoise),
    "category": ({"categories": WHOLE, "probability": REAL}, CategoryNoise),
}

SHIPPED: frozenset[object] = frozenset(read for _, read in _READERS.values())
"""The classes that came with this package: frozen, so that equal ones are alike."""


def noise_from_dict(data: Mapping[str, Any]) -> Noise | None:
    """Rebuilds a shipped noise from its JSON form; None for a family only its author knows.

    Raises:
        ValueError: a shipped family with bad or missing numbers, of other JSON types, or more.
    """
    family = named("noise", data, "family")
    if family not in _READERS:
        return None
    form, read = _READERS[family]
    try:
        check_form(f"{family} noise", data, {"family": TEXT, **form})
    except KeyError as missing:
        raise ValueError(f"{family} noise lacks {missing}") from None
    return read(*[data[name] for name in form])


def is_shipped_family(name: str) -> bool:
    """Whether a family came with this package; no other can take its name."""
    return name in _READERS


def announced_noise(data: Mapping[str, Any]) -> tuple[Noise, Announced] | None:
    """Rebuilds noise of another package, whose module is imported; None if nobody announces it.

    No family of this package can be announced by another one.

    Raises:
        PackageError: two announce it, or it cannot be rebuilt.
        ValueError: the family is no text.
    """
    family = named("noise", data, "family")
    return None if family is None or family in _READERS else made_from(NOISES, family, data)
