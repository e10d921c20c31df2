"""Which of N experts should be followed? Every user's losses of all of them are private.

Users come in public blocks.  Within a block all follow one expert; at its end the expert is drawn
anew by the exponential mechanism, from noisy weighted sums of the losses so far
(`NoisyMaxBatches`).  No noise grows with N.  Recent blocks weigh more, so that a user pays for few
draws and experts whose losses change are noticed (`privlearn.learners.expert_blocks`).

An expert may be a fixed public *policy*, a function from contexts to actions: then each user's
context and losses stay with the user's row, where the losses of all policies follow from them.
What a user is shown is the present policy's action at the user's own context, which is jointly
private by the billboard lemma.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from typing import Any, NamedTuple, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn.contract.protocols import Accountant, Plan
from privlearn.errors import PolicyError
from privlearn.learners.batches import BatchLearner
from privlearn.learners.contextual import Arms, Visitor, usable_contexts
from privlearn.learners.expert_blocks import block_ends, fading
from privlearn.learners.inputs import block_of, rows_of
from privlearn.learners.participation import NOT_GIVEN, PersonId, given, rule_of
from privlearn.learners.phases import asked_once, two_ends
from privlearn.learners.served import Mask
from privlearn.learners.successive_streams import SuccessiveStreams
from privlearn.losses.budgets import PureDP
from privlearn.mechanisms.noisy_max_batches import MOST_BATCHES, NoisyMaxBatches
from privlearn.mechanisms.vertices import SimplexVertices
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.rows.functions import Calls
from privlearn.rows.pooling import mean_of_visits
from privlearn.rows.tabular import row_from
from privlearn.values.records import copied
from privlearn.values.validate import check_function, count, finite

Policy = Callable[[Array], ArrayLike]
"""Contexts, shape (n, d), to actions, integers of shape (n,); row by row."""

RespondToExperts = Callable[..., ArrayLike]
"""The users' side, row by row: of experts the experts (m,) that were followed, to losses (m, N); of
policies own data (`Visitor`) and actions (m,), to losses (m, n_actions)."""


_TRIED = (0.0, 1.0, -1.0, 0.5, 10.0, 100.0)
"""Contexts of one number each that policies are tried in before anything is spent."""


class Losses(NamedTuple):
    """Rows to learn from, of policies; arrays of one user, or of a block with a leading axis."""

    context: Array
    """As sent, shape (d,)."""
    losses: Array
    """In units of ``loss_range``, shape (N,) or (n_actions,); NaN for a null record."""


@final
@dataclass(eq=False, repr=False)
class PrivateExperts(BatchLearner):
    """Follows one of N experts, and learns from all their losses without telling anybody's.

    Privacy: that of all draws together, under zCDP (also for an (ε, δ) promise) or pure ε-DP
    (docs/proofs.md, "Experts"); with ``policies`` joint, else also for the experts that are shown.

    Args:
        n_experts: N >= 2.
        policies: public row-local functions, one for each expert: contexts (n, d) to actions (n,).
            They are trusted code, named in the ledger, and handed in again after a restart.  Each
            is tried in made-up contexts at `start`; one that fails in all is a PolicyError.
        n_actions: how many actions policies choose from, 0..n_actions−1.
        dim: d, the length of a context.
        loss_range: public ends of losses; a loss outside makes the record unusable.
        first_block: users of the first block, who follow all experts in turn.
        growth: how many times as many users have come at the end of a block as at the end of the
            one before, > 1; no later block is longer than a twentieth of all users, or the first.

    A user without usable losses counts as the middle of the range for every expert.

    After `start`, ``expert_`` is the one that the next user follows, and ``redraws_`` says how
    often one was drawn.
    """

    n_experts: int
    _: KW_ONLY
    policies: Sequence[Policy] | None = None
    n_actions: int | None = None
    dim: int | None = None
    loss_range: tuple[float, float] = (0.0, 1.0)
    first_block: int = 50
    growth: float = 2.0

    _pending_state = "was served"
    _row_kinds = (Losses,)

    def _check_params(self) -> None:
        count(n_experts=self.n_experts, at_least=2)
        self._low, self._high = two_ends(loss_range=self.loss_range)
        count(first_block=self.first_block)
        if finite(growth=self.growth) <= 1:
            raise ValueError(f"growth = {self.growth!r}: must be > 1")
        sizes = {"n_actions": self.n_actions, "dim": self.dim}
        self._code = _code_of(self.policies, self.n_experts)
        for name, size in sizes.items():
            if (size is None) is not (self._code is None):
                raise ValueError(
                    f"{name} = {size!r}: is for policies, which choose among n_actions actions by "
                    "contexts of length dim; give all three, or none"
                )
            if size is not None:
                count(**{name: size})
        self._public_actions = self._code is None
        self._wide = self.n_experts if self.n_actions is None else self.n_actions

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._check_params()
        self._rehearse()
        users, rule = accountant.users, rule_of(accountant)
        if len(users) <= self.first_block:
            raise ValueError(
                f"first_block = {self.first_block}: all {len(users)} users of the accountant are "
                "in it, so that nothing is learned; must be less"
            )
        ends = self._fixed("ends", lambda: block_ends(len(users), self.first_block, self.growth))
        if len(ends) > MOST_BATCHES:
            raise ValueError(
                f"growth = {self.growth!r}: makes {len(ends)} blocks of {len(users)} users, of "
                f"which there may be {MOST_BATCHES}; must be larger"
            )
        self._cut(users, ends)
        self._pooled = rule is not None and rule.pooled
        self._mechanism = self._fixed("picks", lambda: self._calibrated(accountant))
        learned = range(users.start, self._batches[-1].start)
        self._picks = SuccessiveStreams(accountant, "experts", learned, self._mechanism)
        self._expert: int | None = None
        self._redraws = 0
        self._prepare_serving(accountant)

    def _rehearse(self) -> None:
        """Raises for a policy that names no action in any of some made-up contexts."""
        dim = self.dim or 0
        for place, policy in enumerate(self._code or ()):
            for value in _TRIED:
                try:
                    self._chosen(policy, np.full((dim + 2, dim), value))
                    break
                except Exception as error:
                    if value == _TRIED[-1]:
                        raise PolicyError(
                            f"policies[{place}]: failed in all contexts that it was tried in, such "
                            f"as [{value}, ...]: {type(error).__name__}: {error}"
                        ) from error

    def _calibrated(self, accountant: Accountant[Any]) -> NoisyMaxBatches:
        sizes = [len(block) for block in self._batches]
        weights, growth = fading(sizes, pure=isinstance(accountant.budget, PureDP))
        return NoisyMaxBatches.calibrated(
            SimplexVertices(self.n_experts),
            0.5,
            accountant.budget,
            sizes=sizes[:-1],
            weights=weights,
            growth=growth,
            adjacency=accountant.adjacency,
            participation=rule_of(accountant),
        )

    def _plan(self) -> list[Plan]:
        return [self._picks.plan()]

    @property
    def expert_(self) -> int:
        """The expert that the next user follows, 0..N−1; in the first block all in turn."""
        self._check_started()
        return int(self._experts_of(np.array([self.clock_]))[0])

    @property
    def redraws_(self) -> int:
        """How often an expert was drawn so far; another may have been the same."""
        self._check_started()
        return self._redraws

    def _learned_state(self) -> dict[str, Any]:
        return {"expert": self._expert, "redraws": self._redraws}

    # What is shown -------------------------------------------------------------------------------

    def _experts_of(self, turn: Arms) -> Arms:
        if self._expert is None:
            return turn % self.n_experts
        return np.full(len(turn), self._expert)

    def _policy(self, visit: tuple[Any, Arms]) -> Arms:
        """Own data are a `Visitor` where there are policies, else the arrival number alone."""
        own = visit[0]
        if self._code is None:
            return self._experts_of(own)
        experts = self._experts_of(own.turn)
        usable, contexts = _usable(own.context)
        actions = np.empty(len(experts), dtype=np.int64)
        for expert in np.unique(experts):  # which are public
            own_turn = experts == expert
            actions[own_turn] = self._chosen(self._code[expert], contexts)[own_turn]
        return np.where(usable, actions, self._in_turn(own.turn))

    @property
    def _shows(self) -> Callable[[tuple[Any, Arms]], Arms]:
        if self._code is None:
            return self._policy
        return Calls(self._policy, tuple(self._code))

    def _in_turn(self, turn: Arms) -> Arms:
        """The action for whom no policy has one."""
        return turn % self._wide

    def _actions(self, contexts: Array) -> Arms:
        """Actions of all experts, shape (n, N)."""
        code = cast("Sequence[Policy]", self._code)
        return np.stack([self._chosen(one, contexts) for one in code], axis=1)

    def _chosen(self, policy: Policy, contexts: Array) -> Arms:
        """Raises for actions that are none: whoever they are for has a null record then."""
        found = np.asarray(policy(copied(contexts)))
        if found.shape != (len(contexts),) or found.dtype.kind not in "biuf":
            raise ValueError("actions: must be one integer for every context")
        if not ((found >= 0) & (found < self._wide) & (found == np.floor(found))).all():
            raise ValueError("actions: must be among those that there are")
        return found.astype(np.int64)

    # What is learned -----------------------------------------------------------------------------

    def _release(self, rows: Rows[Losses], batch: range) -> None:
        if batch == self._batches[-1]:
            return  # nobody comes who could follow another expert
        gains = rows.map_rows(
            self._gains if self._code is None else Calls(self._gains, tuple(self._code))
        )
        if self._pooled:
            gains = gains.pool(mean_of_visits)
        taken = self._picks.takes(rows.users)
        if not taken:
            return
        released = self._picks.open.append(gains if taken == rows.users else gains.slice(taken))
        if released is None:
            return
        picked = self._board.post(f"expert/{self._batch}", released)
        self._redraws += 1
        if self._expert is None or self._knows_enough():
            self._expert = int(picked[0])

    def _knows_enough(self) -> bool:
        """Whether half of what a draw adds up is there, after a restart that began new sums.

        Until then the expert of before stays.
        """
        counted = zip(self._mechanism.sizes, self._mechanism.weights, strict=True)
        weighed = list(accumulate(size * weight for size, weight in counted))
        first = sum(block.stop <= self._picks.first for block in self._batches)
        before = weighed[first - 1] if first else 0
        return 2 * (weighed[self._batch] - before) >= weighed[self._batch]

    def _gains(self, block: Any) -> Array:
        """½ − loss of every expert, shape (n, N): 0 for the middle of the range."""
        if self._code is None:
            return np.asarray(0.5 - block)
        usable, contexts = _usable(block.context)
        losses = np.take_along_axis(block.losses, self._actions(contexts), axis=1)
        return np.where(usable[:, None], 0.5 - losses, np.nan)

    # One user, or many ---------------------------------------------------------------------------

    @property
    def data_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what one user sends on arrival: of policies a context, else nothing."""
        return {} if self.dim is None else {"context": (count(dim=self.dim),)}

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """Shape of one user's losses: of experts, with policies of actions."""
        return (count(n_experts=self.n_experts) if self.n_actions is None else self.n_actions,)

    def select(self, context: ArrayLike | None = None, *, person: PersonId = NOT_GIVEN) -> int:
        """Returns the expert that the next user follows; with policies the action for that user.

        An unusable context (NaN, wrong shape), and a policy that fails on it or names no action,
        make this user's record null: the actions are shown in turn, the clock goes on, and only
        ``private_messages_`` says so.

        Args:
            context: with policies, and only then, shape (d,).
            person: under a rule of participation, and only then, who it is; None, an empty one or
                nan: nobody who can be told apart, whose visit is served and counts as null.

        Raises:
            HorizonError: all users were served.
            UsersError: the last user's losses are missing.
            ProvenanceError: the accountant is not joint, or without policies is local; a person
                without a rule, or none with one.
            RuntimeError: a release failed before.
            TypeError: a context without policies, or nothing that a user can have sent; an id of
                another kind.
        """
        return cast(int, self._select((context,), person))

    def observe(self, losses: ArrayLike | None) -> None:
        """Takes the losses of all experts, or of all actions, of the user who was served last.

        Args:
            losses: shape (N,), with policies (n_actions,), each within ``loss_range``; else the
                record is null, as for None.

        Raises:
            UsersError: nobody was served.
        """
        self._observe(losses)

    def play(
        self,
        users: int | ArrayLike,
        respond: RespondToExperts,
        private: Array | None = None,
        *,
        people: Sequence[Any] | None = None,
    ) -> None:
        """Serves many users at once; the same as `select` and `observe` one after the other.

        Args:
            users: how many; with policies their contexts, shape (n, d): an array, a data frame, or
                a list of rows.
            respond: the users' losses, row by row, of some of the next users in order of arrival:
                called with the experts (m,) that they followed, it returns losses (m, N); with
                policies called with own data (`Visitor`) and actions (m,), losses (m, n_actions).
                Without policies it must not raise, see `PhaseLearner.play`.
            private: with policies, array of shape (n, m), handed through to ``respond`` and read by
                nobody else.
            people: under a rule of participation, and only then, n ids, as `select` takes them.

        Raises:
            HorizonError: more users than are left.
            ValueError, TypeError: no count, or no contexts; another number of rows or ids; ids of
                another kind; ``private`` without policies.
            ProvenanceError: people without a rule, or none with one.
        """
        self._check_serving()
        check_function(respond=respond)
        first = self.clock_
        if self._code is None:
            if private is not None:
                raise TypeError("private: is for policies=; there are none")
            n = count(users=cast(int, users))
            self._next_users(n)
            void, own = np.zeros(n, dtype=bool), None
        else:
            contexts = self._block_of_next("users", users, (cast(int, self.dim),))
            n, void = len(contexts), ~usable_contexts(contexts)
            own = contexts, self._private(private, n)
        who = self._who("people", people, given(people), n)

        def arrive(part: slice) -> Any:
            turns = np.arange(first + part.start, first + part.stop)
            return turns if own is None else Visitor(own[0][part], turns, own[1][part])

        def answer(visitor: Any, shown: Arms) -> Any:
            return respond(*copied((visitor, shown)))

        heard = asked_once(lambda shown: respond(copied(shown))) if own is None else answer
        self._play(arrive, void, self._hearing(Calls(heard, (respond,))), who)

    def _sent(self, context: Any = None, revenues: Any = None) -> Any:
        if revenues is not None:
            raise TypeError("revenues: experts take none")
        if self._code is not None:
            return row_from("context", context)
        if context is not None:
            raise TypeError("context: is for policies=; there are none")
        return None

    def _arriving(self, sent: Sequence[Any], ids: Sequence[Any] | None) -> tuple[Any, Mask]:
        n = len(sent)
        turns = np.arange(self.clock_, self.clock_ + n)
        if self._code is None:
            return turns, np.zeros(n, dtype=bool)
        contexts = rows_of(sent, (cast(int, self.dim),))
        return Visitor(contexts, turns, np.zeros((n, 0))), ~usable_contexts(contexts)

    def _to_show(self, action: Arms | None, user: int) -> int:
        turn = np.array([user])
        if self._code is None:
            return int(self._experts_of(turn)[0])
        return int(self._in_turn(turn)[0] if action is None else action)

    def _heard(self, answer: Any) -> Array:
        if type(answer) is np.ndarray and answer.dtype == np.float64:
            usable = answer.shape == (self._wide,)
            return np.array(answer) if usable else np.full(self._wide, np.nan)
        return cast(Array, block_of("losses", [answer], (self._wide,))[0])

    def _replying(self, heard: Array) -> Callable[[Any, Arms], Any]:
        return lambda own, shown: self._scaled(own, heard)

    def _hearing(self, respond: Callable[[Any, Arms], Any]) -> Callable[[Any, Arms], Any]:
        def hear(own: Any, shown: Arms) -> Any:
            losses = block_of("losses", respond(own, shown), (self._wide,), len(shown))
            return self._scaled(own, losses)

        return Calls(hear, (respond,))

    def _scaled(self, own: Any, losses: Array) -> Any:
        """Rows to learn from: `Losses` where there are policies, else the losses, (n, N)."""
        good = np.logical_and.reduce((losses >= self._low) & (losses <= self._high), axis=1)
        if self._code is not None:
            good &= usable_contexts(own.context)
        if np.count_nonzero(good) < len(good):
            losses = np.where(good[:, None], losses, np.nan)
        scaled = (losses - self._low) / (self._high - self._low)
        return scaled if self._code is None else Losses(own.context, scaled)

    def _usable_answers(self, answer: Any) -> Mask:
        losses: Array = answer if self._code is None else answer.losses
        return np.isfinite(losses[:, 0])

    def _complaint(self, *, data: bool) -> str:
        if data:
            return f"the context must be ({self.dim},) finite numbers"
        every = "" if self._code is None else ", and every policy must name an action"
        return (
            f"the losses must be {self._wide} numbers from {self._low!r} to {self._high!r}{every}"
        )


def _code_of(policies: Sequence[Policy] | None, experts: int) -> Sequence[Policy] | None:
    if policies is None:
        return None
    if not isinstance(policies, Sequence) or not all(map(callable, policies)):
        raise TypeError(f"policies = {policies!r:.80}: must be a list of functions")
    if len(policies) != experts:
        raise ValueError(f"policies: {len(policies)} functions for n_experts = {experts}")
    return list(policies)


def _usable(contexts: Array) -> tuple[NDArray[np.bool_], Array]:
    """Which contexts are usable, and all with zeros in place of others."""
    usable = usable_contexts(contexts)
    return usable, np.where(usable[:, None], contexts, 0.0)
