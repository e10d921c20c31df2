"""Where the choices of a run come from: the shipped survey, or a user's file in long form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from privlearn.errors import DataError
from privlearn.estimators.situations import RECORD, Situations, gathered, gathered_by_id
from privlearn.mechanisms.choice_model import Items
from privlearn.rows.domains import Array
from privlearn.runs.cars import FEATURE_NAMES, SCALE, car_features, load_car_choices, split
from privlearn.runs.configs import ChoiceConfig
from privlearn.tables import Boolean, Number, Schema, Table, read
from privlearn.tables.files import TableFile

_CHOSEN: Final = "chosen"
_USER: Final = "user"
_ANY: Final = 1e300  # Numbers of a file without a schema are not bounded; each item is clipped


@dataclass(frozen=True, slots=True, repr=False)
class Log:
    """Logged choices, before it is known which users the learner sums together; private.

    Args:
        names: of the features.
        items: the most of a user.
        scale: public divisor of the features.
        users: how many places there are; ``absent`` more are in the horizon, but not in the file.
        gather: makes the records, of the learner's public batches.
        people: whose each record is, None for nobody's; it is None where each record is a person.
    """

    names: Sequence[str]
    items: int
    scale: float
    side_information: tuple[str, ...]
    users: int
    gather: Callable[[Sequence[range]], Situations]
    held_out: tuple[Array, Items] | None = None
    absent: int = 0
    people: list[str | None] | None = None

    @property
    def dim(self) -> int:
        return len(self.names)


def logged(config: ChoiceConfig) -> Log:
    """The choices that a run with these settings learns from.

    Raises:
        DataError: the file cannot be read, or lacks a column.
    """
    return _cars() if config.data == "cars" else _file(config)


def _cars() -> Log:
    survey = load_car_choices()
    features = car_features(survey, scale=1.0)
    train, test = split(len(features))
    x, choices = features[train], survey.choices[train]
    found = Situations(x, np.ones(x.shape[:2], dtype=bool), choices, [])
    return Log(
        FEATURE_NAMES,
        x.shape[1],
        SCALE,
        (
            "the feature scale 2 of the shipped survey was chosen with these data in view",
            "the learner's defaults (batch rule, Hessian shrinkage, prior, budget share of the "
            "Hessian sums) were tuned in part on this survey's choices and on simulations of "
            "car_market, which is drawn from it (docs/benchmarks.md, 'What was tuned on what')",
        ),
        len(x),
        lambda batches: found,
        (features[test], survey.choices[test]),
    )


def _file(config: ChoiceConfig) -> Log:
    """Reads a table in long form: one line per item, of which the user has chosen one.

    Without ``situation`` there are exactly ``items`` lines per user, in order of arrival: after the
    header, line k (from 0, blank ones included) belongs to user k // items, whatever it says, so
    that nobody's lines decide which lines are another user's.  The ``user`` cell is only checked to
    be equal within the group.  With ``people`` that column, which may be ``user``, says whose
    record it is; where the lines of a group differ in it, or have none, it is null and nobody's.

    With ``situation`` that column says which lines belong together, and each situation has up to
    ``items`` of them, anywhere (`privlearn.estimators.situations`).

    A user whose lines cannot be used becomes the null record, and no other, with a message.
    """
    schema = _schema(config)
    table = read(config.data, schema)
    if config.situation is None:
        return _by_place(config, table, _whose(config, table))
    return _by_id(config, table)


def _schema(config: ChoiceConfig) -> Schema:
    """All columns are features, but those that say who chose what."""
    who = config.situation or _USER
    names = TableFile(config.data, Schema({})).header().column_names
    if len(set(names)) < len(names):
        raise DataError(f"{config.data}: the header must name each column once")
    apart = {_CHOSEN, _USER, who, config.people}
    features = [name for name in names if name not in apart]
    missing = [name for name in (who, _CHOSEN) if name not in names]
    if missing or not features:
        raise DataError(
            f"{config.data}: the header lacks {', '.join(missing) or 'features'}; its first line "
            f"must name {who!r}, {_CHOSEN!r} and one numeric column per feature, separated by "
            "commas"
        )
    if config.people is not None and config.people not in names:
        raise DataError(f"people = {config.people!r}: no column of {config.data}")
    kinds: dict[str, Number | Boolean] = {name: Number(-_ANY, _ANY) for name in features}
    return Schema(kinds | {_CHOSEN: Boolean()}, target=_CHOSEN, person=who)


def _whose(config: ChoiceConfig, table: Table) -> Sequence[str | None] | None:
    if config.people in (None, _USER):
        return table.people if config.people else None
    return read(config.data, Schema({}, person=config.people)).people


def _by_place(config: ChoiceConfig, table: Table, whose: Sequence[str | None] | None) -> Log:
    """Every ``items`` lines are one user's."""
    items, horizon = _counts(config)
    lines = min(len(table), horizon * items)
    users = -(-lines // items)
    table = table.padded(users * items)
    told, people, ids = dict(table.messages), list[str | None](), table.people or ()
    for user in range(users):
        part = slice(user * items, min((user + 1) * items, lines))
        persons = set((whose or ())[part])
        people.append(persons.pop() if len(persons) == 1 else None)
        if part.stop - part.start < items:
            told[part.start] = f"{part.stop - part.start} lines instead of {items}"
        elif persons:
            told[part.start] = "different persons in the lines of one user"
        elif len(set(ids[part])) > 1:
            told[part.start] = (
                f"different users in the {items} lines that --items gives to each user"
            )
    found = gathered(
        np.arange(users * items) // items,
        _features(table, spoilt=list(told)),
        table.column(_CHOSEN),
        situations=users,
        max_items=items,
        outside=config.outside,
        told=sorted(told.items()),
    )
    return Log(
        table.schema.features,
        items,
        config.scale,
        (),
        users,
        lambda batches: found,
        absent=horizon - users,
        people=None if whose is None else people,
    )


def _by_id(config: ChoiceConfig, table: Table) -> Log:
    """Lines with one id are one situation's."""
    items, horizon = _counts(config)

    def gather(batches: Sequence[range]) -> Situations:
        return gathered_by_id(
            table.people or (),
            batches,
            _features(table),
            table.column(_CHOSEN),
            situations=horizon,
            max_items=items,
            outside=config.outside,
            told=table.messages,
        )

    return Log(table.schema.features, items, config.scale, (RECORD,), horizon, gather)


def _counts(config: ChoiceConfig) -> tuple[int, int]:
    assert config.items is not None
    assert config.horizon is not None
    return config.items, config.horizon


def _features(table: Table, spoilt: Sequence[int] = ()) -> Array:
    """Shape (lines, d), in the columns' own units; NaN for lines that cannot be used."""
    found = np.stack([table.column(name) for name in table.schema.features], axis=1)
    found[list(spoilt)] = np.nan
    return found
