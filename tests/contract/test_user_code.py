"""What code raises because of somebody's data is told to nobody; what a signal raises passes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import polars
import pytest

from privlearn.values.user_code import FAILED, attempted


class Stopped(BaseException):
    """As a handler of a test runner raises when time is over."""


class Unasked(BaseException):
    """One that fails when it is asked what it is."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyError("the secret")


def raised(error: BaseException) -> Callable[[], NoReturn]:
    def call() -> NoReturn:
        raise error

    return call


def far_date() -> Any:
    """A compiled extension panics: its error is no `Exception`."""
    return polars.Series([10**18]).cast(polars.Datetime("ms")).to_list()


@pytest.mark.parametrize(
    "call",
    [
        raised(ValueError("the secret")),
        raised(MemoryError()),
        raised(SystemExit(3)),
        raised(GeneratorExit()),
        raised(KeyboardInterrupt()),
        raised(Stopped()),
        far_date,
    ],
)
def test_whatever_code_raises_by_itself_is_no_more_than_a_failure(
    call: Callable[[], Any],
) -> None:
    assert attempted(call) is FAILED


def test_an_error_is_not_asked_what_it_is() -> None:
    told = False
    try:
        found = attempted(raised(Unasked()))
    except KeyError:
        told = True
    assert not told
    assert found is FAILED


def test_a_result_comes_back() -> None:
    assert attempted(divmod, 7, 2) == (3, 1)


@pytest.fixture
def handled() -> Iterator[Callable[[int, Any], None]]:
    before: dict[int, Any] = {}

    def handle(number: int, handler: Any) -> None:
        before[number] = signal.signal(number, handler)

    yield handle
    for number, handler in before.items():
        signal.signal(number, handler)


class Handler:
    def stop(self, *_: object) -> None:
        self._now()

    def _now(self) -> NoReturn:
        raise Stopped

    def __call__(self, *_: object) -> None:
        self._now()


def _exit(*_: object) -> None:
    raise SystemExit(15)


@pytest.mark.parametrize(
    ("number", "handler", "error"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, _exit, SystemExit),
        (signal.SIGALRM, Handler().stop, Stopped),
        (signal.SIGALRM, Handler(), Stopped),
        (signal.SIGALRM, partial(partial(Handler().stop), "more"), Stopped),
    ],
)
def test_what_a_signal_raises_meanwhile_passes(
    handled: Callable[[int, Any], None], number: int, handler: Any, error: type[BaseException]
) -> None:
    handled(number, handler)

    def interrupted() -> int:
        signal.raise_signal(number)
        return sum(range(1000))

    with pytest.raises(error):
        attempted(interrupted)
