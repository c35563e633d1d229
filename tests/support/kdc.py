"""A Kerberos realm of the tests' own: MIT's KDC run by this user, on a port and with files of its own.

Nothing of the machine's own Kerberos is read or changed. Programs belong to the realm that are run with
:attr:`Realm.environment`, and so does the test itself if it puts that into its own.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

NAME = "EXAMPLE.ORG"
WITHOUT_KDC = "no KDC here: tests/vm/host-packages.sh kerberos"
PASSWORD = "secret"
_PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
PRESENT = all(shutil.which(name, path=_PATH) for name in ("krb5kdc", "kdb5_util", "kadmin.local", "kinit"))
_PATIENCE = 60.0

_CLIENT = """\
[libdefaults]
    default_realm = {name}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    dns_uri_lookup = false
    rdns = false
    udp_preference_limit = 1
    clockskew = {skew}
    kdc_timesync = 0
    forwardable = true
    default_ccache_name = FILE:{directory}/cache

[realms]
    {name} = {{
        kdc = {host}:{port}
    }}

[domain_realm]
    localhost = {name}
    .{domain} = {name}
    {domain} = {name}

"""

_SERVER = """\
[kdcdefaults]
    kdc_listen = "{host}:{port}"
    kdc_tcp_listen = "{host}:{port}"

[realms]
    {name} = {{
        database_name = {directory}/principals
        key_stash_file = {directory}/stash
        acl_file = {directory}/acl
        max_life = 10h
        max_renewable_life = 1d
        supported_enctypes = {enctypes}
    }}

[logging]
    kdc = FILE:{directory}/kdc.log
"""

ENCTYPES = (
    "aes256-cts-hmac-sha384-192:normal",
    "aes128-cts-hmac-sha256-128:normal",
    "aes256-cts-hmac-sha1-96:normal",
    "aes128-cts-hmac-sha1-96:normal",
)


def faked(offset: float) -> dict[str, str]:
    """What to add to a program's environment so that its clock is so many seconds ahead."""
    preload = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
    assert preload is not None, WITHOUT_KDC
    return {"LD_PRELOAD": str(preload), "FAKETIME": f"{offset:+.0f}", "DONT_FAKE_MONOTONIC": "1"}


