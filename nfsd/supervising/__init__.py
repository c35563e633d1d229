"""Several processes that serve together (``server.processes``): one supervisor, and the processes that it starts.

The supervisor serves no client. It makes the sockets, starts the processes, starts those again that end, and answers
for all of them to the administrator, to Prometheus, to rpcbind and to systemd. A process is the same server as one
alone (:mod:`nfsd.daemon`), with a portion of the whole (:mod:`nfsd.portions`).

    running         the supervisor's own life: signals, systemd
    supervisor      the life of the processes
    process         one of them: how it is started and heard
    asking          requests to their control sockets
    answers         the administrator's requests, asked of all of them, and their answers made one
    totals          the same for metrics
    relay           and for captures
"""
