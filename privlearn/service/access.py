"""Access tokens: made by the operator, kept as hashes, compared in constant time.

A token is 256 random bits, so that a plain hash of it tells nothing; it is printed once.  (The
budget's own tokens, `privlearn.contract.tokens`, have nothing to do with them.)
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privlearn.errors import DataError
from privlearn.storage.foreign_files import read_whole
from privlearn.storage.new_names import new_name, sync_directory

Role = Literal["serve", "watch", "operator"]
"""``serve``: offers and answers; ``watch``: status, budget, certificate, metrics; ``operator``:
what ``watch`` may, and to close batches and forget people."""
ROLES: Final[tuple[str, ...]] = get_args(Role)
PREFIX: Final = "privlearn_"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_LOOK_AGAIN: Final = 1.0  # Seconds after which the file is looked at again


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    name: Annotated[str, Field(pattern=rf"^{_NAME.pattern}$")]
    role: Role
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    expires: datetime | None = None


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    access: tuple[_Kept, ...] = ()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who called: an access token by the name that the operator gave it."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether it may do what is asked of a role."""
        return self.role == role or (self.role == "operator" and role == "watch")


class AccessTokens:
    """The access tokens of a file, which may change while it is in use.

    Raises:
        DataError: the file is missing, of another form, or others may read or write it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked = time.monotonic()
        self._identity = self._stamp()
        self._kept = _read(path)

    def caller(self, sent: str) -> Caller | None:
        """Whose token it is; None if nobody's, or one that has expired.

        All hashes are compared, each in constant time.
        """
        self._look()
        digest = _hashed(sent)
        found: _Kept | None = None
        for kept in self._kept:
            if hmac.compare_digest(kept.sha256, digest):
                found = kept
        if found is None or (found.expires is not None and found.expires <= datetime.now(UTC)):
            return None
        return Caller(found.name, found.role)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_AGAIN:
            return
        self._looked = now
        try:
            identity = self._stamp()
            if identity != self._identity:
                self._kept, self._identity = _read(self._path), identity
        except DataError:
            self._kept, self._identity = (), None

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError as error:
            raise DataError(
                f"access.file = {str(self._path)!r} cannot be read: {error.strerror}; privlearn "
                "access add writes it"
            ) from None
        return found.st_ino, found.st_mtime_ns, found.st_size


def add(path: Path, name: str, role: str, *, expires: timedelta | None = None) -> str:
    """Makes an access token and keeps its hash; the token itself is returned, and nowhere kept.

    Raises:
        DataError: the name is taken or of another form, there is no such role, or the file cannot
            be read or written.
    """
    if not _NAME.fullmatch(name):
        raise DataError(f"name = {name!r}: must be 1 to 40 lower-case letters, digits and '-'")
    if role not in ROLES:
        raise DataError(f"role = {role!r}: must be one of {', '.join(ROLES)}")
    kept = _read(path) if path.exists() else ()
    if any(one.name == name for one in kept):
        raise DataError(f"name = {name!r}: {path} has it already; remove it first")
    token = PREFIX + secrets.token_urlsafe(32)
    until = None if expires is None else datetime.now(UTC).replace(microsecond=0) + expires
    made: Any = {"name": name, "role": role, "sha256": _hashed(token), "expires": until}
    _write(path, (*kept, _Kept(**made)))
    return token


def remove(path: Path, name: str) -> None:
    """Ends an access token; workers know within a second.

    Raises:
        DataError: there is none of that name, or the file cannot be read or written.
    """
    kept = _read(path)
    if all(one.name != name for one in kept):
        known = ", ".join(one.name for one in kept) or "none"
        raise DataError(f"name = {name!r}: {path} has no such access token; it has {known}")
    _write(path, tuple(one for one in kept if one.name != name))


def listed(path: Path) -> list[tuple[str, str, str]]:
    """Name, role and expiry of each.

    Raises:
        DataError: the file cannot be read.
    """
    return [
        (one.name, one.role, "never" if one.expires is None else one.expires.isoformat())
        for one in _read(path)
    ]


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


_MOST_BYTES = 2**24


def check_private(path: Path) -> None:
    """Raises DataError for a file that other users of this machine may read or write."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise DataError(f"{path}: other users of this machine may use it: chmod 600 {path}")


def _read(path: Path) -> tuple[_Kept, ...]:
    check_private(path)
    try:
        found = _File.model_validate_json(read_whole(path, at_most=_MOST_BYTES)).access
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise DataError(
            f"{path} holds no access tokens: {error.error_count()} things in it are wrong; "
            "privlearn access add writes it"
        ) from None
    if len({one.name for one in found}) < len(found):
        raise DataError(f"{path}: a name stands twice")
    return found


def _write(path: Path, kept: tuple[_Kept, ...]) -> None:
    text = json.dumps(_File(access=kept).model_dump(mode="json"), indent=1)
    beside = new_name(path)
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        sync_directory(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DataError(f"{path} cannot be written: {error.strerror}") from None
