from .assortment import best_assortments
from .dpmnl import DPMNL
from .hdb import DPHDB
from .ldp_ols import LDPOLS
from .ldp_sgd import LDPSGD
from .one_pass_newton import OnePassNewtonMNL
from .pofw import DPPOFW
from .tofw import DPTOFW

__all__ = [
    "DPHDB",
    "DPMNL",
    "DPPOFW",
    "DPTOFW",
    "LDPOLS",
    "LDPSGD",
    "OnePassNewtonMNL",
    "best_assortments",
]
