from .client import AsyncClient, Client
from .config import ServiceConfig, read_config
from .messages import Budget, OfferedArm, OfferedItems, Status

__all__ = [
    "AsyncClient",
    "Budget",
    "Client",
    "OfferedArm",
    "OfferedItems",
    "ServiceConfig",
    "Status",
    "read_config",
]
