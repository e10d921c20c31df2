"""Did B help? An A/B test whose rewards are private, that may be looked at, and stopped, any time.

K users in a row are a group: a public coin gives each of them another arm.  A block is a phase of
groups; its noisy sums are released, and multiply the e-process of every arm against arm 0, the
control (`privlearn.learners.e_process`; docs/proofs.md, "A/B tests").
"""

from __future__ import annotations

import secrets
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.protocols import Accountant
from privlearn.errors import ProvenanceError
from privlearn.learners.e_process import (
    Assume,
    BlockNoise,
    EProcess,
    Pairs,
    corrected,
    first_pairs,
    pairs_of_block,
    passes,
    shift_bound,
    tilts,
)
from privlearn.learners.participation import NOT_GIVEN, PersonId, rule_of
from privlearn.learners.phases import Arms, PhaseLearner
from privlearn.rows.domains import Array
from privlearn.values.validate import count, finite, probability

_HYPOTHESES = {
    "iid": (
        "users are new ones, come in an order that does not depend on the coins, and earn "
        "independently of each other; mean rewards may change, but not between the users of one "
        "group; and whether a user gives a reward at all does not depend on the arm"
    ),
    "coin": (
        "the coins are fair; whether a user comes, and whether a user gives a reward at all, "
        "does not depend on any arm that was shown; it is better, or worse, for somebody, not on "
        "average"
    ),
}


_LEAST_ALPHA = 1e-100
_COINS = 0x7E57
"""Keeps coins apart from what a simulation draws with the same seed: rewards that go with the coin
would be an effect."""


class Decision(NamedTuple):
    """What is known about arms 1..K−1: all of it is true with probability at least 1 − α."""

    wins: tuple[int, ...]
    """Arms that are better than arm 0: of higher mean or, under "coin", for some users."""
    loses: tuple[int, ...]
    """Arms that are worse than arm 0."""
    hypothesis: str
    """What is taken for granted."""

    def __str__(self) -> str:
        said = [f"arm {arm} is better than arm 0" for arm in self.wins]
        said += [f"arm {arm} is worse than arm 0" for arm in self.loses]
        return f"{', '.join(said)}; if {self.hypothesis}"


