"""Clients of a service, for programs that wait (`Client`) and for event loops (`AsyncClient`).

A service shows items and takes choices, shows arms or actions and takes rewards, or follows experts
and takes their losses, as its learner does.

>>> with Client("http://127.0.0.1:8350", token) as shop:       # doctest: +SKIP
...     offer = shop.recommend(features, person="visitor 7")
...     shop.observe(offer.offer, choice=3)
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final, Self, TypeVar, final
from urllib.request import getproxies, proxy_bypass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ValidationError

from privlearn.accountants import Certificate
from privlearn.errors import ServiceError
from privlearn.learners.participation import NOT_GIVEN, PersonId
from privlearn.service.exchange import results_in
from privlearn.service.messages import (
    Budget,
    ClosedBatch,
    OfferedAction,
    OfferedArm,
    OfferedExpert,
    OfferedItems,
    Results,
    Status,
    packed,
)

try:
    import httpx2 as httpx
except ImportError:
    raise ImportError("a client needs httpx2: pip install 'privlearn[serve]'") from None

M = TypeVar("M", bound=BaseModel)

_AGAIN: Final = ("busy", "owner-away", "stopping", "too-many", "unreachable")
"""Why it makes sense to ask again: also a service that stops is mostly started again."""
_NOT_TAKEN: Final = ("busy", "stopping", "too-many")
"""Refusals after which nothing was done; after the other ones of `_AGAIN` nobody knows."""
_METHODS: Final = {
    "items": "recommend",
    "action": "recommend_action",
    "arm": "recommend_arm",
    "expert": "recommend_expert",
}
"""By what an offer shows."""
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0


class _Asking:
    def __init__(self, patience: float, proxy: str) -> None:
        self._patience, self._proxy = patience, proxy

    def _answer(self, response: httpx.Response) -> Any:
        if response.status_code == 204:
            return None
        try:
            told = response.json()
        except ValueError:
            told = None
        if response.is_success and told is not None:
            return told
        said = told if isinstance(told, dict) else {}
        after = response.headers.get("Retry-After", "")
        other = f"HTTP {response.status_code}, not from a service of privlearn{self._proxy}"
        raise ServiceError(
            str(said.get("code", "busy" if response.status_code == 503 else "no-service")),
            response.status_code,
            str(said.get("message", other)),
            retry_after=float(after) if after.isdigit() else None,
        )

    def _unreachable(self, url: object, error: httpx.HTTPError) -> ServiceError:
        why = str(error) or type(error).__name__
        told = f"the service at {url} cannot be reached{self._proxy}: {why}"
        return ServiceError("unreachable", 0, told)

    @staticmethod
    def _recommended(
        person: Any, write: Callable[[Any], Any] = packed, **data: ArrayLike | None
    ) -> Any:
        body: dict[str, Any] = {
            name: write(np.asarray(values, dtype=np.float64))
            for name, values in data.items()
            if values is not None
        }
        if person is not NOT_GIVEN:
            body["person"] = person
        return {"json": body, "headers": _new_key()}

    @staticmethod
    def _closing(batch: int, places: int) -> dict[str, Any]:
        return {"json": {"batch": batch, "places": places}, "headers": _new_key()}

    @staticmethod
    def _chosen(offer: str, choice: int | None) -> dict[str, Any]:
        _check_id(offer)
        if isinstance(choice, bool) or not isinstance(choice, int | np.integer | None):
            raise TypeError(f"choice: must be an item or None, not {type(choice).__name__}")
        return {"offer": offer, "choice": None if choice is None else int(choice)}

    @staticmethod
    def _rewarded(offer: str, reward: float | None) -> dict[str, Any]:
        _check_id(offer)
        kinds = int | float | np.integer | np.floating | None
        if isinstance(reward, bool) or not isinstance(reward, kinds):
            raise TypeError(f"reward: must be a number or None, not {type(reward).__name__}")
        # JSON has no infinity and no NaN, whose record is null as that of no reward
        finite = reward is not None and bool(np.isfinite(float(reward)))
        return {"offer": offer, "reward": float(reward) if reward is not None and finite else None}

    @staticmethod
    def _lost(offer: str, losses: ArrayLike | None) -> dict[str, Any]:
        _check_id(offer)
        sent = None if losses is None else packed(np.asarray(losses, dtype=np.float64))
        return {"offer": offer, "losses": sent}

    def _wait(self, error: ServiceError, attempt: int, left: float) -> float:
        wait: float = min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT)
        if error.code == "too-many" and error.retry_after is not None:
            wait = error.retry_after
        if error.code not in _AGAIN or wait > left:
            raise error
        return wait


def _offered(form: type[M], told: Any) -> M:
    """An offer in the form of the method that asked for it."""
    try:
        return form.model_validate(told)
    except ValidationError:
        shown = told.keys() if isinstance(told, dict) else ()
        fitting = [method for what, method in _METHODS.items() if what in shown]
        wanted = f"; call {fitting[0]}" if fitting else ""
        raise ServiceError(
            "other-learner",
            200,
            f"the service has a learner whose offers are of another kind{wanted}. The visitor's "
            "arrival index was used up",
        ) from None


def _listed(values: NDArray[np.float64]) -> Any:
    """Numbers as lists; of base64, a wrong shape is not seen where fewer rows are allowed."""
    cells = values.astype(object)
    cells[~np.isfinite(values)] = None  # JSON has no infinity and no NaN
    return cells.tolist()


def _new_key() -> dict[str, str]:
    """Headers by which a request that is repeated is done once."""
    return {"Idempotency-Key": secrets.token_urlsafe(16)}


def _check_id(offer: object) -> None:
    if not isinstance(offer, str):
        told = f"must be the id of an offer, as in offer.offer, not {type(offer).__name__}"
        raise TypeError(f"offer: {told}")


def _options(url: str, token: str, timeout: float, verify: Any) -> dict[str, Any]:
    if not token.strip():
        raise ValueError("token: must be an access token; `privlearn access add` makes one")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url = {url!r}: must begin with http:// or https://")
    headers = {"Authorization": f"Bearer {token.strip()}"}
    return {"base_url": url, "headers": headers, "timeout": timeout, "verify": verify}


def _is_here(url: str) -> bool:
    """Whether a service is on this machine, so that no proxy may have the token."""
    host = httpx.URL(url).host.rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        # also 127.1 and 2130706433, which systems take for addresses
        address = ip_address(host if ":" in host else socket.inet_aton(host))
    except (OSError, ValueError):
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _proxy_of(url: str) -> str:
    """Through which proxy of the environment requests go, in words; without its password."""
    asked, known = httpx.URL(url), getproxies()
    proxy = known.get(asked.scheme) or known.get("all")
    if not proxy or _is_here(url) or proxy_bypass(asked.host):
        return ""
    name = proxy.rpartition("@")[2].rpartition("://")[2]
    return f", through the proxy {name} that the environment names (HTTP_PROXY, NO_PROXY)"


@final
class Client(_Asking):
    """A client that waits; a context manager.

    A request that the service could not take, or whose answer was lost, is made again for
    ``patience`` seconds: offers with one Idempotency-Key, so that no visitor is served twice.  An
    answer whose outcome was lost is sent again, too, and that it was taken before is no error then.

    Args:
        url: such as ``http://127.0.0.1:8350``; an address of this machine is asked directly, others
            through the proxy that the environment names, if any.
        token: of the access file.
        patience: seconds in which a request is repeated.
        timeout: seconds of one attempt.
        verify: as httpx has it: certificates to trust.
        transport: as httpx has it.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience: float = 10.0,
        timeout: float = 10.0,
        verify: Any = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        options = _options(url, token, timeout, verify)
        super().__init__(patience, "" if transport is not None else _proxy_of(url))
        if transport is None and _is_here(url):
            transport = httpx.HTTPTransport(verify=verify)
        self._http = httpx.Client(transport=transport, **options)

    def recommend(
        self,
        features: ArrayLike,
        revenues: ArrayLike | None = None,
        *,
        person: PersonId = NOT_GIVEN,
    ) -> OfferedItems:
        """Items to show the next visitor.

        Args:
            features: shape (n_items, dim).
            revenues: shape (n_items,); without them all sales count alike.
            person: under a rule of participation, and only then, who it is; None: nobody who can be
                told apart.

        Raises:
            ServiceError: the request is refused, or the service away for too long.
        """
        asked = self._recommended(person, features=features, revenues=revenues)
        return _offered(OfferedItems, self._ask("POST", "/v1/recommend", **asked))

    def recommend_action(
        self,
        features: ArrayLike,
        revenues: ArrayLike | None = None,
        *,
        person: PersonId = NOT_GIVEN,
    ) -> OfferedAction:
        """The action for the next visitor, where `OnePassNewtonGLM` is served.

        Args:
            features: of the actions on offer, shape (m, dim), m at most n_actions; of a learner
                with ``per_action`` the visitor's context, shape (dim,).
            revenues: what a reward of 1 is worth, of each action on offer, shape (m,); without them
                alike.
            person: as `recommend`.

        Raises:
            ServiceError: as `recommend`.
        """
        asked = self._recommended(person, _listed, features=features, revenues=revenues)
        return _offered(OfferedAction, self._ask("POST", "/v1/recommend", **asked))

    def recommend_arm(
        self, context: ArrayLike | None = None, *, person: PersonId = NOT_GIVEN
    ) -> OfferedArm:
        """The arm to pull for the next visitor, where arms are served.

        Args:
            context: shape (dim,); not where arms are shown without one (`PrivateArms`,
                `PrivateTest`).
            person: as `recommend`.

        Raises:
            ServiceError: as `recommend`.
        """
        asked = self._recommended(person, context=context)
        return _offered(OfferedArm, self._ask("POST", "/v1/recommend", **asked))

    def recommend_expert(self, *, person: PersonId = NOT_GIVEN) -> OfferedExpert:
        """The expert to follow for the next visitor, where experts are served.

        Args:
            person: as `recommend`.

        Raises:
            ServiceError: as `recommend`.
        """
        asked = self._recommended(person)
        return _offered(OfferedExpert, self._ask("POST", "/v1/recommend", **asked))

    def observe(self, offer: str, choice: int | None) -> None:
        """The one answer to an offer of items; None: nothing was chosen.

        Raises:
            ServiceError: the offer is unknown, closed or answered, or the service away too long.
            TypeError: it is no id of an offer, or the choice is no integer.
        """
        self._ask("POST", "/v1/observe", json=self._chosen(offer, choice))

    def observe_reward(self, offer: str, reward: float | None) -> None:
        """The reward of the arm or action of an offer; None: none came.

        Raises:
            ServiceError: as `observe`.
            TypeError: it is no id of an offer, or the reward is no number.
        """
        self._ask("POST", "/v1/observe", json=self._rewarded(offer, reward))

    def observe_losses(self, offer: str, losses: ArrayLike | None) -> None:
        """What every expert would have cost the visitor of an offer; None: it is not known.

        Args:
            offer: its id.
            losses: shape (n_experts,).

        Raises:
            ServiceError: as `observe`.
            TypeError, ValueError: it is no id of an offer, or the losses are no numbers.
        """
        self._ask("POST", "/v1/observe", json=self._lost(offer, losses))

    def results(self) -> Results:
        """What was learned so far, where arms, a test, experts or actions are served.

        Raises:
            ServiceError: as `status`; ``not-found`` where another learner is served.
        """
        return results_in(self._ask("GET", "/v1/results"))

    def status(self) -> Status:
        """What is public of the service.

        Raises:
            ServiceError: the request is refused, or the service away for too long.
        """
        return Status.model_validate(self._ask("GET", "/v1/status"))

    def budget(self) -> Budget:
        """What is left of the most charged user's budget.

        Raises:
            ServiceError: as `status`.
        """
        return Budget.model_validate(self._ask("GET", "/v1/budget"))

    def certificate(self, delta: float | None = None) -> Certificate:
        """What the ledger proves so far, as the service says; who doubts it audits the ledger.

        Raises:
            ServiceError: as `status`.
        """
        params: Mapping[str, float] = {} if delta is None else {"delta": delta}
        return Certificate.model_validate(self._ask("GET", "/v1/certificate", params=params))

    def close_batch(self, batch: int, places: int) -> int:
        """Closes the open batch now, for good; how many of its places were given up.

        Args:
            batch: which one, as in ``status().batch``.
            places: that may be given up, of visitors who have not come yet; all that are left are
                in ``status().places``.

        Raises:
            ServiceError: as `status`.  Nothing was closed by a refusal with the code
                ``another-batch`` (it is closed, or not open yet), ``empty-batch`` (nobody of it was
                served) or ``more-places``; with ``unreachable`` or ``owner-away`` it is not known.
        """
        asked = self._closing(batch, places)
        return ClosedBatch.model_validate(self._ask("POST", "/v1/close-batch", **asked)).places

    def forget(self, person: str | int) -> None:
        """Learns nothing more of a person.

        Raises:
            ServiceError: as `status`.
        """
        self._ask("POST", "/v1/forget", json={"person": person})

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        end, attempt, lost = time.monotonic() + self._patience, 0, False
        while True:
            try:
                return self._answer(self._http.request(method, path, **options))
            except httpx.HTTPError as error:
                refusal = self._unreachable(self._http.base_url, error)
            except ServiceError as error:
                if lost and error.code == "answered-offer":
                    return None
                refusal = error
            lost = lost or refusal.code not in _NOT_TAKEN
            time.sleep(self._wait(refusal, attempt, end - time.monotonic()))
            attempt += 1

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@final
class AsyncClient(_Asking):
    """As `Client`, for event loops; an ``async with`` block.

    Args:
        url, token, patience, timeout, verify, transport: as `Client` has them.
        connections: open at a time, at most.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience: float = 10.0,
        timeout: float = 10.0,
        verify: Any = True,
        transport: httpx.AsyncBaseTransport | None = None,
        connections: int = 100,
    ) -> None:
        options = _options(url, token, timeout, verify)
        super().__init__(patience, "" if transport is not None else _proxy_of(url))
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        if transport is None and _is_here(url):
            transport = httpx.AsyncHTTPTransport(verify=verify, limits=limits)
        self._http = httpx.AsyncClient(transport=transport, limits=limits, **options)

    async def recommend(
        self,
        features: ArrayLike,
        revenues: ArrayLike | None = None,
        *,
        person: PersonId = NOT_GIVEN,
    ) -> OfferedItems:
        asked = self._recommended(person, features=features, revenues=revenues)
        return _offered(OfferedItems, await self._ask("POST", "/v1/recommend", **asked))

    async def recommend_action(
        self,
        features: ArrayLike,
        revenues: ArrayLike | None = None,
        *,
        person: PersonId = NOT_GIVEN,
    ) -> OfferedAction:
        asked = self._recommended(person, _listed, features=features, revenues=revenues)
        return _offered(OfferedAction, await self._ask("POST", "/v1/recommend", **asked))

    async def recommend_arm(
        self, context: ArrayLike | None = None, *, person: PersonId = NOT_GIVEN
    ) -> OfferedArm:
        asked = self._recommended(person, context=context)
        return _offered(OfferedArm, await self._ask("POST", "/v1/recommend", **asked))

    async def recommend_expert(self, *, person: PersonId = NOT_GIVEN) -> OfferedExpert:
        asked = self._recommended(person)
        return _offered(OfferedExpert, await self._ask("POST", "/v1/recommend", **asked))

    async def observe(self, offer: str, choice: int | None) -> None:
        await self._ask("POST", "/v1/observe", json=self._chosen(offer, choice))

    async def observe_reward(self, offer: str, reward: float | None) -> None:
        await self._ask("POST", "/v1/observe", json=self._rewarded(offer, reward))

    async def observe_losses(self, offer: str, losses: ArrayLike | None) -> None:
        await self._ask("POST", "/v1/observe", json=self._lost(offer, losses))

    async def results(self) -> Results:
        return results_in(await self._ask("GET", "/v1/results"))

    async def status(self) -> Status:
        return Status.model_validate(await self._ask("GET", "/v1/status"))

    async def budget(self) -> Budget:
        return Budget.model_validate(await self._ask("GET", "/v1/budget"))

    async def certificate(self, delta: float | None = None) -> Certificate:
        params: Mapping[str, float] = {} if delta is None else {"delta": delta}
        return Certificate.model_validate(await self._ask("GET", "/v1/certificate", params=params))

    async def close_batch(self, batch: int, places: int) -> int:
        asked = self._closing(batch, places)
        told = await self._ask("POST", "/v1/close-batch", **asked)
        return ClosedBatch.model_validate(told).places

    async def forget(self, person: str | int) -> None:
        await self._ask("POST", "/v1/forget", json={"person": person})

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        end, attempt, lost = time.monotonic() + self._patience, 0, False
        while True:
            try:
                return self._answer(await self._http.request(method, path, **options))
            except httpx.HTTPError as error:
                refusal = self._unreachable(self._http.base_url, error)
            except ServiceError as error:
                if lost and error.code == "answered-offer":
                    return None
                refusal = error
            lost = lost or refusal.code not in _NOT_TAKEN
            await asyncio.sleep(self._wait(refusal, attempt, end - time.monotonic()))
            attempt += 1

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
