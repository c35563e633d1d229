"""Whether a Ceph cluster can be run here, and served; as a program it says what a test run has left out."""

from __future__ import annotations

from nfsd.backends import cephfs
from tests.ceph.cluster import missing


def why_not() -> str:
    """What is missing; empty: nothing."""
    programs = missing()
    return f"lacks {', '.join(programs)} (tests/vm/host-packages.sh ceph)" if programs else cephfs.why_not()


if __name__ == "__main__":
    lacking = why_not()
    print(f"not run: CephFS, {lacking or 'but for a short run'}; all of it is make test-ceph")
