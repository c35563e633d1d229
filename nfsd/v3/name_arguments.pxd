"""C declarations of the arguments of NFSv3's procedures about names."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from nfsd.vfs.native_files cimport changes_t
from nfsd.wire.nfs3 cimport nfs_fh3_t
from rpcrdma.octets cimport opaque_t
from rpcrdma.place cimport Place

cdef enum:
    NAME3_MAX = 65536           # of a filename3 or nfspath3, as far as the codec takes it


ctypedef struct name_arguments_t:
    opaque_t name               # in the call's first directory, of LINK in its only one
    nfs_fh3_t handle            # the second one: RENAME's target, LINK's directory
    opaque_t new_name           # of RENAME
    opaque_t text               # of SYMLINK
    changes_t changes           # of what is made
    int64_t size                # likewise; -1: none is given
    uint32_t wrong              # an nfsstat3: what is wrong with these
    uint32_t how                # createmode3
    uint8_t verifier[8]         # of an EXCLUSIVE CREATE
    uint32_t type               # ftype3, of MKNOD
    uint32_t device[2]          # likewise: specdata3


cdef bint load_name_arguments(
    uint32_t procedure, const uint8_t *at, const uint8_t *end, Place place, name_arguments_t *into
) noexcept
