"""The forms of ledger entries; everything an auditor knows stands in these fields.

Numbers and booleans are taken as they are, never made from text or from one another: what is true
of an entry must not depend on who reads it.  docs/ledger.md has the JSON types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, TypeAdapter

from privlearn.values.adjacency import Adjacency, Calibration, Trust

AtLeastOne = Annotated[StrictInt, Field(ge=1)]
Users = tuple[Annotated[StrictInt, Field(ge=0)], AtLeastOne]
"""First arrival index and one past the last."""

SHA256 = r"^[0-9a-f]{64}$"
MINUTE = r"^[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]Z$"
"""How entries tell a minute, in UTC."""
FEATURE = r"^[a-z][a-z0-9-]{0,63}/[1-9][0-9]{0,3}$"
"""How an extension is named: ``values/1``."""
EXACT = "exact/1"
"""The extension by which spends say how their noise is exact; optional, so that who does not know
it reads all else."""

RESUME = "resume/1"
"""The extension by which another process goes on where one died: learners, what was released and
how far streams came stand in the ledger.  Critical, as a stream is charged as far as it came."""

PARTICIPATION = "participation/1"
"""The extension by which an account is of persons who may come back; critical, since what stands in
such a ledger is not about single arrivals."""


E = TypeVar("E", bound="_Entry")


class _Entry(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, ser_json_inf_nan="constants"
    )
    accountant: str

    def body(self) -> dict[str, Any]:
        """The JSON body that is hashed and stored."""
        return self.model_dump(mode="json")

    def ext(self) -> dict[str, Any]:
        """Data of extensions, by their names, which are hashed and stored beside the body."""
        return {}


def _without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    """A body without those of the names of which it says nothing."""
    return {name: value for name, value in body.items() if value is not None or name not in names}


class OpenEntry(_Entry):
    """An accountant begins: its cap, whom it protects and what its noise is."""

    entry: Literal["open"] = "open"
    software: str
    trust: Trust
    adjacency: Adjacency
    users: Users
    cap: dict[str, Any]
    promise: dict[str, Any] | None
    noise: str
    simulated: StrictBool
    side_information: tuple[str, ...]
    durable: StrictBool
    """Whether the ledger is a file."""
    failure: str = "0"
    """Probability of failing that is set aside for losses that may fail, as an exact number."""
    odometer: str | None = None
    """δ of the time-uniform bound that the certificate states; fixed before the first spend."""
    population: Annotated[str, Field(min_length=1)] | None = None
    """A name for the people behind the indices: under one name, one index is one person."""
    attested: StrictBool = False
    """Local only: takes what clients attest, and issues no tokens."""
    features: dict[Annotated[str, Field(pattern=FEATURE)], Literal["critical", "optional"]] = {}
    """Extensions of the format that this accountant's entries use.

    Without a critical one an auditor cannot understand them; an optional one may be left aside.
    """
    participation: Annotated[dict[str, Any] | None, Field(exclude=True)] = None
    """Data of `PARTICIPATION`: the rule, and the public id of the registry that keeps it."""
    heads: Annotated[dict[str, Any] | None, Field(exclude=True)] = None
    """Data of `RESUME`: ``heads`` is ``elsewhere`` if each head is also handed to a safer place
    than the file beside the ledger; None where it is not."""

    def ext(self) -> dict[str, Any]:
        found = {} if self.participation is None else {PARTICIPATION: self.participation}
        return found if self.heads is None else {**found, RESUME: self.heads}


class BatchesEntry(_Entry):
    """Where the batches begin that a rule of participation counts within."""

    entry: Literal["batches"] = "batches"
    starts: Annotated[tuple[StrictInt, ...], Field(min_length=1)]


class LearnerEntry(_Entry):
    """Whose plan follows: what a later process needs to make the same learner again."""

    entry: Literal["learner"] = "learner"
    name: Annotated[str, Field(min_length=1)]
    parameters: dict[str, Any]
    """Arguments of its constructor, as JSON."""
    made: dict[str, Any]
    """What was worked out at the start, by name: mechanisms and public numbers, as JSON."""


class ResumeEntry(_Entry):
    """Another process went on, without a head to compare the ledger with.

    Entries behind those that it found may have been lost, and what they spent.
    """

    entry: Literal["resume"] = "resume"
    head: Literal["unknown"] = "unknown"


class PlanItem(BaseModel):
    """``count`` runs of one loss on one range of users, known before any row is opened."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    label: str
    users: Users
    loss: dict[str, Any]
    count: AtLeastOne = 1


