from .client import AsyncClient, Client
from .config import ServiceConfig, read_config
from .messages import Budget, Offered, Status

__all__ = [
    "AsyncClient",
    "Budget",
    "Client",
    "Offered",
    "ServiceConfig",
    "Status",
    "read_config",
]
