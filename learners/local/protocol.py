"""What a client and a server of a local bandit share: a public configuration, and nothing else.

Every user holds contexts and a response; the server holds a state that only messages change.  A
`LocalLearner` is written in two halves, one for each side, with no data in common; a
`LocalBanditConfig` is the public configuration around it, which both sides rebuild from the same
JSON.

Users have public arrival indices 0, …, horizon − 1 and belong to public batches of consecutive
indices.  Inside a batch the model is frozen, so that its messages may be added in any order.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from privlearn.contract.protocols import Report
from privlearn.learners.local.form import MessageForm
from privlearn.losses import Loss
from privlearn.mechanisms import OneOfKReport
from privlearn.rows.domains import Array
from privlearn.rows.functions import user_code
from privlearn.values.adjacency import Adjacency

Arrays = dict[str, Array]
"""A state or a model: arrays by name, every number finite."""


def _read_array(value: object) -> Array:
    try:
        if isinstance(value, dict):
            array = np.array(value["values"], dtype=np.float64).reshape(value["shape"])
        else:
            array = np.array(value, dtype=np.float64)
    except (KeyError, TypeError, OverflowError):
        raise ValueError("must be an array, or {'shape': [...], 'values': [...]}") from None
    if not np.isfinite(array).all():
        raise ValueError("must hold only finite numbers")
    return array


def _array_form(value: Array) -> dict[str, Any]:
    return {"shape": list(value.shape), "values": value.ravel().tolist()}


ArrayField = Annotated[
    Any, BeforeValidator(_read_array), PlainSerializer(_array_form, when_used="json")
]
"""A float array in a pydantic model."""
_METHODS: dict[str, type[LocalLearner]] = {}
MOST_USERS = 2**28
"""Of one batch, or of all with messages applied singly: a server has a byte for each."""


class _Configured(BaseModel):
    """Public settings, and what is computed from them once."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed; what was computed from the others is not copied."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**fields | dict(update or {}))

    if not TYPE_CHECKING:  # pydantic's older name for it, which would keep what was computed

        def copy(self, **options: Any) -> Self:
            return self.model_copy(**options)


