"""The commands of ``rdma-nfsd``. Owns their arguments and exit statuses; imports the configuration and the daemon."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from nfsd.admin.arguments import ADMIN_COMMANDS, add_admin_commands
from nfsd.commands import client_setup
from nfsd.commands.arguments import CLIENT_COMMANDS, add_commands
from nfsd.config import Config, Limits
from nfsd.config_file import ConfigError, load
from nfsd.conformance import command as conformance
from nfsd.importing import run as import_exports
from nfsd.without_file import add_arguments, configuration, is_complete

if TYPE_CHECKING:
    from nfsd.faults.rules import Rules

_DESCRIPTION = """\
An NFS server in user space. It serves local directories by NFSv3 and NFSv4, over RPC-over-RDMA and TCP, on hosts with
or without an RDMA device. The commands ls, stat, df, cat, cp, mv, rm and mkdir are clients of this server and of any
other NFS server; they need no mount.
"""

_EPILOG = """\
a configuration that serves one directory:
  server:
    listen: ["rdma://0.0.0.0:20049", "tcp://0.0.0.0:2049"]
  exports:
    - path: /srv/data
      pseudo: /data

and how a Linux client mounts it:
  mount -t nfs -o rdma,port=20049,vers=4.2 SERVER:/data /mnt
  mount -t nfs -o rdma,port=20049,vers=3,mountport=20048,mountproto=tcp,nolock SERVER:/data /mnt
  mount -t nfs -o vers=4.2 SERVER:/data /mnt

exit status (serve, check, devices):
  0  stopped by SIGTERM or SIGINT; the configuration is good; there is a device that the server can use
  1  no listener could be started, or the state directory cannot be used; part of the configuration cannot be served on
     this host (check); no device can be used (devices)
  2  the text of the configuration or the command line is wrong

signals (serve):
  SIGTERM, SIGINT  finish the calls in flight, then end; a second one ends the server at once
  SIGHUP           read the configuration again: exports, rates, read_only and the log level change while clients are
                   served; the log names other changes, which wait for a restart; a file with mistakes changes nothing
  SIGUSR1          write the calls in flight to the log
"""

_SERVE = """\
Serve the exports of a configuration file, or the named directories, in the foreground. When every listener that can be
started accepts connections, the server prints one line to stdout:
  rdma-nfsd ready: rdma://0.0.0.0:20049 (softiwarp) tcp://0.0.0.0:2049 mountd tcp://0.0.0.0:20048 nlm tcp://0.0.0.0:37211
  nsm tcp://0.0.0.0:40233 udp://0.0.0.0:40233
NFS comes first, then whatever else is served, each behind its name (mountd, nlm, nsm, rquota, portmapper, metrics).
The log goes to stderr. It names listeners that cannot be started; they do not stop the others.
"""

_CHECK = """\
Read a configuration and print its mistakes, each with file, line, key and remedy. If there are none, check this host:
addresses and ports that cannot be used, a state directory that cannot be used, directories that do not exist or can be
served only with limits. If nothing is wrong, print a summary. Nothing is started or changed. Run it as the server's
user.
"""

_DEVICES = """\
List the RDMA devices of this host, with the ports, addresses, GIDs, capabilities and limits that matter to the server.
Then say what keeps the server from using each device, with the remedy. Run it as the server's user and with its limits.
Device limits come from pyverbs if it is installed (Debian: python3-pyverbs); the server itself does not need it.
"""


_TAKEOVER = """\
Have what the server NAME has promised to its clients for this host, so that it can start here: who holds what, the key
of its file handles, and who it is. Then start it: rdma-nfsd serve with the same configuration. It has its clients
reclaim what they had, by NFSv3 (SM_NOTIFY) as by NFSv4. The address that they know is yours to move, before.

With stable_storage in RADOS, the command takes the server's lock in the pool, and keeps it for this host for a minute.
If another host has it, nothing is changed, unless --fence says so: then no record of the other is taken any more, and
it ends as soon as it notices, within 10 seconds. CephFS takes nothing from it once the server has started here, if the
exports' option gateway is the same on both hosts. Other file systems must keep it away themselves.

With stable_storage in state_dir, the command sees that a server has been there and none is running. The disk must be
this host's alone: --fence has nothing to do.
"""
_TAKEOVER_EPILOG = """\
exit status:
  0  the server may start here, or runs here already
  1  that is not so, and stderr says why
  2  the configuration or the command line is wrong
  3  another host has the server, or had it until less than a minute ago; nothing was changed
"""

_CAPTURE = """\
Write what the running server sends and receives to a pcapng file, for Wireshark and for "rdma-nfsd decode". This
includes RPC-over-RDMA messages, RDMA Writes and RDMA Reads of every provider, in the form of iWARP, and RPC records on
TCP. The capture begins at once, also for existing connections. It ends with SIGINT or SIGTERM, or as the options say.
The state directory in the configuration leads to the server. Only root and the server's own user may capture.

