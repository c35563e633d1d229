"""A Linux guest under qemu that stays up and runs commands.

Operation: ``Guest`` boots the lab's kernel (``tests.vm.build``) on a root that is the host's file system, read-only,
below a tmpfs. An agent listens on each of a few virtio-serial ports, whose host ends are unix sockets; ``run`` sends
a script to one and streams its output to this process's standard output and to a log file until the agent reports the
status. Several ports allow several commands at once (``start``): a load keeps running while the test restarts the
server.

Time: each command has a timeout and each guest a limit after which qemu is killed; either shows the guest's console,
kernel log and blocked tasks, so that a hang explains itself. All are given in seconds of a machine that does nothing
else, and multiplied by ``PATIENCE``: they are there to end what hangs, not to judge what is slow.

KVM is used where it truly works: a machine is made to see that. Where the processor has no virtualisation, KVM may be
there all the same, and emulate; a kernel does not get far on that. Else TCG.
"""

from __future__ import annotations

import base64
import functools
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.vm.build import REPO, Lab, build, lab_dir
from tests.vm.network import Network, Slirp

AGENTS = 4
PATIENCE = 3
DEVICE, PROCESSORS = Path("/dev/kvm"), Path("/proc/cpuinfo")
FIRST_BOOT, SECOND_BOOT = 60, 120
"""Seconds for a guest to come up, and when it did not, to come up after all."""

_COMMAND_LINE = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 selinux=0 apparmor=0 net.ifnames=0 "
    "random.trust_cpu=on tsc=reliable no_timer_check nowatchdog rcupdate.rcu_expedited=1 raid=noautodetect "
    "8250.nr_uarts=1 cryptomgr.notests i8042.noaux i8042.nokbd"
)

_HANG_REPORT = """
echo '--- blocked tasks'; echo w >/proc/sysrq-trigger
echo '--- dmesg'; dmesg | tail -n 120
echo '--- mounts'; grep -E ' (nfs|ext4)' /proc/mounts
echo '--- processes'; ps axo pid,stat,wchan:24,args | grep -v '\\]$' | tail -n 40
"""


class GuestError(AssertionError):
    """A guest did not boot, died, ran out of time, or a command in it failed."""


@dataclass(frozen=True)
class Result:
    """How a command ended: its exit status and everything it wrote (standard output and error, in order)."""

    rc: int
    output: str


@functools.cache
def accelerator() -> str:
    """The best accelerator that works: a machine is really created with KVM before it is believed."""
    if DEVICE.exists() and re.search(r"^flags\s*:.*\b(vmx|svm)\b", PROCESSORS.read_text(), re.MULTILINE):
        probe = ["qemu-system-x86_64", "-accel", "kvm", "-M", "q35", "-cpu", "host", "-nodefaults", "-display", "none"]
        try:
            done = subprocess.run(
                [*probe, "-monitor", "stdio", "-S"], input=b"quit\n", capture_output=True, timeout=10, check=False
            )
            if done.returncode == 0:
                return "kvm"
        except (subprocess.TimeoutExpired, FileNotFoundError):
            pass
    return "tcg,thread=multi,tb-size=512"


@functools.cache
def _lab(kernel: str = "") -> Lab:
    return build(kernel)


class Job:
    """A command running in a guest."""

    def __init__(self, guest: Guest, port: _Port, token: str, timeout: float, label: str) -> None:
        self.label = label
        self._guest = guest
        self._port = port
        self._token = token
        self._timeout = timeout * PATIENCE
        self._deadline = time.monotonic() + self._timeout
        self._result: Result | None = None

    def output(self) -> str:
        """What the command has written so far."""
        return self._result.output if self._result else self._port.text()

    def done(self) -> bool:
        """Has the command ended (or the guest died)?"""
        return self._result is not None or self._port.finished(self._token) is not None or not self._guest.alive()

    def wait_for(self, text: str, timeout: float = 60) -> None:
        """Wait until the output contains ``text``. Raises GuestError when the command ends or time runs out first."""
        self.wait_until(lambda output: text in output, repr(text), timeout)

    def wait_until(self, condition: Callable[[str], bool], what: str, timeout: float = 60) -> None:
        """Wait until a condition on the output holds. Raises GuestError like ``wait_for``."""
        deadline = time.monotonic() + timeout * PATIENCE
        with self._port.changed:
            while not condition(self.output()):
                if self.done() or time.monotonic() > deadline:
                    raise GuestError(f"{self.label}: {what} did not come; output:\n{self.output()[-3000:]}")
                self._port.changed.wait(0.2)

    def wait(self, *, check: bool = True) -> Result:
        """Wait for the end.

        Raises GuestError on a timeout, when the guest dies, and with ``check`` for a status other than 0.
        """
        if self._result is None:
            with self._port.changed:
                while (ended := self._port.finished(self._token)) is None:
                    if not self._guest.alive():
                        raise GuestError(
                            f"{self.label}: the guest ended ({self._guest.why_dead()})\n{self._guest.console_tail()}"
                        )
                    if time.monotonic() > self._deadline:
                        break
                    self._port.changed.wait(0.2)
            if ended is None:
                output = self._port.text()[-3000:]
                report = self._guest.hang_report()
                raise GuestError(
                    f"{self._guest.name}: no end after {self._timeout:.0f} s: {self.label}\n{output}\n{report}"
                )
            self._result = ended
            self._port.release()
        if check and self._result.rc:
            raise GuestError(
                f"{self._guest.name}: status {self._result.rc}: {self.label}\n{self._result.output[-4000:]}\n"
                f"{self._guest.kernel_log_tail()}"
            )
        return self._result


