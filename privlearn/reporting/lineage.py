"""Tells other systems of every spend as it happens: MLflow, OpenLineage, or a class of your own.

::

    with log_spends(accountant, MlflowSpends(run_id)):
        ...  # releases

What is told stands in the ledger and is as public as that.  It is told by a thread of its own,
after the spend is on disk: a destination that is slow, or fails, neither delays nor stops a
release, and what it did not take is said when the block ends.
"""

from __future__ import annotations

import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, final

from privlearn.accountants.prices import read_loss
from privlearn.accountants.state import AccountState, Checked
from privlearn.errors import PrivlearnError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import Entry, IssueEntry, OpenEntry, RetireEntry, SpendEntry
from privlearn.reporting.costs import unit_of
from privlearn.values.exact import float_up

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
    from openlineage.client import OpenLineageClient


class NotLoggedWarning(UserWarning):
    """Spends that a destination of `log_spends` did not take; they stand in the ledger."""


@final
@dataclass(frozen=True, slots=True)
class LoggedSpend:
    """One spend, as the ledger has it."""

    accountant: str
    number: int
    """Which spend of its accountant it is, from 1."""
    mechanism: str
    label: str
    users: tuple[int, int]
    """The first arrival index and one past the last."""
    trust: str
    adjacency: str
    unit: str
    """What the numbers below count in: ``ρ``, ``μ²``, ``ε``, or ``ε at order 12``."""
    cost: float | None
    """Of this spend to one user; None where the loss has no price of its own."""
    charged: float
    """What is spent on, and reserved for, the most charged user (or person) now."""
    cap: float
    minute: int
    """When it was told, in seconds since 1970, rounded down to the minute as in the ledger."""
    simulated: bool


class Accounted(Protocol):
    """An accountant, as far as its spends can be followed."""

    ledger: Ledger

    @property
    def id(self) -> str:
        """By which its entries are known."""


class Destination(Protocol):
    """Where spends are told."""

    def spent(self, spend: LoggedSpend) -> None:
        """Takes one spend; whatever it raises is said at the end."""

    def end(self, failed: bool) -> None:
        """No further spend follows; ``failed`` says whether the block ended by an exception."""


@contextmanager
def log_spends(accountant: Accounted, *destinations: Destination) -> Iterator[None]:
    """Tells ``destinations`` of every spend of ``accountant`` until the block ends.

    Spends from before are not told, but count in what is charged.

    Warns:
        NotLoggedWarning: a destination did not take some of them.
    """
    queue: SimpleQueue[Entry | None] = SimpleQueue()
    before = accountant.ledger.listen(queue)
    try:
        follower = _Follower(accountant, destinations, before)
    except BaseException:  # or the queue would grow as long as the ledger is open
        accountant.ledger.unlisten(queue)
        raise
    thread = threading.Thread(target=follower.work, args=(queue,), daemon=True, name="log_spends")
    thread.start()
    failed = True
    try:
        yield
        failed = False
    finally:
        accountant.ledger.unlisten(queue)
        queue.put(None)
        thread.join()
        follower.end(failed)