class Realm:
    """A realm with its database; :meth:`start` runs the KDC.

    ``skew`` is by how many seconds clocks may differ (Kerberos' own default is 300). Tickets last ten hours unless
    asked for shorter; what is added with ``life`` gets no longer ones. ``enter`` is a prefix of commands that runs
    the KDC on another network, where ``host`` is; ``port`` is to be free there.
    """

    def __init__(
        self,
        directory: Path,
        name: str = NAME,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        skew: int = 300,
        clock: float = 0.0,
        enter: Sequence[str] = (),
    ) -> None:
        self.directory, self.name, self.host = directory, name, host
        self.port = port or free_port(host)
        self._clock, self._enter = clock, tuple(enter)
        self._kdc: subprocess.Popen[bytes] | None = None
        self._passwords: dict[str, str] = {}
        directory.mkdir(parents=True, exist_ok=True)
        fields = {
            "name": name, "host": host, "port": self.port, "skew": skew, "directory": directory,
            "domain": name.lower(), "enctypes": " ".join(ENCTYPES),
        }  # fmt: skip
        (directory / "krb5.conf").write_text(_CLIENT.format(**fields))
        (directory / "kdc.conf").write_text(_SERVER.format(**fields))
        (directory / "acl").write_text("")
        self.run("kdb5_util", "create", "-s", "-r", name, "-P", "master")

    @property
    def environment(self) -> dict[str, str]:
        """What leads libraries and programs to this realm; to be added to their environment."""
        return {
            "KRB5_CONFIG": str(self.directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf"),
            "KRB5RCACHENAME": f"dfl:{self.directory}/replays",
        }

    def run(self, *command: str, given: str = "", env: Mapping[str, str] | None = None) -> str:
        """Run a program in the realm; its output. Fails with all that it wrote."""
        path = shutil.which(command[0], path=_PATH)
        assert path is not None, WITHOUT_KDC
        whole = {**os.environ, **self.environment, **(env or {})}
        done = subprocess.run([path, *command[1:]], input=given, env=whole, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _admin(self, query: str) -> str:
        return self.run("kadmin.local", "-r", self.name, "-q", query)

    def principal(self, name: str) -> str:
        """A principal's whole name: with this realm unless it has one."""
        return name if "@" in name else f"{name}@{self.name}"

    def add(self, name: str, *, life: str = "") -> str:
        """Add a principal, a user with a password or (with a slash or $) a service with random keys; its whole name."""
        whole = self.principal(name)
        is_service = "/" in name or name.partition("@")[0].endswith("$")
        how = "-randkey" if is_service else f"-pw {PASSWORD}"
        bound = f'-maxlife "{life}"' if life else ""
        self._admin(f"addprinc {how} {bound} {whole}")
        assert whole in self._admin("listprincs").split()
        return whole

    def keytab(self, *names: str, path: Path | None = None) -> Path:
        """A keytab with these services' keys, which are added to the database if they are new. Keys that exist stay."""
        path = path or self.directory / "keytab"
        known = self._admin("listprincs").split()
        for name in names:
            if self.principal(name) not in known:
                self.add(name)
            self._admin(f"ktadd -norandkey -k {path} {self.principal(name)}")
        return path

    def rotate(self, name: str, path: Path) -> None:
        """Give a service new keys and put them into a new keytab in place of the old one; the old keys are gone."""
        fresh = path.with_suffix(".fresh")
        fresh.unlink(missing_ok=True)
        self._admin(f"ktadd -k {fresh} {self.principal(name)}")
        fresh.replace(path)

    def ticket(self, name: str, *, life: str = "1h", keytab: Path | None = None, clock: float = 0.0) -> dict[str, str]:
        """Get a ticket-granting ticket; an environment with the realm and the cache that has it. ``life`` as kinit has
        it: ``10s``. ``clock`` is how many seconds the client's clock is ahead."""
        cache = self.directory / f"cache-{self.principal(name).replace('/', '_')}-{time.monotonic_ns()}"
        env = {**self.environment, "KRB5CCNAME": f"FILE:{cache}"}
        more = {**env, **(faked(clock) if clock else {})}
        if keytab is None:
            self.run("kinit", "-l", life, self.principal(name), given=f"{PASSWORD}\n", env=more)
        else:
            self.run("kinit", "-l", life, "-k", "-t", str(keytab), self.principal(name), env=more)
        return env

    def preferring(self, enctype: str) -> dict[str, str]:
        """What leads to this realm with keys of this type wherever there is a choice; to be added to an environment."""
        others = [one for one in (kind.partition(":")[0] for kind in ENCTYPES) if one != enctype]
        path = self.directory / f"krb5-{enctype}.conf"
        chosen = f"[libdefaults]\n    permitted_enctypes = {' '.join((enctype, *others))}"
        path.write_text((self.directory / "krb5.conf").read_text().replace("[libdefaults]", chosen, 1))
        return {**self.environment, "KRB5_CONFIG": str(path)}

    def start(self) -> None:
        """Run the KDC; returns when it answers."""
        path = shutil.which("krb5kdc", path=_PATH)
        assert path is not None, WITHOUT_KDC
        env = {**os.environ, **self.environment, **(faked(self._clock) if self._clock else {})}
        with (self.directory / "krb5kdc.out").open("ab") as out:
            self._kdc = subprocess.Popen([*self._enter, path, "-n", "-r", self.name], env=env, stdout=out, stderr=out)
        deadline = time.monotonic() + _PATIENCE
        while not self._listens():
            said = (self.directory / "krb5kdc.out").read_text(errors="replace")
            assert self._kdc.poll() is None, f"krb5kdc: {said}"
            assert time.monotonic() < deadline, f"krb5kdc does not listen: {said}"
            time.sleep(0.02)

    def _listens(self) -> bool:
        if self._enter:
            probe = [*self._enter, "bash", "-c", f": </dev/tcp/{self.host}/{self.port}"]
            return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0
        try:
            socket.create_connection((self.host, self.port), timeout=_PATIENCE).close()
        except ConnectionRefusedError:
            return False
        return True

    def stop(self) -> None:
        """End the KDC, if it runs."""
        if self._kdc is not None:
            self._kdc.kill()
            self._kdc.wait()
            self._kdc = None


@contextmanager
def realm(
    directory: Path,
    name: str = NAME,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    skew: int = 300,
    clock: float = 0.0,
    enter: Sequence[str] = (),
) -> Iterator[Realm]:
    """A realm whose KDC runs until the block ends; the arguments are :class:`Realm`'s."""
    made = Realm(directory, name, host=host, port=port, skew=skew, clock=clock, enter=enter)
    made.start()
    try:
        yield made
    finally:
        made.stop()
