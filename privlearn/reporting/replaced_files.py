"""Files that an audit writes: whole or not at all, and in place of nothing but an older one."""

from __future__ import annotations

import os
from pathlib import Path

from privlearn._new_names import new_name, sync_directory
from privlearn.errors import DataError


def write_or_replace(path: str | os.PathLike[str], text: str, *, beginning: str, what: str) -> None:
    """Writes a text file whole or not at all.

    Args:
        path: where it goes.
        text: begins with ``beginning``.
        beginning: by which an older file of the kind is known, which alone is replaced.
        what: the kind, in words.

    Raises:
        DataError: the file that is there is of no such kind.
        OSError: it cannot be written; it names ``path``.
    """
    target = Path(os.path.realpath(path))
    if os.path.lexists(target) and not _begins(target, beginning.encode()):
        raise DataError(
            f"{os.fspath(path)}: there is something that is no {what}; it stays as it is, choose "
            "another name"
        )
    new = new_name(target)
    try:
        try:
            with new.open("xb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, target)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from None
    sync_directory(target.parent)


def _begins(path: Path, beginning: bytes) -> bool:
    if not path.is_file():  # opening a device or a pipe could do or wait for anything
        return False
    with path.open("rb") as file:
        return file.read(len(beginning)) == beginning
