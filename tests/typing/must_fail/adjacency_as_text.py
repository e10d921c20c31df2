# expect: arg-type
"""A neighbour relation is not a string."""

from privlearn.losses import Gaussian

Gaussian(1, adjacency="replace-one")
