"""What a bridge needs of an account."""

from __future__ import annotations

from typing import Protocol

from privlearn.contract.metering import Meter, TrustedCode
from privlearn.losses import Loss
from privlearn.values.adjacency import Adjacency


class Meters(Protocol):
    """An account of ours, or a part of one, that pays for code of others."""

    @property
    def adjacency(self) -> Adjacency: ...
    def meter(
        self, price: Loss, *, label: str, users: range | None, code: TrustedCode | None
    ) -> Meter: ...
