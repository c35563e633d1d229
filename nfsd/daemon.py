"""The running server: its parts put together, started, and stopped in order.

Owns :class:`Daemon`. Imports everything below; :mod:`nfsd.serving` makes a process of it.

The daemon starts the state directory, the file service, stable storage and NFSv4's state, then the listeners, and then
registers with rpcbind. To stop, it accepts no more connections and calls, answers those in flight (for a limited time),
flushes the state, and closes the descriptors.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from operator import methodcaller
from typing import Any

from prometheus_client.registry import Collector

from nfsd import state_dir
from nfsd.admission import Admission
from nfsd.audit import Audit
from nfsd.config import Config, Nfs4, Server
from nfsd.config_file import bound_of
from nfsd.control import Control
from nfsd.events import Events
from nfsd.exports import ExportTable
from nfsd.faults.choosing import Faults
from nfsd.faults.fitting import Fitting
from nfsd.idnames import id_names
from nfsd.inspector import Inspector, Parts
from nfsd.kerberos import KerberosError, make_acceptor, make_initiator
from nfsd.listeners import Listeners
from nfsd.local_users import LocalUsers
from nfsd.metrics import ServerCollector
from nfsd.mount.mountlist import MountList
from nfsd.mount.program import mount3_program
from nfsd.mount.rquota import rquota_program
from nfsd.nlm.locks import LockManager
from nfsd.nlm.messages import Messages
from nfsd.nlm.nsm import Notifier, nsm_program
from nfsd.nlm.peers import Peers
from nfsd.nlm.program import nlm4_program
from nfsd.planned import program_hosts, programs
from nfsd.portions import Portion
from nfsd.pricing import Prices
from nfsd.protocol.nfsacl import NFSACL_PROGRAM, NFSACL_V3
from nfsd.protocol.nlm4 import NLM_PROGRAM, NLM_V4
from nfsd.protocol.nsm import SM_PROGRAM, SM_VERS
from nfsd.protocol.rquota import RQUOTA_PROGRAM, RQUOTA_V1, RQUOTA_V2
from nfsd.read_only import ReadOnlySwitch, as_served
from nfsd.reloader import Reloader
from nfsd.requests import commands, of_portion
from nfsd.security_metrics import SecurityCollector
from nfsd.settling import settle
from nfsd.stable.choosing import stable_storage
from nfsd.state import Recovered, StateEngine
from nfsd.state.limits import Limits as StateLimits
from nfsd.state_dir import StateDirError
from nfsd.statistics import Statistics
from nfsd.steering import Steering
from nfsd.usage_metrics import UsageCollector
from nfsd.v3.acl import nfsacl_program
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from nfsd.v4.procedures import Nfs4Procedures
from nfsd.v4.program import nfs4_procedures
from nfsd.v4.server import Nfs4Server
from nfsd.versions import V3, V4
from nfsd.vfs.permissions import is_real_root, missing
from nfsd.vfs.resources import FileLimits, raise_descriptor_limit
from nfsd.vfs.service import FileService
from nfsd.vfs.types import Time
from nfsd.web.app import App
from nfsd.web.start import shown, start_web
from rpcrdma.capture.recorder import Captures
from rpcrdma.gss.acceptor import Acceptor
from rpcrdma.memory import Pool
from rpcrdma.paces import Paces
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.portmap import portmap_program
from rpcrdma.rpc.program import Program
from rpcrdma.rpc.replay import ReplayCache
from rpcrdma.rpc.rpcbind import RPCBPROG, Rpcbind, Service, services
from rpcrdma.verbs.device import raise_memory_lock

_log = logging.getLogger(__name__)

NFS_PROGRAM, MOUNT_PROGRAM = 100003, 100005
_PROGRAMS = {
    "nfs": ((NFS_PROGRAM, (3, 4)), (NFSACL_PROGRAM, (NFSACL_V3,))),
    "mountd": ((MOUNT_PROGRAM, (3,)),),
    "nlm": ((NLM_PROGRAM, (NLM_V4,)),),
    "nsm": ((SM_PROGRAM, (SM_VERS,)),),
    "rquota": ((RQUOTA_PROGRAM, (RQUOTA_V1, RQUOTA_V2)),),
    "rpcbind": ((RPCBPROG, (2, 3, 4)),),
}
"""What each kind of listener serves, as rpcbind is told."""
RESERVE = 16
"""One part of so many of the memory is for small calls of clients that hold little."""


class StartError(Exception):
    """The server cannot start; the text says why."""


class Daemon:
    """One server."""

    def __init__(
        self,
        config: Config,
        rpcbind: Rpcbind | None = None,
        *,
        strict: bool = False,
        portion: Portion | None = None,
        faults: Faults | None = None,
    ) -> None:
        """``strict``: do not start unless every export can be served. ``portion``: be one of several processes that
        serve together, with this of the whole. ``faults``: how to misbehave."""
        self.config = config if portion is None else portion.of(config)
        server, exports = self.config.server, self.config.exports
        self._strict, self._portion, self._fitting = strict, portion, Fitting(faults)
        self._read_only = server.read_only if portion is None else portion.read_only
        self.pool = Pool(server.limits.memory, server.limits.memory // RESERVE)
        self.paces = Paces()
        prices = Prices(self.paces, bound_of(server.client_rate))
        self.exports = ExportTable(as_served(exports, self._read_only), prices=prices)
        self._admission = Admission(self.exports)
        self.events: Events
        descriptors = raise_descriptor_limit()
        self.service = FileService(
            self.exports, server.state_dir, _file_limits(server, descriptors), rings=server.io_uring,
            recent=server.recent_listings and portion is None,  # another process is another server
        )  # fmt: skip
        self.paces.weights.for_one.append(self.service.weigh)
        self.captures = Captures()
        self.listeners = Listeners(
            self.pool, server.limits, self.captures, descriptors, self.paces, portion, server.connection_descriptors
        )
        self._rpcbind = rpcbind or Rpcbind()
        self._store = stable_storage(server)
        self._mounts = MountList()
        self._parts: Parts
        self._inspector: Inspector
        self._statistics: Statistics
        self._nfs3: Nfs3Procedures
        self._nfs4: Nfs4Server
        self._reloader: Reloader
        self._gss: Acceptor | None = None
        self._notifier: Notifier | None = None
        self.dispatchers: dict[str, Dispatcher] = {}
        self.metrics_port = 0
        self.web: App | None = None
        self._serving = False
        self._undo: list[Callable[[], Any]] = []
        """What to do when stopping, last first; each returns an awaitable or nothing."""

    async def start(self) -> None:
        """Start everything that can be started. Raises StartError, with nothing left running, if no client could be
        served."""
        try:
            await self._start()
        except BaseException:
            await self._unwind()
            raise
        self._serving = True

    async def _start(self) -> None:
        server = self.config.server
        # Before the file service gives up the right to.
        raise_memory_lock()
        recovered = await self._start_files()
        grace = server.nfs4.lease_time if server.nfs4.grace_time is None else server.nfs4.grace_time
        engine = StateEngine(
            _state_limits(server.nfs4, float(grace)),
            asyncio.get_running_loop().time,
            recovered,
            on_release=methodcaller("release"),
        )
        self.events.watch(engine)
        self._store.follow(engine)
        self._undo.append(self._store.part)
        self._nfs4 = Nfs4Server(
            self.service,
            self.exports,
            engine,
            self._store,
            started=Time(int(time.time()), 0),
            identity=state_dir.identity(server.state_dir if self._portion is None else self._portion.state_dir),
            member=b"" if self._portion is None else b"-%d" % self._portion.index,
            names=await id_names(server.nfs4.domain, numeric=server.nfs4.id_names == "numeric"),
            leases=server.nfs4.delegations == "local",
            callbacks_anywhere=server.nfs4.callbacks_to == "any",
            versions=server.spoken,
            callbacks=self._fitting.callbacks,
        )
        self._fitting.attach(self._nfs4, self._admission)
        self._nfs4.start()
        self._undo.append(self._nfs4.close)
        portion_of = None if self._portion is None else self._portion.of
        self._reloader = Reloader(self.config, self.service, self._nfs4, portion_of, read_only=self._read_only)
        self._reloader.start()
        self._undo.append(self._reloader.close)
        self._gss = await self._start_kerberos()
        self._make_programs()
        if server.nlm and server.spoken & V3:
            self._make_lock_manager(recovered)
        if server.portmapper:
            self.dispatchers["rpcbind"] = Dispatcher([portmap_program(self._served)])
        await self._start_listeners()
        self._parts = Parts(self.exports, self.service, self._nfs4, self.listeners, self.dispatchers, self._mounts)
        self._inspector = Inspector(self._parts)
        self._statistics = Statistics(
            self._parts, self._inspector, self.pool, lambda: self._reloader.read_only, self._admission.stranger
        )
        self.events.tell("started", listeners=[str(started) for started in self.listeners.started])
        self._undo.append(lambda: self.events.tell("stopped"))
        self._start_metrics()
        await self._start_control()
        if server.rpcbind and not self.listeners.of("rpcbind"):
            await self._register()
        if self._notifier is not None:
            self._notifier.start(recovered.records + recovered.forfeited)

    def _make_programs(self) -> None:
        """NFS in the versions that are spoken, and what goes with NFSv3."""
        spoken, recalls, gss = self.config.server.spoken, self._nfs4.recalls, self._gss
        versions: dict[int, Any] = {}
        natives: dict[tuple[int, int], Any] = {}
        self._nfs3 = Nfs3Procedures(self.service, delegations=recalls)
        if spoken & V3:
            versions[3] = nfs3_procedures(self.service, self.exports, delegations=recalls)
            natives[NFS_PROGRAM, 3] = self._nfs3
        if spoken & V4:
            natives[NFS_PROGRAM, 4] = Nfs4Procedures(self._nfs4)
            versions[4] = nfs4_procedures()
        programs = [Program(NFS_PROGRAM, "nfs", versions)]
        if spoken & V3:
            programs.append(nfsacl_program(self.service, self.exports, delegations=recalls))
            mount = mount3_program(self.service, self.exports, self._mounts)
            self.dispatchers["mountd"] = self._fitting.dispatcher([mount], gate=self._admission, gss=gss)
        if self.config.server.rquota:
            quotas = rquota_program(self.service, self.exports)
            self.dispatchers["rquota"] = Dispatcher([quotas], gate=self._admission, gss=gss)
        replies = ReplayCache(self.config.server.limits.replay_memory)
        self.dispatchers["nfs"] = self._fitting.dispatcher(
            programs, replies, gate=self._admission, natives=natives, gss=gss
        )

    async def _start_kerberos(self) -> Acceptor | None:
        """What callers make contexts with, if they may."""
        settings = self.config.server.kerberos
        if settings is None:
            return None
        try:
            acceptor = await asyncio.to_thread(make_acceptor, settings)
            self._undo.append(acceptor.close)
            initiator = await asyncio.to_thread(make_initiator, settings)
        except KerberosError as error:
            raise StartError(f"server.kerberos: {error}") from None
        self._undo.append(initiator.close)
        self._nfs4.callbacks.prove(initiator, acceptor.find)
        return acceptor

    async def _start_files(self) -> Recovered:
        """Start what the state directory and the file service are for; what clients had before the restart."""
        server = self.config.server
        self._prepare_state_dir()
        self._start_events()
        try:
            recovered = await self._store.start(lease=float(server.nfs4.lease_time))
            self._undo.append(self._store.close)
            await self.service.start()
            self._undo.append(self.service.close)
        except OSError as error:
            raise StartError(_describe(error)) from error
        self._undo.append(self.exports.close)
        if self._strict and self.service.absent:
            lines = [f"{one.export.place}: {one.why}; {one.remedy}" for one in self.service.absent.values()]
            raise StartError("\n".join(lines))
        if not self.service.executor.can_switch:
            if is_real_root():
                # Squashing root would mean nothing: every client would be root.
                raise StartError(
                    f"{self.service.executor.hindrance}, and every client would act as root; "
                    "give the server CAP_SETUID and CAP_SETGID, or start it as an ordinary user"
                )
            self._keep_to_one_user()
        for sentence in missing(self.service.executor):
            _log.warning("%s", sentence)
        _log.info("READs of disks: %s", self.service.chains.way_of_reading)
        return recovered

    def _keep_to_one_user(self) -> None:
        """Whoever calls has the rights of the server's user: on this host, only that user may call, and root."""
        uid = os.geteuid()
        if self.config.server.local_users == "own":
            self.listeners.hosts.guard = LocalUsers(uid)
            who = "of this host's users only that one and root may connect (local_users)"
        else:
            who = "every user of this host may connect, and has that one's rights below the exports (local_users)"
        _log.warning("%s: every client acts as uid %d; %s", self.service.executor.hindrance, uid, who)

    def _prepare_state_dir(self) -> None:
        path = self.config.server.state_dir
        try:
            lock = state_dir.take(path)
            self._undo.append(lambda: os.close(lock))
            if self._portion is None:
                settle(path, 1)
        except StateDirError as error:
            raise StartError(f"state_dir: {error}") from None
        except OSError as error:
            raise StartError(f"state_dir: {_describe(error)}") from error

    def _start_events(self) -> None:
        audit = self.config.server.audit
        log = None
        if audit.file is not None:
            try:
                log = Audit(audit.file, audit.size)
            except OSError as error:
                raise StartError(f"server.audit: {_describe(error)}") from error
            self._undo.append(lambda: asyncio.to_thread(log.close))
        self.events = Events(self.exports, log)

    async def _start_listeners(self) -> None:
        server = self.config.server
        self._undo.append(self.listeners.close)
        if server.tls is not None:
            self.listeners.secure(server.tls.files(), server.tls.kernel == "auto")
        entries = list(server.listen if self._portion is None else self._portion.listeners(server.listen))
        await self.listeners.start(entries, self.dispatchers["nfs"])
        if entries and not self.listeners.started:
            raise StartError("none of the listeners could be started")
        hosts, start = program_hosts(server), self.listeners.start_service
        for one in programs(server):
            await start(one.service, one.what, hosts, one.port, self.dispatchers[one.service], udp=one.udp)

    def _start_metrics(self) -> None:
        started = start_web(self.config.server.metrics, self._collectors(), self._statistics.snapshot, self.readiness)
        if started is not None:
            self.web, self.metrics_port, close = started
            self._undo.append(close)

    def _collectors(self) -> list[Collector]:
        server = ServerCollector(
            self.dispatchers, self.pool, self.listeners.connections, self.listeners.rdma_counters,
            self.service.executor.statistics, lambda: self._nfs4.callbacks.counters,
            self._nfs4.copies.statistics, self._nfs4.recalls.statistics, lambda: self.service.write_backs.failures,
            self._state, self.listeners.hosts, self.service.shares, lambda: self._reloader.read_only,
            lambda: self.service.listings.recent.recalled,
        )  # fmt: skip
        usage = UsageCollector(self.dispatchers, self.exports, self._nfs4, self._nfs3)
        security = SecurityCollector(self.dispatchers, self.exports, lambda: self.listeners.tls)
        return [server, usage, security, *self._fitting.collectors]

    def _state(self) -> dict[str, int]:
        """What clients make the server remember, for the metrics."""
        return {**self._nfs4.engine.statistics(), "strangers_refused": self._admission.turned_away_calls}

    async def _start_control(self) -> None:
        steering = Steering(self._parts, self._inspector, self._reloader, self.events)
        switch = ReadOnlySwitch(self._reloader, self._nfs4)
        known = commands(self._inspector, steering, self._statistics, switch) | self._fitting.commands()
        if self._portion is not None:
            known |= of_portion(self._collectors(), self.readiness, self._served)
        control = Control(self.captures, known)
        try:
            await control.start(self.config.server.state_dir)
        except OSError as error:
            _log.error("no control socket in %s: %s", self.config.server.state_dir, _describe(error))
        else:
            self._undo.append(control.close)

    def _make_lock_manager(self, recovered: Recovered) -> None:
        peers = Peers()
        manager = LockManager(self._nfs4, peers)
        messages = Messages(manager, peers)
        self._notifier = Notifier(peers, self._nfs4.engine, self.config.server.name)
        self._undo += [manager.close, messages.close, self._notifier.close]
        self.dispatchers["nlm"] = self._fitting.dispatcher(
            [nlm4_program(manager, messages)], gate=self._admission, gss=self._gss
        )
        self.dispatchers["nsm"] = Dispatcher([nsm_program(self._nfs4, peers)], gate=self._admission)

    def _served(self) -> list[Service]:
        """What is served where, as rpcbind is told."""
        found = []
        for started in self.listeners.started:
            scheme, host, port = started.address
            dispatcher = self.dispatchers[started.service]
            for program, versions in _PROGRAMS[started.service]:
                found += services(program, dispatcher.versions(program, versions), scheme, host, port)
        return found

    async def _register(self) -> None:
        self._undo.append(self._rpcbind.unregister)
        await self._rpcbind.register(self._served())

    @property
    def ready_line(self) -> str:
        """What is served where, once :meth:`start` has returned."""
        metrics = shown(self.config.server.metrics, self.metrics_port)
        read_only = " (read-only)" if self._reloader.read_only else ""
        return f"rdma-nfsd ready: {self.listeners}{metrics}{read_only}{self._fitting.ready}"

    def readiness(self) -> dict[str, Any]:
        """Whether clients are served: everything was started, and nothing is being stopped."""
        listeners = [str(started) for started in self.listeners.started]
        return {
            "ready": self._serving,
            "listeners": listeners,
            "failures": list(self.listeners.failures),
            "read_only": self._reloader.read_only,
        }

    def log_counters(self) -> None:
        """Write what the RDMA listeners, copies and callbacks have done so far to the log."""
        for listener, counters in self.listeners.rdma_counters().items():
            _log.info("%s: %s", listener, _words(counters))
        if any(started.rdma is not None for started in self.listeners.started):
            _log.info("softiwarp: %s", _words(self.listeners.iwarp_counters()))

        _log.info("copies: %s", _words(self._nfs4.copies.statistics()))
        callbacks = {" ".join(key): count for key, count in sorted(self._nfs4.callbacks.counters.items())}
        _log.info("callbacks: %s", _words(callbacks))

    def log_in_flight(self) -> None:
        """Write every call that is waiting, the counters and every listener's connections to the log."""
        lines = [line for dispatcher in self.dispatchers.values() for line in dispatcher.in_flight()]
        _log.info("%d calls in flight; buffers: %d of %d octets", len(lines), self.pool.in_use, self.pool.limit)
        for line in lines:
            _log.info("in flight: %s", line)
        for line in self._nfs4.copies.in_flight():
            _log.info("in flight: %s", line)
        self.log_counters()
        for address, now, _, _ in self.listeners.connections():
            _log.info("%s: %d connections", address, now)

    async def reload(self) -> bool:
        """Read the configuration's file again and serve its exports from now on; whether that was possible."""
        return await self._reloader.reload()

    async def stop(self) -> None:
        """Answer what is in flight, for as long as the configuration allows, then close everything."""
        self._serving = False
        seconds = self.config.server.limits.drain_time
        drains = [dispatcher.drain(seconds) for dispatcher in self.dispatchers.values()]
        await asyncio.gather(self.listeners.drain(seconds), *drains)
        self.log_counters()
        await self._unwind()

    async def _unwind(self) -> None:
        while self._undo:
            try:
                awaitable = self._undo.pop()()
                if awaitable is not None:
                    await awaitable
            except Exception:
                _log.exception("stopping goes on after a failure")


def _words(counters: Mapping[str, int]) -> str:
    """The counters that are not zero."""
    return ", ".join(f"{name} {value}" for name, value in counters.items() if value) or "nothing yet"


def _file_limits(server: Server, descriptors: int) -> FileLimits:
    limits = server.limits
    opens = limits.open_files, limits.host_open_files
    each = server.connection_descriptors
    return FileLimits.of(descriptors, limits.connections, limits.all_calls, *opens, each)


def _state_limits(nfs4: Nfs4, grace: float) -> StateLimits:
    limits = StateLimits(
        lease=float(nfs4.lease_time), grace=grace, courtesy=float(nfs4.courtesy_time), **asdict(nfs4.limits)
    )
    return replace(limits, delegations=0) if nfs4.delegations == "off" else limits


def _describe(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
