"""What a ledger proves, as an audit states it."""

from __future__ import annotations

import math
from textwrap import fill
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
)

from privlearn.accountants.assumption import Assumption
from privlearn.accountants.declarations import Declaration
from privlearn.ledger import SCHEMA
from privlearn.ledger.entries import Users
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.participation import Participation


def _or_infinite(value: object) -> object:
    return math.inf if value is None else value


class Running(BaseModel):
    """The odometer: the privacy loss exceeds ``epsilon``, or did so earlier, with chance δ only."""

    model_config = ConfigDict(frozen=True)
    epsilon: float
    delta: float
    theorem: str


class Guarantee(BaseModel):
    """One statement of privacy, the maximum over users.

    ``rho`` (zCDP) and ``mu`` (Gaussian DP) are None where the losses have none.  ``epsilon`` is the
    least of all bounds that hold at ``delta``, and ``method`` says which (`epsilon_delta` lists
    them).
    Where it is ``unknown``, ``epsilon`` is infinite here and null in JSON.
    For ``gaussian`` and tight compositions the exact worst case is at most ``error_bound`` below
    it; for ``renyi`` and ``pure`` that covers rounding only.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    trust: Trust
    adjacency: Adjacency
    rho: float | None
    mu: float | None
    epsilon: Annotated[float, BeforeValidator(_or_infinite)]
    delta: float
    error_bound: float
    method: str
    rests_on: list[Assumption]
    accountants: tuple[int, ...] = (1,)
    """Whose guarantee it is, numbered as the ledger opens them; of several, it is their sum."""
    users: Users | None = None
    """The protected indices; None where several accountants name different people."""
    who: str = ""
    """Of a sum: for whom it holds."""
    attested: bool = False
    """Rests on what clients claim, which no ledger can verify."""
    failure: float = 0.0
    """Part of ``delta``: the probability of failing that was set aside or spent."""
    user: int | None = None
    """The one arrival index it is for; None for the maximum over users."""
    rounds: int = 1
    """How many rows the protected person has."""
    rule: Participation | None = None
    """How often the protected person may come back; None where a person is an index.  With a rule
    it is a guarantee for every person with all visits."""
    relation: str = ""
    """The neighbour relation of persons in a few words; empty where an index is one person."""
    running: Running | None = None
    """Ex post, and a guarantee of its own kind: a bound that holds at all times at once."""
    unknown: str = ""
    """Why it cannot be known from the ledger; empty where it is known."""

    @property
    def assumptions(self) -> list[str]:
        """What it rests on, in words."""
        return [assumption.text for assumption in self.rests_on]

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        told: dict[str, Any] = serialize(self)
        for name in ("rule", "relation"):
            if not told[name]:
                del told[name]
        return told

    @field_serializer("epsilon", when_used="json")
    def _epsilon(self, value: float) -> float | None:
        return None if self.unknown else value


class Share(BaseModel):
    """All spends of one mechanism under one label."""

    model_config = ConfigDict(frozen=True)
    mechanism: str
    label: str
    spends: int
    share: float | None
    """Part of the budget spent on its accountant's most charged user, 0 to 1; None if unknown."""
    accountant: int = 1
    interactive: bool = False
    """Stays open and releases again while other tokens may be spent."""


class Leased(BaseModel):
    """Leases of one mechanism under one label: spends that each paid for several runs."""

    model_config = ConfigDict(frozen=True)
    accountant: int
    mechanism: str
    label: str
    leases: int
    runs: int
    """That they paid for; how many of these were used is not recorded."""


class Attestation(BaseModel):
    """What clients claim about their messages; not verified."""

    model_config = ConfigDict(frozen=True)
    accountant: int
    by: str
    mechanism: str
    label: str
    users: Users
    adjacency: Adjacency
    loss: dict[str, Any]
    most_messages: int
    count: int
    unseen: tuple[str, ...] = ()


