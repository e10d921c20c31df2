"""What a service and its callers tell each other: the JSON forms of requests and answers."""

from __future__ import annotations

import base64
import binascii
import math
from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
)

LONGEST_ID: Final = 512
"""Characters of a person's id, an offer's id or an idempotency key."""

_NUMBERS = {
    "anyOf": [
        {"type": "array", "description": "numbers, row by row"},
        {
            "type": "string",
            "contentEncoding": "base64",
            "description": "64-bit floats, little-endian, row by row",
        },
    ]
}


def _encodable(text: str) -> str:
    """Refuses halves of characters, which JSON can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be Unicode text") from None
    return text


_Text = Annotated[StrictStr, Field(max_length=LONGEST_ID), AfterValidator(_encodable)]
_Index = Annotated[StrictInt, Field(ge=0, lt=2**53)]
_Number = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
_Numbers = Annotated[Any, Field(json_schema_extra=_NUMBERS)]


def _real(sent: Any) -> float:
    """A number of JSON; one that no float can hold is infinite, which is for the learner."""
    if isinstance(sent, bool) or not isinstance(sent, int | float):
        raise ValueError("must be a number or null")
    try:
        return float(sent)
    except OverflowError:
        return math.inf


def _losses(sent: Any) -> NDArray[np.float64] | None:
    found = unpacked(sent)
    if found is None or isinstance(found, np.ndarray):
        return found
    if not isinstance(found, list):
        raise ValueError("must be numbers or null")
    return np.array([math.nan if each is None else _real(each) for each in found])


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Recommend(_Form):
    """Asks for what the next visitor is to be shown."""

    takes_fewer: ClassVar[bool] = False
    """Whether data may have fewer rows, or numbers, than the learner says."""
    person: _Number | _Text | None = None
    """Under a rule of participation, and only then, who it is; null: nobody can tell."""

    @classmethod
    def fits(cls, sent: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Whether numbers of one shape are data of another."""
        fewer = cls.takes_fewer and len(sent) == len(shape) and 0 < sent[0] < shape[0]
        return sent[1:] == shape[1:] if fewer else sent == shape

    @classmethod
    def shaped(
        cls, numbers: NDArray[np.float64], shape: tuple[int, ...]
    ) -> NDArray[np.float64] | None:
        """Numbers row by row as data of a shape, or None."""
        found = (numbers.size // math.prod(shape[1:]), *shape[1:])
        whole = math.prod(found) == numbers.size and cls.fits(found, shape)
        return numbers.reshape(found) if whole else None


class RecommendItems(Recommend):
    """Asks for items to show the next visitor."""

    features: _Numbers
    """The visitor's item features, shape (n_items, dim)."""
    revenues: _Numbers = None
    """Of each item; without them all sales count alike."""


class RecommendAction(Recommend):
    """Asks for the action to take for the next visitor."""

    takes_fewer = True
    features: _Numbers
    """Of the actions on offer, shape (m, dim), m at most n_actions; or the visitor's context, shape
    (dim,), where each action has parameters of its own."""
    revenues: _Numbers = None
    """What a reward of 1 is worth, of each action on offer, shape (m,); without them alike."""


class RecommendArm(Recommend):
    """Asks for the arm to pull for the next visitor."""

    context: _Numbers
    """The visitor's context, shape (dim,); entries beyond the learner's bound are clamped."""


class RecommendNext(Recommend):
    """Asks for what the next visitor is to be shown; the body may be empty, or ``{}``."""


class Offered(_Form, ABC):
    """What one visitor is shown; the answer is due until the batch closes, once."""

    offer: str
    """Whoever knows it, and has the access token that it was made for, may answer."""

    @classmethod
    @abstractmethod
    def of(cls, offer: str, shown: Any) -> Self:
        """From the id, and what `privlearn.learners.Offer` has as its items."""


class OfferedItems(Offered):
    """Items for one visitor; the answer is due until the batch closes, once."""

    items: tuple[int, ...]

    @classmethod
    def of(cls, offer: str, shown: Any) -> Self:
        return cls(offer=offer, items=tuple(shown.tolist()))


class OfferedAction(Offered):
    """The action for one visitor; the reward is due until the batch closes, once."""

    action: int
    """Its place in what is on offer, counted from 0."""

    @classmethod
    def of(cls, offer: str, shown: Any) -> Self:
        return cls(offer=offer, action=int(shown))


class OfferedArm(Offered):
    """The arm to pull for one visitor; the reward is due until the batch closes, once."""

    arm: int

    @classmethod
    def of(cls, offer: str, shown: Any) -> Self:
        return cls(offer=offer, arm=int(shown))


class OfferedExpert(Offered):
    """The expert to follow for one visitor; the losses of all are due until the batch closes."""

    expert: int

    @classmethod
    def of(cls, offer: str, shown: Any) -> Self:
        return cls(offer=offer, expert=int(shown))


class Observe(_Form, ABC):
    """The one answer to an offer."""

    offer: _Text

    @property
    @abstractmethod
    def answer(self) -> int | float | list[float] | None:
        """As the learner's `observe` takes it."""


class ObserveChoice(Observe):
    """The one answer to an offer of items."""

    choice: _Index | None
    """The item that was chosen; null: nothing."""

    @property
    def answer(self) -> int | None:
        return self.choice


class ObserveReward(Observe):
    """The reward of the arm or action of an offer."""

    reward: Annotated[float, BeforeValidator(_real)] | None
    """Null: none came.  Beyond its range a learner of contexts clips it; for the others it is a
    null record."""

    @property
    def answer(self) -> float | None:
        """None also where it is no finite number: a record is null for either."""
        return self.reward if self.reward is not None and math.isfinite(self.reward) else None


class ObserveLosses(Observe):
    """What every expert would have cost the visitor of an offer."""

    losses: Annotated[_Numbers, AfterValidator(_losses)]
    """Of each expert, shape (n_experts,); null: none came."""

    @property
    def answer(self) -> list[float] | None:
        """None also where one is no finite number: a record is null for either."""
        whole = self.losses is not None and np.isfinite(self.losses).all()
        return self.losses.tolist() if whole else None


class CloseBatch(_Form):
    """Closes a batch that was begun; users of it who have not come yet count as absent."""

    batch: _Index
    """Its first arrival index, as in `Status.batch`."""
    places: _Index
    """Of its arrival indices that were not given out, how many may be given up."""


class ClosedBatch(_Form):
    """What was closed."""

    batch: int
    places: int
    """Arrival indices that were given up."""


class Forget(_Form):
    """Learns nothing more of a person."""

    person: _Number | _Text


class Status(_Form):
    """What is public of a service."""

    software: str
    learner: str
    rule: str | None
    users: int
    """Arrival indices that are given out in all."""
    clock: int
    """Of these, how many were."""
    batch: int
    """The first arrival index of the first batch that is open; `users` where none is."""
    places: int
    """Of that batch, arrival indices that were not given out yet."""
    entries: int
    """Of the ledger."""
    state: Literal["serving", "stopping", "over"]


class Results(_Form, ABC):
    """What was learned so far, which is public: it follows from what was released."""

    learner: str
    visitors: int
    """Of those who were served, the first ones, which it rests on."""

    @classmethod
    @abstractmethod
    def of(cls, learner: Any) -> Self:
        """Of a learner of this kind, started."""

    @staticmethod
    def _begin(learner: Any) -> dict[str, Any]:
        """Of learners in phases."""
        ended = learner.public_state()["phase"][0]
        return {"learner": type(learner).__name__, "visitors": ended}


class ArmResults(Results):
    """Means of arms, in the order of their numbers."""

    means: tuple[float | None, ...]
    """Estimated mean rewards; null before anything of the arm was released."""
    stds: tuple[float | None, ...]
    """Their standard deviations at most, noise included."""
    pulls: tuple[int, ...]
    """Visitors that the means rest on."""
    best_arm: int | None
    """The one with the largest mean; null before any is known."""

    @classmethod
    def of(cls, learner: Any) -> Self:
        return cls(
            **cls._begin(learner),
            means=_finite(learner.means_),
            stds=_finite(learner.stds_),
            pulls=tuple(learner.pulls_.tolist()),
            best_arm=learner.best_arm_ if learner.pulls_.any() else None,
        )


class GLMResults(Results):
    """The estimated parameters; one vector, or one for each action."""

    theta: list[float] | list[list[float]]
    stds: list[float] | list[list[float]]
    """Standard errors of theta, noise included; with link linear or poisson not what a
    gradient_clip below 1 moves theta by."""
    link: str

    @classmethod
    def of(cls, learner: Any) -> Self:
        released = learner.batches_[: learner.public_state()["batch"]]
        spread = np.diagonal(np.linalg.inv(learner.precision_), axis1=-2, axis2=-1)
        return cls(
            learner=type(learner).__name__,
            visitors=sum(map(len, released)),
            theta=learner.theta_.tolist(),
            stds=np.sqrt(spread).tolist(),
            link=learner.link,
        )


class ABTestResults(Results):
    """What is known of arms 1, 2, … beside arm 0, in their order; valid at every look."""

    e_values: tuple[float, ...]
    """Evidence that the arm differs from arm 0, corrected for the number of arms."""
    p_values: tuple[float, ...]
    """At any time, corrected for the number of arms."""
    wins: tuple[int, ...]
    """Arms that are better than arm 0."""
    loses: tuple[int, ...]
    """Arms that are worse than arm 0."""
    alpha: float
    """Probability that any of this is ever false, if the hypothesis holds."""
    intervals: tuple[tuple[float | None, float | None], ...] | None
    """Where the difference of mean rewards lies, arm minus arm 0, with probability 1 − alpha; null
    where none has a meaning."""
    hypothesis: str
    """What is taken for granted."""

    @classmethod
    def of(cls, learner: Any) -> Self:
        said = learner.decision_
        intervals = None
        if learner.assume == "iid":
            ends = np.reshape(learner.interval(), (-1, 2))
            intervals = tuple((low, high) for low, high in map(_finite, ends))
        return cls(
            **cls._begin(learner),
            e_values=tuple(np.atleast_1d(learner.e_value_).tolist()),
            p_values=tuple(np.atleast_1d(learner.p_value_).tolist()),
            wins=() if said is None else said.wins,
            loses=() if said is None else said.loses,
            alpha=learner.alpha,
            intervals=intervals,
            hypothesis=learner.hypothesis_,
        )


class ExpertResults(Results):
    """Which expert is followed now."""

    expert: int | None
    """Null in the first block, in which all are followed in turn."""
    redraws: int
    """How often one was drawn; another may have been the same."""

    @classmethod
    def of(cls, learner: Any) -> Self:
        state = learner.public_state()
        blocks = learner.batches_[: state["batch"]]
        return cls(
            learner=type(learner).__name__,
            visitors=sum(map(len, blocks)),
            expert=state["expert"],
            redraws=learner.redraws_,
        )


class Budget(_Form):
    """What the most charged user's budget is; exact, in the forms of `privlearn.losses.budgets`."""

    cap: dict[str, Any]
    promise: dict[str, Any] | None
    """The (ε, δ) budget that the cap was made from."""
    reserved: dict[str, Any]
    """Spent, or reserved by the plan of what will be."""
    remaining: dict[str, Any]
    """Neither spent nor reserved."""
    delta: float
    epsilon: float | None
    """Of the guarantee, at `delta`."""
    epsilon_spent: float | None
    """Of what was spent so far, at `delta`."""
    simulated: bool
    """Noise that protects nobody."""


class Refusal(_Form):
    """Why a request was not done."""

    code: str
    message: str


def _finite(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(value if math.isfinite(value) else None for value in values.tolist())


def packed(values: NDArray[np.float64]) -> str:
    """Numbers as base64 of 64-bit floats."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode("ascii")


def unpacked(sent: Any) -> Any:
    """What a caller sent as numbers: an array from base64, and anything else as it is.

    A text that is no base64 of floats stays text: what a bad record becomes is for the learner.
    """
    if not isinstance(sent, str):
        return sent
    try:
        return np.frombuffer(base64.b64decode(sent, validate=True), dtype="<f8")
    except (binascii.Error, ValueError):
        return sent