class PlanEntry(_Entry):
    """All losses and counts that will be spent, committed before the first token."""

    entry: Literal["plan"] = "plan"
    items: Annotated[tuple[PlanItem, ...], Field(min_length=1)]


class IssueEntry(_Entry):
    """A token was made; its budget is reserved."""

    entry: Literal["issue"] = "issue"
    token: str
    label: str
    users: Users
    budget: dict[str, Any]
    planned: StrictInt | None = None
    """Position of the plan item this token belongs to; None for an ad-hoc token."""
    failure: str = "0"
    """Probability of failing that the token may use."""
    allowance: str | None = None
    """The reserved part, or the cap, it is taken from; None for the accountant's own."""
    epochs: tuple[Annotated[StrictInt, Field(ge=0)], ...] | None = None
    """Of each cap that renews and that it is charged to, from the outermost in; None for none."""
    shared: Annotated[dict[str, Any] | None, Field(exclude=True)] = None
    """Data of `PARTICIPATION`: that the budget is for a loss which grows with a person's visits at
    least as fast as their number; None where it is charged whole to whoever has one."""

    def body(self) -> dict[str, Any]:
        said = self.__dict__
        plain = all([each.__class__ is str for pair in said["budget"].items() for each in pair])
        if said["epochs"] is not None or not plain:
            return _without(super().body(), "epochs")
        return {  # names in their order
            "accountant": said["accountant"],
            "allowance": said["allowance"],
            "budget": said["budget"],
            "entry": "issue",
            "failure": said["failure"],
            "label": said["label"],
            "planned": said["planned"],
            "token": said["token"],
            "users": [*said["users"]],
        }

    def ext(self) -> dict[str, Any]:
        return {} if self.shared is None else {PARTICIPATION: self.shared}


class DelegateEntry(_Entry):
    """Part of the cap is reserved for a component; tokens are then issued out of it."""

    entry: Literal["delegate"] = "delegate"
    allowance: str
    label: str
    users: Users
    budget: dict[str, Any]
    failure: str = "0"
    within: str | None = None
    """What it is taken off, besides the account; None for the account alone."""
    epochs: tuple[Annotated[StrictInt, Field(ge=0)], ...] | None = None
    """As of a token that comes out of that."""

    def body(self) -> dict[str, Any]:
        return _without(super().body(), "within", "epochs")


class CapEntry(_Entry):
    """A cap inside the account, or inside another cap: nothing is reserved for it.

    What comes out of it is charged to it and to all that it is inside of.
    """

    entry: Literal["cap"] = "cap"
    allowance: str
    """Its name, by which tokens are issued out of it, and which no reserved part has."""
    label: Annotated[str, Field(min_length=1)]
    """By which processes find it again; no two caps have one inside the same."""
    users: Users
    budget: dict[str, Any]
    """The cap; of one that renews, that of each epoch."""
    failure: str = "0"
    within: str | None = None
    """What it is inside of; None for the account itself."""
    every: AtLeastOne | None = None
    """Minutes after which it renews; an entry is in the epoch that its own time is in."""
    since: Annotated[str, Field(pattern=MINUTE)] | None = None
    """When epoch 0 of those began."""
    epochs: Users | None = None
    """Numbers of its epochs, if these are told by number."""
    to: Annotated[str, Field(min_length=1)] | None = None
    """To whom it is granted: a user of the owner's host, or a role of PostgreSQL."""
    until: Annotated[str, Field(pattern=MINUTE)] | None = None
    """From when on nothing more is issued or spent out of it."""

    def body(self) -> dict[str, Any]:
        return _without(super().body(), "within", "every", "since", "epochs", "to", "until")


class ReturnEntry(_Entry):
    """No further token comes out of a reserved part, or a cap; what a part did not use is free."""

    entry: Literal["return"] = "return"
    allowance: str


