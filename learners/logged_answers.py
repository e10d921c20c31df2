"""Logged answers as rows to learn from, wherever they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from privlearn.mechanisms.choice_model import NO_ITEM, Answer, clip_items


@final
@dataclass(frozen=True, slots=True)
class LoggedAnswers:
    """Answers as learners take them from users whom they serve: items clipped, bad ones NaN.

    Args:
        outside: whether choosing nothing is an answer.
        scale: public divisor of the features.
    """

    outside: bool
    scale: float

    @np.errstate(all="ignore")  # a warning would tell of sealed data
    def __call__(self, answer: Answer) -> Answer:
        features = np.asarray(answer.features, dtype=np.float64)
        offered = np.asarray(answer.offered, dtype=np.float64) > 0
        choice = np.asarray(answer.choice)
        chosen = ((np.arange(offered.shape[1]) == choice[:, None]) & offered).any(axis=1)
        seen = np.where(offered[..., None], clip_items(features, self.scale), 0.0)
        valid = chosen | ((choice == NO_ITEM) & self.outside)
        return Answer(
            features=np.where(valid[:, None, None], seen, np.nan),
            offered=offered.astype(np.float64),
            choice=np.where(chosen, choice, NO_ITEM).astype(np.int64),
        )
