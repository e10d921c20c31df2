"""Ledger files lie on disks of this host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from privlearn.errors import LedgerError
from privlearn.ledger import Ledger, file_systems
from privlearn.ledger.file_systems import FUSE, NETWORK, kind_in, network_file_system

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home/ann/far rw,nosuid - fuse.sshfs ann@far:/ rw
31 22 0:41 / /mnt/two\040words rw - fuseblk /dev/sdb1 rw
32 30 0:42 / /home/ann/far/near rw - tmpfs tmpfs rw
33 22 0:43 / /home/ann/further rw - nfs4 server:/ rw
a line of another form
""".splitlines()


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0x6969, "NFS"),
        (0xFF534D42, "CIFS"),
        (0xFE534D42, "SMB"),
        (0x517B, "SMB"),
        (0x01021997, "9P"),
        (0x00C36400, "Ceph"),
        (0x0BD00BD0, "Lustre"),
        (0xEF53, None),  # ext4
        (0x58465342, None),  # XFS
        (0x9123683E, None),  # Btrfs
        (0x01021994, None),  # tmpfs
        (0x794C7630, None),  # overlayfs
    ],
)
def test_the_kernel_numbers_tell_network_file_systems(number: int, name: str | None) -> None:
    assert network_file_system(number, "") == name


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("fuse.sshfs", "sshfs"),
        ("fuse.glusterfs", "glusterfs"),
        ("fuse.s3fs", "s3fs"),
        ("virtiofs", "virtiofs"),
        ("fuseblk", None),
        ("fuse.gocryptfs", None),
        ("", None),
    ],
)
def test_file_systems_of_programs_are_told_by_their_names(kind: str, name: str | None) -> None:
    assert network_file_system(FUSE, kind) == name


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("/", "ext4"),
        ("/home/ann", "ext4"),
        ("/home/ann/far", "fuse.sshfs"),
        ("/home/ann/far/deep/er", "fuse.sshfs"),
        ("/home/ann/far/near/x", "tmpfs"),
        ("/home/ann/farther", "ext4"),
        ("/home/ann/further/x", "nfs4"),
        ("/mnt/two words/x", "fuseblk"),
    ],
)
def test_the_mount_above_a_path_is_found(where: str, kind: str) -> None:
    assert kind_in(MOUNTS, where) == kind


def test_a_ledger_on_a_network_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    Ledger.create(path).close()
    stood = {each: each.read_bytes() for each in tmp_path.iterdir()}
    monkeypatch.setattr(file_systems, "_number_of", lambda folder: 0x6969)
    refusals: list[Callable[[], object]] = [
        lambda: Ledger.open(path),
        lambda: Ledger.create(tmp_path / "new.db"),
    ]
    for refused in refusals:
        with pytest.raises(LedgerError, match=r"network file system \(NFS\).*PostgreSQL"):
            refused()
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == stood


def test_this_system_says_what_it_is(tmp_path: Path) -> None:
    """The number comes from the kernel, as that of ``stat -f`` does."""
    found = file_systems._number_of(tmp_path)
    assert found is not None
    assert found not in NETWORK
    assert file_systems._number_of(Path("/proc")) == 0x9FA0
    assert file_systems._number_of(tmp_path / "missing") is None
    assert file_systems._kind_of(Path("/proc")) == "proc"
