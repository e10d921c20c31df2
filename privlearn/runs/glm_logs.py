"""Logs of what visitors were shown, as features, and of what came of it.

A line is a visit, in order of arrival; or a visit has a line for each action that there was, with
one id, and says which of them was shown.  Whatever cannot be used makes its own visit null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import DataError
from privlearn.estimators.situations import gathered_by_id
from privlearn.rows.domains import Array
from privlearn.runs.arm_logs import rewards_of
from privlearn.runs.glm_configs import GLMConfig
from privlearn.runs.null_records import Messages
from privlearn.runs.records import Records, features_of
from privlearn.tables import Boolean, Category, Encoding, Number, Schema, read
from privlearn.tables.schema import Kind

_RECORD: Final = (
    "one record is one visit, all lines with its id, there or not: whoever makes several visits, "
    "or has several ids, has several records"
)
_WORDS: Final = (("situation", "visit"), ("items chosen", "lines shown"), ("items", "actions"))
"""What is said of choices, and of visits."""


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """What visitors were shown, and what came of it; private.

    Attributes:
        features: of what was shown, or of the visitor, shape (n, d); NaN if unusable.
        rewards: shape (n,); NaN if unusable.
        arms: which action it was, shape (n,), −1 if unusable; None where features say it.
        messages: (visit, what makes it null).
        left_out: how many lines or visits are in no record, and why.
    """

    features: Array
    rewards: Array
    arms: NDArray[np.int64] | None
    messages: Messages
    left_out: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class GLMLog:
    """A log, before it is known which visits the learner sums together; private.

    Attributes:
        records: its lines, by their features.
        reward: its column.
        arms: names of the actions; None where features say which it was.
        rewards_in: their public range.
        visits: how many there are, public.
        came: those that the file has, or may have; the others are absent.
        gather: makes the visits, of the learner's public batches.
        said: what a certificate must say.
        people: whose each visit is; None where each is a person.
    """

    records: Records
    reward: str
    arms: tuple[str, ...] | None
    rewards_in: tuple[float, float]
    visits: int
    came: int
    gather: Callable[[Sequence[range]], Shown]
    said: Sequence[str]
    people: tuple[str | None, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs of the model."""
        return (*self.records.encoding.names, "constant")


def glm_log(config: GLMConfig) -> GLMLog:
    """The log that a run with these settings learns from.

    Raises:
        DataError: the file cannot be read, lacks a column, or something is not declared.
    """
    schema, encoding = _schemas(config)
    assert schema.target is not None
    kind = schema.columns[schema.target]
    assert isinstance(kind, Number)
    bounds = kind.low, kind.high
    table = read(config.data, schema, rows=None if config.visit else config.horizon)
    said = ["the names of the columns and their declared bounds are public"]
    records = Records(table, encoding)
    rewards, messages = rewards_of(config.data, records.came)
    if schema.looked_at_data:
        said.append("whoever wrote the schema had looked at these data")
    assert config.horizon is not None
    if config.visit is not None:
        gather = _by_visit(config, records, rewards, messages)
        visits = config.horizon
        return GLMLog(
            records, schema.target, None, bounds, visits, visits, gather, [*said, _RECORD]
        )
    arms = names = None
    if config.arm is not None:
        column = schema.columns[config.arm]
        assert isinstance(column, Category)
        names = tuple(map(str, column.values))
        places = records.came.column(config.arm)
        arms = np.where(np.isnan(places), -1, places).astype(np.int64)
    found = Shown(records.inputs(), rewards, arms, list(messages.items()))
    came, people = len(rewards), records.people
    return GLMLog(
        records,
        schema.target,
        names,
        bounds,
        config.horizon,
        came,
        lambda batches: found,
        said,
        people,
    )


def _by_visit(
    config: GLMConfig, records: Records, rewards: Array, messages: dict[int, str]
) -> Callable[[Sequence[range]], Shown]:
    """Lines with one id are one visit's; its reward stands in the line of what was shown."""
    assert config.shown is not None
    shown, inputs = records.came.column(config.shown), records.inputs()
    earned = np.where(shown == 0, 0.0, rewards)
    lines = np.column_stack([inputs, earned])
    good = np.isfinite(lines).all(axis=1)

    def gather(batches: Sequence[range]) -> Shown:
        found = gathered_by_id(
            records.people or (),
            batches,
            lines,
            shown,
            situations=config.horizon,
            max_items=config.actions,
            outside=False,
            told=[(line, text) for line, text in messages.items() if not good[line]],
        )
        own = found.features[np.arange(len(found.choices)), np.maximum(found.choices, 0)]
        features, rewards = own[:, :-1], own[:, -1]
        told = [(visit, _of_visits(text)) for visit, text in found.messages]
        left_out = tuple((count, _of_visits(text)) for count, text in found.left_out)
        return Shown(features, rewards, None, told, left_out)

    return gather


def _of_visits(text: str) -> str:
    for of_choices, of_visits in _WORDS:
        text = text.replace(of_choices, of_visits)
    return text


def _schemas(config: GLMConfig) -> tuple[Schema, Encoding]:
    """What the columns are, and the map from features to inputs."""
    declared = Schema({}) if config.schema_file is None else Schema.load(config.schema_file)
    reward = config.reward or declared.target
    if reward is None:
        raise DataError("reward: name the column with the reward, or the target of the schema")
    person = config.visit or config.people
    if declared.person not in (None, person):
        raise DataError(
            f"people: the schema says that {declared.person!r} is the person's id: say so with "
            f"people = {declared.person!r} and most"
        )
    roles = {"reward": reward}
    for role in ("arm", "shown", "visit", "people"):
        if name := getattr(config, role):
            roles[role] = name
    kinds: dict[str, Kind]
    if config.schema_file is None:
        kinds = {**features_of(config, roles)}
    else:
        for name in ("columns", "bounds", "feature_bound"):
            if getattr(config, name):
                raise DataError(f"{name}: is declared in the schema; give one of them")
        kinds = {
            name: declared.columns[name] for name in declared.features if name not in roles.values()
        }
    encoding = Encoding(Schema(kinds))
    kinds[reward] = _reward(config, declared.columns.get(reward))
    if config.arm is not None:
        kinds[config.arm] = _arms(config, declared.columns.get(config.arm))
    if config.shown is not None:
        kinds[config.shown] = Boolean()
    marks = {} if config.schema_file is None else declared.to_dict()
    told = Schema(kinds, target=reward, person=person).to_dict()
    return Schema.from_dict(marks | told), encoding


def _reward(config: GLMConfig, kind: Kind | None) -> Number:
    if kind is None or isinstance(kind, Boolean):
        return Number(*config.range())
    if not isinstance(kind, Number):
        raise DataError("reward: must be a number or a boolean of the schema")
    if config.reward_range is not None and config.reward_range != (kind.low, kind.high):
        raise DataError("reward_range: is declared in the schema; give one of them")
    return Number(kind.low, kind.high)


def _arms(config: GLMConfig, kind: Kind | None) -> Category:
    if config.arms is not None:
        return Category(config.arms)
    if not isinstance(kind, Category) or len(kind.values) < 2 or kind.other:
        raise DataError(
            f"arm = {config.arm!r}: declare all actions, with arms or as a category of the schema"
        )
    return Category(kind.values)
