"""Local bandits: the protocol between the devices of users and a server that sees only messages."""

from privlearn.local.batch_sums import BatchSums
from privlearn.local.client import LocalClient
from privlearn.local.messages import Message
from privlearn.local.protocol import LocalBanditConfig, LocalLearner, Model
from privlearn.local.server import LocalServer

__all__ = [
    "BatchSums",
    "LocalBanditConfig",
    "LocalClient",
    "LocalLearner",
    "LocalServer",
    "Message",
    "Model",
]
