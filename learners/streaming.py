"""What all learners on streams of logged rows (x, y) share: one row at a time or in blocks.

A learner releases a parameter ``coef_`` that is public at any time.  Rows are sealed on entry, and
what enters a mechanism is a function of one row and of public state.  When the public state
changes, and how, is for the subclasses: `_prepare`, `_next_change`, `_take`.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from privlearn.contract.protocols import Accountant
from privlearn.contract.receipts import Released
from privlearn.contract.tokens import Token
from privlearn.errors import AdjacencyError, ProvenanceError
from privlearn.learners.base import Learner
from privlearn.learners.inputs import block_of, check_dtype, column_from, numbers_from, row_of
from privlearn.learners.participation import check_given, given, rule_of
from privlearn.losses import Loss
from privlearn.losses.budgets import B
from privlearn.mechanisms.constraint_sets import norms
from privlearn.mechanisms.scalar_objectives import (
    ScalarObjective,
    SquaredObjective,
    code_of,
    named_objective,
)
from privlearn.rows import Rows, RowStore
from privlearn.rows.domains import Array
from privlearn.rows.functions import Calls
from privlearn.rows.tabular import block_from, row_from
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.participation import Participation
from privlearn.values.user_code import FAILED, attempted
from privlearn.values.validate import count, positive

Example = tuple[Array, Array]
"""A block of rows: features, shape (n, d), and labels, shape (n,)."""
Terms = Sequence[tuple[float, Array]]
"""Public weights and parameters; an increment is the weighted sum of gradients at them."""

Out = TypeVar("Out")
R = TypeVar("R", bound=NDArray[Any])
R_co = TypeVar("R_co", bound=NDArray[Any], covariant=True)


class _Releasing(Protocol[R_co]):
    def loss(self) -> Loss: ...
    def release(self, rows: Rows[Any], token: Token[B], /) -> Released[R_co]: ...


_ROUNDING = 1 + 1e-9


def typical_length(dim: int, q: float) -> float:
    """A typical ‖x‖₂ of a vector with ‖x‖_q = 1: √d/(d·E|N|^q)^{1/q}, N standard normal.

    For q = ∞ it is √d/√(2 ln d), the leading order.
    """
    if q == math.inf:
        return math.sqrt(dim) / math.sqrt(2 * math.log(max(dim, 3)))
    moment = math.exp(q / 2 * math.log(2) + gammaln((q + 1) / 2) - 0.5 * math.log(math.pi))
    return float(math.sqrt(dim) / (dim * moment) ** (1 / q))


class StreamLearner(Learner):
    """Learns from a stream of logged rows under a central accountant.

    After `start`, ``coef_`` (d,) is the released parameter.
    """

    loss: str | ScalarObjective
    feature_bound: float
    label_bound: float

    @property
    @abstractmethod
    def _dim(self) -> int:
        """d."""

    @property
    @abstractmethod
    def _feature_norm(self) -> float:
        """The q of the norm that ``feature_bound`` is about."""

    @abstractmethod
    def _check_params(self) -> None:
        """Raises ValueError or TypeError for a parameter out of range."""

    @abstractmethod
    def _calibrate(self, accountant: Accountant[Any]) -> None:
        """Makes the mechanisms."""

    @abstractmethod
    def _next_change(self) -> int:
        """The arrival index before which increments are made from the same public state."""

    @abstractmethod
    def _take(self, rows: Rows[Example]) -> None:
        """Learns from the rows up to the clock, which are not beyond `_next_change`."""

    def _check_rule(self, rule: Participation) -> None:
        """Raises ValueError for a rule under which this learner has no price for a person."""
        raise ValueError(
            f"{type(self).__name__}: no price for a person who comes back ({rule}); use an "
            "accountant without people=, for which every index is a person, or DPTOFW or DPPOFW"
        )

    @property
    def _rule_batches(self) -> Sequence[int]:
        """None; for a learner whose `_check_rule` lets rules pass that count within batches."""
        return ()

    def _check_accountant(self, accountant: Accountant[Any]) -> None:
        if accountant.trust is not Trust.CENTRAL:
            raise ProvenanceError(
                "logged rows were not served by a billboard: a joint or local guarantee does not "
                "cover them; use a CentralAccountant"
            )
        if accountant.adjacency is Adjacency.ADD_REMOVE:
            raise AdjacencyError("under add-remove every later row of a stream would shift")
        super()._check_accountant(accountant)

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._read_loss()
        self._check_params()
        rule = rule_of(accountant)
        if rule is not None:
            self._check_rule(rule)
        self._theta: Array = np.zeros(self._dim)
        self._open_board(accountant)
        self._closed = False
        self._calibrate(accountant)

    def start(
        self,
        accountant: Accountant[Any],
        *,
        store: RowStore | None = None,
        again: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """As `Learner.start`.

        Args:
            accountant, store: as there.
            again: after a restart, instead of a store: (x, y) of the first users, at least those up
                to where the process before came, as they were sent then.  Where it ended between
                two releases of the same rows, those that the plan still holds are made now.

        Raises:
            ValueError, TypeError: rows as `partial_fit` refuses them, or of other accountants.
            ProvenanceError: under a rule of participation, which admits a row once: use a store.
        """
        self._again = again
        return super().start(accountant, store=store)

    @classmethod
    def resume(
        cls,
        accountant: Accountant[Any],
        *,
        store: RowStore | None = None,
        again: tuple[ArrayLike, ArrayLike] | None = None,
        **given: Any,
    ) -> Self:
        """As `Learner.resume`, with rows that come ``again`` as in `start`."""
        return cls._made_again(accountant, given).start(accountant, store=store, again=again)

    def _replay(self) -> None:
        if self._again is None:
            super()._replay()
            return
        if self._accountant.people is not None:
            raise ProvenanceError(
                "again: a registry of people admits a row once; keep rows with store="
            )
        (values, labels), first = self._block(*self._again), self._accountant.users.start
        self._again = None
        self._kept.send_again(Rows._of_own((values, labels), range(first, first + len(labels))))
        super()._replay()
        came = min(self.clock_ - first, len(labels))
        nobody = np.zeros(came, dtype=bool)
        self._tell(range(first, first + came), values[:came], labels[:came], nobody)

    def _pass_again(self, users: range) -> None:
        if self._accountant.people is not None:
            self._accountant.people.skip_to(users.stop)
        self._take_all(Rows.null(users))

    def _read_loss(self) -> None:
        """Takes the loss and the public bounds.

        Raises:
            ValueError, TypeError: out of range.
        """
        self._bound = positive(feature_bound=self.feature_bound)
        self._loss = named_objective(self.loss, positive(label_bound=self.label_bound))

    @property
    def coef_(self) -> Array:
        """The released parameter, shape (d,); a copy.

        Raises:
            RuntimeError: not started.
        """
        self._check_started()
        return self._theta.copy()

    def predict(self, x: ArrayLike) -> Array:
        """Scores x·θ of the released parameter, shape (n,) for x of shape (n, d), else ().

        Features beyond ``feature_bound`` are scaled onto it, as when they are learned from.

        Raises:
            ValueError: x has another width.
            RuntimeError: not started.
        """
        values = numbers_from("x", x)
        if values.shape[-1:] != (self._dim,):
            raise ValueError(f"x of shape {values.shape}: the last length must be {self._dim}")
        coef = self.coef_
        within = self._within(values.reshape(-1, self._dim)).reshape(values.shape)
        return np.asarray(within @ coef)

    def partial_fit(self, x: ArrayLike, y: ArrayLike, *, people: Any = None) -> Self:
        """Learns from the next user, or the next n, in order of arrival.

        Features beyond ``feature_bound`` are scaled onto it and labels clipped.  A row that is not
        numbers of the right shape, or has no label, counts as null: the clock goes on, and only
        ``private_messages_`` says so.

        Args:
            x: shape (d,) with a single label, or (n, d): an array, a data frame of numbers, or a
                list, which may hold rows of any kind.
            y: the label, or shape (n,).
            people: under a rule of participation, and only then, who each of them is: an id for
                every row (str, bytes or int; None for nobody, whose row is null), or the one id of
                a single row.  What the rule has no room for is null, and nothing tells.

        Raises:
            HorizonError: more users than are left.
            ProvenanceError: a registry without ids, or ids without one.
            UsersError, TypeError: not an id for every row.
            ValueError: an array of the wrong shape, blocks of different lengths, a list of which no
                entry could be a row.
            TypeError: no table (a dict, a generator, a sparse matrix), or an array or a column of
                another type than numbers, such as labels that are text.
            RuntimeError: not started, or failed half-way.
        """
        self._check_running()
        values, labels = self._block(x, y)
        users = self._next_users(len(labels))
        registry = self._accountant.people
        check_given(registry, given(people), "people")
        if not users:
            return self
        rows: Rows[Example] = Rows._of_own((values, labels), users)
        nobody = np.zeros(len(users), dtype=bool)
        if registry is not None:
            ids = _ids(people, len(users))
            nobody = registry.nobody(ids)
            rows = registry.admit(rows, ids)
        self.private_counts_.rows += len(users)
        self._tell(users, values, labels, nobody)
        self._take_all(rows)
        return self

    def skip(self, n: int) -> Self:
        self._check_running()
        users = self._next_users(count(n=n))
        if self._accountant.people is not None:
            self._accountant.people.skip_to(users.stop)
        self._take_all(Rows.null(self._absent_users(n)))
        return self

    def _take_all(self, rows: Rows[Example]) -> None:
        users = rows.users
        self._failed = True  # until all is taken in: a half-taken row must not be sent again
        rows = self._kept.arrived(rows, self._needed_from)
        while self.clock_ < users.stop:
            stop = min(self._next_change(), users.stop)
            whole = (self.clock_, stop) == (users.start, users.stop)
            part = rows if whole else rows.slice(range(self.clock_, stop))
            self.clock_ = stop
            self._take(part)
        self._kept.over(self.clock_)
        self._failed = False

    def _needed_from(self) -> int:
        """Everybody, where the subclass does not know better."""
        return self._accountant.users.start

    def _block(self, x: Any, y: Any) -> Example:
        x, y = _logged("x", x, row_from), _logged("y", y, column_from)
        # One array of numbers is one user's row, whatever that user's label looks like.
        single = isinstance(x, np.ndarray) and x.ndim == 1 and not _of_rows(x)
        if single or not (isinstance(y, list | tuple) or getattr(y, "ndim", 0) > 0):
            return self._single(x, y)
        values = block_of("x", x, (self._dim,))
        return values, block_of("y", y, (), len(values))

    def _single(self, x: Any, y: Any) -> Example:
        dim = self._dim
        table = isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype.kind in "biuf"
        several = isinstance(y, np.ndarray) and y.shape not in ((), (1,))
        if isinstance(x, np.ndarray) and isinstance(y, list | tuple) and x.shape != (dim,):
            several = 1 < len(y) == len(x)
        if several or (table and x.shape != (1, dim)):
            labels = f"{len(y)} labels" if several else "one label"
            raise ValueError(
                f"x of shape {x.shape} with {labels}: x must have shape ({dim},) with one label, "
                f"or (n, {dim}) with n of them"
            )
        if table:
            x = x[0]
        if isinstance(y, np.ndarray | np.generic):
            check_dtype("y", y)
        if isinstance(y, np.ndarray) and y.shape:
            y = y[0]
        plain = type(x) is np.ndarray and x.dtype == np.float64 and x.shape == (self._dim,)
        values = np.array(x) if plain else row_of(x, (self._dim,))
        return values[None], np.array([y]) if isinstance(y, float) else row_of(y, ())[None]

    def _check_running(self) -> None:
        self._check_started()
        if self._closed:
            raise RuntimeError("the learner was closed: start a new one for other users")
        if self._failed:
            raise RuntimeError(
                "a round or release failed half-way: its sealed sums are lost; serve other users "
                "with a new learner and accountant"
            )

    def _tell(self, users: range, values: Array, labels: Array, nobody: NDArray[np.bool_]) -> None:
        found = attempted(self._known_labels, labels)
        if found is FAILED:  # a loss of the user's own: the rows that it fails on become null
            each = [attempted(self._known_labels, labels[i : i + 1]) for i in range(len(labels))]
            found = np.array([one is not FAILED and bool(one[0]) for one in each])
        finite = np.asarray(np.isfinite(values).all(axis=1))
        null: NDArray[np.bool_] = nobody | ~(found & finite)
        for i in np.flatnonzero(null):
            what = f"features must be ({self._dim},) finite numbers"
            if nobody[i]:
                what = "no id says who came"
            elif finite[i]:
                what = "the label must be a number that the loss takes"
            self._notify(users[int(i)], what)

    def _known_labels(self, labels: Array) -> NDArray[np.bool_]:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one would tell of sealed data
            return np.asarray(np.isfinite(self._loss.labels(labels)).reshape(labels.shape))

    def _posted(self, mechanism: _Releasing[R], rows: Rows[Any], label: str, name: str) -> R:
        token = self._accountant.issue(mechanism.loss(), users=rows.users, label=label)
        return self._board.post(name, mechanism.release(rows, token))

    def _examples(self, block: Example) -> Example:
        """Rows within the public bounds; NaN stays NaN, and makes its row null."""
        return self._within(block[0]), self._loss.labels(block[1])

    def _within(self, values: Array) -> Array:
        """Features, shape (n, d), with those beyond ``feature_bound`` scaled onto it."""
        q, bound = self._feature_norm, self._bound
        sizes = np.abs(values)
        if q == math.inf:
            over = sizes.max(axis=1) > bound * _ROUNDING
        else:
            if bound != 1:
                sizes /= bound
            over = ~((sizes**q).sum(axis=1) <= _ROUNDING)
        if over.any():
            usable = np.where(np.isfinite(values), values, 0.0)
            scale = np.where(over, bound / np.maximum(norms(usable, q), bound), 1.0)
            values = values * scale[:, None]
        return values

    def _increments(self, terms: Terms) -> Callable[[Example], Array]:
        """Weighted sums of the rows' gradients at public parameters; row by row, shape (n, d)."""

        if isinstance(self._loss, SquaredObjective):  # linear in θ: one score is enough
            mixed: Array = sum((weight * theta for weight, theta in terms), np.zeros(self._dim))
            total = sum(weight for weight, _ in terms)
            terms = [(total, mixed / total)]

        def increments(block: Example) -> Array:
            values, labels = self._examples(block)
            # Sums along a row, and no matrix product, so that blocks give the same bits.
            residuals: Any = 0.0
            for weight, theta in terms:
                scores = (values * theta).sum(axis=1)
                residuals = residuals + weight * self._loss.derivative(scores, labels)
            return np.asarray(residuals[:, None] * values)

        return self._calling(increments)

    def _calling(self, function: Callable[[Example], Out]) -> Callable[[Example], Out]:
        """A function of rows that asks the loss, which may be the user's code."""
        return Calls(function, (code_of(self._loss), self))

    def public_state(self) -> dict[str, Any]:
        """The learner's public side, as JSON values: a function of releases and the clock."""
        return {
            "learner": type(self).__name__,
            "params": {name: _plain(value) for name, value in self.get_params().items()},
            "clock": self.clock_,
            "coef": self._theta.tolist(),
        }


