"""Where the key of a job lies, and what is made of it: the key itself is in no task of a cluster.

Owner and workers read the operator's 32 bytes each at their own place, a file or a variable of the
environment.  What encrypts is derived from them for one job alone (HKDF with SHA-256, salted with
the job's public id), so that nothing of another job is taken for a part of this one.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

from privlearn.errors import PartitionError
from privlearn.storage.foreign_files import LARGEST_SETTINGS, read_whole

KEY_BYTES = 32
_CHECK_BYTES = 8


@final
@dataclass(frozen=True, slots=True)
class JobKey:
    """The place of a key of 32 bytes, written as 64 hexadecimal digits: a file or a variable.

    Only the place travels with the tasks.  `create` writes a new key to a file that nobody but its
    owner can read; how it comes to the workers (a shared folder, a secret of the cluster) is the
    operator's.

    Raises:
        TypeError: not exactly one of the two.
    """

    file: str | None = None
    variable: str | None = None

    def __post_init__(self) -> None:
        if (self.file is None) == (self.variable is None):
            raise TypeError("give either file= or variable=, where the key of the job lies")
        object.__setattr__(self, "file", None if self.file is None else str(self.file))

    @classmethod
    def create(cls, file: str | os.PathLike[str]) -> JobKey:
        """Writes a new random key to a file that must not be there yet.

        Raises:
            FileExistsError: it is.
        """
        try:
            where = os.open(Path(file), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise FileExistsError(
                f"{file} exists: a key is never overwritten; JobKey(file=...) uses it again"
            ) from None
        with os.fdopen(where, "w") as out:
            out.write(secrets.token_hex(KEY_BYTES) + "\n")
        return cls(file=str(Path(file).absolute()))

    def read(self) -> bytes:
        """The key, in this process.

        Raises:
            PartitionError: it is not there, can be read by others, or has another form.
        """
        if self.variable is not None:
            text = os.environ.get(self.variable)
            if text is None:
                raise PartitionError(
                    f"{self}: not set in this process; set it where workers are started"
                )
            return self._parsed(text)
        assert self.file is not None
        try:
            mode = os.stat(self.file).st_mode
            text = read_whole(self.file, at_most=LARGEST_SETTINGS).decode()
        except (OSError, ValueError) as error:
            raise PartitionError(f"{self}: cannot be read ({type(error).__name__})") from None
        if os.name == "posix" and mode & 0o077:
            raise PartitionError(
                f"{self}: others can read it (mode {mode & 0o777:o}); chmod 600, and take a new key"
            )
        return self._parsed(text)

    def _parsed(self, text: str) -> bytes:
        try:
            key = bytes.fromhex(text.strip())
        except ValueError:
            raise PartitionError(
                f"{self}: must hold {2 * KEY_BYTES} hexadecimal digits; JobKey.create writes them"
            ) from None
        if len(key) != KEY_BYTES:
            raise PartitionError(
                f"{self}: a key of {len(key)} bytes, must be {KEY_BYTES}; JobKey.create makes one"
            )
        return key

    def __str__(self) -> str:
        if self.variable is not None:
            return f"key in the variable {self.variable}"
        return f"key in the file {self.file}"


@final
@dataclass(frozen=True, slots=True)
class Job:
    """The public side of a job: its id, where its key lies, and what tells that key from others."""

    id: str
    place: JobKey
    known: str

    @classmethod
    def begin(cls, place: JobKey) -> Job:
        """A new one, under the key that the owner reads now.

        Raises:
            TypeError: ``place`` is no `JobKey`.
            PartitionError: see `JobKey.read`.
        """
        if not isinstance(place, JobKey):
            raise TypeError(
                f"key: must be a JobKey, the place of a key, not {type(place).__name__}; a key "
                "itself would travel with the tasks"
            )
        id = secrets.token_hex(16)
        return cls(id, place, _derived(place.read(), id)[1])

    def key(self) -> bytes:
        """The key of this job, in this process.

        Raises:
            PartitionError: see `JobKey.read`; or it is another one than the owner's.
        """
        key, known = _derived(self.place.read(), self.id)
        if known != self.known:
            raise PartitionError(f"{self.place}: is not the key that the owner of this job has")
        return key


@lru_cache(maxsize=4)
def _derived(key: bytes, id: str) -> tuple[bytes, str]:
    """The key of a job, and bytes that tell whether it is the one, and nothing of it."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derive = HKDF(SHA256(), KEY_BYTES + _CHECK_BYTES, salt=id.encode(), info=b"privlearn job")
    made = derive.derive(key)
    return made[:KEY_BYTES], made[KEY_BYTES:].hex()
