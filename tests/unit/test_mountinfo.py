"""Lines of mountinfo, as the kernel and drivers write them."""

import pytest

from nfsd.vfs.mounts import MountEntry, parse_mount, read_mountinfo


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (
            b"36 35 98:0 /below /srv/a\\040b rw,noatime master:1 shared:7 - ext4 /dev/a\\040b rw,errors=continue\n",
            MountEntry(36, "/below", "/srv/a b", "ext4", ("rw", "errors=continue")),
        ),
        (b"36 35 98:0 / / rw - tmpfs none rw\n", MountEntry(36, "/", "/", "tmpfs", ("rw",))),
        (
            b"36 35 98:0 / /mnt rw - fuse.some some rw,name=my files,more\n",
            MountEntry(36, "/", "/mnt", "fuse.some", ("rw", "name=my files", "more")),
        ),
        (b"36 35 98:0 / /mnt rw - some  rw\n", MountEntry(36, "/", "/mnt", "some", ("rw",))),
    ],
    ids=["escaped", "without optional fields", "options with spaces", "without a source"],
)
def test_a_line_is_taken_apart(line: bytes, entry: MountEntry) -> None:
    assert parse_mount(line) == entry


def test_every_mount_of_this_process_is_read() -> None:
    assert any(entry.path == "/" for entry in read_mountinfo())
