"""Where a ledger file can lie: on a disk of this host, not on one that several hosts share.

SQLite relies on locks and on memory that processes share, of which network file systems promise
neither (https://www.sqlite.org/faq.html#q5, https://www.sqlite.org/wal.html): two hosts could both
write, and a sync may return before anything is on a disk.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from privlearn.errors import LedgerError

NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0x19830326: "BeeGFS",
    0xAAD7AAEA: "PanFS",
    0x786F4256: "VirtualBox's shared folders",
    0xBACBACBC: "VMware's shared folders",
}
"""Those on a network, by the numbers that the kernel has for them: statfs(2), linux/magic.h."""
FUSE = 0x65735546
"""Of any file system of a program; its name says which."""
NETWORK_PROGRAMS = frozenset(
    {
        "sshfs", "glusterfs", "ceph", "ceph-fuse", "s3fs", "goofys", "gcsfuse", "rclone", "davfs",
        "davfs2", "juicefs", "moosefs", "mfs", "lizardfs", "beegfs", "smbnetfs", "curlftpfs",
        "blobfuse", "blobfuse2", "mount-s3", "mountpoint-s3", "nfs", "cernvm-fs", "cvmfs2", "hdfs",
        "alluxio", "seaweedfs", "virtiofs", "vmhgfs-fuse",
    }
)  # fmt: skip
"""File systems of programs, as they are named in /proc/self/mountinfo: ``fuse.sshfs``."""


def network_file_system(number: int, kind: str) -> str | None:
    """What a file system is called, if it is on a network.

    Args:
        number: by which the kernel names it.
        kind: its name in /proc/self/mountinfo; empty where it is not known.
    """
    if number == FUSE:
        program = kind.removeprefix("fuse.")
        return program if program in NETWORK_PROGRAMS else None
    return NETWORK.get(number)


def check_on_this_host(path: Path) -> None:
    """Raises LedgerError if a ledger's folder is on a network file system.

    Where the system does not say what it is (elsewhere than on Linux) nothing is known.
    """
    folder = path.parent
    number = _number_of(folder)
    if number is None:
        return
    found = network_file_system(number, _kind_of(folder) if number == FUSE else "")
    if found is not None:
        raise LedgerError(
            f"{path} lies on a network file system ({found}), where locks and syncs do not hold "
            "what SQLite needs of them: put the ledger on a disk of this host, or, for several "
            "hosts, keep it in PostgreSQL (Ledger.postgres)"
        )


def _number_of(folder: Path) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        statfs = ctypes.CDLL(None, use_errno=True).statfs
    except (OSError, AttributeError):
        return None
    found = (ctypes.c_long * 64)()  # struct statfs begins with its type, and is shorter
    if statfs(os.fsencode(folder), ctypes.byref(found)):
        return None  # it is not there, say, of which others tell
    return int(found[0]) & 0xFFFFFFFF


def _kind_of(folder: Path) -> str:
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
        where = os.path.realpath(folder)
    except OSError:
        return ""
    return kind_in(mounts, where)


def kind_in(mounts: list[str], where: str) -> str:
    """The kind of the last mount above a path; see proc(5) for the lines."""
    best, kind = -1, ""
    for line in mounts:
        front, _, back = line.partition(" - ")
        fields, kinds = front.split(" "), back.split(" ")
        if len(fields) < 5 or not kinds[0]:
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = point == "/" or where == point or where.startswith(f"{point}/")
        if inside and len(point) >= best:
            best, kind = len(point), kinds[0]
    return kind
