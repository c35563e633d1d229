"""What native code may touch of :mod:`rpcrdma.memory`: a lease's address, and taking and dropping counts."""

from rpcrdma.arenas cimport Arenas


cdef class Pool:
    cdef readonly size_t limit
    cdef readonly size_t reserve
    cdef readonly size_t in_use
    cdef readonly size_t leaked
    cdef readonly size_t waiting        # callbacks that wait, of all accounts
    cdef readonly size_t short_of_account
    cdef readonly size_t short_of_host
    cdef readonly size_t short_of_pool
    cdef Arenas arenas
    cdef size_t ceiling                 # what ordinary leases may use: without the reserve, and what is saved up
    cdef object ring                    # hosts with waiters that their own bounds let pass
    cdef Host saver                     # whose first waiter has been passed over often: it is saved up for
    cdef bint pumping
    cdef bint again

    cdef bint has_room(self, Host host, size_t capacity, size_t ceiling) noexcept
    cdef bint too_much(self, Host host, size_t capacity) noexcept
    cdef bint serve(self, Host host)
    cdef int unlist(self, Host host) except -1
    cdef int forgive(self, Host host) except -1
    cdef int freed(self, Account account) except -1
    cdef int pump(self) except -1


cdef class Host:
    cdef readonly Pool pool
    cdef readonly size_t limit
    cdef readonly size_t in_use
    cdef object ready                   # accounts with waiters that their own bounds let pass
    cdef bint listed                    # in the pool's ring
    cdef int passed_over
    cdef int turns                      # waiters that may still be called before others' have their turn
    cdef int most_turns                 # the host's weight

    cdef Account first(self)


cdef class Account:
    cdef readonly Pool pool
    cdef readonly Host host
    cdef readonly size_t limit
    cdef readonly size_t in_use
    cdef readonly unsigned long long returned
    cdef object waiters
    cdef bint listed                    # among the host's ready ones

    cpdef Lease lease(self, Py_ssize_t size)
    cdef Lease grant(self, size_t capacity, int size_class)


cdef class Lease:
    cdef readonly size_t capacity
    cdef readonly size_t address
    cdef int count
    cdef int size_class
    cdef Account account
    cdef object cached_view

    cpdef Lease retain(self)
    cpdef int release(self) except -1
    cdef void hand_back(self) noexcept
