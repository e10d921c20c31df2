"""The pytest plugin: fixtures, the ``privacy`` marker, and a summary of what was checked.

It is loaded wherever privlearn is installed, so it imports nothing but the package itself until a
test asks for more; switch it off with ``-p no:privlearn``."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, Unpack, overload

import pytest

from privlearn.checking import session as check_session

if TYPE_CHECKING:
    from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
    from privlearn.losses.budgets import ApproxDP, B, Currency
    from privlearn.noise import NoiseSource
    from privlearn.values.adjacency import Adjacency

    class _Options(TypedDict, Generic[B], total=False):
        users: range
        adjacency: Adjacency | None
        currency: type[B] | None


_PROPERTY = "privacy"
_MOST_LINES = 40
"""Name of the user property that carries summary lines; pytest-xdist and junit.xml carry it on."""
_SESSION = pytest.StashKey[check_session.CheckSession]()
_SEEDS = pytest.StashKey[list[str]]()


def _next_noise(item: pytest.Item, what: str) -> NoiseSource:
    from privlearn.noise import NoiseSource

    said = item.stash[_SEEDS]
    name = f"{item.nodeid}#{len(said)}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    said.append(f"{what}: NoiseSource.simulation({seed})")
    return NoiseSource.simulation(seed)


@pytest.fixture
def seeded_noise(request: pytest.FixtureRequest) -> NoiseSource:
    """Reproducible noise with a seed of this test's own, which the report of a failure names."""
    return _next_noise(request.node, "seeded_noise")


@pytest.fixture
def privacy_accountant(request: pytest.FixtureRequest) -> AccountantFactory:
    """Makes accountants in memory with reproducible noise: ``privacy_accountant(ZCDP(1))``."""
    return AccountantFactory(request.node)


