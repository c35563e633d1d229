"""C declarations of OpenSSL's ciphers (EVP_EncryptInit(3)), found at run time."""

from libc.stdint cimport uint8_t


cdef enum:
    AEAD_GET_TAG = 0x10             # EVP_CTRL_AEAD_GET_TAG
    AEAD_SET_TAG = 0x11


ctypedef void *(*cipher_ctx_new_t)() noexcept nogil
ctypedef void (*cipher_ctx_free_t)(void *) noexcept nogil
ctypedef const void *(*cipher_t)() noexcept nogil
ctypedef int (*cipher_init_t)(void *, const void *, void *, const uint8_t *, const uint8_t *, int) noexcept nogil
ctypedef int (*cipher_update_t)(void *, uint8_t *, int *, const uint8_t *, int) noexcept nogil
ctypedef int (*cipher_final_t)(void *, uint8_t *, int *) noexcept nogil
ctypedef int (*cipher_ctrl_t)(void *, int, int, void *) noexcept nogil
ctypedef void (*clear_error_t)() noexcept nogil


cdef struct crypto_library:
    cipher_ctx_new_t cipher_ctx_new
    cipher_ctx_free_t cipher_ctx_free
    cipher_t aes_128_gcm
    cipher_t aes_256_gcm
    cipher_t chacha20_poly1305
    cipher_init_t cipher_init
    cipher_update_t cipher_update
    cipher_final_t cipher_final
    cipher_ctrl_t cipher_ctrl
    clear_error_t clear_error


cdef crypto_library crypto

cdef int load() except -1
