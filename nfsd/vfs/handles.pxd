"""C declarations of file handles: native code that makes many of them."""

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    HANDLE_VERSION = 1
    FS_ID = 6
    HEAD = 12                   # octets before the kernel's handle
    KERNEL = 40                 # the longest kernel handle that fits: btrfs's
    MAC = 12
    HANDLE = 64

ctypedef struct mac_key_t:
    uint32_t h[8]               # the state behind the key's block


cdef class HandleCodec:
    cdef mac_key_t key

    cdef bytes beside(self, bytes directory, int kind, const uint8_t *octets, uint32_t size)


# The handle of a kernel handle into HANDLE octets: how many it has, or 0 when the kernel's does not fit.
cdef uint32_t sign_handle(
    const mac_key_t *key, uint32_t export_id, const uint8_t *fs_id, int kind, const uint8_t *octets, uint32_t size,
    uint8_t *sink
) noexcept nogil
