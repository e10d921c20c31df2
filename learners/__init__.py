"""Learners are written against mechanism protocols and are handed their accountant."""

if __name__ != "privlearn.learners":
    raise ImportError("import privlearn.learners, not the folder: a second copy would not match")

from privlearn.learners.assortment import best_assortments
from privlearn.learners.constraint_sets import ConstraintSet, LpBall, Polytope, Simplex
from privlearn.learners.dpmnl import DPMNL
from privlearn.learners.hdb import DPHDB
from privlearn.learners.one_pass_newton import OnePassNewtonMNL
from privlearn.learners.pofw import DPPOFW
from privlearn.learners.scalar_losses import CustomLoss, LogisticLoss, ScalarLoss, SquaredLoss
from privlearn.learners.tofw import DPTOFW
from privlearn.mnl import NO_ITEM

__all__ = [
    "DPHDB",
    "DPMNL",
    "DPPOFW",
    "DPTOFW",
    "NO_ITEM",
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
