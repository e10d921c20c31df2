"""Settings of ``privlearn run glm``: a log of what was shown, or simulated visitors.

All of it is public.  The text below a setting is its help on the command line.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from privlearn.losses.budget_texts import (
    MOST_SIMULATED,
    Horizon,
    ItemCount,
    PublicBound,
    parse_budget,
)
from privlearn.losses.budgets import ApproxDP, Currency, GaussianDP
from privlearn.runs.arm_configs import SIMULATED, Interval
from privlearn.runs.configs import Bounds, LowHigh, Names, check_interval
from privlearn.runs.persons import PersonConfig

_OF_A_LOG: Final = (
    *("reward", "reward_range", "columns", "bounds", "feature_bound", "schema_file", "row_bound"),
    *("arm", "arms", "visit", "shown", "people"),
)
_SIMULATED_ONLY: Final = ("dim", "policy")
_LARGEST_COUNT: Final = 10.0  # Of simulated visitors


class GLMConfig(PersonConfig):
    """Settings of one run on rewards of actions with features."""

    data: str = SIMULATED
    """'simulated' (made-up visitors), or your CSV or Parquet file: each line says what a visitor
    was shown, as features, and what came of it."""
    reward: str | None = None
    """Column with the reward, which is protected: numbers, or true and false."""
    reward_range: Interval | None = None
    """Public range of rewards, low:high; default 0:1, and of link = poisson to be declared, 0 to
    the largest count.  A reward outside of it is null."""
    link: Literal["linear", "logistic", "probit", "poisson"] = "logistic"
    """From features to the expected reward: logistic or probit (yes or no), poisson (a count), or
    linear."""
    max_rate: PublicBound | None = None
    """Largest expected count, public (poisson); the smaller, the less noise.  Default: the upper
    end of reward_range."""
    columns: Names | None = None
    """Features, a,b,…; default: all other columns."""
    bounds: Bounds = Field(default_factory=dict)
    """Public bounds of columns, a=0:120,b=-1:1,…; values beyond are moved onto them."""
    feature_bound: PublicBound | None = None
    """All other columns lie in ± this; public."""
    schema_file: str | None = None
    """TOML or JSON file that says what the columns are, as privlearn schema drafts it, in place of
    columns and bounds; with categories."""
    row_bound: PublicBound | None = None
    """Shrink rows of scaled features that are longer onto this length, so that less noise is
    needed; public.  Default: half the root of the number of columns."""
    arm: str | None = None
    """Column that says which of the actions in arms was shown.  Each action then has parameters of
    its own, and features are the visitor's; default: features are those of what was shown."""
    arms: Names | None = None
    """Names of the actions, a,b,c, as the column arm has them; public."""
    visit: str | None = None
    """Column with the id of each line's visit, where a visit has a line for each action that there
    was; default: each line is a visit."""
    shown: str | None = None
    """Column with 1 in the line of a visit's action that was shown, and 0 in the others (visit)."""
    actions: ItemCount | None = None
    """The most actions of a visit, public (visit); or those of each simulated visitor, default 10.
    """
    dim: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """Features of each simulated action; default 5."""
    policy: Literal["ucb", "thompson", "greedy"] | None = None
    """How simulated visitors are served; default ucb."""
    budget: str = "epsilon=1,delta=1e-6"
    """rho=…, mu=… or epsilon=…,delta=…"""
    horizon: Horizon | None = None
    """Number of visits, public, to be given with a log; default: 10,000 simulated ones."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        simulated = self.data == SIMULATED
        for name in _OF_A_LOG if simulated else _SIMULATED_ONLY:
            if getattr(self, name) not in (None, {}):
                of = "of a log; name its file with data" if simulated else "of simulated visitors"
                raise ValueError(f"{name}: is {of}")
        if not simulated:
            self._fits_log()
        elif (self.horizon or 0) > MOST_SIMULATED:
            raise ValueError(
                f"horizon = {self.horizon}: must be at most {MOST_SIMULATED:,} simulated visitors"
            )
        parse_budget(self.budget)
        return self

    def _fits_log(self) -> None:
        if self.reward is None and self.schema_file is None:
            raise ValueError(
                f"reward: name the column with the reward, as data = {self.data!r} is a log of "
                "yours"
            )
        if self.horizon is None:
            raise ValueError("horizon: the number of visits is a public count; state it")
        if self.link == "poisson" and self.reward_range is None and self.schema_file is None:
            raise ValueError("reward_range: of counts, declare 0 to the largest one, such as 0:20")
        if self.arms is not None and self.arm is None:
            raise ValueError("arm: name the column that says which of the arms was shown")
        if self.arm is not None and self.arms is None and self.schema_file is None:
            raise ValueError("arms: name all actions by their names in the log, a,b,c (public)")
        if self.arms is not None and not 1 < len(set(self.arms)) == len(self.arms):
            raise ValueError("arms: name at least two, each once")
        self._fits_visits()
        roles = [self.reward, self.arm, self.visit, self.shown, self.people]
        named = [name for name in roles if name is not None]
        if len(set(named)) < len(named):
            raise ValueError("reward, arm, visit, shown, people: must be different columns")
        check_interval("reward_range", self.range())

    def _fits_visits(self) -> None:
        if self.visit is None:
            for name in ("shown", "actions"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: needs visit, the column that says whose line it is")
            return
        if self.shown is None or self.actions is None:
            raise ValueError(
                "shown, actions: with visit, name the column that says which line was shown, and "
                "the most lines of a visit, which is public"
            )
        if self.arm is not None:
            raise ValueError("arm: with visit, each line has the features of an action")
        if self.people is not None:
            raise ValueError(
                "people: with visit, each visit is one record, whose lines can be no other "
                "person's; if the guarantee is to be for persons, name one line for each visit"
            )

    def range(self) -> LowHigh:
        """Of rewards."""
        if self.data == SIMULATED and self.link == "poisson":
            return 0.0, _LARGEST_COUNT
        return self.reward_range or (0.0, 1.0)

    def cap(self) -> tuple[Currency | ApproxDP, type[Currency] | None]:
        """The budget, and the currency to count an (ε, δ) promise in (the noise is Gaussian)."""
        budget = parse_budget(self.budget)
        return budget, GaussianDP if isinstance(budget, ApproxDP) else None