@final
@dataclass(eq=False, repr=False)
class PrivateTest(PhaseLearner):
    """Compares arms with arm 0, the control; valid whenever it is looked at and stopped.

    Privacy: that of one noisy sum, whatever the number of looks: ε with ``PureDP(ε)`` (Laplace
    noise), ρ with ``ZCDP(ρ)`` (Gaussian), also for the arms that are shown (docs/proofs.md, "Sums
    over phases").

    Errors: with probability at least 1 − ``alpha`` no statement of ``decision_`` is ever false, for
    all arms and both directions together (docs/proofs.md, "A/B tests"), *if* the hypothesis holds:

    - ``assume="iid"``: given all that came before, the users of a group are independent of each
      other, and would earn the same in the mean with the same arm.  Means may change from group to
      group.  Users do not come back: a rule of participation is refused.
    - ``assume="coin"``: nothing but fair coins.  Statements are about single users: "better" says
      that somebody's reward is higher with the arm than with the control; what is refuted is that
      nobody's is.  Persons may come back, at the price of their visits.  Takes twice the users of
      "iid" where base rates are near 1/2, and many more where they are low.
    - Both: *dropout does not differ between arms*.  A user without a usable reward counts as the
      lowest reward, for either arm, so an arm that drives users away before they answer loses, and
      one that only keeps them from answering loses as well.

    Args:
        n_arms: K >= 2, with the control.
        alpha: the probability of any false statement.
        rate_at_most: the control's mean reward is at most this, in the unit of rewards; no higher
            than the middle of the range.  Where it is far below, a declared rate saves a third of
            the users and more.  A rate that is exceeded makes the test invalid.  "iid" only.
        assume: see above.
        reward_range: public ends of rewards; a reward outside is unusable.
        delay: users at the end of each block who are shown its arms and not counted, while those
            before them answer: about as many as come while one decides, where users overlap.
        random_state: seed of the coins; default: drawn from the operating system at the start.  It
            is in the ledger, and no secret from the users' data; but whoever chooses when users
            come must not read it, or the order of users depends on the coins.

    Raises:
        ValueError: at `start`: fewer users than the first block has; a rate above the middle of the
            range, or under "coin", where rewards have no means.
        ProvenanceError: at `start`: persons who return under "iid".
    """

    n_arms: int = 2
    _: KW_ONLY
    alpha: float = 0.05
    rate_at_most: float | None = None
    assume: Assume = "iid"
    reward_range: tuple[float, float] = (0.0, 1.0)
    delay: int = 0
    random_state: int | None = None
    missing = 0.0  # 1/2 would raise the mean above a declared rate: no supermartingale

    def _check_params(self) -> None:
        super()._check_params()
        if probability(alpha=self.alpha) < _LEAST_ALPHA:
            raise ValueError(f"alpha = {self.alpha!r}: must be at least {_LEAST_ALPHA}")
        if self.assume not in tuple(_HYPOTHESES):
            raise ValueError(f"assume = {self.assume!r:.80}: must be 'iid' or 'coin'")
        if self.random_state is not None:
            count(random_state=self.random_state, at_least=0)
        if self.rate_at_most is None:
            return
        if self.assume == "coin":
            raise ValueError(
                f"rate_at_most = {self.rate_at_most!r}: is about means, of which assume='coin' "
                "knows none; leave it out"
            )
        low, high = (float(end) for end in self.reward_range)
        rate = finite(rate_at_most=self.rate_at_most)
        if not low < rate <= low + (high - low) / 2:
            raise ValueError(
                f"rate_at_most = {rate!r}: must lie above {low!r} and be at most "
                f"{low + (high - low) / 2!r}, the middle of reward_range"
            )

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._check_params()
        if self.assume == "iid" and rule_of(accountant) is not None:
            raise ProvenanceError(
                "assume = 'iid': is about users who do not come back, and the accountant has a "
                "rule of participation; use assume='coin'"
            )
        self._outputs = 1 if self.n_arms == 2 else self.n_arms
        super()._prepare(accountant)
        law, grid = self._mechanism.noise, self._mechanism.spend().grid
        assert grid is not None
        pairs = Pairs(self._scaled_rate, self.assume)
        noise = BlockNoise(law, 1 if self.n_arms == 2 else 2, grid.step)
        self._first = self._fixed("first_pairs", lambda: first_pairs(pairs, noise))
        users, needed = len(accountant.users), self.n_arms * self._first + self.delay
        if needed > users:
            raise ValueError(
                f"the first block has {needed} users, and the accountant {users}: more users, a "
                "larger budget or fewer arms"
            )
        made = self._fixed("tilts", lambda: tilts(pairs, users // self.n_arms, self.alpha))
        self._coin = self._fixed("coins", self._drawn_coin)
        self._process = EProcess(pairs, noise, made, (self.n_arms - 1,))
        self._sums: list[Array] = []
        self._pairs: list[int] = []
        self._most = np.zeros(self.n_arms - 1)
        self._said = np.zeros(self.n_arms - 1)  # 1: better, -1: worse, 0: nothing yet
        self._order = range(0), np.zeros(0, dtype=np.int64)

    def _drawn_coin(self) -> int:
        return secrets.randbits(128) if self.random_state is None else int(self.random_state)

    @property
    def _scaled_rate(self) -> float | None:
        if self.rate_at_most is None:
            return None
        return (float(self.rate_at_most) - self._low) / (self._high - self._low)

    def _arms_of(self, turn: Arms) -> Arms:
        return self._arms_in(self._phase)[turn - self._phase.start]

    def _arms_in(self, users: range) -> Arms:
        """All orders of a group's arms are alike; made again from the seed and the first user."""
        if self._order[0] != users:
            seed = np.random.SeedSequence(self._coin, spawn_key=(_COINS, users.start))
            coins = np.random.default_rng(seed)
            groups = -(-len(users) // self.n_arms)
            order = coins.random((groups, self.n_arms)).argsort(axis=1)
            self._order = users, order.ravel()[: len(users)].astype(np.int64)
        return self._order[1]

    def _groups_of(self, users: range) -> int:
        return len(users) // self.n_arms

    def _signs(self, users: range) -> NDArray[np.int8]:
        """Users at the end who are no group are in no sum."""
        arms = self._arms_in(users)
        if self.n_arms == 2:
            signs = (2 * arms - 1).astype(np.int8)[:, None]
        else:
            signs = (arms[:, None] == np.arange(self.n_arms)).astype(np.int8)
        signs[self.n_arms * self._groups_of(users) :] = 0
        return signs

    def _phase_length(self) -> int:
        return self.n_arms * pairs_of_block(len(self._sums), self._first)

    def _learned(self, users: range, total: Array) -> None:
        sums = total if self.n_arms == 2 else total[1:] - total[0]
        self._sums.append(np.array(sums, dtype=float))
        self._pairs.append(self._groups_of(users))
        self._process.add(sums, self._pairs[-1])
        evidence = corrected(self._process.log_sides)
        best = evidence.max(axis=-1)
        self._most = np.maximum(self._most, best)
        way = np.sign(evidence[:, 0] - evidence[:, 1])
        self._said = np.where((self._said == 0) & passes(best, self.alpha), way, self._said)

    # What is known ------------------------------------------------------------------------------

    def assign(self, *, person: PersonId = NOT_GIVEN) -> int:
        """Returns the arm that the coin gives the next user, 0..K−1; the same as `select`."""
        return self.select(person=person)

    @property
    def hypothesis_(self) -> str:
        """What is taken for granted, in words: goes with every result that is shown."""
        rate = self.rate_at_most
        declared = "" if rate is None else f"; the control's mean reward is at most {rate!r}"
        return _HYPOTHESES[self.assume] + declared

    @property
    def e_value_(self) -> float | Array:
        """Evidence now that the arm is better, or that it is worse, than the control.

        Corrected for both directions and all arms: 1/(2K − 2) at first, and 1/alpha decides.  Of
        two arms a number, of more an array of shape (K−1,), for arms 1..K−1.
        """
        self._check_started()
        return self._shaped(_exp(corrected(self._process.log_sides).max(axis=-1)))

    @property
    def p_value_(self) -> float | Array:
        """min(1, 1/largest e-value so far), a p-value at any time; shape as of ``e_value_``."""
        self._check_started()
        return self._shaped(1 / _exp(self._most))

    def _shaped(self, values: Array) -> float | Array:
        return float(values[0]) if self.n_arms == 2 else values

    @property
    def decision_(self) -> Decision | None:
        """Which arms are better or worse than the control; None as long as none is known to be.

        What it once says it says for good.
        """
        self._check_started()
        if not self._said.any():
            return None
        wins, loses = (
            tuple(int(arm) + 1 for arm in np.flatnonzero(self._said == way)) for way in (1, -1)
        )
        return Decision(wins, loses, self.hypothesis_)

    def interval(self, level: float | None = None) -> Array:
        """Where the difference of mean rewards lies, arm minus control, if it is constant.

        The true differences of all arms are in theirs at all times with probability at least
        ``level``.  With the default level that holds together with all that ``decision_`` says, and
        an arm is said to be better, or worse, when its interval leaves 0.  With a declared rate the
        control's mean is at most that; users without a reward count as the lowest.  All that can be
        before any block has ended; nan if the data leave no difference, as they do with probability
        1 − level or if the hypothesis is wrong.

        Args:
            level: default 1 − alpha.

        Returns:
            Shape (2,), of more than two arms (K−1, 2); in the unit of rewards.

        Raises:
            ValueError: the level is no probability; ``assume="coin"``: constant effects on all
                users cannot be, where rewards are 0 and 1 or somebody gave none.
        """
        self._check_started()
        if self.assume == "coin":
            raise ValueError(
                "interval: has no meaning under assume='coin', as no effect can be the same for "
                "all users where rewards are 0 and 1, or somebody gave none; use assume='iid'"
            )
        error = self.alpha if level is None else 1 - probability(level=level)
        sums = np.array(self._sums).reshape(-1, self.n_arms - 1)
        sizes = np.array(self._pairs, dtype=float)
        share = error / (2 * (self.n_arms - 1))
        low, high = (
            shift_bound(side, sums, sizes, process=self._process, alpha=share) for side in (1, -1)
        )
        found = np.where((low <= high)[:, None], np.stack([low, high], axis=1), np.nan)
        found *= self._high - self._low
        return found[0] if self.n_arms == 2 else found

    def _learned_state(self) -> dict[str, Any]:
        return {
            "sums": [sums.tolist() for sums in self._sums],
            "pairs": list(self._pairs),
            "most": self._most.tolist(),
            "said": self._said.tolist(),
        }


def _exp(logs: Array) -> Array:
    return np.exp(np.minimum(logs, 700.0))
