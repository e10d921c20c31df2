"""Mechanisms of one function: somebody's own arithmetic on clipped rows, with priced noise.

What the price covers is one vector: what the function returns, with one draw of the stated noise on
all of it.  That a user moves it by no more than the domain's sensitivity, times ``gain``, is the
author's word: the audit lists the mechanism and the function as trusted code, and `check_mechanism`
tries to break it.

The function computes in doubles, on rows and noise in doubles: its spend has no grid, and
certificates name floating-point noise.  The last bits of what it returns may tell more than the
price says; where the contributions are added up, `NoisySum` has no such bits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike

from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import TokenError
from privlearn.losses import Loss
from privlearn.losses.budgets import B
from privlearn.mechanisms.least_noise import check_noise
from privlearn.mechanisms.receipt_stream import check_adjacency
from privlearn.noise import AdditiveNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Domain
from privlearn.rows.functions import user_code
from privlearn.values.adjacency import Adjacency
from privlearn.values.user_code import from_outside
from privlearn.values.validate import Positive, check_fields, count

X = TypeVar("X")
Draw = Callable[[tuple[int, ...]], Array]
"""`Receipt.draw`."""
Computes = Callable[[Array, Draw], ArrayLike]
"""Takes clipped contributions, shape (n, domain.size), and ``draw``; returns what may leave."""


def mechanism(
    *,
    domain: Domain[X],
    noise: AdditiveNoise,
    shape: tuple[int, ...] | None = None,
    gain: float = 1.0,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    name: str = "",
) -> Callable[[Computes], FunctionMechanism[X]]:
    """Makes a mechanism of a function ``f(rows, draw)``, which calls ``draw(shape)`` once.

    ::

        @mechanism(domain=Box(0, 1, 1), noise=LaplaceNoise(4.0))
        def trimmed_total(rows, draw):
            return np.sort(rows, axis=0)[5:-5].sum(axis=0) + draw((1,))

    Args:
        domain: what one user can contribute; the function gets clipped contributions.
        noise: what ``draw`` draws, in the unit of the result.
        shape: of the draw and of the result; default (domain.size,).
        gain: by how much more than its own size a contribution moves the result, in the norm of
            the noise.
        adjacency: must be the accountant's.
        name: in the ledger; default the function's, with hyphens.

    Raises:
        TypeError: ``noise`` is not added to numbers, or another argument of another type.
        ValueError: a number out of range.
    """

    def made(function: Computes) -> FunctionMechanism[X]:
        return FunctionMechanism(
            function,
            domain,
            noise,
            (domain.size,) if shape is None else shape,
            gain,
            adjacency,
            name or getattr(function, "__name__", type(function).__name__).replace("_", "-"),
        )

    return made


@final
@dataclass(frozen=True, slots=True)
class FunctionMechanism(Generic[X]):
    """What `mechanism` makes; arguments are described there."""

    function: Computes
    domain: Domain[X]
    noise: AdditiveNoise
    shape: tuple[int, ...]
    gain: Positive
    adjacency: Adjacency
    name: str

    def __post_init__(self) -> None:
        check_fields(self)
        if not callable(self.function):
            raise TypeError(f"function = {self.function!r}: must be called with (rows, draw)")
        check_noise(self.noise)
        if not isinstance(self.shape, tuple):
            raise TypeError(f"shape = {self.shape!r}: must be a tuple such as (3,)")
        for length in self.shape:
            count(shape=length)
        self.loss()

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", self.name))

    def spend(self) -> Spend:
        names = tuple(f"arithmetic({name})" for name in user_code(self.function))
        return Spend(self.name, self.domain, self.noise, gain=self.gain, functions=names)

    def loss(self) -> Loss:
        return self.spend().loss(self.adjacency)

    def release(self, rows: Rows[X], token: Token[B]) -> Released[Array]:
        """Spends the token, then calls the function; null rows count as the null contribution.

        Returns:
            What the function returned, of the stated shape.

        Raises:
            AdjacencyError: the token is for another neighbour relation than the gain.
            TokenError: the function failed, drew noise twice, of another shape, or not at all, or
                returned another shape; the token then ends ``uncovered``, and the message says
                nothing of what it computed.
            UsersError, ProvenanceError: see `Token.spend` and `Receipt.open`.
        """
        # how far a user moves the result is stated for this relation only
        check_adjacency(self.adjacency, token)
        spend = self.spend()
        token.check(rows, spend)
        with token.spend(spend) as receipt:
            opened = receipt.open(rows)
            # a warning, or an error where the caller asked for one, would tell of a row
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                result = self._computed(opened, _OneDraw(receipt, self.name, self.shape))
            if result.shape != self.shape:
                raise TokenError(
                    f"{self.name} returned another shape: the price is for {self.shape}; state "
                    "what it returns with shape="
                )
            return receipt.release(result)

    def _computed(self, rows: Array, draw: _OneDraw) -> Array:
        try:
            result = np.asarray(self.function(rows, draw), dtype=np.float64)
        except BaseException as error:  # its message may quote rows
            if from_outside(error):
                raise
            told = TokenError(
                f"{self.name} failed; why may depend on rows and is not told here: call its "
                "function on made-up rows"
            )
            raise (draw.refused or told) from None
        if draw.refused is not None:
            raise draw.refused
        return result


@final
class _OneDraw:
    """``draw`` as a function gets it: the noise that was paid for, once."""

    __slots__ = ("_drawn", "_name", "_receipt", "_shape", "refused")

    def __init__(self, receipt: Receipt, name: str, shape: tuple[int, ...]) -> None:
        self._receipt, self._name, self._shape = receipt, name, shape
        self._drawn = False
        self.refused: TokenError | None = None  # what the function must not hide

    def __call__(self, shape: tuple[int, ...]) -> Array:
        try:
            self._check(shape)
            # as one vector, because noise in ℓp draws the last axis together
            return self._receipt.draw((math.prod(self._shape),)).reshape(self._shape)
        except TokenError as error:
            self.refused = self.refused or error
            raise

    def _check(self, shape: tuple[int, ...]) -> None:
        if shape != self._shape:
            raise TokenError(
                f"{self._name} asked for noise of another shape: the price is for one draw of "
                f"{self._shape}, on all that leaves; state another one with shape="
            )
        if self._drawn:
            raise TokenError(
                f"{self._name} asked for noise a second time: the price is for one draw; a second "
                "answer needs a mechanism and a token of its own, or a longer shape="
            )
        self._drawn = True