class AccountantFactory:
    """Makes accountants for one test."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    @overload
    def __call__(
        self,
        budget: B | ApproxDP,
        *,
        trust: Literal["central"] = ...,
        **options: Unpack[_Options[B]],
    ) -> CentralAccountant[B]: ...
    @overload
    def __call__(
        self, budget: B | ApproxDP, *, trust: Literal["joint"], **options: Unpack[_Options[B]]
    ) -> JointAccountant[B]: ...
    @overload
    def __call__(
        self, budget: B | ApproxDP, *, trust: Literal["local"], **options: Unpack[_Options[B]]
    ) -> LocalAccountant[B]: ...
    def __call__(
        self,
        budget: Currency | ApproxDP,
        *,
        users: range = range(100),
        trust: Literal["central", "joint", "local"] = "central",
        adjacency: Adjacency | None = None,
        currency: type[Currency] | None = None,
    ) -> Any:
        """An accountant with a ledger in memory; an (ε, δ) budget is counted in ``currency``, else
        ZCDP."""
        from privlearn.checking.budgets import in_memory

        noise = _next_noise(self._item, f"privacy_accountant({budget!r})")
        return in_memory(
            budget, noise, users=users, trust=trust, adjacency=adjacency, currency=currency
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--privacy-confidence``."""
    group = parser.getgroup("privlearn", "privacy checks (privlearn)")
    group.addoption(
        "--privacy-confidence",
        type=float,
        default=None,
        metavar="LEVEL",
        help="confidence of every privacy bound that names none itself, between 0.5 and 1 "
        "(default 0.99)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker and checks the option."""
    config.addinivalue_line(
        "markers",
        "privacy(seconds=None, confidence=None): a privacy check; it fails if it takes longer than "
        "seconds, and its bounds hold with the given confidence",
    )
    _check_level("--privacy-confidence", config.getoption("privacy_confidence"))


def _check_level(name: str, level: object) -> None:
    if level is None:
        return
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0.5 < level < 1:
        raise pytest.UsageError(f"{name} = {level!r}: must lie strictly between 0.5 and 1")


def _limits(item: pytest.Item) -> tuple[float | None, float | None]:
    options: dict[str, Any] = {"seconds": None, "confidence": None}
    for marker in item.iter_markers("privacy"):  # closest first
        if marker.args or set(marker.kwargs) - set(options):
            raise pytest.UsageError(
                f"{item.nodeid}: privacy takes seconds=... and confidence=... only"
            )
        for name, value in marker.kwargs.items():
            options[name] = value if options[name] is None else options[name]
    _check_level(f"{item.nodeid}: privacy(confidence)", options["confidence"])
    seconds = options["seconds"]
    good = not isinstance(seconds, bool) and isinstance(seconds, int | float) and seconds > 0
    if seconds is not None and not good:
        raise pytest.UsageError(f"{item.nodeid}: privacy(seconds={seconds!r}): must be above 0")
    return seconds, options["confidence"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses markers that say something else than what they may."""
    for item in items:
        _limits(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Gives every test a session of its own."""
    _, confidence = _limits(item)
    level = item.config.getoption("privacy_confidence") if confidence is None else confidence
    session = item.stash[_SESSION] = check_session.CheckSession(confidence=level)
    item.stash[_SEEDS] = []
    entered = check_session.enter(session)
    try:
        return (yield)
    finally:
        check_session.leave(entered)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fails a test that takes longer than its ``privacy`` marker allows."""
    seconds, _ = _limits(item)
    if seconds is None:
        return (yield)
    from privlearn.checking.isolation import TimeLimit  # not before it is needed
    from privlearn.errors import CheckError

    session, begin = item.stash[_SESSION], time.monotonic()
    session.deadline = begin + seconds
    try:
        with TimeLimit(seconds, item.nodeid):
            result = yield
    except CheckError as error:
        if time.monotonic() < session.deadline:
            raise
        pytest.fail(f"{error}; its privacy marker allows {seconds:g} s", pytrace=False)
    finally:
        session.deadline = None
    taken = time.monotonic() - begin
    if taken > seconds:  # where there is no timer, or long in compiled code
        pytest.fail(f"took {taken:.3g} s; its privacy marker allows {seconds:g} s", pytrace=False)
    return result


def _told_in_full(failure: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether the message says what was found, and frames of this package would add nothing."""
    from privlearn.errors import CheckError, InterferenceError, PrivacyViolation, SurvivalError

    return failure.errisinstance((PrivacyViolation, CheckError, SurvivalError, InterferenceError))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Adds what was found, and the seeds that find it again, to the report of a failure."""
    session = item.stash.get(_SESSION, None)
    if session is not None and session.lines:
        item.user_properties += [(_PROPERTY, line) for line in session.lines]
        session.lines.clear()
    if call.excinfo is not None:
        for name, module in list(sys.modules.items()):
            if name.startswith("privlearn.checking."):
                vars(module)["__tracebackhide__"] = _told_in_full
    report: Any = yield
    error = call.excinfo.value if call.excinfo is not None else None
    if report.failed and error is not None:
        from privlearn.errors import PrivacyViolation

        if isinstance(error, PrivacyViolation) and error.evidence is not None:
            report.sections.append(("privacy evidence", str(error.evidence)))
        if seeds := item.stash.get(_SEEDS, []):
            report.sections.append(("privacy noise", "\n".join(seeds)))
    return report


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says what was checked, with which bound; a pass by itself says nothing."""
    lines = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                lines += [text for name, text in report.user_properties if name == _PROPERTY]
    if not lines:
        return
    terminalreporter.section("privacy checks")
    unique = list(dict.fromkeys(lines))
    short = len(unique) > _MOST_LINES and not terminalreporter.config.option.verbose
    for line in unique[:_MOST_LINES] if short else unique:
        terminalreporter.write_line(line)
    if short:
        terminalreporter.write_line(f"... and {len(unique) - _MOST_LINES} more; -v shows all")