class SpendEntry(_Entry):
    """A mechanism is about to open rows and draw noise; durable before it does."""

    entry: Literal["spend"] = "spend"
    token: str
    mechanism: str
    users: Users
    trust: Trust
    adjacency: Adjacency
    domain: dict[str, Any]
    noise: dict[str, Any]
    simulated: StrictBool
    gain: StrictFloat
    loss: dict[str, Any]
    arithmetic: Literal["sum", "own", "each"]
    derived: StrictBool
    """Whether the loss follows from domain, noise and gain; else it is the mechanism's word."""
    calibration: Calibration
    parameters: dict[str, Any]
    interactive: StrictBool = False
    """Whether it stays open, takes further rows and releases in between (a stream)."""
    profile: tuple[tuple[AtLeastOne, StrictFloat], ...] = ()
    """Numbers of users and their gains, in order of arrival; empty if all have ``gain``."""
    exact: Annotated[dict[str, Any] | None, Field(exclude=True)] = None
    """Data of `EXACT`: grid, bound of the integers, sampler and tables; None where the mechanism
    computes in doubles, or the accountant was opened before there was anything else."""

    admitted: Annotated[dict[str, Any] | None, Field(exclude=True)] = None
    """Data of `PARTICIPATION`: the next slot of the registry of persons, by which an older copy of
    it is told."""

    def ext(self) -> dict[str, Any]:
        found = {} if self.exact is None else {EXACT: self.exact}
        return found if self.admitted is None else {**found, PARTICIPATION: self.admitted}


class ReachEntry(_Entry):
    """A stream is about to take rows of users below ``stop``; durable before it does.

    Once its token has ended, it is charged to these users only.
    """

    entry: Literal["reach"] = "reach"
    token: str
    stop: AtLeastOne


class PhaseEntry(_Entry):
    """A phase begins, of the next users of a spend in phases, up to ``stop``.

    Durable before the first of them is served.  Their rows are opened together, and one value
    leaves for them.
    """

    entry: Literal["phase"] = "phase"
    token: str
    stop: AtLeastOne


class PublishEntry(_Entry):
    """A value of a spend that stays open; written before the value leaves."""

    entry: Literal["publish"] = "publish"
    token: str
    digest: Annotated[str, Field(pattern=SHA256)]
    """Of the value, under which it is kept."""
    upto: Annotated[StrictInt, Field(ge=0)]
    """One past the last user whose row was opened."""

    def body(self) -> dict[str, Any]:
        return self.__dict__.copy()  # text and a number, and written for every row of some streams


class FunctionsEntry(_Entry):
    """User code that the rows of a spend pass through; durable before these rows are opened."""

    entry: Literal["functions"] = "functions"
    token: str
    names: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
    """How each came in, and its name: ``map_rows(shop.clean)``."""


class RetireEntry(_Entry):
    """A token's end: a value left, nothing was done, or the outcome is not known.

    ``uncovered``: the mechanism stopped after rows were opened, which may depend on them.
    """

    entry: Literal["retire"] = "retire"
    token: str
    outcome: Literal["released", "unused", "lost", "uncovered"]
    digest: str | None = None
    admitted: Annotated[dict[str, Any] | None, Field(exclude=True)] = None
    """As that of a spend."""
    value: Annotated[dict[str, Any] | None, Field(exclude=True)] = None
    """Data of `RESUME`, of a token that ended with its last value: ``digest``, under which the
    value is kept, and ``upto``, as in `PublishEntry`."""

    def body(self) -> dict[str, Any]:
        said = self.__dict__
        return {name: said[name] for name in ("accountant", "digest", "entry", "outcome", "token")}

    def ext(self) -> dict[str, Any]:
        found = {} if self.admitted is None else {PARTICIPATION: self.admitted}
        return found if self.value is None else {**found, RESUME: self.value}


class AttestEntry(_Entry):
    """A claim by clients about what their devices send; this ledger did not see the noise drawn."""

    entry: Literal["attest"] = "attest"
    by: Annotated[str, Field(min_length=1)]
    """Who attests."""
    mechanism: Annotated[str, Field(min_length=1)]
    label: str
    users: Users
    adjacency: Adjacency
    loss: dict[str, Any]
    """Of one message."""
    most_messages: AtLeastOne
    """Of one user; this many losses are charged to every user."""
    count: AtLeastOne
    """Messages of all users together."""
    planned: StrictInt | None = None
    """Position of the plan item that holds the messages."""
    unseen: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """What the receiver is assumed not to see besides the messages."""


