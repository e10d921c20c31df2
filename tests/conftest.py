"""What all tests share: the same examples on every run, one thread, small pictures, a learner."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from privlearn.local.protocol import Arrays, LocalBanditConfig

# Every core has a worker of its own already: further threads of linear algebra would only wait for
# each other.  The plugin of this package has imported numpy by now; what tests start has not.
os.environ.setdefault("OMP_NUM_THREADS", "1")
importlib.import_module("threadpoolctl").threadpool_limits(int(os.environ["OMP_NUM_THREADS"]))

os.environ.pop("COLUMNS", None)  # what is printed is as wide as a file's, on every machine

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("ci")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thirteen thousand tests and their modules stay to the end: nobody looks for garbage there."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def quick_pictures() -> Iterator[Callable[..., None]]:
    """Pictures in a tenth of the time: a coarse one, with panels where they are put first.

    Everything is drawn, but no layout is looked for.  The value is the real `Figure.savefig`, with
    which every module that uses this draws at least one picture as users see it.
    """
    from matplotlib.figure import Figure

    real = Figure.savefig

    def savefig(figure: Figure, path: Any, **options: Any) -> None:
        figure.set_layout_engine(None)  # "none" would draw all of it once before it draws it
        real(figure, path, **{**options, "dpi": 20})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield real


@pytest.fixture
def full_pictures(quick_pictures: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures as users see them, in a module that draws quick ones."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", quick_pictures)


@pytest.fixture(scope="session")
def bandit() -> Callable[..., LocalBanditConfig]:
    """Makes configurations of a local learner that averages reward times context."""
    import numpy as np

    from privlearn.domains import Array, PSDTrace
    from privlearn.local.protocol import LocalBanditConfig, LocalLearner
    from privlearn.mechanisms import BallReport, NoisyReport, ProjectedReport
    from privlearn.noise import GaussianNoise
    from privlearn.protocols import Report

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

    def make(*, name: str = "test", **numbers: Any) -> LocalBanditConfig:
        chosen = {"dim": 3, "n_arms": 4, "horizon": 20, "shared": True, "epsilon": 2.0, **numbers}
        return LocalBanditConfig(name=name, method=RunningMean(**chosen))

    return make
