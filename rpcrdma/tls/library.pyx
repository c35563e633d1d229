"""OpenSSL's ciphers: the very library that Python's ssl has, found at run time (contract: ``library.pyi``).

Owns the table of its functions; imports nothing of the project. Handshakes are made by Python's ssl, so its library is
there already, whether it is the system's or one that Python brings along. Building takes no headers of it, and
a server without TLS does not need it.
"""

import os
import ssl

cdef extern from "<dlfcn.h>":
    void *dlopen(const char *name, int mode)
    void *dlsym(void *library, const char *name)
    int RTLD_NOW
    int RTLD_LOCAL

cdef crypto_library crypto

cdef tuple FUNCTIONS = (
    b"EVP_CIPHER_CTX_new", b"EVP_CIPHER_CTX_free", b"EVP_aes_128_gcm", b"EVP_aes_256_gcm", b"EVP_chacha20_poly1305",
    b"EVP_CipherInit_ex", b"EVP_CipherUpdate", b"EVP_CipherFinal_ex", b"EVP_CIPHER_CTX_ctrl", b"ERR_clear_error",
)  # in the order of crypto_library

cdef bint loaded = False


class Unavailable(OSError):
    pass


def _places():
    """Where it may be. What is looked up in a library is found in those that it needs, too."""
    extension = getattr(ssl._ssl, "__file__", None)
    if extension:
        yield os.fsencode(extension)
    major = ssl.OPENSSL_VERSION_INFO[0]
    yield b"libcrypto.so.1.1" if major == 1 else b"libcrypto.so.%d" % major


cdef int load() except -1:
    """Have the library's functions. Raises Unavailable."""
    global loaded
    cdef void *library
    cdef void **at = <void **>&crypto
    if loaded:
        return 0
    if sizeof(crypto) != len(FUNCTIONS) * sizeof(void *):
        raise AssertionError("the table of functions is not as long as their names")
    for place in _places():
        library = dlopen(place, RTLD_NOW | RTLD_LOCAL)
        if library == NULL:
            continue
        for index, name in enumerate(FUNCTIONS):
            at[index] = dlsym(library, name)
            if at[index] == NULL:
                break
        else:
            loaded = True
            return 0
    raise Unavailable(f"TLS needs the ciphers of {ssl.OPENSSL_VERSION}, which cannot be found (Debian: libssl3)")


def load_ciphers():
    load()