class _Port:
    """The host's end of one agent: sends a script, collects its output, recognises its end."""

    def __init__(self, directory: Path, number: int, echo: Callable[[str], None]) -> None:
        self.path = directory / f"agent{number}"
        self.changed = threading.Condition()
        self.ready = False
        self.busy = False
        self._echo = echo
        self._data = bytearray()
        self._echoed = 0
        self._peer: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(1)
        threading.Thread(target=self._receive, daemon=True, name=f"agent{number}").start()

    def _receive(self) -> None:
        try:
            self._peer, _ = self._listener.accept()
            while data := self._peer.recv(65536):
                with self.changed:
                    self._data += data
                    if not self.ready and b"ready\n" in self._data:
                        self.ready = True
                        del self._data[: self._data.index(b"ready\n") + 6]
                    self._echo_lines()
                    self.changed.notify_all()
        except OSError:
            pass
        with self.changed:
            self.changed.notify_all()

    def _echo_lines(self) -> None:
        end = self._data.rfind(b"\n") + 1
        if self.busy and end > self._echoed:
            self._echo(self._data[self._echoed : end].decode(errors="replace"))
            self._echoed = end

    def send(self, token: str, script: str) -> None:
        with self.changed:
            self._data.clear()
            self._echoed = 0
            self.busy = True
        assert self._peer is not None
        self._peer.sendall(f"{token} {base64.b64encode(script.encode()).decode()}\n".encode())

    def text(self) -> str:
        with self.changed:
            return self._data.decode(errors="replace")

    def finished(self, token: str) -> Result | None:
        with self.changed:
            marker = b"\n" + token.encode() + b" "
            at = self._data.find(marker)
            if at < 0 or b"\n" not in self._data[at + len(marker) :]:
                return None
            status = int(self._data[at + len(marker) :].split(b"\n")[0])
            return Result(status, self._data[:at].decode(errors="replace"))

    def release(self) -> None:
        with self.changed:
            self._data.clear()
            self.busy = False

    def close(self) -> None:
        self._listener.close()
        if self._peer is not None:
            self._peer.close()


