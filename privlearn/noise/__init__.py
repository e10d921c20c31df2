"""Where noise comes from; it belongs to an accountant, so the ledger always knows."""

from privlearn.noise.additive import GaussianNoise, LaplaceNoise
from privlearn.noise.caps import CapNoise, Surface
from privlearn.noise.categories import CategoryNoise, CategoryRows
from privlearn.noise.choices import ExponentialNoise, GumbelNoise
from privlearn.noise.exact.pool import NoiseSource
from privlearn.noise.generalized_gaussian import GeneralizedGaussianNoise, SmoothExponent
from privlearn.noise.protocols import AdditiveNoise, ExactNoise, Noise, ReportNoise
from privlearn.noise.reading import noise_from_dict
from privlearn.noise.reports import GridProbability

__all__ = [
    "AdditiveNoise",
    "CapNoise",
    "CategoryNoise",
    "CategoryRows",
    "ExactNoise",
    "ExponentialNoise",
    "GaussianNoise",
    "GeneralizedGaussianNoise",
    "GridProbability",
    "GumbelNoise",
    "LaplaceNoise",
    "Noise",
    "NoiseSource",
    "ReportNoise",
    "SmoothExponent",
    "Surface",
    "noise_from_dict",
]
