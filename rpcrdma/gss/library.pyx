"""The system's GSS-API library, MIT's, loaded when it is first needed (contract: ``library.pyi``).

Owns the table of its functions and its errors; imports nothing of the project. Loaded at run time, so that a server
without Kerberos needs no Kerberos: where the library is not there, :class:`Unavailable` says what is missing.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t

cdef extern from "<dlfcn.h>":
    void *dlopen(const char *name, int mode)
    void *dlsym(void *library, const char *name)
    int RTLD_NOW
    int RTLD_LOCAL

cdef gss_library gss
cdef gss_oid KRB5               # 1.2.840.113554.1.2.2 (RFC 4121)
KRB5.length, KRB5.elements = 9, <void *><char *>b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02"

cdef tuple FUNCTIONS = (
    b"gss_import_name", b"gss_release_name", b"gss_display_name", b"gss_acquire_cred_from", b"gss_release_cred",
    b"gss_accept_sec_context", b"gss_init_sec_context", b"gss_export_sec_context", b"gss_import_sec_context",
    b"gss_delete_sec_context", b"gss_get_mic_iov", b"gss_verify_mic", b"gss_wrap_iov", b"gss_wrap_iov_length",
    b"gss_unwrap_iov", b"gss_release_buffer", b"gss_display_status",
)  # in the order of gss_library

cdef bint loaded = False
LIBRARY = "libgssapi_krb5.so.2"


class Unavailable(OSError):
    pass


class GssError(Exception):
    def __init__(self, text, major=0, minor=0):
        super().__init__(text)
        self.major, self.minor = major, minor


cdef int load() except -1:
    """Have the library's functions. Raises Unavailable."""
    global loaded
    cdef void *library
    cdef void **at = <void **>&gss
    if loaded:
        return 0
    if sizeof(gss) != len(FUNCTIONS) * sizeof(void *):
        raise AssertionError("the table of functions is not as long as their names")
    library = dlopen(LIBRARY.encode(), RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        raise Unavailable(f"Kerberos needs the system's {LIBRARY}, which is not here (Debian: libgssapi-krb5-2)")
    for index, name in enumerate(FUNCTIONS):
        at[index] = dlsym(library, name)
        if at[index] == NULL:
            raise Unavailable(f"{LIBRARY} has no {name.decode()}: MIT Kerberos 1.12 or later is needed")
    loaded = True
    return 0


def available():
    try:
        load()
    except Unavailable:
        return False
    return True


cdef bytes taken(gss_buffer *octets):
    """The library's octets, which are released."""
    cdef uint32_t minor
    cdef bytes copy = b""
    if octets.value != NULL:
        copy = PyBytes_FromStringAndSize(<char *>octets.value, octets.length)
    gss.release_buffer(&minor, octets)
    return copy


cdef str explained(uint32_t status, int kind):
    cdef uint32_t minor, context = 0
    cdef gss_buffer text
    text.length, text.value = 0, NULL
    if gss.display_status(&minor, status, kind, &KRB5 if kind == GSS_MECH_CODE else NULL, &context, &text):
        return f"status {status:#x}"
    return taken(&text).decode("utf-8", "replace")


cdef object failure(str what, uint32_t major, uint32_t minor):
    """What a function has failed with, to be raised."""
    text = explained(minor, GSS_MECH_CODE) if minor else explained(major, GSS_GSS_CODE)
    return GssError(f"{what}: {text}", major, minor)