def _ids(people: Any, rows: int) -> Any:
    alone = isinstance(people, str | bytes | int | np.integer) and rows == 1
    return [people] if alone else people


def _of_rows(x: NDArray[Any]) -> bool:
    return x.dtype == object and any(isinstance(row, list | tuple | np.ndarray) for row in x)


def _logged(name: str, values: Any, read: Callable[[str, Any], Any]) -> Any:
    return block_from(name, values) if isinstance(values, dict) else read(name, values)


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return "inf" if value == math.inf else value


def checked_choice(options: Sequence[str], **named: str) -> str:
    """Returns the value if it is one of ``options``.

    Raises:
        ValueError: it is not.
    """
    ((name, value),) = named.items()
    if value not in options:
        raise ValueError(f"{name} = {value!r}: must be one of {', '.join(map(repr, options))}")
    return value


def epoch_count(users: int, smallest: float, most: int) -> int:
    """At most ``most`` epochs, of on average at least ``smallest`` users."""
    return int(np.clip(count(users=users) / smallest, 1, min(most, users)))


def epoch_sizes(users: int, epochs: int, growth: float) -> list[int]:
    """Sizes of geometrically growing epochs, each at least 1; there are no more than users."""
    weights = growth ** np.arange(min(epochs, users))
    sizes = np.maximum(np.floor(users * weights / weights.sum()).astype(int), 1)
    sizes[-1] += users - sizes.sum()
    return [int(size) for size in sizes]
