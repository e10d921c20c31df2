"""What a run that was stopped has spent, in a few lines, from its ledger only."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from privlearn.accountants.certificate import Guarantee
    from privlearn.reporting.model import Balance

LEDGERS: Final = (("public", "ledger.db"), ("private", "devices.db"))
"""Where runs keep theirs, below their folder."""


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as SIGINT does; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not cut off what is told about the first; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stops = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in stops]
    try:
        yield
    finally:
        for number, handler in zip(stops, before, strict=True):
            with suppress(TypeError):  # a handler that Python did not install
                signal.signal(number, handler)


def present_ledgers(out: Path) -> frozenset[Path]:
    """The ledgers in a folder."""
    return frozenset(path for path in (out.joinpath(*parts) for parts in LEDGERS) if path.is_file())


def spent_lines(out: Path, before: frozenset[Path], *, resumable: bool = True) -> list[str]:
    """What the ledgers of a stopped run say.

    Args:
        out: the folder of the run.
        before: the ledgers that stood there when it began, of which it is not.
        resumable: whether another process can go on with it.
    """
    found = sorted(present_ledgers(out) - before, reverse=True)
    if not found:
        return ["stopped before a ledger was begun: nothing was spent"]
    told = [line for path in found for line in _of_ledger(path)]
    if not resumable:
        return [*told, "simulated devices end with their run: a new one needs another folder"]
    return [*told, "privlearn run with --resume goes on, in this folder and with these settings"]


def _of_ledger(path: Path) -> list[str]:
    from privlearn.errors import LedgerError
    from privlearn.reporting.certificates import guarantee_line
    from privlearn.reporting.report import report

    look = f"look at it: privlearn audit {path}"
    try:
        found = report(path)
    except LedgerError as error:
        return [f"stopped; what was spent cannot be read: {error}; {look}"]
    if found.attested:
        return [f"stopped; {path} attests what devices were to send in the whole run; {look}"]
    if not found.spends:
        return [f"stopped; by the ledger {path} nothing was spent; {look}"]
    lost = f" ({found.lost} of them lost)" if found.lost else ""
    spent = "; ".join(guarantee_line(one) for one in found.spent)
    balances = {one.accountant: one for one in found.balances}
    left = "; ".join(
        _left(promised, one, balances.get(one.accountants[0]))
        for promised, one in zip(found.guarantees, found.spent, strict=True)
    )
    return [
        f"stopped; spent so far, in {found.spends} spends{lost}: {spent}",
        f"left to the most charged user, of the plan or cap: {left}; the ledger {path} stays open; "
        f"{look}",
    ]


def _left(guarantee: Guarantee, spent: Guarantee, balance: Balance | None) -> str:
    from privlearn.reporting.shown_numbers import down, fixed, up

    if spent.unknown:
        return "unknown"
    if balance is not None and not balance.planned and balance.unit == "ρ":
        return f"ρ = {down(balance.remaining)} of {up(balance.cap)}"  # less what is reserved
    if guarantee.rho is not None and spent.rho is not None:
        return f"ρ = {down(max(guarantee.rho - spent.rho, 0.0))} of {up(guarantee.rho)}"
    return (
        f"ε = {fixed(spent.epsilon)} is spent of {fixed(guarantee.epsilon)} at δ = "
        f"{up(guarantee.delta)}"
    )
