"""Checks that a guarantee is earned: each can fail, and says what it cannot conclude.

Four ways, usable singly or together: the exact divergence of a mechanism (`white_box`), lower
bounds from samples of anything (`black_box`, `assert_private`), record / freeze / replay of
learners (`assert_noninterference`), and types.  `check_mechanism` runs all that applies to a
mechanism.  `assert_survives` ends a learner at many points, and resumes it.
"""

import lazy_loader

# The pytest plugin of this room is loaded in every project that has privlearn installed.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
