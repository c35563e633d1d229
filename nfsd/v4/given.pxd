"""C declarations of attributes that clients give files."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from nfsd.v4.fattr cimport WORDS
from nfsd.vfs.native_files cimport changes_t, when_t
from rpcrdma.octets cimport opaque_t

cdef struct settable_t:
    changes_t changes
    int64_t size                # -1: not given
    uint32_t umask              # to be taken from the mode
    bint umask_given
    uint32_t mask[WORDS]   # which attributes
    uint32_t failure            # NFS4_OK, or why they cannot be set
    bint rare                   # some of them take more than is here (nfsd.v4.settable): those below, or a size no file has
    opaque_t names[2]           # of owner and group, that are to be looked up
    opaque_t acl                # octets of a fattr4_acl
    opaque_t label
    uint32_t masked[2]          # mode_masked4
    when_t delegated[2]         # time_deleg_access, time_deleg_modify
    const uint8_t *at           # the fattr4


# The fattr4 at ``at``; behind it, or NULL: there is none (NFS4ERR_BADXDR).
cdef const uint8_t *load_given(
    const uint8_t *at, const uint8_t *end, uint32_t minor, object names, settable_t *given
) except? NULL
# The fattr4 that :func:`load_given` has read, for nfsd.v4.settable.
cdef object declared_fattr(const settable_t *given)
cdef object time_in(const when_t *when)
