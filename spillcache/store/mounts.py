"""On what kind of filesystem a directory lies: LMDB's locks and shared memory need a local one.

Linux only; elsewhere nothing is told. Any thread.
"""

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "glusterfs", "gpfs", "lustre"),
        *("ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb", "smb3", "smbfs"),
        *("fuse.ceph", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys"),
        *("fuse.juicefs", "fuse.mountpoint-s3", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs"),
        "fuse.sshfs",
    )
)
"""Types of filesystems whose files are on another machine."""

_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How spaces, tabs, newlines and backslashes are written in mountinfo."""


def filesystem_of(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the filesystem that ``path`` lies on, or would; None where that is not told."""
    try:
        mountinfo = os.fsdecode(mounts.read_bytes())
    except OSError:
        return None  # not Linux, or /proc is hidden
    return filesystem_type(Path(os.path.realpath(path)), mountinfo)


def filesystem_type(path: Path, mountinfo: str) -> str | None:
    """The type of the filesystem that an absolute, resolved path lies on, from the text of
    /proc/self/mountinfo.
    """
    best, found = -1, None
    for line in mountinfo.split("\n"):
        fields, separator, tail = line.partition(" - ")
        columns = fields.split(" ")
        if not separator or len(columns) < 5 or not tail.split():
            continue
        point = Path(_ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), columns[4]))
        # Of mounts over the same point the last one is seen.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), tail.split()[0]
    return found
