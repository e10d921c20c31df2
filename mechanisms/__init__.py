"""Mechanisms state their loss, spend a token, and only then open rows and draw noise."""

if __name__ != "privlearn.mechanisms":
    raise ImportError("import privlearn.mechanisms, not the folder: a second copy would not match")

from privlearn.mechanisms.envelope import LipschitzEnvelope
from privlearn.mechanisms.factorization import (
    AnytimeBLT,
    BinaryTree,
    BufferedToeplitz,
    ColumnNormalizedBLT,
)
from privlearn.mechanisms.gaussian import GaussianSum
from privlearn.mechanisms.linear_models import Huber, Logistic, Poisson
from privlearn.mechanisms.multinomial import MultinomialLogit
from privlearn.mechanisms.objective_perturbation import ObjectivePerturbation
from privlearn.mechanisms.objectives import Objective
from privlearn.mechanisms.prefix_sums import PrefixSum, PrefixSumStream

__all__ = [
    "AnytimeBLT",
    "BinaryTree",
    "BufferedToeplitz",
    "ColumnNormalizedBLT",
    "GaussianSum",
    "Huber",
    "LipschitzEnvelope",
    "Logistic",
    "MultinomialLogit",
    "Objective",
    "ObjectivePerturbation",
    "Poisson",
    "PrefixSum",
    "PrefixSumStream",
]
