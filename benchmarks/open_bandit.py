"""What would another policy have earned?  Off-policy estimates from the Open Bandit format.

    pip install --no-deps obp==0.4.1
    python benchmarks/open_bandit.py

Logs of two policies on one page of a shop (real_logs.py): items at random, and Bernoulli Thompson
sampling ("bts").  From each log the click rate of the other policy is estimated, whose own log has
the answer.  With 38 to 69 clicks in 10,000 rows all of it is too uncertain to rank policies by, or
learners: this checks a reader and estimators, and is no benchmark of learning.

Estimates are plain floats from rows, without privacy: an operator's own figures.  If obp can be
loaded, they are compared with its own.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from real_logs import BanditLog, bandit_log, installed, open_bandit
from reporting import Table, parser, summary, write

from privlearn.rows.domains import Array

BOUND = 10.0
"""Importance weights above it are not used; the reward model stands there."""
PRIOR_ROWS = 100.0
"""Rows of the mean click rate that each item's rate is mixed with."""


class Estimates(NamedTuple):
    """Of a policy's mean reward, from each row; the estimate is the mean of an array."""

    ipw: Array
    """Inverse probability weights w = π(item)/π₀(item): w·r."""
    snipw: Array
    """Self-normalised: w·r / mean w."""
    dr: Array
    """Doubly robust with bounded weights: Σπq + w·1{w ≤ bound}·(r − q) (Wang et al. 2017)."""


def estimates(log: BanditLog, policy: Array, model: Array, bound: float = BOUND) -> Estimates:
    """Off-policy estimates.

    Args:
        log: n rows of a policy that is known.
        policy: chances of each item in the place of each row under the other, shape (n, items).
        model: expected reward of each item there, of the same shape; from other rows.
        bound: weights above it count as 0 in ``dr``.

    Raises:
        ValueError: chances that do not add up to 1.
    """
    if np.abs(policy.sum(axis=1) - 1).max() > 1e-6:
        raise ValueError("policy: every row must add up to 1")
    rows = np.arange(len(log.items))
    weights = policy[rows, log.items] / log.propensities
    used = np.where(weights <= bound, weights, 0.0)
    return Estimates(
        weights * log.clicks,
        weights * log.clicks / weights.mean(),
        (policy * model).sum(axis=1) + used * (log.clicks - model[rows, log.items]),
    )


def click_rates(log: BanditLog, items: int) -> Array:
    """A model of rewards, shape (n, items): an item's rate in the half that a row is not in."""
    model, halves = np.empty((len(log.items), items)), np.arange(len(log.items)) % 2
    for half in (0, 1):
        other = halves != half
        shown = np.bincount(log.items[other], minlength=items)
        clicked = np.bincount(log.items[other], log.clicks[other], minlength=items)
        prior = PRIOR_ROWS * log.clicks[other].mean()
        model[halves == half] = (clicked + prior) / (shown + PRIOR_ROWS)
    return model


def average_policy(log: BanditLog, items: int) -> Array:
    """Shares of the items that a log shows in each place, shape (places, items)."""
    counts = np.zeros((log.positions.max() + 1, items))
    np.add.at(counts, (log.positions, log.items), 1)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def of_obp(log: BanditLog, policy: Array, model: Array) -> list[float]:
    """The same by obp's estimators, which are loaded without what else obp imports (torch).

    Raises:
        ModuleNotFoundError: obp is not installed.
    """
    made = _obp()
    given = {
        "reward": log.clicks,
        "action": log.items,
        "pscore": log.propensities,
        "action_dist": policy[..., None],
        "position": np.zeros(len(log.items), dtype=np.int64),
    }
    return [
        float(made.InverseProbabilityWeighting().estimate_policy_value(**given)),
        float(made.SelfNormalizedInverseProbabilityWeighting().estimate_policy_value(**given)),
        float(
            made.SwitchDoublyRobust(tau=BOUND).estimate_policy_value(
                **given, estimated_rewards_by_reg_model=model[..., None]
            )
        ),
    ]


@lru_cache
def _obp() -> Any:
    package, torch = ModuleType("obp.ope"), ModuleType("torch")
    package.__path__ = [str(installed("obp", "0.4.1") / "ope")]
    vars(torch)["Tensor"] = type("Tensor", (), {})
    for name in ("pandas", "sklearn.utils"):  # which stay imported
        import_module(name)
    with patch.dict(sys.modules, {"obp.ope": package, "torch": torch}):
        return import_module("obp.ope.estimators")


def main() -> None:
    """Prints and writes the table."""
    parser(__doc__).parse_args()
    rows, numbers, worst = [], {}, 0.0
    for campaign in ("all", "men", "women"):
        logs = {policy: bandit_log(open_bandit(policy, campaign)) for policy in ("random", "bts")}
        items = 1 + max(int(log.items.max()) for log in logs.values())
        for name, other in (("random", "bts"), ("bts", "random")):
            log, own = logs[name], logs[other]
            policy, model = average_policy(own, items)[log.positions], click_rates(log, items)
            found = estimates(log, policy, model)
            theirs = of_obp(log, policy, model)
            ours = [float(one.mean()) for one in found]
            worst = max(worst, *(abs(a - b) for a, b in zip(ours, theirs, strict=True)))
            numbers[f"{campaign}|{other} from {name}"] = ours
            rows.append([f"{campaign}: {other}, from the log of {name}", f"{log.clicks.sum():.0f}"])
            rows[-1] += [_thousandths(one) for one in (*found, own.clicks)]
    note = (
        "Click rates in thousandths ± one standard error of 10,000 rows taken as independent; of "
        f"heavy weights it says too little. Greatest difference from obp's estimators: {worst:.0e}."
    )
    header = ["", "clicks", "IPW", "self-normalised", f"doubly robust, w ≤ {BOUND:g}", "own log"]
    write("open_bandit", [Table("off-policy", header, rows)], {"estimates": numbers}, note)


def _thousandths(values: Array) -> str:
    found = summary(1000 * values)
    return f"{found.mean:.2f} ± {found.se:.2f}"


if __name__ == "__main__":
    main()
