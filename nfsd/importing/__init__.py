"""``rdma-nfsd import``: the exports of Linux's server, as a configuration of this one.

``lines`` reads exports(5), ``options`` says what each option is here, ``mapping`` makes the configuration, ``run`` is
the command. Imports the checks of configuration files, nothing of the server.
"""
