"""What is told of mounts."""

from pathlib import Path

import pytest

from spillcache.store.location import open_location
from spillcache.store.mounts import filesystem_of, filesystem_type

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /mnt/share rw,relatime - nfs4 server:/export rw,vers=4.2
31 22 0:27 / /mnt/share/local rw - tmpfs tmpfs rw
32 22 0:28 / /mnt/with\\040space rw - fuse.sshfs host:/ rw
33 22 0:29 / /mnt/twice rw - cifs //host/share rw
34 22 0:30 / /mnt/twice rw - xfs /dev/vdb rw
35 22 0:31 / /mnt/Überfluss\\040\u2028x rw - nfs host:/ rw
not a mount line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/mnt/share/cache", "nfs4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/shared", "ext4"),
        ("/mnt/share/local/x", "tmpfs"),
        ("/mnt/with space/x", "fuse.sshfs"),
        ("/mnt/twice", "xfs"),
        ("/mnt/Überfluss \u2028x/cache", "nfs"),
    ],
)
def test_filesystem_types(tmp_path, path, kind):
    assert filesystem_type(Path(path), MOUNTS) == kind
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert filesystem_of(Path(path), tmp_path / "mountinfo") == kind


def test_no_mounts_are_no_reason_to_refuse(tmp_path):
    assert filesystem_type(Path("/"), "") is None
    assert filesystem_of(tmp_path, tmp_path / "missing") is None
    open_location(tmp_path / "cache", None, mounts=tmp_path / "missing")
