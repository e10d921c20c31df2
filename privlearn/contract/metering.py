"""Meters: the spend of code that is not ours, which is durable before that code runs.

A metered block opens its data and draws its noise by itself, so of what it does only the price is
known, which is its code's word.  What a meter takes care of is all around it: the price is in the
ledger before the block begins, once, and stays there however the block ends.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Never, ParamSpec, TypeVar, cast, final

import numpy as np

from privlearn.contract.issuing import Outcome, RecordedToken, ReleasedValue
from privlearn.contract.leases import Lease
from privlearn.contract.spends import METERED, Spend
from privlearn.contract.tokens import Token
from privlearn.errors import (
    AdjacencyError,
    PrivlearnError,
    TokenCopyError,
    TokenError,
    TokenSpentError,
)
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.records import parse
from privlearn.ledger.values import KEPT_KINDS, digest_of
from privlearn.losses import ApproxLoss, GaussianLoss, Loss, PureLoss, RenyiCurve, ZCDPLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, Budget, GaussianDP, PureDP, Renyi
from privlearn.storage.exclusive import Exclusive
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact
from privlearn.values.validate import text

P = ParamSpec("P")
T = TypeVar("T")
_LONGEST = 4096
"""Bytes of what is said of trusted code, which stands in every spend, and on certificates."""


@final
@dataclass(frozen=True)
class TrustedCode:
    """Code whose word the price of a metered block is; it stands in the ledger, for everybody.

    Args:
        package: the name of its package.
        version: of the package.
        parameters: that the price came from, as JSON.

    Raises:
        ValueError: a name or version that is no text; parameters that are no JSON, or too long.
    """

    package: str
    version: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text(package=self.package)
        text(version=self.version)
        try:
            written = canonical([self.package, self.version, dict(self.parameters)])
        except (TypeError, ValueError) as error:
            raise ValueError(f"parameters: must be an object of JSON: {error}") from None
        if len(written) > _LONGEST:
            raise ValueError(f"parameters: {len(written)} bytes of JSON, more than {_LONGEST}")
        object.__setattr__(self, "parameters", parse(written)[2])  # nobody else's to change

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"package": self.package, "version": self.version, "parameters": self.parameters}


class _Own:
    """A domain, or noise, that is the metered code's own."""

    norm = None

    def __init__(self, name: str) -> None:
        self._form = {name: METERED}

    def to_dict(self) -> dict[str, Any]:
        return dict(self._form)

    def __repr__(self) -> str:
        return "of metered code"


_DOMAIN, _NOISE = _Own("kind"), _Own("family")


def metered_spend(loss: Loss, code: TrustedCode | None) -> Spend:
    """What is written of code that is not ours before it runs."""
    return Spend(
        METERED if code is None else f"{METERED} {code.package}",
        cast(Any, _DOMAIN),
        cast(Any, _NOISE),
        own_loss=loss,
        parameters={METERED: {} if code is None else code.to_dict()},
    )


def is_metered(spend: Spend) -> bool:
    """Whether a spend was made by `metered_spend`."""
    return cast(Any, spend.domain) is _DOMAIN


def loss_of(price: Loss | Budget, adjacency: Adjacency) -> Loss:
    """The loss of a black box that keeps a budget; a loss is its own.

    Raises:
        AdjacencyError: a loss of another neighbour relation.
        TypeError: neither a loss nor a budget.
        ValueError: a budget with which nothing can be paid.
    """
    match price:
        case Loss():
            if price.adjacency is not adjacency:
                raise AdjacencyError(
                    f"price: a loss for {price.adjacency.value} under an accountant that counts "
                    f"{adjacency.value}: convert it explicitly"
                )
            return price
        case PureDP():
            return PureLoss(price.epsilon, adjacency=adjacency)
        case ZCDP():
            return ZCDPLoss(price.rho, adjacency=adjacency)
        case GaussianDP():
            return GaussianLoss(price.mu_squared, adjacency=adjacency)
        case Renyi():
            curve: dict[Exact, Exact] = dict(price.curve.items())
            return RenyiCurve(curve, adjacency=adjacency)
        case ApproxDP():
            return ApproxLoss(price.epsilon, price.delta, adjacency=adjacency)
    raise TypeError(
        f"price = {price!r:.200}: must be a loss, such as PureLoss(1), or a budget, such as "
        "PureDP(1), which one call of the code costs"
    )


_LATER = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
"""Of functions that return before their work is done."""


