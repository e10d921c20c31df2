"""Settings of ``privlearn run arms`` and ``privlearn run test``: a log, or simulated visitors.

All of it is public.  The text below a setting is its help on the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from privlearn.losses.budget_texts import MOST_SIMULATED, Horizon, parse_budget
from privlearn.losses.budgets import ApproxDP, Currency, GaussianDP
from privlearn.runs.configs import LowHigh, Names, check_interval, parts
from privlearn.runs.persons import VisitConfig

SIMULATED: Final = "simulated"
_OF_A_LOG: Final = ("arm", "reward", "reward_range", "people")


def _interval(value: Any) -> Any:
    """An interval from a text such as ``0:1``, or a list."""
    ends = value.split(":") if isinstance(value, str) else value
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError):
        raise ValueError("must be low:high, such as 0:1, or [0, 1] in a file") from None
    return low, high


Interval = Annotated[LowHigh, BeforeValidator(_interval)]
"""Two numbers, or a text with a colon between them."""
Means = Annotated[tuple[float, ...], BeforeValidator(parts)]
"""Numbers, or a text with commas between them."""


class LogConfig(VisitConfig):
    """Settings of one run on rewards of arms."""

    data: str = SIMULATED
    """'simulated' (made-up visitors), or your CSV or Parquet file: a log of which arm each visitor
    was shown, at random, and of what came of it."""
    arms: Names | None = None
    """Names of the arms, a,b,c, as the log has them; public."""
    arm: str | None = None
    """Column of the log that says which arm was shown.  It is declared public: who was shown what
    was drawn by chance, and follows from nothing that is to be protected."""
    reward: str | None = None
    """Column of the log with the reward, which is protected: numbers, or true and false."""
    reward_range: Interval | None = None
    """Public range of rewards, low:high; default 0:1.  A reward outside of it is null."""
    means: Means | None = None
    """Chance of the reward 1 of each arm, .1,.12,… (simulated visitors)."""
    budget: str = "epsilon=1"
    """epsilon=…, rho=…, mu=… or epsilon=…,delta=…"""
    horizon: Horizon | None = None
    """Visitors at most, public; default: as many as the log has lines for, or 10,000 simulated
    ones."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.data == SIMULATED:
            self._fits_simulated()
        else:
            self._fits_log()
        if self.arms is not None and (len(set(self.arms)) < len(self.arms) or "" in self.arms):
            raise ValueError("arms: each once, and none blank")
        if self.arms is not None and len(self.arms) < 2:
            raise ValueError(f"arms = {','.join(self.arms)!r}: name at least two")
        parse_budget(self.budget, pure=True)
        return self

    def _fits_simulated(self) -> None:
        for name in _OF_A_LOG:
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: is of a log; name its file with data")
        for mean in self.simulated_means():
            if not 0 <= mean <= 1:  # NaN is not
                raise ValueError(f"means: {mean:g} must be a chance, from 0 to 1")
        if self.arms is not None and len(self.arms) != len(self.simulated_means()):
            raise ValueError(
                f"arms, means: name as many arms ({len(self.arms)}) as there are means "
                f"({len(self.simulated_means())})"
            )
        if self.horizon is not None and self.horizon > MOST_SIMULATED:
            raise ValueError(
                f"horizon = {self.horizon}: must be at most {MOST_SIMULATED:,} simulated visitors"
            )

    def _fits_log(self) -> None:
        wanted = {
            "arm": "the column that says which arm was shown",
            "reward": "the column with the reward",
            "arms": "all arms by their names in the log, a,b,c (public)",
        }
        for name, what in wanted.items():
            if getattr(self, name) is None:
                raise ValueError(f"{name}: name {what}, as data = {self.data!r} is a log of yours")
        if len({self.arm, self.reward, self.people}) < 3:
            raise ValueError("arm, reward, people: must be different columns")
        if self.means is not None:
            raise ValueError("means: of simulated visitors only; a log has rewards of its own")
        check_interval("reward_range", self.range())

    def range(self) -> LowHigh:
        """Of rewards."""
        return self.reward_range or (0.0, 1.0)

    def simulated_means(self) -> Sequence[float]:
        """Of each arm."""
        raise NotImplementedError

    def names(self) -> tuple[str, ...]:
        """Of the arms."""
        raise NotImplementedError

    def cap(self) -> tuple[Currency | ApproxDP, type[Currency] | None]:
        """The budget, and the currency to count an (ε, δ) promise in (the noise is Gaussian)."""
        budget = parse_budget(self.budget, pure=True)
        return budget, GaussianDP if isinstance(budget, ApproxDP) else None


class ArmConfig(LogConfig):
    """Settings of one run that looks for the best arm."""

    memory: Annotated[int, Field(ge=1)] | None = None
    """Visitors after which what was learned fades, where means drift; default: nothing fades."""
    missing: Annotated[float, Field(ge=0, le=1)] = 0.5
    """What a visitor without a usable reward counts as: 0 is the low end of the range, 1 the high
    one.  0 where no answer means no click."""

    def simulated_means(self) -> Sequence[float]:
        return (0.5, 0.52, 0.55, 0.6) if self.means is None else self.means

    def names(self) -> tuple[str, ...]:
        return self.arms or tuple(f"arm {n}" for n in range(1, len(self.simulated_means()) + 1))


class ABTestConfig(LogConfig):
    """Settings of one A/B test; the first arm is the control."""

    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Chance of a false alarm, however often somebody looks."""
    rate_at_most: float | None = None
    """Public: the control's mean reward is at most this; no higher than the middle of the range.
    Where rates are low, it saves a third of the visitors and more.  Default: nothing is known."""
    assume: Literal["iid", "coin"] = "iid"
    """'iid': new visitors, of whom those who are compared would have the same mean with the same
    arm; 'coin': only that arms were drawn at random, which takes twice the visitors and more."""

    def simulated_means(self) -> Sequence[float]:
        return (0.5, 0.55) if self.means is None else self.means

    def names(self) -> tuple[str, ...]:
        if self.arms is not None:
            return self.arms
        others = len(self.simulated_means()) - 1
        variants = [f"variant {n}" for n in range(1, others + 1)] if others > 1 else ["variant"]
        return ("control", *variants)