class SumsEntry(_Entry):
    """What a server made of messages: written before it takes the step, and publishes its model.

    The value holds whole numbers of ``step``.  Of a batch, for each part, how many messages are in
    it and their sum, int64; of messages that are steps by themselves, for each its user and its
    numbers, int32, in the order of the steps.
    """

    entry: Literal["sums"] = "sums"
    label: str
    """Of the messages, as they were attested."""
    number: Annotated[StrictInt, Field(ge=0)]
    """How many such entries stand before it under this label; of batches, the batch."""
    upto: Annotated[StrictInt, Field(ge=0)]
    """One past the last user whose turn is over."""
    heard: Annotated[StrictInt, Field(ge=0)]
    """Messages that count, since the entry before."""
    rejected: dict[str, AtLeastOne]
    """Messages that do not, since the entry before, by reason."""
    step: Annotated[StrictFloat, Field(gt=0)]
    digest: Annotated[str, Field(pattern=SHA256)]


class CloseEntry(_Entry):
    """No further entry of this accountant follows."""

    entry: Literal["close"] = "close"


Entry = (
    OpenEntry
    | BatchesEntry
    | LearnerEntry
    | ResumeEntry
    | PlanEntry
    | DelegateEntry
    | CapEntry
    | ReturnEntry
    | IssueEntry
    | SpendEntry
    | FunctionsEntry
    | PhaseEntry
    | ReachEntry
    | PublishEntry
    | RetireEntry
    | AttestEntry
    | SumsEntry
    | CloseEntry
)


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def made(kind: type[E], fields: dict[str, Any]) -> E:
    """An entry of all its fields, which are of the right types and are not looked at again.

    For what this package says by itself; what comes from outside is validated by ``kind(...)``.
    """
    entry, fix = kind.__new__(kind), object.__setattr__
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = set(kind.model_fields)
    fix(entry, "__dict__", fields)
    fix(entry, "__pydantic_fields_set__", names)
    fix(entry, "__pydantic_extra__", None)
    fix(entry, "__pydantic_private__", None)
    return entry


_NAMES: dict[type[_Entry], set[str]] = {}


_EXTENSIONS = {
    (EXACT, "spend"): "exact",
    (PARTICIPATION, "open"): "participation",
    (PARTICIPATION, "issue"): "shared",
    (PARTICIPATION, "spend"): "admitted",
    (PARTICIPATION, "retire"): "admitted",
    (RESUME, "open"): "heads",
    (RESUME, "retire"): "value",
}
"""Where data of an extension stand once they are read: by its name and the kind of entry."""


_FIELDS = frozenset(_EXTENSIONS.values())


@cache
def _validate() -> Callable[[Any], Entry]:
    adapter: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="entry")])
    return adapter.validator.validate_python


def parse_entry(body: dict[str, Any], ext: Mapping[str, Any] = _NOTHING) -> Entry:
    """Rebuilds an entry from its body and the data of extensions that this version knows.

    Raises:
        pydantic.ValidationError: a field is missing, unknown or of the wrong type.
        ValueError: data of an extension where they have no place.
    """
    if not ext and _FIELDS.isdisjoint(body):
        return _validate()(body)
    found: dict[str, Any] = {}
    for (name, kind), field in _EXTENSIONS.items():
        if field in body:
            raise ValueError(f"field {field!r}: the body has none; it is data of {name!r}")
        if name in ext and body.get("entry") == kind:
            found[field] = ext[name]
    for name in {name for name, _ in _EXTENSIONS} & set(ext):
        kinds = [kind for (of, kind) in _EXTENSIONS if of == name]
        if body.get("entry") not in kinds or ext[name] is None:
            what = " or ".join(map(repr, kinds))
            raise ValueError(f"data of {name!r}: only entries {what} have them, as an object")
    return _validate()({**body, **found} if found else body)


def parse_entries(
    stored: Iterable[tuple[dict[str, Any], Mapping[str, Any]]],
) -> list[Entry | Exception]:
    """What `parse_entry` makes of each body with its data of extensions, or why it makes none."""
    found: list[Entry | Exception] = []
    for body, ext in stored:
        try:
            found.append(parse_entry(body, ext))
        except Exception as error:  # noqa: BLE001 - whatever a file holds, an audit ends
            found.append(error)
    return found
