"""The commands of ``rdma-nfsd`` that are clients: ls, stat, df, cat, cp, mv, rm, mkdir. Above :mod:`nfsd.client`; the
server is not imported."""
