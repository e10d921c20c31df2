# expect: misc
"""A statement to the ledger is fixed."""

from privlearn.noise import GaussianNoise
from privlearn.tokens import Spend


def use(spend: Spend) -> None:
    spend.noise = GaussianNoise(0.001)
