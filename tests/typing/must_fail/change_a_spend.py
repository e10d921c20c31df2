# expect: misc
"""A statement to the ledger is fixed."""

from privlearn.contract.spends import Spend
from privlearn.noise import GaussianNoise


def use(spend: Spend) -> None:
    spend.noise = GaussianNoise(0.001)
