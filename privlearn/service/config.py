"""The configuration of a service: one TOML file, all of it checked before a start.

All of it is public but for the files that it names.  Paths are relative to the file's folder.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from privlearn.errors import DataError
from privlearn.losses.budget_texts import Horizon, parse_budget
from privlearn.losses.budgets import ApproxDP, Currency
from privlearn.service.exchange import Exchange, exchange_of
from privlearn.service.learner_forms import (
    Parameters,
    parameters_of,
    refusal_of,
    served_class,
    served_names,
)
from privlearn.service.quantities import Duration, Size
from privlearn.storage.addresses import LONGEST_PATH
from privlearn.storage.foreign_files import LARGEST_SETTINGS, read_whole, toml_in
from privlearn.values.participation import Participation

PORT: Final = 8350
_NUMBER: Final = 26  # Characters of a number in JSON at most, with what separates it from the next
_BESIDE: Final = 8_192
"""Bytes of a request's names, and of the longest id with each character escaped, at most."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_one(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses what would be taken for something else: true for 1, no name for a folder."""
        assert info.field_name is not None
        kind = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and kind is not bool:
            raise ValueError("must be something else than true or false")
        is_path = isinstance(value, str) and Path in (kind, *get_args(kind))
        if is_path and (not value or "\0" in value):
            raise ValueError("must name a file")
        return value


class Http(_Table):
    """How callers reach the service."""

    host: str = "127.0.0.1"
    """An address of this machine that no other machine reaches."""
    exposed_host: str | None = None
    """Instead of `host`: an address that other machines reach.  Needs TLS here, or a proxy that
    ends it."""
    port: Annotated[int, Field(ge=0, le=65535)] = PORT
    """0 takes a free one, which the log names."""
    tls_certificate: Path | None = None
    """PEM file of the certificate, with its chain."""
    tls_key: Path | None = None
    """PEM file of its key."""
    tls_ends_at_proxy: bool = False
    """Says that a proxy in front of `exposed_host` speaks TLS, and that nothing else reaches it."""
    workers: Annotated[int, Field(ge=1, le=64)] = 2
    """Processes that answer HTTP."""
    largest_request: Annotated[Size, Field(le=2**30)] | None = None
    """Of a body; default: what so many numbers take when they are written in full, and 64 KiB.  At
    least that and 8 KiB."""
    most_connections: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    """Open at a time, of all workers together; each takes an equal part.  Where all are taken, one
    whose request has not come gives up its place."""
    request_time: Annotated[Duration, Field(le=3600)] = 10.0
    """In which a request has to come whole, and its answer to be read."""
    reply_step: Annotated[Duration, Field(le=10)] = 0.005
    """Answers to callers leave at multiples of this time after their request came, so that they do
    not tell how long one user's data took."""
    drain: Annotated[Duration, Field(le=3600)] = 2.0
    """At a stop: how long answers are still taken, while no new offers are made."""

    @model_validator(mode="after")
    def _reached(self) -> Self:
        if not _is_loopback(self.host):
            raise ValueError(
                f"host = {self.host!r}: other machines would reach it. If they are to, name it as "
                "exposed_host, with tls_certificate and tls_key, or tls_ends_at_proxy = true"
            )
        if (self.tls_certificate is None) is not (self.tls_key is None):
            raise ValueError("tls_certificate, tls_key: give both or none")
        if self.exposed_host is None:
            return self
        if self.tls_certificate is None and not self.tls_ends_at_proxy:
            raise ValueError(
                f"exposed_host = {self.exposed_host!r}: access tokens and users' data would cross "
                "the network in clear: give tls_certificate and tls_key, or say "
                "tls_ends_at_proxy = true"
            )
        return self

    @model_validator(mode="after")
    def _divided(self) -> Self:
        if self.most_connections < self.workers:
            raise ValueError(
                f"most_connections = {self.most_connections}: must be at least workers = "
                f"{self.workers}, which have equal parts of it"
            )
        return self

    @property
    def address(self) -> str:
        return self.host if self.exposed_host is None else self.exposed_host


class Access(_Table):
    """Who may call."""

    file: Path = Path("access.json")
    """Names, roles and hashes of access tokens; ``privlearn access`` writes it."""
    requests_per_second: Annotated[float, Field(gt=0, le=1e6)] = 500.0
    """Of each access token, for each resource, over all workers."""
    burst: Annotated[int, Field(ge=1, le=10**7)] = 1_000
    """Requests that may come at once after a pause."""


