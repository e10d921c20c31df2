"""Files that an audit writes: whole or not at all, and in place of nothing of somebody else."""

from __future__ import annotations

import os
from pathlib import Path

from privlearn.errors import DataError
from privlearn.storage.new_names import new_name, sync_directory


def write_over_own(path: str | os.PathLike[str], text: str, *, beginning: str, what: str) -> None:
    """Writes ``text`` in UTF-8 where nothing is, or in place of an earlier file of its kind.

    Raises:
        DataError: what is there is of another kind; it stays as it is.
        OSError: the file cannot be written; it names ``path``.
    """
    check_own(path, beginning=beginning, what=what)
    target = Path(os.path.realpath(path))
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


def check_own(path: str | os.PathLike[str], *, beginning: str, what: str) -> None:
    """As `write_over_own`, before there is a text: whether it may go there."""
    target = Path(os.path.realpath(path))
    if os.path.lexists(target) and not _begins(target, beginning.encode()):
        raise DataError(
            f"{os.fspath(path)}: there is something that is no {what}; it stays as it is, choose "
            "another name"
        )


def _begins(path: Path, beginning: bytes) -> bool:
    if not path.is_file():  # opening a device or a pipe could do or wait for anything
        return False
    with path.open("rb") as file:
        return file.read(len(beginning)) == beginning
