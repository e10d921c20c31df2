"""`Offers` for asyncio: coroutines that never wait on the event loop's thread.

Everything runs in one thread of its own.  Calls that arrive while it works are served together, so
that one write to the disk pays for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, Generic, Self, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike

from privlearn.learners.offers import Observing, Offer, Offers, Selecting
from privlearn.learners.participation import NOT_GIVEN, NotGiven, PersonId
from privlearn.learners.served import Served

L = TypeVar("L", bound="Served[Any, Any, Any]")
R = TypeVar("R")


@final
class AsyncOffers(Generic[L]):
    """The methods of `Offers` as coroutines, for one event loop.

    A call that is cancelled before its turn changes nothing; later it counts, and the offer that
    nobody received is null.  Close it, or use it as an ``async with`` block.

    Args:
        offers: what is served; other threads may go on to use it.
    """

    def __init__(self, offers: Offers[L]) -> None:
        if not isinstance(offers, Offers):
            raise TypeError(f"offers = {type(offers).__name__}: must be Offers(learner)")
        self._offers = offers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="privlearn-offers")
        self._waiting: list[tuple[Selecting | Observing, asyncio.Future[Any]]] = []
        self._lock = Lock()  # of the two above; held for no longer than it takes to look
        self._serving = self._closed = False

    @property
    def offers(self) -> Offers[L]:
        return self._offers

    @property
    def clock_(self) -> int:
        return self._offers.clock_

    async def select(
        self,
        features: ArrayLike | NotGiven = NOT_GIVEN,
        revenues: ArrayLike | None = None,
        *,
        person: PersonId = NOT_GIVEN,
    ) -> Offer:
        data = _apart(features), _apart(revenues)
        offer: Offer = await self._taken(self._offers.selecting(*data, person))
        return offer

    async def observe(self, offer_id: str, choice: Any, *, person: PersonId = NOT_GIVEN) -> None:
        await self._taken(Observing(offer_id, choice, person))

    async def close_batch(self) -> None:
        await self._called(self._offers.close_batch)

    async def close_begun(self, first: int, most: int) -> int:
        return await self._called(lambda: self._offers.close_begun(first, most))

    async def forget(self, person: Any) -> None:
        await self._called(lambda: self._offers.forget(person))

    async def public_state(self) -> dict[str, Any]:
        return await self._called(self._offers.public_state)

    async def read(self, function: Callable[[L], R]) -> R:
        return await self._called(lambda: self._offers.read(function))

    async def aclose(self) -> None:
        """Waits for the calls that are under way, and ends the thread; `Offers` go on."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._in_thread(lambda: None)  # behind all others
        finally:
            self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _taken(self, request: Selecting | Observing) -> Any:
        self._check_usable()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            self._waiting.append((request, future))
            begin, self._serving = not self._serving, True
        if begin:
            self._thread.submit(self._serve, loop)
        return await future

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                taken, self._waiting = self._waiting, []
                self._serving = bool(taken)
            if not taken:
                return
            requests = [request for request, future in taken if not future.cancelled()]
            try:
                self._offers.take(requests)
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
                for request in requests:
                    if not request.is_done:
                        request.fail(error)
            with suppress(RuntimeError):  # the loop was closed, and nobody waits
                loop.call_soon_threadsafe(_tell, taken)

    async def _called(self, function: Callable[[], R]) -> R:
        self._check_usable()
        return await self._in_thread(function)

    async def _in_thread(self, function: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError("these AsyncOffers were closed")


def _apart(data: Any) -> Any:
    return data.copy() if isinstance(data, np.ndarray) else data


def _tell(served: Sequence[tuple[Selecting | Observing, asyncio.Future[Any]]]) -> None:
    for request, future in served:
        if future.cancelled():
            continue
        if isinstance(request.error, StopIteration):  # which no future takes
            future.set_exception(RuntimeError("a learner raised StopIteration"))
        elif request.error is not None:
            future.set_exception(request.error)
        else:
            future.set_result(request.result)