class Guarantee(_Table):
    """What every user, or every person, is promised."""

    budget: str
    """rho=…, mu=…, epsilon=…,delta=… or, for learners with Laplace noise or choices, epsilon=…"""
    users: Horizon
    """Arrival indices that are given out in all, public; under a rule visits, or slots of time."""
    side_information: tuple[str, ...] = ()
    """What was computed from data of these people and is declared public."""
    simulate_noise: Annotated[int, Field(ge=0)] | None = None
    """Seed of reproducible noise; protects nobody, and the ledger is a simulation."""

    @field_validator("budget")
    @classmethod
    def _is_budget(cls, text: str) -> str:
        parse_budget(text, pure=True)
        return text


class LearnerTable(_Table):
    """Which learner, and its parameters: those that its class is made with."""

    name: str
    """A class of learners that serve users, such as OnePassNewtonMNL or DPHDB."""
    parameters: Parameters = Field(default_factory=Parameters)
    """In the file they stand beside the name; their form is `parameters_of` the class."""

    @model_validator(mode="before")
    @classmethod
    def _of_its_class(cls, told: Any) -> Any:
        """Reads the parameters in the form that the class named in the table has."""
        if not isinstance(told, Mapping) or not isinstance(name := told.get("name"), str):
            return told
        if (kind := served_class(name)) is None:
            return {"name": name}  # which is then refused
        beside = {key: value for key, value in told.items() if key != "name"}
        return {"name": name, "parameters": parameters_of(kind).model_validate(beside)}

    @field_validator("name")
    @classmethod
    def _is_served(cls, name: str) -> str:
        if served_class(name) is None:
            raise ValueError(refusal_of(name) or _known(name, served_names()))
        return name

    @model_validator(mode="after")
    def _has_sizes(self) -> Self:
        _ = self.shapes  # which raises where a size is none
        return self

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of one user's data, by their names in a request."""
        found: dict[str, tuple[int, ...]] = self.make().data_shapes
        return found

    @cached_property
    def answer_shape(self) -> tuple[int, ...]:
        """Of one user's answer."""
        found: tuple[int, ...] = self.make().answer_shape
        return found

    @cached_property
    def serves_ahead(self) -> bool:
        """Whether users may be served while a full batch waits for late answers."""
        return bool(self.make()._serves_ahead)

    @cached_property
    def exchange(self) -> Exchange:
        """What callers send and receive."""
        kind = served_class(self.name)
        found = None if kind is None else exchange_of(kind)
        assert found is not None
        return found

    def make(self) -> Any:
        """The learner, not started.

        Raises:
            ValueError, TypeError: a parameter that the class refuses.
        """
        kind, told = served_class(self.name), self.parameters
        assert kind is not None
        return kind(**{name: getattr(told, name) for name in told.model_fields_set})


class Batches(_Table):
    """When a full batch closes, after which late answers are null; both rules are public."""

    late_offers: Annotated[int, Field(ge=0, le=10**6)] = 0
    """It still takes answers until so many further offers were made."""
    late_time: Annotated[Duration, Field(le=366 * 86400)] = 60.0
    """At the latest it closes so long after its last offer, also if nobody comes any more."""


class LedgerTable(_Table):
    """Where every spend stands before anything is released."""

    path: Path | None = None
    """A SQLite file on a disk of this machine."""
    url_file: Path | None = None
    """A file that holds an address as `Ledger.postgres` takes it, and that only its owner may read.
    """

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.path is None) is (self.url_file is None):
            raise ValueError("path, url_file: give one of them")
        return self


_Count = Annotated[int, Field(ge=1, lt=2**31)]


class PeopleTable(_Table):
    """The rule for persons who come back, and the registry that keeps it."""

    path: Path | None = None
    """The registry, which is secret, in a file of this machine."""
    key_file: Path | None = None
    """Instead: the registry is in the ledger's PostgreSQL, and this file has its secret key."""
    most: _Count
    """Visits of a person that are learned from; with pooled, batches."""
    apart: _Count = 1
    per_batch: _Count | None = None
    pooled: bool = False
    pattern: Literal["public", "private"] = "private"
    clock: Literal["arrivals", "timetable"] = "arrivals"

    @model_validator(mode="after")
    def _is_rule(self) -> Self:
        if (self.path is None) is (self.key_file is None):
            raise ValueError("path, key_file: give one of them")
        self.rule()
        return self

    def rule(self) -> Participation:
        given = {name: getattr(self, name) for name in Participation.__slots__}
        return Participation(**given)


class RowsTable(_Table):
    """Encrypted rows that outlive a process; without them a restart makes the open batch null."""

    path: Path
    """The store."""
    key_file: Path
    """Its 32 secret bytes, where neither the store nor its backups are."""


