"""How often one person may come back: the public rule under which a person is one unit.

Slots t = 0, 1, ... are the arrival indices.  A slot holds one visit, of one person, or is empty.  A
visit is *learned* if the rule still has room for its person; otherwise it is served only: the
person is shown an action as always, and the row to learn from is the null record in its place.
Whether a visit is learned depends on that person's earlier slots and on public numbers only, never
on what records hold or on who else comes (docs/proofs.md, "Persons who return", Lemma 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, final, get_args

from privlearn.values.validate import count

Pattern = Literal["public", "private"]
Clock = Literal["arrivals", "timetable"]


@final
@dataclass(frozen=True, slots=True, repr=False)
class Participation:
    """Which visits of one person are learned; public, and fixed before the first token.

    Args:
        most: the most visits of a person that are learned; with ``pooled``, the most batches.
        apart: slots from one learned visit of a person to the next, at least.
        per_batch: the most learned visits of a person in one batch; None for no limit but ``most``.
        pooled: all visits of a person in one batch become one row, at the slot of the first, and
            ``most`` counts batches.
        pattern: what neighbours differ in.  ``private``: all records of a person become null, for
            every public schedule of slots (person zero-out).  ``public``: they are replaced by
            others, or become null, at the same slots; this needs that when somebody comes depends
            on none of these records, and on nothing that only this person was shown.
        clock: of a private pattern.  ``arrivals``: a slot is one visit, and nothing is claimed
            about what the schedule of slots tells.  ``timetable``: a slot is a stretch of time with
            any number of visits, so that when, how often and why somebody comes is covered.

    Which one to take: docs/people.md.

    Raises:
        ValueError: a number below 1, numbers that say nothing together, or an unknown word.
    """

    most: int
    apart: int = 1
    per_batch: int | None = None
    pooled: bool = False
    pattern: Pattern = "private"
    clock: Clock = "arrivals"

    def __post_init__(self) -> None:
        count(most=self.most)
        count(apart=self.apart)
        if not isinstance(self.pooled, bool):
            raise TypeError(f"pooled = {self.pooled!r}: must be True or False")
        if self.per_batch is not None and count(per_batch=self.per_batch) > self.most:
            raise ValueError(
                f"per_batch = {self.per_batch}: must be at most most = {self.most}, or None"
            )
        if self.pooled and (self.per_batch is not None or self.apart != 1):
            raise ValueError(
                f"pooled = True with apart = {self.apart}, per_batch = {self.per_batch}: a pooled "
                "rule counts batches, and needs neither (leave both out)"
            )
        if self.pattern not in get_args(Pattern):
            raise ValueError(f"pattern = {self.pattern!r}: must be 'public' or 'private'")
        if self.clock not in get_args(Clock):
            raise ValueError(f"clock = {self.clock!r}: must be 'arrivals' or 'timetable'")
        if self.pattern == "public" and self.clock == "timetable":
            raise ValueError(
                "clock = 'timetable' with pattern = 'public': a timetable covers when somebody "
                "comes, which a public pattern gives away; use pattern = 'private'"
            )

    def __repr__(self) -> str:
        """What differs from the defaults, as it would be written; messages are full of rules."""
        named = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        said = [f"{name}={value!r}" for name, (value, default) in named.items() if value != default]
        return f"Participation({', '.join(said)})"

    @property
    def batched(self) -> bool:
        """Whether the rule counts within batches, which then must be declared."""
        return self.pooled or self.per_batch is not None

    @property
    def in_a_batch(self) -> int | None:
        """The most rows of one person in one batch; None if the rule counts in none."""
        return 1 if self.pooled else self.per_batch

    def visits(self, slots: int, batches: int = 1) -> int:
        """The most rows of one person among ``slots`` neighbouring slots in ``batches`` batches."""
        most = min(self.most, -(-count(slots=slots) // self.apart))
        within = self.in_a_batch
        return most if within is None else min(most, within * count(batches=batches))

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "most": self.most,
            "apart": self.apart,
            "per_batch": self.per_batch,
            "pooled": self.pooled,
            "pattern": self.pattern,
            "clock": self.clock,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Participation:
        """Rebuilds a rule from its JSON form.

        Raises:
            TypeError, ValueError: it is none.
        """
        if set(data) != set(cls.__slots__):
            raise ValueError(f"participation: fields {sorted(data)}: must be {list(cls.__slots__)}")
        return cls(**data)
