"""Learners are written against mechanism protocols and are handed their accountant."""

if __name__ != "privlearn.learners":
    raise ImportError("import privlearn.learners, not the folder: a second copy would not match")

from privlearn.learners.assortment import best_assortments
from privlearn.learners.dpmnl import DPMNL
from privlearn.learners.hdb import DPHDB
from privlearn.learners.ldp_ols import LDPOLS
from privlearn.learners.ldp_sgd import LDPSGD
from privlearn.learners.one_pass_newton import OnePassNewtonMNL
from privlearn.learners.pofw import DPPOFW
from privlearn.learners.scalar_losses import CustomLoss, LogisticLoss, ScalarLoss, SquaredLoss
from privlearn.learners.tofw import DPTOFW
from privlearn.mechanisms.constraint_sets import ConstraintSet, LpBall, Polytope, Simplex

__all__ = [
    "DPHDB",
    "DPMNL",
    "DPPOFW",
    "DPTOFW",
    "LDPOLS",
    "LDPSGD",
    "ConstraintSet",
    "CustomLoss",
    "LogisticLoss",
    "LpBall",
    "OnePassNewtonMNL",
    "Polytope",
    "ScalarLoss",
    "Simplex",
    "SquaredLoss",
    "best_assortments",
]
