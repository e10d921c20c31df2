"""Logs of which arm was shown to whom, by chance, and what came of it; and simulated visitors.

A log is played again: whoever is to be shown an arm is the next line of that arm that was not used
yet.  If arms were drawn at random, that visitor is as good as the next one who comes.  A test
compares lines of the same stretch of the log alone, see `ArmLog.group`.  The column of arms is
public: it decides which line is whose, so that a cell of it that is no declared arm is an error.
Rewards are protected: one that cannot be used makes its own record null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import DataError
from privlearn.learners.contextual import Arms
from privlearn.rows.domains import Array
from privlearn.runs.arm_configs import SIMULATED, LogConfig
from privlearn.runs.records import check_named
from privlearn.tables import Boolean, Category, Number, Schema, Table, read
from privlearn.tables.files import TableFile
from privlearn.tables.schema import Kind
from privlearn.tables.table import span, within

RANDOMISED: Final = (
    "the log's column of arms is declared public: who was shown what was drawn by chance, and "
    "follows from nothing that is protected"
)
_HEADER: Final = 2  # The line of a CSV file that row 0 stands in
_SHOWN: Final = 40  # Characters of a cell in a message
_STRETCH: Final = 128
"""Lines of each arm that a group of a test is drawn from, if arms were shown alike often."""
_COINS: Final = 0x10C5
_ODD: Final = "a cell of it is blank or a number, so that it may be somebody's row"


@dataclass(frozen=True, slots=True, repr=False)
class Visitors:
    """The next visitors: their rewards, and whose they are; private.

    Attributes:
        rewards: shape (n,); NaN where there is none that can be used.
        rows: of the log, counted from 0, shape (n,).
        people: None where each visitor is a person.
        messages: (place, what makes a reward null).
    """

    rewards: Array
    rows: NDArray[np.int64]
    people: list[str | None] | None = None
    messages: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True, repr=False)
class ArmLog:
    """Lines of a log, each used at most once.

    Args:
        names: of the arms.
        arms: of each line, shape (n,); public.
        rewards: shape (n,), NaN where it cannot be used; private.
        messages: what makes a line null, by line.
        people: whose each line is; None where each is a person.
    """

    names: Sequence[str]
    arms: Arms
    rewards: Array
    messages: Mapping[int, str]
    people: Sequence[str | None] | None = None
    _lines: list[NDArray[np.int64]] = field(init=False)
    _used: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._lines = [np.flatnonzero(self.arms == arm) for arm in range(len(self.names))]
        self._used = [0] * len(self.names)

    def begin(self, shown: Arms) -> None:
        """Passes over the lines of visitors who came before, of each arm."""
        self._used = shown.tolist()

    @property
    def visitors(self) -> int:
        """How many there are at most; public."""
        return sum(map(len, self._lines))

    def runs_out_of(self, arms: Arms) -> str | None:
        """The arm that more visitors are to be shown than are left; public."""
        wanted = np.bincount(arms, minlength=len(self.names)).tolist()
        for name, lines, used, more in zip(
            self.names, self._lines, self._used, wanted, strict=True
        ):
            if used + more > len(lines):
                return name
        return None

    def take(self, arms: Arms) -> Visitors:
        """Visitors for the next arms, in order."""
        rows = np.empty(len(arms), dtype=np.int64)
        for arm, lines in enumerate(self._lines):
            shown = arms == arm
            start = self._used[arm]
            self._used[arm] += int(np.count_nonzero(shown))
            rows[shown] = lines[start : self._used[arm]]
        whose = None if self.people is None else [self.people[row] for row in rows.tolist()]
        told = [
            (place, self.messages[row])
            for place, row in enumerate(rows.tolist())
            if row in self.messages
        ]
        return Visitors(self.rewards[rows], rows, whose, told)

    def group(self) -> None:
        """Leaves as many lines of each arm as of the others, of every stretch of lines.

        They come in an order that public coins draw.  Given which lines then are a group, all
        orders of its arms are alike, as arms were drawn at random; so what changes with time looks
        like no difference between arms (docs/proofs.md, "A/B tests").
        """
        coins, size = np.random.default_rng(_COINS), _STRETCH * len(self.names)
        ends = [*range(size, len(self.arms), size)]
        kept: list[list[NDArray[np.int64]]] = [[] for _ in self.names]
        for parts in zip(
            *(np.split(lines, np.searchsorted(lines, ends)) for lines in self._lines), strict=True
        ):
            most = min(map(len, parts))
            for own, part in zip(kept, parts, strict=True):
                own.append(coins.permutation(part)[:most])
        self._lines = [np.concatenate(own) for own in kept]
        if not self.visitors:
            raise DataError(
                f"arms: no {size:,} lines in a row have all of {', '.join(self.names)}, so that "
                "there is nothing to compare; they must have been shown at the same time"
            )

    def by_arm(self) -> dict[str, Array]:
        """Rewards of each arm's lines, NaN where there is none that can be used; private."""
        parts = [self.rewards[lines] for lines in self._lines]
        return dict(zip(self.names, parts, strict=True))

    def means(self) -> Array:
        """Of the usable rewards of each arm, shape (K,); private."""
        there = [rewards[np.isfinite(rewards)] for rewards in self.by_arm().values()]
        return np.array([part.mean() if len(part) else np.nan for part in there])


