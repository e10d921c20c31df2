from .batch_sums import BatchSums
from .client import LocalClient
from .messages import Message
from .protocol import LocalBanditConfig, LocalLearner, Model
from .server import LocalServer

__all__ = [
    "BatchSums",
    "LocalBanditConfig",
    "LocalClient",
    "LocalLearner",
    "LocalServer",
    "Message",
    "Model",
]
