"""Settings of runs under local privacy: ``privlearn run ldp-sgd`` and ``ldp-ols``."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from privlearn.losses.budget_texts import PublicBound, Simulated, parse_local_budget
from privlearn.losses.budgets import ApproxDP, PureDP
from privlearn.runs.persons import RunConfig


class LocalConfig(RunConfig):
    """Settings of one run under local privacy."""

    learner: Literal["ldp-sgd", "ldp-ols"]
    data: str = "electricity"
    """'electricity' (the shipped survey), or your CPRM auto-loan file."""
    declare_public: bool = False
    """Your file's statistics are public."""
    monthly_rate: PublicBound | None = None
    """Discounts your file's payments; default: onemonth."""
    budget: str
    """ldp-sgd: epsilon=…; ldp-ols: epsilon=…,delta=…"""
    epsilon: str | None = None
    """Short for a budget of epsilon=…"""
    horizon: Simulated | None = None
    """Customers, public; default 50,000, loans 20,000."""

    @model_validator(mode="before")
    @classmethod
    def _one_budget(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if settings.get("epsilon") is None:
            return settings
        if settings.get("budget") is not None:
            raise ValueError("epsilon, budget: give one of them")
        return settings | {"budget": f"epsilon={settings['epsilon']}"}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        budget = parse_local_budget(self.budget)
        if self.learner == "ldp-ols" and isinstance(budget, PureDP):
            raise ValueError(
                f"budget = {self.budget!r}: ldp-ols adds Gaussian noise and needs a delta, as in "
                "epsilon=1,delta=1e-3"
            )
        if self.learner == "ldp-sgd" and isinstance(budget, ApproxDP):
            raise ValueError(
                f"budget = {self.budget!r}: ldp-sgd keeps epsilon with delta = 0; leave delta out"
            )
        if self.data == "electricity" and (self.declare_public or self.monthly_rate is not None):
            raise ValueError("declare_public, monthly_rate: for your file of auto loans")
        return self