@dataclass(slots=True, repr=False)
class SimulatedVisitors:
    """Made-up visitors with the reward 1 or 0, by chances that are public."""

    names: Sequence[str]
    chances: Array
    uniforms: Array
    _next: int = 0

    @classmethod
    def of(cls, config: LogConfig) -> Self:
        horizon, seed = config.horizon or 10_000, [config.seed, 79]
        uniforms = np.random.default_rng(seed).random(horizon)
        return cls(config.names(), np.array(config.simulated_means()), uniforms)

    def group(self) -> None:
        """Nothing: they are all alike."""

    def begin(self, shown: Arms) -> None:
        """As `ArmLog.begin`."""
        self._next = int(shown.sum())

    @property
    def visitors(self) -> int:
        """How many there are."""
        return len(self.uniforms)

    def runs_out_of(self, arms: Arms) -> str | None:
        """None: each visitor has a reward for every arm."""
        return None

    def take(self, arms: Arms) -> Visitors:
        """As `ArmLog.take`."""
        first, self._next = self._next, self._next + len(arms)
        drawn = self.uniforms[first : self._next]
        rewards = (drawn < self.chances[arms]).astype(np.float64)
        return Visitors(rewards, np.arange(first, self._next))

    def means(self) -> Array:
        """Of each arm, shape (K,); public."""
        return self.chances


def source_of(config: LogConfig) -> ArmLog | SimulatedVisitors:
    """The visitors of a run with these settings.

    Raises:
        DataError: the file cannot be read, lacks a column, or has an arm that is not declared.
    """
    return SimulatedVisitors.of(config) if config.data == SIMULATED else log_of(config)


def log_of(config: LogConfig) -> ArmLog:
    """The log that a run with these settings plays again.

    Raises:
        DataError: as `source_of`.
    """
    assert config.arm is not None
    assert config.reward is not None
    names, bounds = config.names(), config.range()
    _check_columns(config)
    kinds: dict[str, Kind] = {config.arm: Category(names, other=True)}
    kinds[config.reward] = Number(*bounds)
    table = read(config.data, Schema(kinds, target=config.reward, person=config.people))
    places = table.column(config.arm)
    _check_arms(config, names, places)
    rewards, messages = rewards_of(config.data, table)
    return ArmLog(names, places.astype(np.int64), rewards, messages, table.people)


def rewards_of(data: str, table: Table) -> tuple[Array, dict[int, str]]:
    """Rewards of the lines that came, NaN where they cannot be used, and what makes a line null.

    Args:
        data: the file.
        table: read from it, by a schema whose target is the reward, a number.
    """
    name, schema = str(table.schema.target), table.schema
    kind, rewards, messages = schema.columns[name], table.column(name), dict(table.messages)
    rewards = np.where(within(kind, rewards), rewards, np.nan)
    if span(cast(Number, kind)) == (0, 1):  # true and false, which are no numbers in a CSV file
        flags = replace(schema, columns={name: Boolean()}, target=None, person=None)
        yes = read(data, flags).column(name)[: len(rewards)]
        told = f"column {name!r}"
        cured = [row for row in messages if np.isfinite(yes[row]) and told in messages[row]]
        rewards = np.where(np.isnan(rewards), yes, rewards)
        for row in cured:
            del messages[row]
    return rewards, messages


def _check_columns(config: LogConfig) -> None:
    file = TableFile(config.data, Schema({}))
    names = list(file.header().column_names)
    wanted = {"arm": config.arm, "reward": config.reward, "people": config.people}
    given = {what: name for what, name in wanted.items() if name is not None}
    if not any(names):
        raise DataError(f"{config.data}: is empty; its first line must name the columns")
    if any(name not in names for name in given.values()) and file.may_be_a_row(names):
        raise DataError(f"{config.data}: the first line must name every column; {_ODD}")
    for what, name in given.items():
        check_named(what, [name], names, config.data)


def _check_arms(config: LogConfig, names: Sequence[str], places: Array) -> None:
    """Every line has a declared arm, and every declared arm a line."""
    odd = np.flatnonzero(~(places < len(names)))  # NaN is none, and other labels are beyond
    if len(odd):
        row = int(odd[0])
        cell = next(cell for at, cell in enumerate(_cells(config)) if at == row)
        found = f"is {cell!r:.{_SHOWN}}" if str(cell or "").strip() else "is blank"
        place = f"line {row + _HEADER}" if TableFile(config.data, Schema({})).csv else f"row {row}"
        more = "" if len(odd) == 1 else f" (and so in {len(odd) - 1:,} further ones)"
        raise DataError(
            f"{config.data}, {place}: the arm, column {config.arm!r}, {found}{more}; arms declares "
            f"{', '.join(names)}. The column of arms is public: name all that are in the log, or "
            "leave such lines out"
        )
    missing = sorted(set(range(len(names))) - set(places.astype(int).tolist()))
    if missing:
        raise DataError(
            f"arms: {names[missing[0]]!r} has no line in {config.data}, so that it can be shown "
            "to nobody; leave it out"
        )


def _cells(config: LogConfig) -> Iterator[object]:
    """The column of arms as it stands in the file."""
    assert config.arm is not None
    for table, _ in TableFile(config.data, Schema({})).batches([config.arm]):
        yield from table.column(0).to_pylist()
