"""A bandit policy of another library, which is told noisy means and nothing else.

The policy chooses an arm, the next `hold` users are shown it, and the policy is told the noisy mean
of their rewards.  So it sees released values alone: whatever it does is post-processing, and costs
nothing beyond the sums (docs/proofs.md, "Sums over phases").

There is no such wrapper for policies that take a context of the user.  What is shown then depends
on the user's own data, so that which arm it was, and how many users had it, would have to be
protected as well; users of one phase would be shown different arms, whose rewards no single sum
tells; and ``fit(context, arm, reward)`` wants each context, which nobody may release.  What remains
are private statistics of contexts and rewards: `PrivateLeastSquares`, `OnePassNewtonMNL`.
"""

from __future__ import annotations

import copy
import math
import reprlib
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from operator import index
from typing import Any, Protocol, final

import numpy as np

from privlearn.contract.protocols import Accountant
from privlearn.errors import PolicyError
from privlearn.learners.base import stored_parameter
from privlearn.learners.phases import Arms, PhaseLearner, two_ends
from privlearn.rows.domains import Array
from privlearn.values.records import copied
from privlearn.values.validate import count

_REHEARSED = 100
"""Rounds beyond the first of each arm that a policy is tried on before anything is spent."""
_STEP = (math.sqrt(5) - 1) / 2


class Policy(Protocol):
    """A policy of your own."""

    def choose(self) -> int:
        """The arm to show to the next users, 0..K−1."""

    def learn(self, arm: int, mean: float, weight: int) -> object:
        """Takes the noisy mean of the rewards of ``weight`` users who were shown ``arm``."""


@final
class _Fitted:
    """MABWiser's ``predict()`` and ``partial_fit(arms, rewards)``, which is to come first."""

    def __init__(self, policy: Any, n_arms: int) -> None:
        if getattr(policy, "is_contextual", False):
            raise PolicyError(
                "policy: takes contexts, which HeldPolicy has none of (see privlearn.learners."
                "held_policy); PrivateLeastSquares learns from contexts"
            )
        named = list(getattr(policy, "arms", range(n_arms)))
        if named != list(range(n_arms)):
            raise PolicyError(f"policy.arms = {named!r:.80}: must be list(range({n_arms}))")
        self._policy, self._in_turn = policy, iter(range(n_arms))

    def choose(self) -> object:
        arm = next(self._in_turn, None)
        return self._policy.predict() if arm is None else arm

    def learn(self, arm: int, mean: float, weight: int) -> None:
        self._policy.partial_fit([arm], [mean])


@final
class _Pulled:
    """``pull(arms)`` and ``update(arm, reward)`` of river's bandits."""

    def __init__(self, policy: Any, n_arms: int) -> None:
        self._policy, self._arms = policy, list(range(n_arms))

    def choose(self) -> object:
        return self._policy.pull(list(self._arms))

    def learn(self, arm: int, mean: float, weight: int) -> None:
        self._policy.update(arm, mean)


_WAYS: dict[tuple[str, str], Callable[[Any, int], Any]] = {
    ("choose", "learn"): lambda policy, n_arms: policy,
    ("predict", "partial_fit"): _Fitted,
    ("pull", "update"): _Pulled,
}


@final
class _Heard:
    """A copy of a policy, with errors of ours.

    Args:
        policy: of another library.
        n_arms: K.

    Raises:
        TypeError: it has none of the methods that are known, or cannot be copied.
        PolicyError: it is for other arms, or takes contexts.
    """

    def __init__(self, policy: Any, n_arms: int) -> None:
        kind = type(policy).__name__
        ways = [way for way in _WAYS if all(callable(getattr(policy, name, None)) for name in way)]
        if isinstance(policy, type) or not ways:
            known = "; ".join(" and ".join(way) for way in _WAYS)
            shown = reprlib.repr(policy)
            raise TypeError(f"policy = {shown}: must be an object with the methods {known}")
        try:
            own = copy.deepcopy(policy)
        except Exception as error:
            raise TypeError(
                f"policy: a {kind} cannot be copied ({type(error).__name__}: {error}), and a "
                "copy.deepcopy is what learns"
            ) from error
        self.policy, self._n_arms, self._kind = own, n_arms, kind
        self._to_choose, self._to_learn = ways[0]
        self._made = _WAYS[ways[0]](own, n_arms)

    def choose(self) -> int:
        """The arm that it chooses.

        Raises:
            PolicyError: it fails, or that is no arm.
        """
        try:
            arm = self._made.choose()
        except Exception as error:
            raise self._failed(self._to_choose, error) from error
        try:
            found = -1 if isinstance(arm, bool) else int(index(arm))
        except TypeError:
            found = -1
        if not 0 <= found < self._n_arms:
            raise PolicyError(
                f"policy: {self._kind}.{self._to_choose} returned {reprlib.repr(arm)}: must be an "
                f"integer from 0 to {self._n_arms - 1}"
            )
        return found

    def learn(self, arm: int, mean: float, weight: int) -> None:
        """Tells it a noisy mean.

        Raises:
            PolicyError: it fails.
        """
        try:
            self._made.learn(arm, mean, weight)
        except Exception as error:
            raise self._failed(self._to_learn, error) from error

    def _failed(self, name: str, error: Exception) -> PolicyError:
        what = f"{type(error).__name__}: {error}"
        return PolicyError(f"policy: {self._kind}.{name} raised {what:.300}")


