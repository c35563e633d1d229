"""C declarations of threads that do what is long."""

from cpython.ref cimport PyObject

from rpcrdma.threads cimport pthread_cond_t, pthread_mutex_t, pthread_t, sem_t

cdef enum:
    MOST_THREADS = 4
    # What becomes of a task
    AT_REST = 0
    QUEUED = 1
    RUNNING = 2


cdef struct task_t:
    void (*run)(task_t *task) noexcept nogil
    int state
    bint cancelled              # it is to end as soon as it can
    task_t *next
    PyObject *owner


cdef class Finished:
    """Whose task it was."""

    cdef int task_done(self) except -1


cdef struct pool_t:
    pthread_mutex_t lock
    sem_t calls                 # of threads that have nothing to do
    pthread_cond_t rest         # of a task that nobody wants any more
    int idle                    # threads that wait and have not been called
    bint stopping
    task_t *first               # those that wait for a thread
    task_t *last
    task_t *finished            # the newest first
    int event_fd


cdef class Crew:
    cdef pool_t pool
    cdef pthread_t threads[MOST_THREADS]
    cdef int count
    cdef int most
    cdef object loop            # that looks for what is done; None: nobody does so by itself

    cpdef attach(self, loop)
    cdef bint post(self, task_t *task, Finished owner) except -1
    cdef int withdraw(self, task_t *task) except -1
    cdef int start_thread(self) except -1
    cdef int stop(self) except -1
