"""The commands of ``rdma-nfsd`` that are clients: ls, stat, cat, cp. Above :mod:`nfsd.client`; the server is not
imported."""
