from .assortment import best_assortments
from .async_offers import AsyncOffers
from .base import Learner
from .batches import BatchLearner
from .contextual import ServedBandit
from .dpmnl import DPMNL
from .hdb import DPHDB
from .held_policy import HeldPolicy
from .ldp_arms import LDPArms
from .ldp_ols import LDPOLS
from .ldp_sgd import LDPSGD
from .least_squares import PrivateLeastSquares
from .noisy_sgd import NoisySGD
from .offers import Offer, Offers
from .one_pass_newton import OnePassNewtonMNL
from .one_pass_newton_glm import OnePassNewtonGLM
from .pofw import DPPOFW
from .private_arms import PrivateArms
from .private_experts import PrivateExperts
from .private_test import PrivateTest
from .served import ServedMNL
from .streaming import StreamLearner
from .tofw import DPTOFW
from .whitened_descent import WhitenedDescent

__all__ = [
    "DPHDB",
    "DPMNL",
    "DPPOFW",
    "DPTOFW",
    "LDPOLS",
    "LDPSGD",
    "AsyncOffers",
    "BatchLearner",
    "HeldPolicy",
    "LDPArms",
    "Learner",
    "NoisySGD",
    "Offer",
    "Offers",
    "OnePassNewtonGLM",
    "OnePassNewtonMNL",
    "PrivateArms",
    "PrivateExperts",
    "PrivateLeastSquares",
    "PrivateTest",
    "ServedBandit",
    "ServedMNL",
    "StreamLearner",
    "WhitenedDescent",
    "best_assortments",
]
