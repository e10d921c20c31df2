"""Checks that a guarantee is earned: each can fail, and says what it cannot conclude.

One entry point a kind of thing: `check_mechanism` (mechanisms, and functions of data: exact loss,
samples, laws), `check_learner` (record, freeze and replay), `check_training`, `check_loss` and
`assert_budget`.  `assert_survives` ends a learner at many points, and resumes it.
"""

import lazy_loader

# The pytest plugin of this room is loaded in every project that has privlearn installed.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
