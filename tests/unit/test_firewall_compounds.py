"""Faults in native COMPOUNDs cost that COMPOUND: the session, the connection and the others go on."""

import os
import struct

from nfsd.protocol import nfs4 as p
from tests.support import nfs4_native
from tests.support.nfs4 import wanted
from tests.unit import vfs_support
from tests.unit.raw_tcp_support import status_of
from tests.unit.test_firewall import FAULTS, SYSTEM_ERR, inject


class Both4(nfs4_native.Both):
    """A server whose native COMPOUNDs can be made to fail."""

    def __init__(self, server, path, minor):
        self.exports = inject(server.nfs4.service, None)
        super().__init__(server, path, minor)

    async def natively(self, *operations):
        """accept_stat, status of the COMPOUND, and how often it was answered natively."""
        before = self.answered
        reply = await self.native.call(None, self.message(3, *operations))
        _, accepted = status_of(reply)
        return accepted, None if accepted else int.from_bytes(reply[24:28], "big"), self.answered - before


class FaultyEngine:
    """A state engine of which one question gets an exception."""

    def __init__(self, engine, fault):
        self._engine, self._fault = engine, fault

    def __getattr__(self, name):
        return getattr(self._engine, name)

    @property
    def stable(self):
        raise self._fault


@FAULTS
def test_a_fault_in_a_native_compound_costs_its_operation_alone(fault, tmp_path):
    """It is said in the slot, so that the session goes on. A fault behind the operations costs the reply."""

    async def scenario(both):
        both.exports.fault = fault
        file = await nfs4_native.handle_of(both, b"f")
        there = p.OP_PUTFH, p.PUTFH4args(file)
        look = there, (p.OP_GETATTR, wanted(1, 4))
        assert await both.natively(*look) == (0, p.NFS4_OK, 1)
        both.exports.fail_at = {both.exports.asked + 1}
        assert await both.natively(*look) == (0, p.NFS4ERR_SERVERFAULT, 1)
        assert await both.natively(*look) == (0, p.NFS4_OK, 1)
        mode = p.fattr4(wanted(33).attr_request, struct.pack(">I", 0o600))
        chmod = p.OP_SETATTR, p.SETATTR4args(p.stateid4(0, bytes(12)), mode)
        engine = both.server.nfs4.engine
        target = both.path / "f"
        assert target.stat().st_mode & 0o777 != 0o600
        # The engine is asked at the end, when the change has been made.
        both.server.nfs4.engine = FaultyEngine(engine, fault)
        assert await both.natively(there, chmod) == (SYSTEM_ERR, None, 1)
        both.server.nfs4.engine = engine
        # The slot has seen that request, and has no reply to it: once more it is not carried out (RFC 8881 section
        # 2.10.6.1.3), and the next request of the slot is.
        assert target.stat().st_mode & 0o777 == 0o600
        target.chmod(0o640)
        both.sequences[4] -= 1
        assert (await both.natively(there, chmod))[:2] == (0, p.NFS4ERR_RETRY_UNCACHED_REP)
        assert target.stat().st_mode & 0o777 == 0o640
        assert (await both.natively(there, chmod))[:2] == (0, p.NFS4_OK)
        assert target.stat().st_mode & 0o777 == 0o600

    with vfs_support.directory_on("memory", tmp_path) as path:
        open(os.path.join(path, "f"), "w").close()
        nfs4_native.run(path, tmp_path, 1, scenario, Both4, squash="none")
