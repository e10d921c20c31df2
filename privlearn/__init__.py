"""Private online learning that can be checked.

The core is re-exported here; the layers are `privlearn.accountants`, `privlearn.mechanisms` and
`privlearn.learners`, and `privlearn.checking` tests what they claim.
"""

from privlearn.adjacency import Adjacency, Calibration, Trust
from privlearn.billboard import Billboard, Shown
from privlearn.budgets import ZCDP, ApproxDP, Budget, Currency, GaussianDP, PureDP, Renyi
from privlearn.domains import Ball, Box, Domain, PSDTrace
from privlearn.errors import PrivlearnError
from privlearn.ledger import Ledger
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    ComposedLoss,
    DiscreteGaussian,
    DiscreteLaplace,
    FailingLoss,
    GaussianLoss,
    GeneralizedGaussian,
    LaplaceLoss,
    Loss,
    MinimizerLoss,
    PerArrivalLoss,
    PureLoss,
    RandomizedResponse,
    RenyiCurve,
    SubsampledGaussian,
    ZCDPLoss,
)
from privlearn.noise import GaussianNoise, LaplaceNoise, Noise, NoiseSource
from privlearn.protocols import Accountant, Mechanism, Plan
from privlearn.rows import Rows, Source
from privlearn.tokens import Receipt, Released, Spend, Token

__version__ = "0.1.0"

__all__ = [
    "ZCDP",
    "Accountant",
    "Adjacency",
    "ApproxDP",
    "ApproxLoss",
    "Ball",
    "Billboard",
    "BoundedRangeLoss",
    "Box",
    "Budget",
    "Calibration",
    "ComposedLoss",
    "Currency",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Domain",
    "FailingLoss",
    "GaussianDP",
    "GaussianLoss",
    "GaussianNoise",
    "GeneralizedGaussian",
    "LaplaceLoss",
    "LaplaceNoise",
    "Ledger",
    "Loss",
    "Mechanism",
    "MinimizerLoss",
    "Noise",
    "NoiseSource",
    "PSDTrace",
    "PerArrivalLoss",
    "Plan",
    "PrivlearnError",
    "PureDP",
    "PureLoss",
    "RandomizedResponse",
    "Receipt",
    "Released",
    "Renyi",
    "RenyiCurve",
    "Rows",
    "Shown",
    "Source",
    "Spend",
    "SubsampledGaussian",
    "Token",
    "Trust",
    "ZCDPLoss",
]
