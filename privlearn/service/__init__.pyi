from .client import AsyncClient, Client
from .config import ServiceConfig, read_config
from .messages import (
    ABTestResults,
    ArmResults,
    Budget,
    ExpertResults,
    OfferedArm,
    OfferedExpert,
    OfferedItems,
    Status,
)

__all__ = [
    "ABTestResults",
    "ArmResults",
    "AsyncClient",
    "Budget",
    "Client",
    "ExpertResults",
    "OfferedArm",
    "OfferedExpert",
    "OfferedItems",
    "ServiceConfig",
    "Status",
    "read_config",
]
