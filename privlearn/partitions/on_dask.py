"""Partitions on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, final

from privlearn.errors import PartitionError, PrivlearnError
from privlearn.partitions.rows import Part

try:
    import distributed
    from dask.delayed import delayed
    from distributed.protocol.pickle import dumps, loads
except ImportError as missing:  # pragma: no cover - without the extra
    raise ImportError(
        "OnDask needs Dask: pip install 'privlearn[dask]'", name=missing.name
    ) from missing


_TOGETHER = 8
"""Sums that one task merges: a task costs about a millisecond."""


def _merged(merge: Callable[[bytes, bytes], bytes], *sums: bytes) -> bytes:
    return reduce(merge, sums)


def _summed(work: bytes, users: range, source: Any) -> bytes:
    """Loads the work in its task: what cannot be loaded earlier ends the worker, not the task."""
    found: bytes = loads(work)(users, source)
    return found


@final
class OnDask:
    """Adds up partitions where they lie on a cluster, and their sums in a tree.

    A source may be a ``Delayed`` (such as the partitions of ``frame.to_delayed()``), a ``Future``,
    or anything that the function that reads takes.  Tasks have random keys: a key that is made of
    its arguments would be a fingerprint of rows.  Tasks of a worker that died are run again by
    Dask; a sum that would come in twice makes the merge fail.

    ``ENVIRONMENT`` is for ``distributed.nanny.pre-spawn-environ`` of Dask's configuration, before
    workers start: by default Dask has them give back freed memory at once, and to get it again
    takes about as long as clipping and adding up.

    Args:
        client: of the cluster.

    Raises:
        TypeError: no client.
    """

    ENVIRONMENT: ClassVar[Mapping[str, int]] = {
        "MALLOC_TRIM_THRESHOLD_": 2**28,
        "MALLOC_MMAP_THRESHOLD_": 2**25,
        "MALLOC_TOP_PAD_": 2**26,
        "OMP_NUM_THREADS": 1,
        "MKL_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
    }
    """Up to some 300 MB more for each worker, and one thread of linear algebra, as by default."""

    def __init__(self, client: distributed.Client) -> None:
        if not isinstance(client, distributed.Client):
            raise TypeError(f"client = {client!r:.80}: must be a distributed.Client")
        self._client = client

    def add_up(
        self,
        work: Callable[[range, Any], bytes],
        parts: Sequence[Part],
        merge: Callable[[bytes, bytes], bytes],
    ) -> bytes:
        """As `Engine`.

        Raises:
            PartitionError: the cluster gave the work up; which worker died stands in its log.  Or a
                worker cannot import what a function needs.
        """
        summed, merged = delayed(_summed, pure=False), delayed(_merged, pure=False)
        packed = dumps(work)
        made = [summed(packed, part.users, part.source) for part in parts]
        while len(made) > 1:
            made = [merged(merge, *made[i : i + _TOGETHER]) for i in range(0, len(made), _TOGETHER)]
        future = self._client.compute(made[0])
        try:
            found: bytes = future.result()
        except PrivlearnError:
            raise
        except ImportError as error:
            raise PartitionError(
                f"the workers cannot import {error.name!r}, which a function over the rows needs: "
                "install it there, or define the function in the main program"
            ) from None
        except Exception as error:  # of a handle of the cluster, which may quote rows
            raise PartitionError(
                f"the cluster did not add up {len(parts)} partitions: {type(error).__name__}; its "
                "log says more"
            ) from None
        finally:
            future.release()
        return found
