"""The rule of participation as it is written down, counted from scratch for each visit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from privlearn.values.participation import Participation


@dataclass
class Visits:
    """An independent account: all learned slots of each person, looked through anew each time."""

    rule: Participation
    starts: Sequence[int]
    of: dict[str, list[int]] = field(default_factory=dict)

    def batch(self, slot: int) -> int:
        return sum(start <= slot for start in self.starts)

    def learns(self, person: str | None, slot: int) -> bool:
        if person is None:
            return False
        before = self.of.setdefault(person, [])
        if self.rule.pooled:
            batches = {self.batch(other) for other in before}
            good = self.batch(slot) in batches or len(batches) < self.rule.most
        else:
            good = len(before) < self.rule.most
            good &= all(slot - other >= self.rule.apart for other in before)
            if self.rule.per_batch is not None:
                here = [other for other in before if self.batch(other) == self.batch(slot)]
                good &= len(here) < self.rule.per_batch
        if good:
            before.append(slot)
        return good


def rules() -> st.SearchStrategy[Participation]:
    return st.one_of(
        st.builds(Participation, st.integers(1, 4), pooled=st.just(True)),
        st.builds(Participation, st.integers(1, 4), apart=st.integers(1, 5)),
        st.integers(1, 4).flatmap(
            lambda most: st.builds(
                Participation, st.just(most), st.integers(1, 3), st.integers(1, most)
            )
        ),
    )