class LocalLearner(_Configured, ABC):
    """A local learner: public numbers, a half for the client and a half for the server.

    Subclasses are frozen pydantic models that fix ``kind`` to a name of their own, as in
    ``kind: Literal["ldp-sgd"] = "ldp-sgd"``; by it `LocalBanditConfig` finds the class that reads a
    configuration.  Two of one kind cannot exist.

    Raises:
        ValueError: a number out of range; the message names it, its value and what is accepted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: str
    dim: Annotated[int, Field(ge=1)]
    """Length of a context; a class without contexts has 0, and clients then hand over None."""
    n_arms: Annotated[int, Field(ge=1)]
    horizon: Annotated[int, Field(ge=1, lt=2**32)]
    """The number of users."""
    shared: bool
    """One theta for all arms, each of which has a context; else one context, and thetas by arm."""
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    context_bound: Annotated[float, Field(gt=0)] = 1.0
    """Largest ℓ2 norm of a context; for the message, longer ones are scaled to it."""
    reward_low: float = -1.0
    reward_high: float = 1.0
    """Rewards are clamped to [reward_low, reward_high] for the message."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.reward_low >= self.reward_high:
            raise ValueError(
                f"reward_low = {self.reward_low!r}, reward_high = {self.reward_high!r}: "
                "reward_low must be below reward_high"
            )
        return self

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        kind = cls.model_fields["kind"].default
        if isinstance(kind, str):
            known = _METHODS.setdefault(kind, cls)
            if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(f"kind = {kind!r}: {known.__qualname__} has that name")
            _METHODS[kind] = cls

    @property
    def per_message(self) -> bool:
        """Whether every message is a step as it arrives: no batches, and no merge."""
        return False

    @property
    def parts(self) -> int:
        """Number of parts of a state's sums: 1 if shared, else one per arm."""
        return 1 if self.shared else self.n_arms

    @abstractmethod
    def report(self) -> Report[Any]:
        """The mechanism of one part, built from the public numbers only."""

    def batches(self) -> Sequence[int]:
        """First users of the batches in ascending order, from 0, then ``horizon``.

        With `per_message` every user is a batch.
        """
        return range(self.horizon + 1)

    @cached_property
    def starts(self) -> Sequence[int]:
        """`batches`, computed once: all that is in it is public and frozen."""
        return self.batches()

    def warm_up(self) -> int:
        """The users before this one pull arm ``user % n_arms``, whatever their contexts.

        Their messages have one part, that of this public arm; later ones have `parts`.  It is the
        first user of a batch, or the horizon; 0 if shared.
        """
        return 0

    # The client's half: sees the rows of its own users, and the model -----------------------------

    def public_arm(self, model: Arrays) -> int | None:
        """The one arm that all users of the batch pull; None where each has its own.

        An answer to another arm is no record: it would be counted for this one.
        """
        return None

    @abstractmethod
    def scores(self, model: Arrays, contexts: Array) -> Array:
        """Scores of the arms, shape (n, n_arms), each row from its own contexts only.

        The first of the largest is pulled; −inf is an eliminated arm.

        Args:
            contexts: finite, as long as they are; (n, n_arms, dim) if shared, else (n, dim).
        """

    @abstractmethod
    def record(
        self, model: Arrays, batch: int, contexts: Array, arms: NDArray[Any], rewards: Array
    ) -> Array:
        """What is reported, each row from its own data only; a block for ``report().domain``.

        Floats, in the units of the domain, which clips them; users along the leading axis.

        Args:
            contexts: of the pulled arm, shape (n, dim), finite, of norm at most ``context_bound``
                (and rounding).
            arms: the pulled arms, shape (n,), int64.
            rewards: finite, in [reward_low, reward_high], shape (n,).
        """

    # The server's half: sees sums of messages -----------------------------------------------------

    @abstractmethod
    def start(self) -> Arrays:
        """The state before any message."""

    @abstractmethod
    def step(self, state: Arrays, batch: int, sums: Array, counts: NDArray[Any]) -> Arrays:
        """The state after a batch; ``state`` is not written to.

        With `per_message`, after one message, of the user with index ``batch``.

        Args:
            sums: of the messages' estimates (`Report.estimate`), (parts, report().domain.size).
            counts: messages in each sum, shape (parts,), int64, may be 0: users may stay away.
        """

    @abstractmethod
    def model(self, state: Arrays) -> Arrays:
        """What is published."""


def _read_method(value: object) -> object:
    if not isinstance(value, dict):
        return value
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _METHODS:
        raise ValueError(f"kind = {kind!r}: must be one of {', '.join(sorted(_METHODS))}")
    return _METHODS[kind].model_validate(value)


