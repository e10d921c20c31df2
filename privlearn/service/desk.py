"""What the owner does for its callers: offers, answers, and what is public of learner and ledger.

An offer belongs to the access token that asked for it, and to the Idempotency-Key that came with
it.  Whatever is decided here follows from the clock, from how many offers were made, and from the
caller's own requests; never from what anybody's data or answers are.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, final

import numpy as np

from privlearn import __version__
from privlearn.accountants import JointAccountant
from privlearn.errors import BatchError, HorizonError, OfferError, ProvenanceError
from privlearn.learners.async_offers import AsyncOffers
from privlearn.learners.offers import Offer, Offers
from privlearn.learners.participation import NOT_GIVEN
from privlearn.service.config import ServiceConfig
from privlearn.service.counters import Counters
from privlearn.service.logs import log
from privlearn.service.messages import Budget, ClosedBatch, Recommend, Status
from privlearn.service.metrics import Facts, exposition
from privlearn.service.problems import problem
from privlearn.service.rates import Rates
from privlearn.service.visits import as_id, form_of_ids

_TAG_BYTES: Final = 12
_MOST_KEPT: Final = 16  # Certificates at as many δ
_LEAST_DELTA: Final = 1e-6  # At which ε is told, where the budget names no δ
_NOT_CLOSED: Final = {"another": "another-batch", "empty": "empty-batch", "more": "more-places"}


@dataclass(frozen=True, slots=True)
class _Made:
    """An offer that was asked for with an Idempotency-Key, until its batch is closed."""

    digest: str
    offer: asyncio.Future[Offer]

    @property
    def is_made(self) -> bool:
        done = self.offer.done()
        return done and not self.offer.cancelled() and self.offer.exception() is None


@final
class Desk:
    """Answers what workers ask; all in one event loop.

    Args:
        config: of the service.
        accountant: of the learner.
        offers: of the learner, which is started.
    """

    def __init__(
        self, config: ServiceConfig, accountant: JointAccountant[Any], offers: Offers[Any]
    ) -> None:
        self._config, self._accountant = config, accountant
        self._shapes, self._exchange = config.learner.shapes, config.learner.exchange
        self._offers = AsyncOffers(offers)
        people = accountant.people
        self._ids = None if people is None else form_of_ids(people)
        self._key = secrets.token_bytes(32)
        self._made: dict[tuple[str, str], _Made] = {}
        self._closing = asyncio.Lock()
        self._closed: dict[tuple[str, str], tuple[tuple[int, int], int]] = {}
        self._rates = Rates(config.access.requests_per_second, config.access.burst)
        self._counters = Counters()
        self._started = time.time()
        self._state: Literal["serving", "stopping", "over"] = "serving"
        self._making = asyncio.Lock()
        self._made_at = ""
        self._follows: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "recommend": self._recommend,
            "observe": self._observe,
            "status": self._status,
            "budget": self._budget,
            "certificate": self._certificate,
            "results": self._results,
            "metrics": self._metrics,
            "ready": self._ready,
            "count": self._count,
            "close_batch": self._close_batch,
            "forget": self._forget,
        }

    async def ask(self, name: str, fields: dict[str, Any], attached: bytes = b"") -> dict[str, Any]:
        """What was asked for, as JSON.

        Requests of all workers come by here, so that a caller's are counted here, each kind by
        itself: whether offers are made must not follow from how many answer.

        Raises:
            ServiceError: it is refused.
        """
        handler = self._asked.get(name)
        if handler is None:  # a worker of another version
            raise problem("failed")
        given = dict(fields)
        caller = given.pop("caller", None)  # a worker's own questions have none
        if caller is not None and (wait := self._rates.wait(f"{caller} {name}")) > 0:
            raise problem("too-many", retry_after=wait)
        if name == "recommend":
            return await handler(caller, attached, **given)
        if name in ("observe", "close_batch"):
            return await handler(caller, **given)
        return await handler(**given)

    async def _recommend(
        self,
        caller: str,
        attached: bytes,
        sizes: dict[str, int],
        key: str | None = None,
        digest: str = "",
        person: str | int | None = None,
    ) -> dict[str, Any]:
        if key is None:
            offer = await self._offer(sizes, attached, person)
        else:
            place = caller, key
            while (made := self._made.get(place)) is not None and await self._has_closed(made):
                if self._made.get(place) is made:
                    del self._made[place]
            if made is None:
                making = asyncio.ensure_future(self._offer(sizes, attached, person))
                making.add_done_callback(lambda done: self._keep_made(place, done))
                made = self._made[place] = _Made(digest, making)
            elif not hmac.compare_digest(made.digest, digest):
                raise problem("key-reused")
            offer = await asyncio.shield(made.offer)
        told = self._exchange.offered.of(self._tagged(offer.id, caller), offer.items)
        return told.model_dump(mode="json")

    async def _has_closed(self, made: _Made) -> bool:
        """Whether its batch has; asked in another thread, as a batch that closes has its turn."""
        return made.is_made and not await asyncio.to_thread(
            self._offers.offers.is_open, made.offer.result()
        )

    def _keep_made(self, place: tuple[str, str], done: asyncio.Future[Offer]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._made.pop(place, None)

    async def _offer(
        self, sizes: dict[str, int], attached: bytes, person: str | int | None
    ) -> Offer:
        if self._state != "serving":
            raise problem(self._state)
        data = _numbers(self._shapes, sizes, attached, self._exchange.recommend)
        try:
            return await self._offers.select(*data, person=self._named(person))
        except HorizonError:
            raise problem("over") from None

    def _named(self, person: Any) -> Any:
        """Who it is, in the form that all ids of the registry have.

        No id decides of the form of others, so that a person's is not refused because of another's.
        """
        return NOT_GIVEN if self._ids is None else as_id(person, self._ids)

    def _tagged(self, offer: str, caller: str) -> str:
        """An offer's id with whose it is, so that nobody else's access token may answer it."""
        told = f"{offer} {caller}".encode()
        tag = hmac.digest(self._key, told, hashlib.sha256)[:_TAG_BYTES]
        return f"{offer}.{tag.hex()}"

    async def _observe(self, caller: str, offer: str, answer: Any) -> dict[str, Any]:
        own = offer.rpartition(".")[0]
        if not hmac.compare_digest(self._tagged(own, caller).encode(), offer.encode()):
            raise problem("unknown-offer")
        if self._state == "over":
            raise problem("closed-offer")
        try:
            await self._offers.observe(own, answer)
        except OfferError as error:
            raise problem(f"{error.reason}-offer") from None
        return {}

    async def keep_time(self) -> None:
        """Closes batches that are full by the clock, until a stop or the end of the run.

        It looks at the clock and at how many offers were made, which are public, at nothing else.
        """
        patience, users = self._config.batches.late_time, self._accountant.users
        full: tuple[int, float] | None = None
        while self._state == "serving":
            await asyncio.sleep(min(patience / 4, 1.0))
            first, is_full, closed = await asyncio.to_thread(self._look, tuple(self._made.items()))
            for place in closed:
                self._made.pop(place, None)
            if not is_full:
                full = None
            elif full is None or full[0] != first:
                full = first, time.monotonic()
            elif time.monotonic() - full[1] >= patience:
                await asyncio.to_thread(self._offers.offers.close_if_full, first)
            if first == users.stop:
                await self._end()

    def _look(
        self, made: tuple[tuple[tuple[str, str], _Made], ...]
    ) -> tuple[int, bool, list[tuple[str, str]]]:
        offers = self._offers.offers
        closed = [
            place
            for place, each in made
            if each.is_made and not offers.is_open(each.offer.result())
        ]
        return offers.first_open, offers.full, closed

    async def _end(self) -> None:
        """All batches are closed: so is the account, for good."""
        self._state = "over"
        await asyncio.to_thread(self._accountant.close)
        log("over", clock=self._offers.clock_, users=len(self._accountant.users))

    async def stop(self, drain: float) -> None:
        """Makes no more offers, and returns when answers were taken for ``drain`` seconds.

        The time is the same whoever has answered.
        """
        if self._state == "serving":
            self._state = "stopping"
            await asyncio.sleep(drain)

    async def close(self) -> None:
        await self._offers.aclose()

    async def _status(self) -> dict[str, Any]:
        account, rule = self._accountant, self._config.people
        batch = await asyncio.to_thread(lambda: self._offers.offers.open_batch)
        clock = self._offers.clock_
        return Status(
            software=f"privlearn {__version__}",
            learner=self._config.learner.name,
            rule=None if rule is None else repr(rule.rule()),
            users=len(account.users),
            clock=clock - account.users.start,
            batch=batch.start - account.users.start,
            places=max(batch.stop - clock, 0),
            entries=account.ledger.entries_of(account.id),
            state=self._state,
        ).model_dump()

    async def _budget(self) -> dict[str, Any]:
        return await self._as_of_now("budget", self._budget_now)

    def _budget_now(self) -> dict[str, Any]:
        account = self._accountant
        told, _ = self._config.cap()
        delta = float(getattr(told, "delta", _LEAST_DELTA))
        return Budget(
            cap=account.budget.to_dict(),
            promise=None if told == account.budget else told.to_dict(),
            reserved=account.spent().to_dict(),
            remaining=account.remaining().to_dict(),
            delta=delta,
            epsilon=_finite(account.epsilon(delta)),
            epsilon_spent=_finite(account.epsilon(delta, of="spent")),
            simulated=account.noise.simulated,
        ).model_dump()

    async def _certificate(self, delta: float | None) -> dict[str, Any]:
        def made() -> dict[str, Any]:
            certificate: dict[str, Any] = json.loads(
                self._accountant.certificate(delta).model_dump_json()
            )
            return certificate

        return await self._as_of_now(f"certificate {delta}", made)

    async def _results(self) -> dict[str, Any]:
        form = self._exchange.results
        if form is None:  # a worker of another version
            raise problem("not-found")
        found = await asyncio.to_thread(self._offers.offers.read, form.of)
        return found.model_dump()

    async def _as_of_now(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What follows from the ledger, made once for each head, and one after the other."""
        async with self._making:
            head = self._accountant.ledger.head
            if self._made_at != head or len(self._follows) >= _MOST_KEPT:
                self._follows, self._made_at = {}, head
            if name not in self._follows:
                self._follows[name] = await asyncio.to_thread(make)
            return self._follows[name]

    async def _metrics(self) -> dict[str, Any]:
        account = self._accountant
        parts = {
            "cap": account.budget,
            "reserved": account.spent(),
            "remaining": account.remaining(),
        }
        facts = Facts(
            software=__version__,
            learner=self._config.learner.name,
            clock=self._offers.clock_ - account.users.start,
            users=len(account.users),
            entries=account.ledger.entries_of(account.id),
            budget={name: _as_float(budget) for name, budget in parts.items()},
            currency=type(account.budget).__name__,
            serving=self._state == "serving",
            started=self._started,
        )
        text, kind = exposition(facts, self._counters)
        return {"text": text, "type": kind}

    async def _ready(self) -> dict[str, Any]:
        if self._state != "serving":
            raise problem(self._state)
        return {}

    async def _count(self, **counted: Any) -> dict[str, Any]:
        self._counters.add(counted)
        return {}

    async def _close_batch(
        self, caller: str, batch: int, places: int, key: str | None
    ) -> dict[str, Any]:
        async with self._closing:  # so that the second of two with one key finds the first one's
            asked = batch, places
            before = None if key is None else self._closed.get((caller, key))
            if before is not None and before[0] != asked:
                raise problem("key-reused")
            given_up = await self._close_begun(batch, places) if before is None else before[1]
            if key is not None:
                self._closed[caller, key] = asked, given_up
        return ClosedBatch(batch=batch, places=given_up).model_dump()

    async def _close_begun(self, batch: int, places: int) -> int:
        if self._state != "serving":
            raise problem(self._state)
        try:
            return await self._offers.close_begun(self._accountant.users.start + batch, places)
        except HorizonError:
            raise problem("over") from None
        except BatchError as error:
            raise problem(_NOT_CLOSED[error.reason]) from None

    async def _forget(self, person: str | int) -> dict[str, Any]:
        try:
            await self._offers.forget(self._named(person))
        except ProvenanceError as error:
            raise problem("bad-request", str(error)) from None
        except ValueError:
            told = "person: no id of the kind that the registry has"
            raise problem("bad-request", told) from None
        return {}


def _numbers(
    shapes: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int],
    attached: bytes,
    form: type[Recommend],
) -> list[Any]:
    """A visitor's data in the order of `select`; None for what was not sent.

    Too few numbers stay as they are: no learner can use them.
    """
    found: list[Any] = []
    at = 0
    for name, shape in shapes.items():
        if name not in sizes:
            found.append(None)
            continue
        numbers = np.frombuffer(attached[at : at + sizes[name]], dtype="<f8")
        shaped = form.shaped(numbers, shape)
        found.append(numbers if shaped is None else shaped)
        at += sizes[name]
    return found


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _as_float(budget: Any) -> float:
    told: Mapping[str, Any] = budget.to_dict()
    for name in ("rho", "mu_squared", "epsilon"):
        if name in told:
            return float(Fraction(told[name]))
    return float("nan")