The file contains the names and the data of files. Only its owner can read it.

Clients never wait for a capture. If the capture is too slow, it loses packets; the file and a message at the end say
how many.
"""

_DECODE = """\
Print a capture in words, one line for each message: transport headers of RPC-over-RDMA versions One and Two with chunk
lists and errors, private data of connection requests, and the names of calls. The capture is a pcapng or pcap file of
"rdma-nfsd capture", or of another program that captured iWARP or NFS over TCP. "-" is the standard input.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("rdma-nfsd", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=raw)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    brief = "serve directories, or the exports of a configuration file"
    serve = commands.add_parser("serve", help=brief, description=_SERVE, formatter_class=raw)
    serve.add_argument("--config", metavar="FILE", help="the configuration, a YAML file")
    text = (
        "do not start unless every export can be served; otherwise the server serves those that it can, and looks for "
        "the others"
    )
    serve.add_argument("--strict", action="store_true", help=text)
    text = "misbehave on purpose, as the rules in FILE say: for developers of clients, never for anybody's data"
    serve.add_argument("--faults", metavar="FILE", help=text)
    add_arguments(serve)
    # For the supervisor of several processes, which starts them so: a descriptor that says what each has to do.
    serve.add_argument("--portion", type=int, help=argparse.SUPPRESS)
    check = commands.add_parser("check", help="check a configuration file", description=_CHECK, formatter_class=raw)
    check.add_argument("--config", required=True, metavar="FILE", help="the configuration, a YAML file")
    check.add_argument("--file-only", action="store_true", help="look at the file alone, not at this host")
    check.add_argument("--json", action="store_true", help="print what is found as JSON")
    brief = "make a configuration from /etc/exports"
    imported = commands.add_parser("import", help=brief, description=import_exports.DESCRIPTION, formatter_class=raw)
    import_exports.add_arguments(imported)
    brief = "list the host's RDMA devices and what keeps the server from using them"
    devices = commands.add_parser("devices", help=brief, description=_DEVICES, formatter_class=raw)
    devices.add_argument("--json", action="store_true", help="print everything as JSON")
    devices.add_argument("--config", metavar="FILE", help="check for its server.limits.memory")
    add_admin_commands(commands)
    add_commands(commands)
    _add_capture(
        commands.add_parser("capture", help="write live traffic to a file", description=_CAPTURE, formatter_class=raw)
    )
    brief = "print a capture's transport headers and calls in words"
    decode = commands.add_parser("decode", help=brief, description=_DECODE, formatter_class=raw)
    decode.add_argument("file", metavar="FILE", help="the capture")
    brief = "have what a server has promised for this host, before it starts here"
    moved = commands.add_parser(
        "takeover", help=brief, description=_TAKEOVER, epilog=_TAKEOVER_EPILOG, formatter_class=raw
    )
    _add_takeover(moved)
    brief = "ask any NFS server whether it does what the specifications demand"
    asked = commands.add_parser(
        "conformance", help=brief, description=conformance.DESCRIPTION, epilog=conformance.EPILOG, formatter_class=raw
    )
    conformance.add_arguments(asked)
    brief = "make an RDMA device from a Linux client's network interface"
    setup = commands.add_parser("client-setup", help=brief, description=client_setup.DESCRIPTION, formatter_class=raw)
    client_setup.add_arguments(setup)
    # Its own parser takes the rest of the line, and --help (see main).
    commands.add_parser("bench", help="measure what calls cost the server, on this host", add_help=False)
    return parser


def _bench(words: Sequence[str]) -> int:
    """Run the load generator, which is a package of its own: what serves is built without it."""
    try:
        status: int = import_module("bench.__main__").main(words)
    except ModuleNotFoundError as error:
        print(f"rdma-nfsd bench: {error} (in a clone, make develop builds it)", file=sys.stderr)
        return 1
    return status


def _beside_a_server(parsed: argparse.Namespace) -> int:
    """Run a command that is a client's, or asks the running server."""
    module = f"nfsd.commands.{parsed.command}"
    if parsed.command in ADMIN_COMMANDS:
        module = "nfsd.admin.top" if parsed.command == "top" else "nfsd.admin.run"
    status: int = import_module(module).main(parsed)
    return status


