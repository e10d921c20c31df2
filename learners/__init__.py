"""Learners are written against mechanism protocols and are handed their accountant."""

if __name__ != "privlearn.learners":
    raise ImportError("import privlearn.learners, not the folder: a second copy would not match")

from privlearn.learners.assortment import best_assortments
from privlearn.learners.dpmnl import DPMNL
from privlearn.learners.one_pass_newton import OnePassNewtonMNL
from privlearn.mnl import NO_ITEM

__all__ = ["DPMNL", "NO_ITEM", "OnePassNewtonMNL", "best_assortments"]
