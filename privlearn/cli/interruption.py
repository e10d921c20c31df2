"""What a run that ended early has spent, in a few lines, from its ledger only."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
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


def present_ledgers(out: Path) -> dict[Path, str]:
    """The ledgers in a folder, each with the head that stands beside it."""
    found = (out.joinpath(*parts) for parts in LEDGERS)
    return {path: _head_beside(path) for path in found if path.is_file()}


def _head_beside(path: Path) -> str:
    with suppress(OSError):
        return path.with_name(f"{path.name}.head").read_text("utf-8", errors="replace")
    return ""


def spent_lines(out: Path, before: Mapping[Path, str], *, how_to_go_on: str = "") -> list[str]:
    """What the ledgers of a run say that ended early."""
    now = present_ledgers(out)
    found = sorted((path for path in now if now[path] != before.get(path)), reverse=True)
    if not found:
        return ["stopped before a ledger was begun: nothing was spent"]
    told: list[str] = []
    goes_on = False
    for path in found:
        lines, is_open = _of_ledger(path)
        told += lines
        goes_on |= is_open
    return [*told, how_to_go_on] if goes_on and how_to_go_on else told


def _of_ledger(path: Path) -> tuple[list[str], bool]:
    from privlearn.errors import PrivlearnError
    from privlearn.reporting.certificates import guarantee_line
    from privlearn.reporting.report import report

    look = f"look at it: privlearn audit {path}"
    try:
        found = report(path)
    except (PrivlearnError, OSError) as error:
        return [f"stopped; what was spent cannot be read: {error}; {look}"], True
    if found.attested:
        return [f"stopped; {path} attests what devices were to send in the whole run; {look}"], True
    if not found.spends:
        return [f"stopped; by the ledger {path} nothing was spent; {look}"], True
    lost = f" ({found.lost} of them lost)" if found.lost else ""
    spent = "; ".join(guarantee_line(one) for one in found.spent)
    told = [f"stopped; spent so far, in {found.spends} spends{lost}: {spent}"]
    if all(balance.closed for balance in found.balances):
        told.append(f"the ledger {path} is closed: nothing more can be spent; {look}")
        return told, False
    balances = {one.accountant: one for one in found.balances}
    left = "; ".join(
        _left(promised, one, balances.get(one.accountants[0]))
        for promised, one in zip(found.guarantees, found.spent, strict=True)
    )
    told.append(
        f"left to the most charged user, of the plan or cap: {left}; the ledger {path} stays open; "
        f"{look}"
    )
    return told, True


def _left(guarantee: Guarantee, spent: Guarantee, balance: Balance | None) -> str:
    from privlearn.accountants.shown_numbers import down, fixed, up

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
