"""Rows that lie in several processes: encrypted sums of them, and the engines that add them up."""

from typing import TYPE_CHECKING

from privlearn.rows.partitions.jobs import SumJob
from privlearn.rows.partitions.keys import JobKey
from privlearn.rows.partitions.rows import Engine, InProcess, Part, PartitionedRows

if TYPE_CHECKING:
    from privlearn.rows.partitions.on_dask import OnDask

__all__ = ["Engine", "InProcess", "JobKey", "OnDask", "Part", "PartitionedRows", "SumJob"]


def __getattr__(name: str) -> object:
    if name == "OnDask":  # late, as it needs Dask
        from privlearn.rows.partitions.on_dask import OnDask

        return OnDask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
