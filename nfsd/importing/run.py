"""The command ``rdma-nfsd import``. Owns its arguments and its exit statuses; imports the mapping and the checks."""

from __future__ import annotations

import argparse
import errno
import glob
import os
import sys
from typing import Any, Final

import yaml

from nfsd.config_file import ConfigError, parse
from nfsd.importing.ganesha import Unreadable, exports_of
from nfsd.importing.lines import Grant, Line, read
from nfsd.importing.mapping import Import, Note, configuration
from nfsd.importing.nfs_conf import PLACE, ServerKeys, read_file, server_keys

LISTEN: Final = ("rdma://0.0.0.0:20049", "tcp://0.0.0.0:2049")
"""Linux's server listens on all addresses."""
_EXPORTS: Final = "/etc/exports"
STATE_DIR: Final = "/var/lib/rdma-nfsd"
KEYTAB: Final = "/etc/krb5.keytab"
"""Linux's and Ganesha's, unless they have been told otherwise."""

DESCRIPTION: Final = """\
Write a configuration that exports what /etc/exports does (exports(5)), and /etc/exports.d/*.exports with it, to the
same clients. What nfs.conf(5) says of the server goes with it: addresses, ports, versions, grace and lease times,
manage-gids. What cannot be as it was is said on stderr, by file and line. Clients that must use Kerberos or TLS must
here, too: name the certificates in server.tls. A client whose demands are not known here is left out, and so is the
whole export, where another entry would let that client in. Read the result, check it (rdma-nfsd check), then serve it.
Handles are others: clients mount again.

exit status:
  0  everything is in it, as well as this server can do it
  1  something is left out: a client, a directory, or a line that cannot be read
  2  there is nothing to import
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    text = "files of exports(5), each with FILE.d/*.exports beside it; the default is /etc/exports"
    command.add_argument("files", nargs="*", metavar="FILE", help=text)
    text = (
        f"the file of nfs.conf(5), with FILE.d/*.conf beside it; the default is {PLACE}, if no FILE of exports is named"
    )
    command.add_argument("--nfs-conf", metavar="FILE", help=text)
    command.add_argument("--ganesha", metavar="FILE", help="take the EXPORT blocks of a ganesha.conf instead")
    command.add_argument("-o", "--output", metavar="FILE", help="write there, not to stdout; it must not exist yet")
    text = f"where to serve; may be repeated; the default is {' and '.join(LISTEN)}"
    command.add_argument("--listen", action="append", metavar="URL", help=text)
    text = f"the state directory; the default is {STATE_DIR}"
    command.add_argument("--state-dir", default=STATE_DIR, metavar="DIR", help=text)


def main(parsed: argparse.Namespace) -> int:
    """Run the command."""
    files = [parsed.ganesha] if parsed.ganesha else parsed.files or [_EXPORTS]
    keys = ServerKeys()
    if parsed.ganesha:
        imports, notes = _ganesha(parsed.ganesha)
        more: list[Note] = []
    else:
        grants, notes = _read(files)
        imports, more = configuration(grants)
        keys = _server(parsed, notes)
    for one in imports:
        one.entry |= keys.export
        if keys.root and "path" in one.entry:
            one.entry["path"] = os.path.normpath(f"{keys.root}/{one.entry['path']}")
    notes = sorted([*notes, *more, *keys.notes], key=lambda note: (note.line.file, note.line.number))
    for note in notes:
        print(note, file=sys.stderr)
    if not imports:
        print(f"rdma-nfsd import: {', '.join(files)}: nothing to import", file=sys.stderr)
        return 2
    listen = parsed.listen or keys.server.pop("listen", list(LISTEN))
    keys.server.pop("listen", None)
    if any(_by_kerberos(one.entry) for one in imports):
        keys.server["kerberos"] = {"keytab": KEYTAB}
    text = as_text(imports, files, {"listen": listen, **keys.server}, parsed.state_dir)
    if parsed.output is None:
        print(text, end="")
    else:
        try:
            with open(parsed.output, "x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            print(f"rdma-nfsd import: {parsed.output}: {error.strerror}", file=sys.stderr)
            return 2
    wrong = _problems(text, parsed.output or "the result")
    for problem in wrong:
        print(problem, file=sys.stderr)
    return 1 if wrong or any(note.lost for note in notes) else 0


def _ganesha(file: str) -> tuple[list[Import], list[Note]]:
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            return exports_of(opened.read(), file)
    except OSError as error:
        return [], [Note(Line(file, 0), error.strerror or str(error), True)]
    except Unreadable as error:
        return [], [Note(Line(file, error.line), str(error), True)]


def _server(parsed: argparse.Namespace, notes: list[Note]) -> ServerKeys:
    """What nfs.conf says, where it is asked for or all of Linux's files are imported."""
    file = parsed.nfs_conf or ("" if parsed.files else PLACE)
    if not file:
        return ServerKeys()
    if parsed.nfs_conf and not os.path.exists(file):
        notes.append(Note(Line(file, 0), os.strerror(errno.ENOENT), True))
    found, wrong = read_file(file)
    notes += wrong
    return server_keys(found)


def _read(files: list[str]) -> tuple[list[Grant], list[Note]]:
    grants: list[Grant] = []
    notes: list[Note] = []
    for name in files:
        for file in (name, *sorted(glob.glob(glob.escape(name) + ".d/*.exports"))):
            try:
                with open(file, encoding="utf-8", errors="surrogateescape") as opened:
                    found, wrong = read(opened.read(), file)
            except OSError as error:
                notes.append(Note(Line(file, 0), error.strerror or str(error), True))
                continue
            grants += found
            notes += [Note(line, why, True) for line, why in wrong]
    return grants, notes


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """What stands there twice is written twice."""
        return True


def _by_kerberos(entry: dict[str, Any]) -> bool:
    """Whether some client of an export may, or must, use Kerberos."""
    ways = [entry, *(one for one in entry.get("clients", ()) if isinstance(one, dict))]
    return any(way.startswith("krb5") for one in ways for way in one.get("sec", ()))


def as_text(imports: list[Import], files: list[str], keys: dict[str, Any], state_dir: str) -> str:
    """The file."""
    server: dict[str, Any] = {"server": {**keys, "state_dir": os.path.abspath(state_dir)}}
    lines = [f"# Imported from {', '.join(files)} by rdma-nfsd import.", _yaml(server).rstrip(), "exports:"]
    for one in imports:
        lines.append(f"  # {one.line}")
        lines += [f"  {line}" for line in _yaml([one.entry]).rstrip().split("\n")]
    return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=1000, allow_unicode=True)


def _problems(text: str, file: str) -> list[str]:
    """What is wrong with the result: a state directory inside of an export, for one."""
    try:
        parse(text, file)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []
