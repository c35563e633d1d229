from nfsd.protocol import nfs4 as p
from nfsd.state.clients import Client
from nfsd.state.delegating import Delegating
from nfsd.state.records import OpenState
from nfsd.vfs.records import Credential, Node, OpenFile
from nfsd.vfs.tables import Tables
from rpcrdma.rpc.program import RpcCredential

def open_already(tables: Tables, exactly: bool, credential: Credential, node: Node, access: int) -> OpenFile | None:
    """A file that is open already for this access, with a count for the caller; None: it has to be opened. ``exactly``:
    leases are taken. Under a write lease nothing but the descriptor that can do both may serve a client, which will want to read as well."""

def take_over(state: OpenState, opened: OpenFile, node: Node, access: int, caller: RpcCredential, host: str) -> None:
    """An open that has been granted keeps this file open, whose count it takes over."""

def rflags(state: OpenState, callable_: bool) -> int:
    """OPEN4_RESULT_* of an OPEN of a client that can be called or not."""

def names_unchanged(directory: Node, change: int) -> bool:
    """Whether no name in the directory has been changed, as far as is known, since its change attribute was this."""

def undelegated(
    table: Delegating, client: Client, node: Node, write: bool, want: int, callable_: bool, reclaim: bool = False
) -> p.why_no_delegation4 | None:
    """Why a client that has this wish, and can be called or not, is not given a delegation of a file, ``write``: for
    writing; None: one may be given now. ``reclaim``: it had one before the restart."""