@final
class Meter:
    """Pays for code that is not ours before it runs; made by ``accountant.meter``.

    A context manager for one block, whose ``release`` hands the result over::

        with accountant.meter(PureDP("0.5"), label="mean of ages") as spend:
            mean = spend.release(diffprivlib.tools.mean(ages, epsilon=0.5, bounds=(0, 120)))

    or a decorator of a function, each call of which pays again, and whose result is the release.

    Of a result that is a number, or an array of numbers or text, the ledger holds what it holds of
    our own mechanisms' values; of any other only that it left.

    Args:
        pays: a token that holds the price, each time another one.
        spend: what is written of the code.
        label: of the tokens.
        keep: whether values are kept.
        lease: whose runs the tokens are, if they are.
    """

    def __init__(
        self,
        pays: Callable[[], Token[Any]],
        spend: Spend,
        label: str,
        *,
        keep: bool,
        lease: Lease[Any] | None = None,
    ) -> None:
        self._pays, self._spend, self.label = pays, spend, label
        self._keep, self._lease = keep, lease
        self._lock = Exclusive(f"meter {label!r}")
        self._used = False
        self._block: MeteredBlock | None = None

    def __enter__(self) -> MeteredBlock:
        """Pays.

        Raises:
            TokenSpentError: the meter was used before.
            TokenCopyError: in a forked process.
            InsufficientBudgetError, BudgetError, CurrencyError: as ``accountant.issue``; nothing
                is charged.
            LeaseError: all runs were used, or the lease ended.
            LedgerError: the spend cannot be made durable.
        """
        with self._lock:
            if self._used:
                raise TokenSpentError(
                    f"meter {self.label!r} is, or was, in use: accountant.meter(...) makes "
                    "another, and as a decorator it pays for every call"
                )
            self._used = True
            try:
                self._block = self._begin()
            except BaseException:
                self._used = False  # nothing ran
                raise
            return self._block

    def _begin(self) -> MeteredBlock:
        token = self._pays()
        try:
            account = token._recorded(self._spend)
        except BaseException:
            if self._lease is None:
                with suppress(PrivlearnError):  # the first error says why; on resuming it is free
                    token.retire()
            raise
        return MeteredBlock(token, account, keep=self._keep and self._lease is None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._block is not None
        block = self._block
        if self._lease is not None:  # its runs are used one after the other, or by a decorator
            self._used, self._block = False, None
        block._end(error)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Makes every call of a function pay, before it runs.

        Raises:
            TypeError: a function that returns before its work is done, as generators and coroutines
                do.
        """
        if any(test(function) for test in _LATER):
            raise TypeError(
                f"meter {self.label!r}: a generator or coroutine returns before its work is done: "
                "meter what is done with it, in a block"
            )

        @functools.wraps(function)
        def paid(*args: P.args, **kwargs: P.kwargs) -> T:
            again = Meter(self._pays, self._spend, self.label, keep=self._keep, lease=self._lease)
            with again as spend:
                return spend.release(function(*args, **kwargs))

        return paid

    def close(self) -> None:
        """Ends the lease of a meter with ``runs``; runs that were not used stay charged."""
        if self._lease is not None:
            self._lease.close()

    def __repr__(self) -> str:
        return f"Meter({self.label!r}, {self._spend.own_loss})"

    def _refuse_copy(self, *_: object) -> Never:
        raise TokenCopyError("a meter cannot be copied or pickled: make a second one")

    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse_copy


@final
class MeteredBlock:
    """A block that is paid for; what leaves it goes through `release`."""

    __slots__ = ("_account", "_keep", "_released", "_token", "_value")

    def __init__(self, token: Token[Any], account: RecordedToken, *, keep: bool) -> None:
        self._token, self._account, self._keep = token, account, keep
        self._released = False
        self._value: ReleasedValue | None = None

    @property
    def token_id(self) -> str:
        """The id, in the ledger, of the token that paid."""
        return self._token.id

    def release(self, value: T, *, keep: bool = True) -> T:
        """Hands over the one result of the block, which is what its price is for.

        It stands in the ledger when the block ends, without an exception.

        Args:
            value: what leaves; it is returned as it is.
            keep: whether a ledger file holds the value, where it is a number or an array.

        Raises:
            TokenSpentError: something was handed over before, or the block is over.
            TokenError: a value that computes later, such as a generator.
            TokenCopyError: in a forked process.
        """
        with self._token._lock:
            self._check_open()
            if self._released:
                raise TokenSpentError(
                    f"meter {self._token.label!r}: the price is for one release; gather all that "
                    "leaves in one value"
                )
            if inspect.isgenerator(value) or inspect.isawaitable(value):
                raise TokenError(
                    f"meter {self._token.label!r}: a {type(value).__name__} has not done its work: "
                    "release what comes of it"
                )
            self._released, self._keep = True, self._keep and keep
            self._value = _recordable(value, self._token.users.stop)
        return value

    def _check_open(self) -> None:
        if self._account.outcome is not None:
            raise TokenSpentError(
                f"meter {self._token.label!r}: its token ended {self._account.outcome} before"
            )

    def _end(self, error: BaseException | None) -> None:
        """Records how the block ended.

        Raises:
            TokenError: without an exception and without a release.
        """
        token = self._token
        with token._lock:  # which refuses a forked child
            if error is not None:
                # an interrupt comes from outside; whatever else comes may depend on the data
                outcome: Outcome = "lost" if isinstance(error, KeyboardInterrupt) else "uncovered"
                with suppress(
                    PrivlearnError
                ):  # the first error says why; without an end it is lost
                    if self._account.outcome is None:
                        token._issuer.record_retire(token, outcome, None)
                return
            self._check_open()
            if not self._released:
                token._issuer.record_retire(token, "uncovered", None)
                raise TokenError(
                    f"meter {token.label!r}: the block ended without spend.release(value): it "
                    "stays charged, as uncovered"
                )
            digest = None
            if self._value is not None:  # as that of a receipt with one value
                digest = hashlib.sha256(self._value.digest.encode()).hexdigest()
            token._issuer.record_retire(
                token, "released", digest, self._value if self._keep else None
            )


_ONE = (bool, int, float, complex, str)
"""Types of single values; not what is derived from them, which may hold more than is seen."""


def _recordable(value: object, upto: int) -> ReleasedValue | None:
    """What is recorded of a value; None unless it is numbers or text, and nothing besides."""
    kind = type(value)
    if kind in (list, tuple) and len(kinds := {type(one) for one in cast(Any, value)}) == 1:
        kind = kinds.pop()
    if kind not in _ONE and kind is not np.ndarray and not issubclass(kind, np.generic):
        return None
    try:
        frozen = np.array(value)
    except (ValueError, OverflowError):
        return None
    if frozen.dtype.kind not in KEPT_KINDS:  # such as integers of any length
        return None
    frozen.setflags(write=False)
    return ReleasedValue(frozen, digest_of(frozen), upto)