class InnerCap(BaseModel):
    """A cap inside an account: what is charged to it is charged to the account, too.

    Charges are those of one person, reserved ones included, and their ε at ``delta`` an upper
    bound from their sum; None where it is not known.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    accountant: int
    allowance: str
    """Its name in the ledger."""
    path: tuple[str, ...]
    """The labels of what it is inside of, from the outermost in, and its own."""
    users: Users
    budget: dict[str, Any]
    failure: str = "0"
    every: int | None = None
    """Minutes after which it renews; None if it does not, or by number."""
    since: str | None = None
    """When epoch 0 of these began."""
    epochs: Users | None = None
    """Numbers of its epochs, if they are told by number."""
    to: str | None = None
    """To whom it was granted."""
    until: str | None = None
    """When the grant ends: what is spent behind that is a problem."""
    closed: bool
    delta: float
    epsilon: float | None
    """That it allows, in one epoch if it renews."""
    charged_in: tuple[int, ...] = ()
    """The first and the last epoch in which something is charged."""
    epochs_charged: int = 0
    share: float | None
    """The part of the cap that is charged, in the epoch of most, 0 to 1."""
    most: float | None
    """ε of what is charged, in the epoch of most."""
    in_all: float | None
    """ε of what is charged to a person who is in all epochs; `epsilon` of the account bounds it."""

    @property
    def name(self) -> str:
        """Its labels in one."""
        return "/".join(self.path)


_LATER = (
    "together",
    "ended_early",
    "freed",
    "leases",
    "learners",
    "head_beside",
    "declarations",
    "caps",
)
"""Fields that older versions did not have; they are left out where they say nothing."""


class Certificate(BaseModel):
    """What a ledger proves, and every problem found in it.

    ``epsilon`` is what one person may lose in the whole ledger, at ``delta``; ``rho`` and ``mu``
    are the same in zCDP and Gaussian DP.
    ``guarantees`` has one statement for each accountant and ``spent`` what each has spent, ex post;
    ``together`` is what several accountants promise together.
    Where several of them have the same trust and neighbour relation, ``sums`` states what these
    promise together and ``sums_spent`` what they spent; ``remarks`` says what cannot be known.
    ``problems`` are what is wrong; ``consequences``, which are never alone, are what may be wrong
    only because the record is broken before it.
    """

    model_config = ConfigDict(frozen=True)
    together: Guarantee | None = None
    """What all accountants promise together to one person; None where there are no several."""
    guarantees: list[Guarantee]
    spent: list[Guarantee]
    sums: list[Guarantee] = []
    sums_spent: list[Guarantee] = []
    remarks: list[str] = []
    attestations: list[Attestation] = []
    caps: list[InnerCap] = []
    """Caps inside accounts, each of which held for all that was charged to it."""
    mechanisms: list[Share]
    entries: int
    spends: int
    lost: int
    ended_early: int = 0
    """Streams that are charged only to users whose rows they may have taken."""
    freed: int = 0
    """Users who were not, added up over these streams: nothing is charged to them for it."""
    leases: list[Leased] = []
    """Spends that paid for several runs of a mechanism, whose values do not stand in the ledger."""
    learners: list[str] = []
    """Names of the learners whose plans stand in the ledger, as it gives them."""
    closed: bool
    simulation: bool
    noise: str
    interleaved: bool = False
    """Whether tokens were spent while another's mechanism was still open, so that the guarantee
    rests on a theorem of concurrent composition (named among the assumptions)."""
    trusted_code: list[str]
    declarations: list[Declaration] = []
    """Losses of other packages, which are counted with the bounds that were declared for them."""
    problems: list[str]
    consequences: list[str] = []
    head: str
    head_compared: bool = False
    """Whether a head that was kept elsewhere was looked for."""
    head_at: int | None = None
    """After how many entries that head stands, all of which it vouches for; None if nowhere."""
    head_beside: bool = False
    """Whether the head in the file beside the ledger was looked for."""
    format: int = SCHEMA
    """Of the ledger that was read."""
    root: str = ""
    """The Merkle root (RFC 6962) of the hashes of all entries."""
    features: list[str] = []
    """Extensions that the ledger names and that this audit left aside, as they are optional."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Certificates of ledgers that older versions wrote stay what they were."""
        told: dict[str, Any] = serialize(self)
        for name in _LATER:
            if not told[name]:
                del told[name]
        return told

    def __str__(self) -> str:
        from privlearn.accountants.plain_words import first_screen  # which reads certificates

        leads = [(f"{name:16}" if name else "", text) for name, text in first_screen(self)]
        return "\n".join(
            fill(text, 80, initial_indent=lead, subsequent_indent=" " * len(lead))
            for lead, text in leads
        )

    @property
    def composition(self) -> Guarantee | None:
        """What one person is promised in the whole ledger; None if no accountant promises anything.

        Of one accountant it is its guarantee, of several what they promise together.
        """
        only = self.guarantees[0] if len(self.guarantees) == 1 else None
        return self.together or only

    @property
    def epsilon(self) -> float:
        """What one person may lose in the whole ledger, at `delta`, in nats.

        It counts every accountant that the person may be protected by, at its plan or cap, whatever
        its trust; other neighbour relations are counted for replace-one
        (docs/proofs.md#several-accountants).  Infinite where nothing is certified: with problems,
        noise of a simulation, or losses that are not known or cannot be added up, of which
        `not_certified` says which.
        """
        found = self.composition
        return math.inf if found is None or self.not_certified else found.epsilon

    @property
    def delta(self) -> float | None:
        """Where `epsilon` is stated; None where there is none."""
        return None if self.composition is None else self.composition.delta

    @property
    def rho(self) -> float | None:
        """As `epsilon`, in zCDP; None where the losses have no such constant."""
        found = self.composition
        return None if found is None or self.not_certified else found.rho

    @property
    def mu(self) -> float | None:
        """As `epsilon`, in Gaussian DP; None where not all losses are Gaussian."""
        found = self.composition
        return None if found is None or self.not_certified else found.mu

    @property
    def not_certified(self) -> str:
        """Why `epsilon` is not known; empty where it is."""
        if self.problems:
            number = len(self.problems)
            return f"the audit found {number} problem{'s' * (number > 1)}"
        if self.simulation:
            return "the noise is that of a simulation, and protects nobody"
        if self.composition is None:
            return "no accountant promises anything"
        return self.composition.unknown

    @property
    def holds(self) -> bool:
        """Whether all is certified: no problems, noise that protects, nothing merely attested."""
        return not self.problems and not self.simulation and not self.attested

    @property
    def attested(self) -> bool:
        """Whether some guarantee is only what clients attest."""
        return any(guarantee.attested for guarantee in self.guarantees)
