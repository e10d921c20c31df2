# expect: arg-type
"""A raw value on the billboard."""

import numpy as np

from privlearn.contract.billboard import Billboard


def use(board: Billboard) -> None:
    board.post("sum", np.zeros(2))
