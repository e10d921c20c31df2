from .client import AsyncClient, Client
from .config import ServiceConfig, read_config
from .messages import (
    ABTestResults,
    ArmResults,
    Budget,
    ExpertResults,
    GLMResults,
    OfferedAction,
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
    "GLMResults",
    "OfferedAction",
    "OfferedArm",
    "OfferedExpert",
    "OfferedItems",
    "ServiceConfig",
    "Status",
    "read_config",
]
