"""Which arm to show next, from public means of rewards and how much each of them rests on.

IMED (Honda & Takemura 2015, JMLR 16) shows the arm with the least index n·kl(μ, μ*) + log n, where
μ* is the largest mean and kl the divergence of Bernoulli distributions, which is good for all
rewards in [0, 1] (Garivier & Cappé 2011).  Asymptotically no consistent rule has less regret.  Here
n is the number of rewards that would tell as much as the noisy sums do, and two things are added.
Means are drawn towards μ* as by `_DRAWN` rewards: it is then rarer that a good arm with bad first
sums is given up.  And n in the logarithm is at most the number of users that are left, divided by
K: looking at an arm again pays off for no more of them, as in MOSS (Audibert & Bubeck 2009) and
KL-UCB++ (Ménard & Garivier 2017), which compare with T/(K·n).
"""

from __future__ import annotations

import numpy as np

from privlearn.rows.domains import Array

_DRAWN = 4.0
_INSIDE = 1e-9
"""How far means stay away from 0 and 1, where the divergence is infinite."""


def imed_arm(means: Array, numbers: Array, left: float) -> int:
    """The arm to show next; the first of those of which nothing is known, if there are any.

    Args:
        means: estimates of the arms' mean rewards in units where rewards lie in [0, 1], shape (K,);
            noise may have moved them out of it.
        numbers: how many rewards without noise would tell as much, shape (K,); 0: none came.
        left: for how many users the choice may matter.
    """
    known = numbers > 0
    if not known.all():
        return int(np.argmin(known))
    inside = np.minimum(np.maximum(means, _INSIDE), 1 - _INSIDE)
    most = inside.max()
    drawn = (numbers * inside + _DRAWN * most) / (numbers + _DRAWN)
    worth = np.minimum(numbers, max(left / len(means), 1.0))
    index = (numbers + _DRAWN) * _divergence(drawn, most) + np.log(worth)
    return int(np.argmin(index))


def _divergence(mean: Array, other: Array) -> Array:
    """kl of Bernoulli distributions; ``mean`` of shape (K,), both within (0, 1)."""
    return np.asarray(mean * np.log(mean / other) + (1 - mean) * np.log((1 - mean) / (1 - other)))
