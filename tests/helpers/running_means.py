"""A local learner that averages reward times context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from privlearn.contract.protocols import Report
from privlearn.learners.local.protocol import Arrays, LocalBanditConfig, LocalLearner
from privlearn.mechanisms import BallReport, NoisyReport, ProjectedReport
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Array, PSDTrace


class RunningMean(LocalLearner):
    kind: Literal["running-mean"] = "running-mean"
    width: int = 5
    warm: int = 0
    singly: bool = False
    mechanism: Literal["ball", "projected", "joint"] = "ball"

    @property
    def per_message(self) -> bool:
        return self.singly

    def report(self) -> Report[Any]:
        if self.mechanism == "joint":
            return NoisyReport(PSDTrace(2.0, self.dim + 1), GaussianNoise(4.0))
        if self.mechanism == "projected":
            return ProjectedReport.privunit(self.dim, 1.0, self.epsilon, size=2)
        return BallReport.best(self.dim, 1.0, self.epsilon)

    def batches(self) -> Sequence[int]:
        if self.singly:
            return super().batches()
        return (*range(0, self.horizon, self.width), self.horizon)

    def warm_up(self) -> int:
        return self.warm

    def scores(self, model: Arrays, contexts: Array) -> Array:
        if self.shared:
            return np.asarray(np.einsum("nkd,d->nk", contexts, model["theta"][0]))
        return np.asarray(np.einsum("nd,kd->nk", contexts, model["theta"]))

    def record(
        self, model: Arrays, batch: int, contexts: Array, arms: Any, rewards: Array
    ) -> Array:
        units = contexts / self.context_bound
        if self.mechanism == "joint":
            return np.concatenate([units, rewards[:, None]], axis=1)[:, None, :]
        return units * rewards[:, None]

    def start(self) -> Arrays:
        size = self.report().domain.size
        return {"sum": np.zeros((self.parts, size)), "n": np.zeros(self.parts)}

    def step(self, state: Arrays, batch: int, sums: Array, counts: Any) -> Arrays:
        return {"sum": state["sum"] + sums, "n": state["n"] + counts}

    def model(self, state: Arrays) -> Arrays:
        means = state["sum"] / np.maximum(state["n"], 1)[:, None]
        return {"theta": means[:, : self.dim]}


def running_mean(*, name: str = "test", **numbers: Any) -> LocalBanditConfig:
    chosen = {"dim": 3, "n_arms": 4, "horizon": 20, "shared": True, "epsilon": 2.0, **numbers}
    return LocalBanditConfig(name=name, method=RunningMean(**chosen))
