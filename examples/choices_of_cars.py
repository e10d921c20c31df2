"""What 3,723 Californians would pay for in a car: a private choice model of a survey.

Each was shown six cars and chose one, so that the long table has a line per car.  The ranges were
written down from the units of the questionnaire; what is beyond them is moved onto them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privlearn import ApproxDP
from privlearn.estimators import PrivateChoiceModel
from privlearn.mechanisms.choice_model import fit_mle, log_likelihoods
from privlearn.runs.cars import FEATURE_NAMES, load_car_choices, published_features, split
from privlearn.runs.simulated_choices import logged_answers
from privlearn.tables import Boolean, Number, Schema

_RANGES = {
    "price": (0, 10),
    "range": (0.5, 4),
    "acceleration": (0.2, 0.8),
    "speed": (0.5, 1.6),
    "pollution": (0, 1),
    "size": (0, 3),
    "space": (0.5, 1),
    "cost": (0, 1),
    "station": (0, 1),
}
SCHEMA = Schema(
    {name: Number(*_RANGES[name]) if name in _RANGES else Boolean() for name in FEATURE_NAMES}
    | {"chosen": Boolean()},
    target="chosen",
    person="respondent",
    rows_per_person=6,
)


def main() -> None:
    """Fits at ε = 1, and compares held-out likelihoods."""
    survey = load_car_choices()
    cars, choices = published_features(survey.people.column(), survey.cars), survey.choices
    learn, held_out = split(len(choices))

    def table(people: Any) -> dict[str, Any]:
        columns = cars[people].reshape(-1, len(FEATURE_NAMES)).T
        chosen = np.arange(6) == choices[people][:, None]
        found = dict(zip(FEATURE_NAMES, columns, strict=True))
        return found | {"chosen": chosen.reshape(-1), "respondent": np.repeat(people, 6)}

    model = PrivateChoiceModel(ApproxDP(1, 1e-5), n_situations=len(learn), schema=SCHEMA)
    model.fit(table(learn))
    print(model.guarantee_)
    for row in sorted(model.coef_table_, key=lambda row: -abs(row.value))[:6]:
        print(f"  {row.name:15} {row.value:+.2f}")
    free = fit_mle(logged_answers(cars[learn], choices[learn]), outside=False)
    best = log_likelihoods(logged_answers(cars[held_out], choices[held_out]), free, outside=False)
    print(
        f"log-likelihood of {len(held_out)} other people: uniform {-np.log(6):.3f}, private "
        f"{model.score(table(held_out)):.3f}, without privacy {best.mean():.3f}"
    )


if __name__ == "__main__":
    main()
