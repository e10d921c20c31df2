"""Partitions on a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from typing import Any, ClassVar, final

from privlearn.errors import PartitionError, PrivlearnError
from privlearn.rows.partitions.jobs import Admitted, Held
from privlearn.rows.partitions.rows import Part

try:
    import distributed
    from dask.delayed import delayed
    from distributed.protocol.pickle import dumps, loads
except ImportError as missing:  # pragma: no cover - without the extra
    raise ImportError(
        "OnDask needs Dask: pip install 'privlearn[dask]'", name=missing.name
    ) from missing


_TOGETHER = 16
"""Sums that one task merges: a task costs some milliseconds, of which a merge is a small part."""
_EACH = 4  # Tasks for each thread of the cluster, where partitions can be taken together
_IN_CLEAR = (str, bytes, int, float, os.PathLike, Held, type(None))
"""What a source is made of that is no handle of the cluster."""


def _merged(merge: Callable[[bytes, bytes], bytes], *sums: bytes) -> bytes:
    return reduce(merge, sums)


def _summed(work: bytes, *parts: tuple[range, Any]) -> bytes:
    """Loads the work in its task: what cannot be loaded earlier ends the worker, not the task."""
    summed, merge = loads(work)
    total: bytes = reduce(merge, (summed(*part) for part in parts))
    return total


def _lies_anywhere(source: Any) -> bool:
    """Whether it can be read at any worker, and stands for nothing that lies at one of them."""
    if type(source) in (tuple, list):
        return all(map(_lies_anywhere, source))
    if isinstance(source, Admitted):
        return _lies_anywhere(source.source)
    return isinstance(source, _IN_CLEAR)


@final
class OnDask:
    """Adds up partitions where they lie on a cluster, and their sums in a tree.

    A source may be a ``Delayed`` (such as the partitions of ``frame.to_delayed()``), a ``Future``,
    or anything that the function that reads takes.  Tasks have random keys: a key that is made of
    its arguments would be a fingerprint of rows.  Tasks of a worker that died are run again by
    Dask; a sum that would come in twice makes the merge fail.  Partitions that are no handles, such
    as paths, are added up several by a task where there are many.

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

    def _tasks(self, parts: Sequence[Part]) -> Iterator[list[tuple[range, Any]]]:
        """The users and sources of the partitions that each task adds up.

        Where it does not matter which worker takes a partition, as many together as leave enough
        tasks to share out.
        """
        threads = sum(self._client.nthreads().values())
        together = max(len(parts) // (_EACH * threads), 1) if threads else 1
        for apart, some in groupby(parts, lambda part: not _lies_anywhere(part.source)):
            pairs, size = [(part.users, part.source) for part in some], 1 if apart else together
            yield from (pairs[i : i + size] for i in range(0, len(pairs), size))

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
        packed = dumps((work, merge))
        made = [summed(packed, *task) for task in self._tasks(parts)]
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
        except Exception as error:  # noqa: BLE001 - of a cluster, which may quote rows
            raise PartitionError(
                f"the cluster did not add up {len(parts)} partitions: {type(error).__name__}; its "
                "log says more"
            ) from None
        finally:
            future.release()
        return found
