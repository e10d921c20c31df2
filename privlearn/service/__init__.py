"""A private learner behind HTTP: `privlearn serve`, its configuration, and a client for it.

Front ends (`privlearn.service.app`) speak HTTP and hold nothing.  One owner process
(`privlearn.service.owner`) has the ledger, the learner, its open offers, the registry of people and
the store of rows; front ends ask it over a Unix socket.  A supervisor starts them again when they
die.  Needs the extra ``serve``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
