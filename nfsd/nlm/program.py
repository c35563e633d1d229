"""NLM version 4 as the dispatcher sees it (RFC 1813 section 6.3; XNFS).

Owns the procedure table. This server asks nobody for locks and calls nobody with GRANTED_MSG, so nobody has anything
for the procedures that answer those (TEST_RES and its like).
"""

from __future__ import annotations

from nfsd.nlm.locks import LockManager
from nfsd.nlm.messages import Messages
from nfsd.protocol import nlm4 as n
from rpcrdma.rpc.program import Procedure, Program


def nlm4_program(manager: LockManager, messages: Messages) -> Program:
    """The program for the dispatcher. All its procedures are idempotent."""
    return Program(
        n.NLM_PROGRAM,
        "nlm",
        {
            n.NLM_V4: {
                n.NLMPROC4_NULL: Procedure("NULL", manager.null),
                n.NLMPROC4_TEST: Procedure("TEST", manager.test, n.nlm4_testargs, n.nlm4_testres),
                n.NLMPROC4_LOCK: Procedure("LOCK", manager.lock, n.nlm4_lockargs, n.nlm4_res),
                n.NLMPROC4_CANCEL: Procedure("CANCEL", manager.cancel, n.nlm4_cancargs, n.nlm4_res),
                n.NLMPROC4_UNLOCK: Procedure("UNLOCK", manager.unlock, n.nlm4_unlockargs, n.nlm4_res),
                n.NLMPROC4_GRANTED: Procedure("GRANTED", manager.granted, n.nlm4_testargs, n.nlm4_res),
                **messages.procedures,
                n.NLMPROC4_SHARE: Procedure("SHARE", manager.share, n.nlm4_shareargs, n.nlm4_shareres),
                n.NLMPROC4_UNSHARE: Procedure("UNSHARE", manager.unshare, n.nlm4_shareargs, n.nlm4_shareres),
                n.NLMPROC4_NM_LOCK: Procedure("NM_LOCK", manager.nm_lock, n.nlm4_lockargs, n.nlm4_res),
                n.NLMPROC4_FREE_ALL: Procedure("FREE_ALL", manager.free_all, n.nlm4_notify),
            }
        },
    )