def _add_capture(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", metavar="FILE", help='the file to write; "-": standard output')
    command.add_argument("--config", metavar="FILE", help="the configuration of the running server")
    command.add_argument("--seconds", type=float, default=0.0, metavar="N", help="end after N seconds")
    command.add_argument("--count", type=int, default=0, metavar="N", help="end after N packets")
    command.add_argument("--client", default="", metavar="ADDRESS", help="only what this client sends and receives")
    text = "keep N octets of each message, RDMA Write, RDMA Read, or record; the default is all"
    command.add_argument("--snaplen", type=int, default=0, metavar="N", help=text)
    text = "MiB of traffic that may wait in the server for this command, 1 to 256; the default is 32"
    command.add_argument("--buffer", type=int, default=32, metavar="MIB", help=text)
    text = "capture nothing; print where Wireshark's dissector of RPC-over-RDMA version Two is, a script in Lua"
    command.add_argument("--dissector", action="store_true", help=text)


def _add_takeover(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the server, as server.name has it")
    text = "its configuration on this host; the default is /etc/rdma-nfsd/NAME.yaml"
    command.add_argument("--config", metavar="FILE", help=text)
    command.add_argument("--fence", action="store_true", help="also if another host has it, which it then loses")


def run(words: Sequence[str]) -> int:
    """Run a command. Returns the exit status."""
    if words[:1] == ["bench"]:
        return _bench(words[1:])
    parser = build_parser()
    parsed = parser.parse_args(words)
    if parsed.version:
        from nfsd.metrics import program_version  # help and check need none of the daemon

        print(f"rdma-nfsd {program_version()}")
        return 0
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return 2
    if parsed.command in CLIENT_COMMANDS or parsed.command in ADMIN_COMMANDS:
        return _beside_a_server(parsed)
    if parsed.command == "client-setup":
        return client_setup.main(parsed)
    if parsed.command == "conformance":
        return conformance.main(parsed)
    if parsed.command == "takeover":
        from nfsd import takeover  # it takes stable storage

        return takeover.main(parsed)
    if parsed.command == "import":
        return import_exports.main(parsed)
    if parsed.command == "decode":
        from nfsd.decode import run as decode

        return decode(parsed.file)
    if parsed.command == "capture" and parsed.dissector:
        from rpcrdma.capture import DISSECTOR

        print(DISSECTOR)
        return 0
    if parsed.command == "capture" and not (parsed.output and parsed.config):
        parser.error("capture: --output and --config are required")
    if parsed.command == "devices" and parsed.config is None:
        return show_devices(Limits().memory, parsed.json)
    if parsed.command == "serve" and parsed.portion is not None:
        from nfsd.serving import run_portion

        return run_portion(parsed.portion)
    if parsed.command == "serve" and (wrong := is_complete(parsed)):
        parser.error(f"serve: {wrong}")
    try:
        config = configuration(parsed) if parsed.command == "serve" and not parsed.config else load(parsed.config)
        rules = _rules(parser, parsed, config)
    except ConfigError as error:
        if parsed.command == "check" and parsed.json:
            from nfsd.checking import wrong_as_json

            print(wrong_as_json(parsed.config, error))
            return 2
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 2
    if parsed.command == "devices":
        return show_devices(config.server.limits.memory, parsed.json)
    if parsed.command == "check":
        from nfsd.checking import check  # it takes the file service

        return check(config, file_only=parsed.file_only, in_json=parsed.json)
    if parsed.command == "capture":
        return _capture(parsed, config)
    from nfsd.serving import run as serve

    return serve(config, strict=parsed.strict, rules=rules, rules_file=parsed.faults or "")


def _rules(parser: argparse.ArgumentParser, parsed: argparse.Namespace, config: Config) -> Rules | None:
    """How a server is to misbehave; None: not at all. Raises ConfigError."""
    if parsed.command != "serve" or not parsed.faults:
        return None
    from nfsd.faults.rules import load as load_rules  # it takes the protocols

    if config.server.processes > 1:
        # Each would count calls for itself, and nobody could tell which call is the tenth.
        parser.error("serve: --faults takes a single process; write server.processes: 1")
    return load_rules(parsed.faults)


def _capture(parsed: argparse.Namespace, config: Config) -> int:
    from nfsd import capture
    from nfsd.control import CaptureRequest

    if min(parsed.seconds, parsed.count, parsed.snaplen) < 0:
        print("rdma-nfsd capture: --seconds, --count and --snaplen are not negative", file=sys.stderr)
        return 2
    request = CaptureRequest(parsed.snaplen, parsed.client, parsed.buffer << 20)
    bounds = capture.Bounds(parsed.seconds, parsed.count)
    return capture.run(config.server.state_dir, parsed.output, request, bounds)


def show_devices(memory: int, in_json: bool) -> int:
    """Print the devices; 0 when the server can use one, with ``memory`` octets registered."""
    from nfsd.devices import as_json, as_text  # only this command needs them
    from rpcrdma.verbs.inventory.host import read_host
    from rpcrdma.verbs.inventory.obstacles import obstacles, usable

    host = read_host()
    found = obstacles(host, memory)
    print(as_json(host, found) if in_json else as_text(host, found))
    return 0 if any(usable(device, found) for device in host.devices) else 1
