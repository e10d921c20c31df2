# expect: arg-type
"""A neighbour relation is not a string."""

from privlearn.losses import GaussianLoss

GaussianLoss(1, adjacency="replace-one")
