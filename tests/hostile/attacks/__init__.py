"""The attacks, by layer; importing them fills :data:`ATTACKS`."""

from tests.hostile.attack import ATTACKS
from tests.hostile.attacks import gss, iwarp, nfs3, nfs4, other, rdma, rpc, state, tcp, tls

__all__ = ["ATTACKS", "gss", "iwarp", "nfs3", "nfs4", "other", "rdma", "rpc", "state", "tcp", "tls"]
