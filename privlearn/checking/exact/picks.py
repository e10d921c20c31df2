"""Exact laws of streams of choices: after each row or batch the point with the largest noisy score.

Picks are independent, and P(i) = e^{s_i}/Σe^{s_j} with Gumbel noise on scores s.  Scores are
measured on the running code, of all picks at once, and tried on random noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from privlearn.checking.default_neighbours import spend_of
from privlearn.checking.exact.choices import ERROR as CHOICE_ERROR
from privlearn.checking.exact.distributions import DistributionPair
from privlearn.checking.exact.probe import UnpredictedError, check_sampler, released_on
from privlearn.checking.neighbours import extreme_records, worst_pairs
from privlearn.checking.reports import Axis, Coverage
from privlearn.checking.scripted_noise import Script
from privlearn.checking.stream_runs import calls_tried, declared_users, is_stream
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.output_laws import Discrete, Product
from privlearn.noise import GumbelNoise
from privlearn.rows.domains import Array
from privlearn.values.records import join, record_at

_MOST_PICKS = 256
_STEPS, _REACH = 36, 18.0  # Halvings that find a score, and the largest difference of two
_FLOOR = -4.0  # Noise of all other candidates
_TRIALS = 16  # Runs with random noise
ERROR = _MOST_PICKS * CHOICE_ERROR  # Of a log probability of all picks together


def pick_pairs(
    mechanism: Any, neighbours: Sequence[tuple[Any, Any]] | None
) -> tuple[list[DistributionPair], Coverage] | None:
    """Laws of all picks on pairs of data sets; None if it is no stream that picks.

    Raises:
        CheckError: picks are not those of the largest noisy scores, too many, or too unlikely.
    """
    loss: Loss = mechanism.loss()
    if not is_stream(mechanism):
        return None
    spend = spend_of(mechanism, loss.adjacency)
    if not isinstance(spend.noise, GumbelNoise):
        return None
    tried = Axis("arrivals", "as given", False)
    if neighbours is None:
        n = declared_users(mechanism) or _MOST_PICKS
        places = sorted({0, n // 2, n - 1})
        tried = Axis("arrivals", f"the record at {places} of {n}, others null", n == len(places))
        pair = worst_pairs(spend.domain, adjacency=loss.adjacency)[0]
        quiet = record_at(extreme_records(spend.domain), np.full(n, -1))
        pools = [join([quiet, record]) for record in pair]
        chosen = [np.where(np.arange(n) == place, n, 0) for place in places]
        neighbours = [(record_at(pools[0], c), record_at(pools[1], c)) for c in chosen]
    check_sampler("gumbel")
    made = []
    for k, both in enumerate(neighbours):
        one, two = (_law(mechanism, loss, block) for block in both)
        made.append(DistributionPair(one, two, f"pair {k}"))
    return made, Coverage((tried,))


def _law(mechanism: Any, loss: Loss, block: Any) -> Product:
    def picks(numbers: Array, calls: tuple[int, ...] = ()) -> Array:
        script.append(Script(numbers.reshape(-1)))
        return released_on(mechanism, loss, block, script[-1], calls).reshape(-1)

    script: list[Script] = []
    n = len(picks(np.zeros(0)))
    k, rest = divmod(script[0].drawn.total(), max(n, 1))
    if rest or k < 2 or n > _MOST_PICKS or set(script[0].drawn) != {"gumbel"}:
        raise CheckError(f"{n} picks, but not each from one number of noise for each candidate")
    floor = np.full((n, k), _FLOOR)
    best, scores = picks(floor), np.zeros((n, k))
    for i in range(k):
        noise, low, high = floor.copy(), np.zeros(n), np.full(n, 2 * _REACH)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            noise[:, i] = _FLOOR + middle
            wins = picks(noise) == i
            low, high = np.where(wins, low, middle), np.where(wins, middle, high)
        if (high > _REACH).any():
            raise CheckError("scores are so far apart that some candidates are too unlikely")
        scores[:, i] = np.where(best == i, 0.0, -high)
    rng = np.random.default_rng(0)
    ways = calls_tried(mechanism)
    for trial in range(_TRIALS):
        noise = _FLOOR + rng.uniform(0, 12.0, (n, k))
        noisy = np.sort(scores + noise, axis=1)
        clear = noisy[:, -1] - noisy[:, -2] > 1e-6
        if (picks(noise, ways[trial % len(ways)]) != (scores + noise).argmax(axis=1))[clear].any():
            raise UnpredictedError("the picks are not those of the largest noisy scores")
    masses = scores - np.logaddexp.reduce(scores, axis=1)[:, None]
    return Product(tuple((Discrete(mass), 1) for mass in masses))
