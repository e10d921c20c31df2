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
from privlearn.learners.tofw import DPTOFW
from privlearn.mechanisms.constraint_sets import ConstraintSet, LpBall, Polytope, Simplex
from privlearn.mechanisms.scalar_objectives import (
    CustomObjective,
    LogisticObjective,
    ScalarObjective,
    SquaredObjective,
)

__all__ = [
    "DPHDB",
    "DPMNL",
    "DPPOFW",
    "DPTOFW",
    "LDPOLS",
    "LDPSGD",
    "ConstraintSet",
    "CustomObjective",
    "LogisticObjective",
    "LpBall",
    "OnePassNewtonMNL",
    "Polytope",
    "ScalarObjective",
    "Simplex",
    "SquaredObjective",
    "best_assortments",
]