@final
@dataclass(eq=False, repr=False)
class HeldPolicy(PhaseLearner):
    """Shows what any bandit policy without contexts chooses, each choice to several users.

    ``HeldPolicy(MAB([0, 1, 2], LearningPolicy.UCB1()), n_arms=3)`` is all that MABWiser needs.
    `PrivateArms` knows how much noise is in which mean; those measured lose 2 to 6 times as much.
    Policies that count successes, as those with Beta posteriors do, do not learn from means.

    Privacy: as of `PrivateArms`.

    Args:
        policy: with the methods ``choose() -> arm`` and ``learn(arm, mean, weight)`` (`Policy`), or
            ``predict`` and ``partial_fit`` (MABWiser; each arm is held once before it is asked), or
            ``pull`` and ``update`` (river).  A copy of it learns, ``policy_``.  Whatever it draws
            must follow from a seed of its own, as it is told everything again after a restart.
        n_arms: K >= 2; arms are 0..K−1.
        hold: how many users are shown each choice; default ⌈√2·σ⌉, at which noise has half the
            standard deviation that it has in one reward's place: 2/ε under pure ε-DP; no less than
            ``delay``, or most users would not be counted.
        clip: ends that noisy means are clipped to before the policy is told; ``(0, 1)`` for
            policies that take no others.
        reward_range: public ends of rewards; a reward outside is unusable.  The policy is told
            means in units in which they are 0 and 1.
        missing: what a user without a usable reward counts as, in these units.
        delay: as of `PrivateArms`.

    Before anything is spent the policy is rehearsed on public numbers.  If it fails later, that
    call raises PolicyError, and the learner stops: what was released stands in the ledger, and
    ``HeldPolicy.resume(accountant, policy=...)`` goes on with a policy that was mended, if it still
    makes the choices of before.  What was told to it was public, so an error tells of no user.

    After `start`: ``policy_`` and, by arm, ``pulls_`` and ``means_``.

    Raises at `start`:
        TypeError: the policy has none of these methods, or cannot be copied.
        PolicyError: it takes contexts, fails, chooses what is no arm, or chooses otherwise when it
            is told the same, or than the one that the run was begun with.
    """

    policy: object
    _: KW_ONLY
    n_arms: int
    hold: int | None = None
    clip: tuple[float, float] = (-1.0, 2.0)
    reward_range: tuple[float, float] = (0.0, 1.0)
    missing: float = 0.5
    delay: int = 0

    def _check_params(self) -> None:
        super()._check_params()
        self._clip = two_ends(clip=self.clip)
        if self.hold is not None:
            count(hold=self.hold)

    def _prepare(self, accountant: Accountant[Any]) -> None:
        super()._prepare(accountant)
        self._hold = self._fixed(
            "hold", lambda: self.hold or max(self._users_for(math.sqrt(2)), self.delay)
        )
        self._check_horizon(self._hold)
        self._check_same_choices()
        self._own = _Heard(self.policy, self.n_arms)
        self._totals, self._pulls = np.zeros(self.n_arms), np.zeros(self.n_arms, dtype=np.int64)
        self._arm = self._own.choose()

    def _check_same_choices(self) -> None:
        now, again = self._rehearsed(), self._rehearsed()
        if now != again:
            raise PolicyError(
                f"policy: two copies of a {type(self.policy).__name__} chose different arms when "
                "they were told the same; what it draws must follow from a seed of its own"
            )
        if self._fixed("rehearsed", lambda: now) != now:
            raise PolicyError(
                f"policy: this {type(self.policy).__name__} chooses other arms than the one that "
                "the run was begun with; hand in the same, with the same seed"
            )

    def _rehearsed(self) -> list[int]:
        """What a copy chooses when it is told public numbers from end to end of `clip`."""
        tried, chosen = _Heard(self.policy, self.n_arms), []
        low, high = self._clip
        for i in range(self.n_arms + _REHEARSED):
            share = (0.0, 1.0)[i] if i < 2 else i * _STEP % 1
            chosen.append(tried.choose())
            tried.learn(chosen[-1], low + (high - low) * share, self._hold)
        return chosen

    def _arms_of(self, turn: Arms) -> Arms:
        return np.asarray(0 * turn + self._arm)  # np.full is slow for one

    def _phase_length(self) -> int:
        return self._hold

    def _learned(self, users: range, total: Array) -> None:
        arm, weight = self._arm, len(users)
        self._totals[arm] += total[0]
        self._pulls[arm] += weight
        low, high = self._clip
        self._own.learn(arm, min(max(float(total[0]) / weight, low), high), weight)
        if self._phase.stop < self._board.users.stop:
            self._arm = self._own.choose()

    @property
    def policy_(self) -> Any:
        """The policy that learns, as it stands now."""
        self._check_started()
        return self._own.policy

    @property
    def means_(self) -> Array:
        """Noisy mean rewards, shape (K,); NaN of arms that were not shown."""
        self._check_started()
        with np.errstate(invalid="ignore"):
            means = self._totals / self._pulls
        return np.asarray(self._low + (self._high - self._low) * means)

    @property
    def pulls_(self) -> Arms:
        """How many users of each arm were counted in the phases that were learned, shape (K,)."""
        self._check_started()
        return copied(self._pulls)

    def _learned_state(self) -> dict[str, Any]:
        return {
            "params": {**self.get_params(), "policy": stored_parameter(self.policy)},
            "arm": self._arm,
            "totals": self._totals.tolist(),
            "pulls": self._pulls.tolist(),
        }
