"""The formats of the common operations for native code: ``nfs3.pxd`` and ``nfs4.pxd`` beside this file.

They are generated from :mod:`nfsd.protocol` when the extensions are built (:mod:`rpcrdma.xdr.generate` says what stands
in them), and are not under version control. Owns the list of types that native code loads and stores; imports nothing.
"""

from typing import Final

FORMATS: Final = {
    "nfs3": (
        "nfsd.protocol.nfs3",
        [
            "fattr3", "wcc_attr", "wcc_data", "sattr3", "nfs_fh3", "diropargs3",
            "GETATTR3args", "GETATTR3resok", "SETATTR3args", "SETATTR3resok", "LOOKUP3args", "LOOKUP3resok",
            "LOOKUP3resfail", "ACCESS3args", "ACCESS3resok", "READ3args", "READ3resok", "WRITE3args", "WRITE3resok",
            "CREATE3args", "CREATE3resok", "REMOVE3args", "REMOVE3resok", "COMMIT3args", "COMMIT3resok",
        ],
        "NFSv3 (RFC 1813).",
    ),
    "nfs4": (
        "nfsd.protocol.nfs4",
        [
            "stateid4", "nfstime4", "settime4", "change_info4", "fsid4", "specdata4",
            "SEQUENCE4args", "SEQUENCE4resok", "PUTFH4args", "GETFH4resok", "LOOKUP4args", "GETATTR4args",
            "ACCESS4args", "ACCESS4resok", "READ4args", "READ4resok", "WRITE4args", "WRITE4resok", "COMMIT4args",
            "COMMIT4resok", "REMOVE4args", "REMOVE4resok", "CLOSE4args", "LOCK4args", "LOCK4resok", "LOCKU4args",
            "open_owner4", "state_owner4",
        ],
        "NFSv4.0, 4.1 and 4.2 (RFC 7530, 8881, 7862).",
    ),
}  # fmt: skip
"""Name of the file: the module of declarations, the types, and what it is."""
