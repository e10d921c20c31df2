"""Local bandits: the protocol between the devices of users and a server that sees only messages."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
