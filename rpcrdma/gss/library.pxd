"""C declarations of GSS-API as MIT's library has it (RFC 2744; gssapi_ext.h), found at run time."""

from libc.stdint cimport uint32_t


cdef struct gss_buffer:
    size_t length
    void *value


cdef struct gss_oid:
    uint32_t length
    void *elements


cdef struct gss_oid_set:
    size_t count
    gss_oid *elements


cdef struct gss_iov_buffer:
    uint32_t type
    gss_buffer buffer


cdef struct gss_key_value:
    const char *key
    const char *value


cdef struct gss_key_value_set:
    uint32_t count
    gss_key_value *elements


cdef enum:
    GSS_ERRORS = 0xFFFF0000         # of a major status: what is left are notes such as "a duplicate"
    GSS_COMPLETE = 0
    GSS_CONTINUE_NEEDED = 1
    GSS_FAILURE = 13 << 16
    GSS_INITIATE = 1
    GSS_ACCEPT = 2
    GSS_MUTUAL_FLAG = 2
    GSS_CONF_FLAG = 16
    GSS_INTEG_FLAG = 32
    GSS_INDEFINITE = 0xFFFFFFFF
    GSS_GSS_CODE = 1
    GSS_MECH_CODE = 2
    IOV_DATA = 1
    IOV_HEADER = 2
    IOV_TRAILER = 7
    IOV_PADDING = 9
    IOV_STREAM = 10
    IOV_MIC = 12


ctypedef uint32_t (*gss_import_name_t)(uint32_t *, gss_buffer *, gss_oid *, void **) noexcept nogil
ctypedef uint32_t (*gss_release_name_t)(uint32_t *, void **) noexcept nogil
ctypedef uint32_t (*gss_display_name_t)(uint32_t *, void *, gss_buffer *, gss_oid **) noexcept nogil
ctypedef uint32_t (*gss_acquire_cred_from_t)(
    uint32_t *, void *, uint32_t, gss_oid_set *, int, gss_key_value_set *, void **, gss_oid_set **, uint32_t *
) noexcept nogil
ctypedef uint32_t (*gss_release_cred_t)(uint32_t *, void **) noexcept nogil
ctypedef uint32_t (*gss_accept_sec_context_t)(
    uint32_t *, void **, void *, gss_buffer *, void *, void **, gss_oid **, gss_buffer *, uint32_t *, uint32_t *, void **
) noexcept nogil
ctypedef uint32_t (*gss_init_sec_context_t)(
    uint32_t *, void *, void **, void *, gss_oid *, uint32_t, uint32_t, void *, gss_buffer *, gss_oid **, gss_buffer *,
    uint32_t *, uint32_t *
) noexcept nogil
ctypedef uint32_t (*gss_export_sec_context_t)(uint32_t *, void **, gss_buffer *) noexcept nogil
ctypedef uint32_t (*gss_import_sec_context_t)(uint32_t *, gss_buffer *, void **) noexcept nogil
ctypedef uint32_t (*gss_delete_sec_context_t)(uint32_t *, void **, gss_buffer *) noexcept nogil
ctypedef uint32_t (*gss_verify_mic_t)(uint32_t *, void *, gss_buffer *, gss_buffer *, uint32_t *) noexcept nogil
ctypedef uint32_t (*gss_wrap_iov_t)(
    uint32_t *, void *, int, uint32_t, int *, gss_iov_buffer *, int
) noexcept nogil
ctypedef uint32_t (*gss_unwrap_iov_t)(
    uint32_t *, void *, int *, uint32_t *, gss_iov_buffer *, int
) noexcept nogil
ctypedef uint32_t (*gss_get_mic_iov_t)(uint32_t *, void *, uint32_t, gss_iov_buffer *, int) noexcept nogil
ctypedef uint32_t (*gss_release_buffer_t)(uint32_t *, gss_buffer *) noexcept nogil
ctypedef uint32_t (*gss_display_status_t)(
    uint32_t *, uint32_t, int, gss_oid *, uint32_t *, gss_buffer *
) noexcept nogil


cdef struct gss_library:
    gss_import_name_t import_name
    gss_release_name_t release_name
    gss_display_name_t display_name
    gss_acquire_cred_from_t acquire_cred_from
    gss_release_cred_t release_cred
    gss_accept_sec_context_t accept_sec_context
    gss_init_sec_context_t init_sec_context
    gss_export_sec_context_t export_sec_context
    gss_import_sec_context_t import_sec_context
    gss_delete_sec_context_t delete_sec_context
    gss_get_mic_iov_t get_mic_iov
    gss_verify_mic_t verify_mic
    gss_wrap_iov_t wrap_iov
    gss_wrap_iov_t wrap_iov_length
    gss_unwrap_iov_t unwrap_iov
    gss_release_buffer_t release_buffer
    gss_display_status_t display_status


cdef gss_library gss
cdef gss_oid KRB5

cdef int load() except -1
cdef object failure(str what, uint32_t major, uint32_t minor)
cdef bytes taken(gss_buffer *octets)