class ServiceConfig(_Table):
    """Everything that a service is started with."""

    http: Http = Field(default_factory=Http)
    access: Access = Field(default_factory=Access)
    guarantee: Guarantee
    learner: LearnerTable
    batches: Batches = Field(default_factory=Batches)
    ledger: LedgerTable
    people: PeopleTable | None = None
    rows: RowsTable | None = None
    socket: Path = Path("owner.sock")
    """Through which workers ask the owner; only this user can open it."""
    folder: Path = Field(default=Path(), exclude=True)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.people is not None and self.people.clock == "timetable":
            raise ValueError(
                "people.clock = 'timetable': a timetable keeps secret how many come and when, and "
                "offers, rate limits and metrics of a service tell it (see its threat model); use "
                "clock = 'arrivals', or select, observe and skip of the learner in a program of "
                "your own"
            )
        if self.people is not None and self.people.key_file and self.ledger.path is not None:
            raise ValueError(
                "people.key_file: for a registry beside a ledger in PostgreSQL; give people.path"
            )
        if self.batches.late_offers and not self.learner.serves_ahead:
            raise ValueError(
                f"batches.late_offers = {self.batches.late_offers}: {self.learner.name} learns of "
                "each phase from those who were shown its arms; leave it out, and give learner."
                f"delay = {self.batches.late_offers}: so many visitors at the end of each phase "
                "are shown its arms and not counted, while the others answer"
            )
        told, least = self.http.largest_request, self._numbers + _BESIDE
        if told is not None and told < least:
            raise ValueError(
                f"http.largest_request = {told} B: must be at least {least} B, what one visitor's "
                "numbers take when they are written in full; else it follows from their digits who "
                "is served"
            )
        path = self.at(self.socket)
        if len(bytes(path)) > LONGEST_PATH:
            raise ValueError(
                f"socket = {str(path)!r}: a Unix socket's path has at most {LONGEST_PATH} bytes; "
                "name a shorter one"
            )
        return self

    def cap(self) -> tuple[Currency | ApproxDP, type[Currency] | None]:
        """The budget, and the currency to count an (ε, δ) promise in."""
        budget = parse_budget(self.guarantee.budget, pure=True)
        return budget, self.learner.exchange.currency if isinstance(budget, ApproxDP) else None

    def at(self, path: Path) -> Path:
        return self.folder / path

    @property
    def largest_request(self) -> int:
        """In bytes; what nobody's honest data reach, whatever they are."""
        if self.http.largest_request is not None:
            return self.http.largest_request
        return 65_536 + self._numbers

    @property
    def _numbers(self) -> int:
        learner = self.learner
        sent = sum(map(math.prod, learner.shapes.values()))
        return _NUMBER * max(sent, math.prod(learner.answer_shape))


def read_config(path: Path) -> ServiceConfig:
    """Reads and checks a configuration.

    Raises:
        DataError: it cannot be read, is no TOML, or holds something wrong, which the message names.
        PackageError: an installed package announces the learner, and it cannot be loaded.
    """
    try:
        told = toml_in(read_whole(path, at_most=LARGEST_SETTINGS))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path} is not TOML: {error}") from None
    if "folder" in told:
        raise DataError(f"{path}: folder: {_known('folder', _names(ServiceConfig))}")
    try:
        return ServiceConfig(**told, folder=path.resolve().parent)
    except ValidationError as error:
        details = [_detail(item, told) for item in error.errors()]
        raise DataError(f"{path}: {'; '.join(details)}") from None


def _detail(item: Any, told: Mapping[str, Any]) -> str:
    place = [str(part) for part in item["loc"]]
    name = ".".join(place)
    said = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"{name}: no such name; {_known(place[-1], _names(_table(place[:-1], told)))}"
    if item["type"] == "missing":
        field = _table(place[:-1], told).model_fields[place[-1]]
        wanted = " ".join((field.description or "").split())
        return f"{name}: must be given{f' ({wanted})' if wanted else ''}"
    if not name:
        return said
    if item["type"] == "value_error" and isinstance(item["input"], dict | BaseModel):
        return f"{name}: {said}"
    value = item["input"]
    shown = f" = {value!r:.80}" if isinstance(value, int | float | str) else ""
    return f"{name}{shown}: {said}"


def _table(place: Iterable[str], told: Mapping[str, Any]) -> type[BaseModel]:
    found: type[BaseModel] = ServiceConfig
    for name in place:
        kinds = [found.model_fields[name].annotation]
        kinds += getattr(kinds[0], "__args__", ())
        found = next(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
    if found is LearnerTable and (kind := served_class(told["learner"].get("name", ""))):
        return parameters_of(kind)
    return found


def _names(table: type[BaseModel]) -> list[str]:
    return [name for name in table.model_fields if name != "folder"]


def _known(name: str, names: Mapping[str, Any] | Iterable[str]) -> str:
    listed = list(names)
    near = difflib.get_close_matches(name, listed, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"{meant}known: {', '.join(listed)}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
