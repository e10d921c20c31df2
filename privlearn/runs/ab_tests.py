"""Whole A/B tests: arms against a control, on a log or simulated visitors, with a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from privlearn.learners.private_test import PrivateTest
from privlearn.runs.arm_configs import SIMULATED, ABTestConfig
from privlearn.runs.arms import Found, Source, finite, run_on_log
from privlearn.runs.common import Outcome, Progress


def run_test(
    config: ABTestConfig, out: Path, progress: Progress, *, resume: bool = False
) -> Outcome:
    """Compares arms with a control within a budget; leaves a public and a private folder.

    With ``resume`` a run with the same settings that was cut off goes on.
    """

    def make() -> PrivateTest:
        return PrivateTest(
            len(config.names()),
            alpha=config.alpha,
            rate_at_most=config.rate_at_most,
            assume=config.assume,
            reward_range=config.range(),
            random_state=config.seed if config.data == SIMULATED else None,
        )

    return run_on_log(config, out, progress, make, _compared, grouped=True, resume=resume)


def _compared(learner: Any, source: Source) -> Found:
    control, *others = source.names
    said = learner.decision_
    ways: dict[int, str] = {}
    if said is not None:
        ways = dict.fromkeys(said.wins, "better") | dict.fromkeys(said.loses, "worse")
    evidence, chances = np.atleast_1d(learner.e_value_), np.atleast_1d(learner.p_value_)
    ends = np.reshape(learner.interval(), (-1, 2)) if learner.assume == "iid" else None
    sure = f"{1 - learner.alpha:.4g}"
    lines, values = [], []
    for place, name in enumerate(others):
        way = ways.get(place + 1)
        found = (
            f"{name} is {way} than {control}"
            if way
            else f"{name} against {control}: not decided yet"
        )
        lines.append(
            f"{found} (e-value now {evidence[place]:.3g}, decided at {1 / learner.alpha:.4g}; "
            f"p-value {chances[place]:.2g})"
        )
        interval = None if ends is None else [finite(end) for end in ends[place]]
        if interval is not None and None not in interval:
            low, high = interval
            lines.append(f"  mean of {name} minus that of {control}: {low:+.3g} to {high:+.3g}")
        told = {"arm": name, "decision": way, "interval": interval}
        numbers = {"e_value": float(evidence[place]), "p_value": float(chances[place])}
        values.append(told | numbers)
    visitors = learner.public_state()["phase"][0]
    lines += [
        f"after {visitors:,} visitors; you may look as often as you like, and stop when you like: "
        f"with probability {sure} nothing that any look says is ever false",
        f"taken for granted: {learner.hypothesis_}",
    ]
    file = {"control": control, "alpha": learner.alpha, "visitors": visitors, "arms": values}
    return Found(lines, {**file, "hypothesis": learner.hypothesis_})
