"""The file service: every operation on local files, asynchronous, under the caller's credential.

Owns nothing itself: it puts the parts together. Knows nothing of NFS versions. Methods raise OSError (the errno is the
kernel's) unless they say more; ``credential`` is the caller after squash. Where each operation lives:

* ``finding``: :meth:`start`, :meth:`close`, :meth:`resolve`, :meth:`root`
* ``exporting``: :meth:`take_exports`
* ``opens``: :meth:`attributes`, :meth:`open`
* ``sparse``: :meth:`seek`, :meth:`allocate`, :meth:`deallocate`, :meth:`read_extents`, :meth:`prefetch`, :meth:`drop`
* ``copying``: :meth:`begin_copy`, :meth:`copy_for_a_while`, :meth:`clone_range`
* ``inspect``: :meth:`set_attributes`, :meth:`access`, :meth:`readlink`, :meth:`may_commit`, :meth:`status`,
  :meth:`limits`
* ``xattrs``: :meth:`supports_xattrs`, :meth:`may_write_xattrs`, :meth:`get_xattr`, :meth:`list_xattrs`,
  :meth:`set_xattr`, :meth:`remove_xattr`
* ``acls``: :meth:`supports_acls`, :meth:`acls`
* ``labels``: :meth:`supports_labels`, :meth:`label`
* ``quotas``: :meth:`supports_quotas`, :meth:`quota`
* ``directory``: :meth:`lookup`, :meth:`readdir`, :meth:`parent`
* ``creation``: :meth:`create`, :meth:`mkdir`, :meth:`symlink`, :meth:`mknod`
* ``namespace``: :meth:`remove`, :meth:`rename`, :meth:`link`
* ``locks``: :meth:`set_local_lock`, :meth:`clear_local_lock`, :meth:`test_local_lock`
"""

from __future__ import annotations

from nfsd.vfs.acls import AclOperations
from nfsd.vfs.copying import CopyOperations
from nfsd.vfs.exporting import ExportingOperations
from nfsd.vfs.labels import LabelOperations
from nfsd.vfs.locks import LockOperations
from nfsd.vfs.namespace import NamespaceOperations
from nfsd.vfs.quotas import QuotaOperations
from nfsd.vfs.records import Node, OpenFile
from nfsd.vfs.snapshots import SnapshotOperations
from nfsd.vfs.xattrs import XattrOperations

__all__ = ["FileService", "Node", "OpenFile"]


class FileService(
    CopyOperations,
    XattrOperations,
    AclOperations,
    QuotaOperations,
    LabelOperations,
    NamespaceOperations,
    LockOperations,
    SnapshotOperations,
    ExportingOperations,
):
    """Operations on the files of all exports."""