class Guest:
    """A running guest; use as a context manager, which powers it off.

    ``name`` becomes its host name: NFSv4 clients are told apart by it. ``shares`` are host directories mounted
    read-write at the same path. ``disk`` is attached as /dev/vda: a raw image file, or a ``nbd+unix:`` URI
    (tests.vm.volatile_disk). ``time_limit`` (seconds) bounds the guest's whole life.
    With ``systemd`` process 1 is systemd, on its way to the target of that name when the guest is up.
    Of ``interfaces``, eth0 has its address when the guest is up; the others are the caller's to configure.
    ``kernel``: the name of one of :mod:`tests.vm.kernels`, where it is not the chosen one.
    """

    def __init__(
        self,
        name: str = "guest",
        network: Network | None = None,
        memory: int = 2048,
        cpus: int = 2,
        shares: Sequence[Path | str] = (),
        disk: Path | str | None = None,
        time_limit: float = 600,
        quiet: bool = False,
        interfaces: int = 1,
        systemd: str = "",
        kernel: str = "",
    ) -> None:
        self.name = name
        self._lab = _lab(kernel)
        self.network = network if network is not None else Slirp()
        self._quiet = quiet
        self._directory = Path(tempfile.mkdtemp(prefix="rnfsd-", dir="/tmp"))  # short: unix socket paths are
        self._log = self._open_log()
        self._limit = time_limit * PATIENCE
        self._killed = ""
        self._gone = threading.Event()
        nic = self._nic = self.network.attach()
        self.address = nic.address.split("/")[0]
        further = [word for number in range(1, interfaces) for word in self.network.attach(number).qemu]
        command = self._command((*nic.qemu, *further), memory, cpus, [Path(share).resolve() for share in shares], disk)
        append = [_COMMAND_LINE, f"vm_name={name}", f"vm_ip={nic.address}", f"vm_repo={REPO}"]
        if systemd:
            append += ["vm_systemd=1", f"systemd.unit={systemd}", "systemd.show_status=0"]
        if nic.gateway:
            append.append(f"vm_gw={nic.gateway}")
        if nic.mtu:
            append.append(f"vm_mtu={nic.mtu}")
        if shares:
            append.append("vm_shares=" + ",".join(str(Path(share).resolve()) for share in shares))
        self._command_line = [*command, "-append", " ".join(append)]
        try:
            try:
                self._boot(FIRST_BOOT)
            except GuestError as error:
                # An emulated machine stops on its way up now and then; what a test is about comes later.
                warnings.warn(f"started once more: {error}", stacklevel=2)
                self._note(f"started once more: {error}")
                self._power_off()
                self._boot(SECOND_BOOT)
        except BaseException:
            if hasattr(self, "_qemu"):
                self.close()
            raise

    def _boot(self, seconds: float) -> None:
        """Start qemu and wait until every agent answers. Raises GuestError when they do not in time, or it ends."""
        started = time.monotonic()
        self._ports = [_Port(self._directory, number, self._echo) for number in range(AGENTS)]
        # The guest must not outlive the tests, whichever way they end: the kernel kills it with the thread that
        # started it.
        prefix = [*self.network.enter, "setpriv", "--pdeathsig", "KILL"]
        with (self._directory / "qemu.err").open("wb") as errors:
            self._qemu = subprocess.Popen(
                [*prefix, *self._command_line], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        self._timer = threading.Timer(self._limit, self._out_of_time)
        self._timer.daemon = True
        self._timer.start()
        self._wait_ready(started, seconds)

    def _command(
        self, nic: tuple[str, ...], memory: int, cpus: int, shares: list[Path], disk: Path | str | None
    ) -> list[str]:
        lab = self._lab
        accel = accelerator()
        command = ["qemu-system-x86_64", "-M", "q35,usb=off,smm=off", "-accel", accel]
        command += ["-cpu", "host" if accel == "kvm" else "max", "-smp", str(cpus), "-m", str(memory)]
        command += ["-name", f"{self.name},debug-threads=on"]
        command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-monitor", "none"]
        command += ["-kernel", lab.vmlinux, "-initrd", lab.initrd, "-serial", f"file:{self._directory}/console"]
        command += [*nic, "-device", f"virtio-serial-pci,max_ports={AGENTS + 1}"]
        for number in range(AGENTS):
            command += ["-chardev", f"socket,id=agent{number},path={self._directory}/agent{number}"]
            command += ["-device", f"virtserialport,chardev=agent{number},name=agent{number}"]
        tags = [("host", "/", True), ("pkgs", lab.pkgs, True)]
        tags += [(f"rw{number}", str(share), False) for number, share in enumerate(shares)]
        for tag, path, readonly in tags:
            options = f"local,id={tag},path={path},security_model=none,multidevs=remap"
            command += ["-fsdev", options + (",readonly=on" if readonly else "")]
            command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        if disk is not None:
            source = f"file={disk},format=raw,if=none,id=disk0,cache=writeback,discard=ignore"
            command += ["-drive", source, "-device", "virtio-blk-pci,drive=disk0"]
        return command

    def _open_log(self) -> Path:
        logs = lab_dir() / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        return logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{self.name}-{secrets.token_hex(2)}.log"

    def _echo(self, text: str) -> None:
        with self._log.open("a") as log:
            log.write(text)
        if not self._quiet:
            for line in text.splitlines():
                if line and not line.startswith("#T"):  # the end of a command, see run()
                    sys.stdout.write(f"{self.name}| {line}\n")
            sys.stdout.flush()

    def _note(self, text: str) -> None:
        self._echo(f"[{time.strftime('%H:%M:%S')}] {text}\n")

    def _wait_ready(self, started: float, seconds: float) -> None:
        limit = min(seconds * PATIENCE, self._limit)
        while not all(port.ready for port in self._ports):
            ended = self._qemu.poll() is not None
            if ended or time.monotonic() > started + limit:
                why = f"qemu ended, status {self._qemu.poll()}" if ended else f"no sign of its agents in {limit:.0f} s"
                errors = (self._directory / "qemu.err").read_text(errors="replace")
                raise GuestError(f"{self.name}: did not boot: {why}\n{errors[-2000:]}\n{self.console_tail()}")
            time.sleep(0.02)
        self.boot_seconds = time.monotonic() - started
        how = f"{accelerator().split(',')[0]}, Linux {self._lab.kernel_version}"
        self._note(f"{self.name} up at {self.address} after {self.boot_seconds:.1f} s ({how})")

    @property
    def linux(self) -> tuple[int, int]:
        """The first two numbers of its kernel."""
        major, minor = self._lab.kernel_version.split(".")[:2]
        return int(major), int(minor)

    def _out_of_time(self) -> None:
        self._killed = f"its limit of {self._limit:.0f} s is over"
        self._qemu.kill()

    def processor_seconds(self) -> float:
        """What running the guest's processors has cost the host so far. (The guest itself takes for busy time what the
        host spends elsewhere.)"""
        used = 0
        for thread in Path(f"/proc/{self._qemu.pid}/task").iterdir():
            if (thread / "comm").read_text().startswith("CPU "):
                used += int((thread / "schedstat").read_text().split()[0])
        return used / 1e9

    def alive(self) -> bool:
        """Is qemu running?"""
        return self._qemu.poll() is None

    def why_dead(self) -> str:
        """Why qemu ended."""
        return self._killed or f"qemu status {self._qemu.poll()}"

    def console_tail(self, lines: int = 60) -> str:
        """The end of the guest's serial console."""
        path = self._directory / "console"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "--- console\n" + "\n".join(text.splitlines()[-lines:])

    def kernel_log_tail(self) -> str:
        """The end of the guest's kernel log, where the guest can still tell."""
        try:
            return "--- dmesg\n" + self.run("dmesg | tail -n 40", timeout=20, check=False).output
        except GuestError:
            return self.console_tail()

    def hang_report(self) -> str:
        """Blocked tasks, kernel log, mounts and processes, where the guest can still tell; always the console."""
        try:
            told = self.run(_HANG_REPORT, timeout=30, check=False, report=False).output
        except GuestError as error:
            told = str(error)
        return told + self.console_tail()

    def start(self, script: str, timeout: float = 120, label: str = "") -> Job:
        """Start a bash script in the guest and return at once. Raises GuestError when all agents are busy."""
        if not self.alive():
            raise GuestError(f"{self.name}: not running ({self.why_dead()})\n{self.console_tail()}")
        for port in self._ports:
            if port.ready and not port.busy:
                token = "#T" + secrets.token_hex(6)
                label = label or script.strip().splitlines()[0][:100]
                self._note(f"$ {label}")
                job = Job(self, port, token, timeout, label)
                port.send(token, script)
                return job
        raise GuestError(f"{self.name}: all {AGENTS} agents are busy")

    def run(
        self, script: str, timeout: float = 120, *, check: bool = True, label: str = "", report: bool = True
    ) -> Result:
        """Run a bash script in the guest.

        Raises GuestError on a timeout, and with ``check`` for a status other than 0.
        """
        job = self.start(script, timeout, label)
        if not report:  # a report about a hang must not itself wait for a report
            deadline = time.monotonic() + timeout * PATIENCE
            while not job.done() and time.monotonic() < deadline:
                time.sleep(0.05)
            if not job.done():
                raise GuestError(f"{self.name}: no answer")
        return job.wait(check=check)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The guest stands still, and knows nothing of it afterwards."""
        self._note("frozen")
        self._qemu.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._qemu.send_signal(signal.SIGCONT)
            self._note("goes on")

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """The guest runs, but its network is gone."""
        self._note("cut off")
        self.network.set_link(self._nic, up=False)
        try:
            yield
        finally:
            self.network.set_link(self._nic, up=True)
            self._note("connected again")

    def kill(self) -> None:
        """SIGKILL qemu: to the guest, a power cut."""
        self._killed = self._killed or "killed by the test"
        self._qemu.kill()
        self._qemu.wait()

    def _power_off(self) -> None:
        self._timer.cancel()
        self._qemu.kill()
        self._qemu.wait()
        for port in self._ports:
            port.close()
            port.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Power off: nothing in a guest is worth an orderly shutdown. Removes its temporary directory. Idempotent."""
        if self._gone.is_set():
            return
        self._gone.set()
        self._power_off()
        console = self._directory / "console"
        if console.exists():
            shutil.copyfile(console, self._log.with_suffix(".console"))
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