class LocalBanditConfig(_Configured):
    """The public configuration that client and server share.

    Args:
        method: the learner.
        name: of this deployment: the messages of one are refused by another.
        most_messages: the most messages of one person in all, who may be several users; what the
            rule of a device's or gateway's registry of people holds it to.

    Raises:
        ValueError: batches or a warm-up that do not fit together, or a batch of more than
            `MOST_USERS` users.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            method: LocalLearner,
            *,
            version: Literal[1] = 1,
            most_messages: int = 1,
        ) -> None: ...

    else:

        def __init__(self, *given: Any, **fields: Any) -> None:
            if len(given) > 2:
                raise TypeError(f"{len(given)} arguments: must be the name, the method")
            super().__init__(**dict(zip(("name", "method"), given, strict=False)), **fields)

    version: Literal[1] = 1
    """Of this form and of the messages' layout."""
    name: Annotated[str, Field(min_length=1)]
    method: Annotated[SerializeAsAny[LocalLearner], BeforeValidator(_read_method)]
    most_messages: Annotated[int, Field(ge=1)] = 1

    @model_serializer(mode="wrap")
    def _form(self, inner: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without ``most_messages`` where it is 1: as configurations were before there was one."""
        form: dict[str, Any] = inner(self)
        if self.most_messages == 1:
            form.pop("most_messages", None)
        return form

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        method, starts = self.method, self.starts
        if isinstance(starts, range):
            ascending = starts.step > 0 and len(starts) > 1
        else:
            ascending = len(starts) > 1 and all(a < b for a, b in pairwise(starts))
        if not ascending or starts[0] != 0 or starts[-1] != method.horizon:
            raise ValueError("batches: must ascend from 0 to the horizon")
        if method.per_message and starts != range(method.horizon + 1):
            raise ValueError("batches: must be range(horizon + 1) if messages are applied singly")
        if isinstance(starts, range):
            widest = method.horizon if method.per_message else starts.step
        else:
            widest = max(b - a for a, b in pairwise(starts))
        if widest > MOST_USERS:
            raise ValueError(
                f"horizon = {method.horizon}: {widest} users would be in one batch (or, if "
                f"messages are applied singly, in all), where at most {MOST_USERS} can be noted"
            )
        if self.warm_up not in starts or (method.shared and self.warm_up):
            raise ValueError(
                f"warm_up = {self.warm_up!r}: must be the first user of a batch or the "
                "horizon, and 0 if theta is shared"
            )
        return self

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the JSON form with sorted keys and no spaces, 32 bytes."""
        form = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(form.encode()).digest()

    @cached_property
    def label(self) -> str:
        """What tokens, claims and plan items of this configuration's messages are called.

        It has the first 16 digits of the fingerprint, as the messages have.
        """
        return f"messages/{self.fingerprint.hex()[:16]}"

    @property
    def users(self) -> range:
        return range(self.method.horizon)

    @property
    def starts(self) -> Sequence[int]:
        return self.method.starts

    @cached_property
    def warm_up(self) -> int:
        return self.method.warm_up()

    @property
    def n_batches(self) -> int:
        return len(self.starts) - 1

    def batch_of(self, user: int) -> int:
        """The batch of a user.

        Raises:
            ValueError: no such user.
        """
        if not 0 <= user < self.method.horizon:
            raise ValueError(f"user = {user!r}: must lie in 0..{self.method.horizon - 1}")
        return user if self.method.per_message else bisect_right(self.starts, user) - 1

    def users_of(self, batch: int) -> range:
        """The users of a batch.

        Raises:
            ValueError: no such batch.
        """
        if not 0 <= batch < self.n_batches:
            raise ValueError(f"batch = {batch!r}: must lie in 0..{self.n_batches - 1}")
        return range(self.starts[batch], self.starts[batch + 1])

    def warming(self, batch: int) -> bool:
        """Whether the batch belongs to the warm-up: messages have one part, of a public arm."""
        return self.users_of(batch).start < self.warm_up

    @property
    def adjacency(self) -> Adjacency:
        return self.part_report.adjacency

    @cached_property
    def part_report(self) -> Report[Any]:
        """The mechanism of one part, built once."""
        return self.method.report()

    def message_report(self, *, warming: bool) -> Report[Any]:
        """The mechanism that makes whole messages: of one part, or of all."""
        part, parts = self.part_report, self.method.parts
        return part if warming or parts == 1 else OneOfKReport(cast(Any, part), parts)

    @cached_property
    def forms(self) -> dict[bool, MessageForm]:
        """The numbers of messages of the warm-up (True), and of later ones."""
        return {
            warming: MessageForm(
                self.message_report(warming=warming), self.part_report, self.fingerprint
            )
            for warming in (False, True)
        }

    @cached_property
    def user_code(self) -> tuple[str, ...]:
        """Names of the code of the method that did not come with this package."""
        return user_code(self.method)

    def loss(self) -> Loss:
        """What a message costs its user; ``most_messages`` of them cost a person as many times it.

        A message of all parts costs at least what one of a single part costs: its two laws can
        differ as those of one part do, and otherwise.
        """
        return self.forms[self.warm_up == self.method.horizon].loss


class Model(BaseModel):
    """What the server publishes: clients choose with it, and report against it.

    Args:
        fingerprint: of the configuration, in hexadecimal digits.
        batch: the batch that it is for; with `LocalLearner.per_message`, the next user's or an
            earlier one.
        arrays: `LocalLearner.model`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fingerprint: str
    batch: int
    arrays: dict[str, ArrayField]
