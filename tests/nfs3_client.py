"""The NFSv3 and MOUNT client of the tests is that of the load generator, which is installed with the package."""

from bench.nfs3_client import Nfs3Client, Nfs3Failure, RpcFailure, attributes, auth_sys

__all__ = ["Nfs3Client", "Nfs3Failure", "RpcFailure", "attributes", "auth_sys"]