@final
class _Follower:
    def __init__(
        self, accountant: Accounted, destinations: tuple[Destination, ...], before: int
    ) -> None:
        self._id, self._destinations = accountant.id, destinations
        self._state: AccountState | None = None
        self._labels: dict[str, str] = {}
        self._number = 0
        self._missed: dict[int, list[BaseException]] = {}
        for entry in islice(accountant.ledger.entries, before):
            self._follow(entry)

    def work(self, queue: SimpleQueue[Entry | None]) -> None:
        """Until a None comes."""
        while (entry := queue.get()) is not None:
            spend = None
            try:
                spend = self._follow(entry)
            except (
                Exception
            ) as error:  # said at the end; what is told must not stop what is told of
                for position in range(len(self._destinations)):
                    self._missed.setdefault(position, []).append(error)
            if spend is not None:
                for position, destination in enumerate(self._destinations):
                    self._try(position, lambda to=destination, one=spend: to.spent(one))

    def end(self, failed: bool) -> None:
        for position, destination in enumerate(self._destinations):
            self._try(position, lambda to=destination: to.end(failed))
        for position, errors in self._missed.items():
            name = type(self._destinations[position]).__name__
            warnings.warn(
                f"{name} did not take {len(errors)} of what it was told, the first because of "
                f"{errors[0]!r:.200}; the ledger has all of it",
                NotLoggedWarning,
                stacklevel=4,
            )

    def _try(self, position: int, tell: Any) -> None:
        try:
            tell()
        except Exception as error:  # somebody else's system
            self._missed.setdefault(position, []).append(error)

    def _follow(self, entry: Entry) -> LoggedSpend | None:
        if entry.accountant != self._id:
            return None
        if isinstance(entry, OpenEntry):
            self._state = AccountState(entry)
            return None
        state = self._state
        assert state is not None  # an account's first entry opens it
        state.record(Checked(entry))
        if isinstance(entry, IssueEntry):
            self._labels[entry.token] = entry.label
        elif isinstance(entry, RetireEntry):
            self._labels.pop(entry.token, None)
            state.fold(entry.token)
        elif isinstance(entry, SpendEntry):
            self._number += 1
            return self._told(state, entry)
        return None

    def _told(self, state: AccountState, entry: SpendEntry) -> LoggedSpend:
        users = range(*entry.users)
        try:
            price = state.prices.of_person(read_loss(entry.loss), users).budget
            cost = float_up(price.amounts[0])
        except (PrivlearnError, ValueError):  # none, or one that differs from user to user
            cost = None
        return LoggedSpend(
            accountant=self._id,
            number=self._number,
            mechanism=entry.mechanism,
            label=self._labels.get(entry.token, ""),
            users=entry.users,
            trust=entry.trust.value,
            adjacency=entry.adjacency.value,
            unit=unit_of(state.cap),
            cost=cost,
            charged=float_up(state.meter.largest().amounts[0]),
            cap=float_up(state.cap.amounts[0]),
            minute=int(time.time() // 60) * 60,
            simulated=entry.simulated,
        )


@final
class MlflowSpends:
    """Metrics of an MLflow run: ``privacy/charged``, ``privacy/cost``, one step for each spend.

    Needs the extra ``mlflow``.

    Args:
        run_id: of a run that was started.
        client: of the tracking server; default that of the environment.

    Raises:
        ImportError: the extra is not installed.
    """

    def __init__(self, run_id: str, client: MlflowClient | None = None) -> None:
        if client is None:
            try:
                from mlflow.tracking import MlflowClient
            except ImportError as error:
                raise _missing("mlflow", error) from None
            client = MlflowClient()
        self._client, self._run, self._begun = client, run_id, False

    def spent(self, spend: LoggedSpend) -> None:
        from mlflow.entities import Metric

        if not self._begun:
            self._client.set_tag(self._run, "privacy.unit", spend.unit)
            self._client.set_tag(self._run, "privacy.cap", repr(spend.cap))
            self._client.set_tag(self._run, "privacy.adjacency", spend.adjacency)
            self._client.set_tag(self._run, "privacy.trust", spend.trust)
            self._client.set_tag(self._run, "privacy.simulated", str(spend.simulated).lower())
            self._begun = True
        numbers = {"privacy/charged": spend.charged, "privacy/cost": spend.cost}
        self._client.log_batch(
            self._run,
            metrics=[
                Metric(name, value, spend.minute * 1000, spend.number)
                for name, value in numbers.items()
                if value is not None
            ],
        )

    def end(self, failed: bool) -> None:
        """The run is its owner's: it is left as it is."""


@final
class OpenLineageSpends:
    """Run events with the facet ``privlearn_spend``: START, a RUNNING for each spend, COMPLETE.

    Needs the extra ``lineage``.

    Args:
        namespace, job: as the job is known to the lineage server.
        run_id: a UUID; default a new one.
        client: default that of the environment (``OPENLINEAGE_URL`` and others).

    Raises:
        ImportError: the extra is not installed.
    """

    def __init__(
        self,
        namespace: str,
        job: str,
        *,
        run_id: str | None = None,
        client: OpenLineageClient | None = None,
    ) -> None:
        try:
            from openlineage.client import OpenLineageClient
        except ImportError as error:
            raise _missing("lineage", error) from None
        self._client = OpenLineageClient() if client is None else client
        self._namespace, self._job = namespace, job
        self.run_id = str(uuid.uuid4()) if run_id is None else run_id
        self._begun = False

    def spent(self, spend: LoggedSpend) -> None:
        if not self._begun:
            self._emit("START", spend.minute)
            self._begun = True
        self._emit("RUNNING", spend.minute, spend)

    def end(self, failed: bool) -> None:
        if self._begun:
            self._emit("FAIL" if failed else "COMPLETE", int(time.time() // 60) * 60)

    def _emit(self, state: str, at: int, spend: LoggedSpend | None = None) -> None:
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState

        facets = {} if spend is None else {"privlearn_spend": _facet(spend)}
        self._client.emit(
            RunEvent(
                eventTime=datetime.fromtimestamp(at, UTC).isoformat(),
                eventType=RunState[state],
                producer=_PRODUCER,
                run=Run(runId=self.run_id, facets=facets),
                job=Job(namespace=self._namespace, name=self._job),
            )
        )


_PRODUCER = "urn:privlearn"


def _facet(spend: LoggedSpend) -> Any:
    import attr
    from openlineage.client.generated.base import RunFacet

    made: Any = attr.make_class(
        "PrivlearnSpend",
        {name: attr.field() for name in asdict(spend)},
        bases=(RunFacet,),
        kw_only=True,
    )
    made._get_schema = staticmethod(lambda: "urn:privlearn:spend:1")
    return made(**asdict(spend), producer=_PRODUCER)


def _missing(extra: str, error: ImportError) -> ImportError:
    return ImportError(f"{error}: needs the extra, pip install 'privlearn[{extra}]'")
