"""The command lines of the client's commands. Imports argparse only, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
from typing import Any, Final

CLIENT_COMMANDS: Final = frozenset(("ls", "stat", "cat", "cp", "mv", "rm", "mkdir", "df"))
"""Each has a module of its name, with ``main``."""

_URLS: Final = """\
URLs:
  rdma://HOST[:PORT]/EXPORT/PATH   NFS over RPC-over-RDMA; port 20049 unless given
  tcp://HOST[:PORT]/EXPORT/PATH    NFS over TCP; port 2049 unless given
  tls://HOST[:PORT]/EXPORT/PATH    the same with TLS; the server's certificate must be for HOST
  An IPv6 address stands in brackets. Write % as %25, ? as %3F, # as %23 and a space as %20.

The commands call with your own user and group ids (AUTH_SYS). They need no RDMA device, because they speak iWARP
themselves.
"""

_STATUS: Final = """\
exit status:
  0    everything was done
  1    something failed; stderr says what; everything else was done
  2    the command line is wrong
  130  interrupted
"""

_LS: Final = """\
List directories and files of an NFS server, sorted by name, as ls(1) does.
"""

_LS_EXAMPLES: Final = """\
examples:
  rdma-nfsd ls -l rdma://server/export
  rdma-nfsd ls -lhR rdma://server/export/results --nfs-version 3
"""

_STAT: Final = """\
Show all attributes of files on an NFS server, as stat(1) does. Symbolic links are not followed.
"""

_STAT_EXAMPLES: Final = """\
examples:
  rdma-nfsd stat rdma://server/export/file
  rdma-nfsd stat --json tcp://server/export/file | jq .size
"""

_CAT: Final = """\
Write files of an NFS server to standard output, one after another. Several READs are kept in flight.
"""

_CAT_EXAMPLES: Final = """\
examples:
  rdma-nfsd cat rdma://server/export/log | grep error
  rdma-nfsd cat rdma://server/export/disk.img > disk.img
"""

_CP: Final = """\
Copy files to, from or between NFS servers: SOURCE to TARGET, or any number of SOURCEs into the directory TARGET.
Sources and target are URLs or local paths.

Each file is written under a temporary name (.rdma-nfsd-…) beside its target. It gets its name when it is complete, on
the server's disk, and closed. So the target is either as it was before, or the whole copy. A target that exists is
replaced, not overwritten: its other hard links keep the old content, and the new file belongs to you. A local target
that is not a regular file (a pipe, a device, /dev/stdout) is written to directly.

With --continue, a copy that fails leaves what it has beside the target. The same command then goes on with it, if the
source still has its size and its time of modification. This works after a crash of either side, too: at most the
last 64 MiB are copied again. Files that exist already, with the source's length and not older, are left alone.

On a terminal, a copy that takes longer than a second shows its progress, and at the end its size and speed.
"""

_CP_EXAMPLES: Final = """\
examples:
  rdma-nfsd cp big.iso rdma://server/export/
  rdma-nfsd cp -r rdma://server/export/results ./results
  rdma-nfsd cp -rp rdma://old-server/data tcp://new-server/data
  until rdma-nfsd cp --continue rdma://server/export/disk.img .; do sleep 60; done
"""

_MV: Final = """\
Move files and directories: SOURCE to TARGET, or any number of SOURCEs into the directory TARGET. On one server they are
renamed. Between servers, to or from this host, and where the server cannot rename, they are copied with their
permissions and times. The source is removed when the whole copy is on the target's disk.
"""

_MV_EXAMPLES: Final = """\
examples:
  rdma-nfsd mv rdma://server/export/old rdma://server/export/new
  rdma-nfsd mv rdma://server/export/results .
"""

_RM: Final = """\
Remove files of an NFS server, and with -r directories with everything in them. Symbolic links are removed, not
followed. Exports, and file systems mounted inside them, are neither removed nor entered.
"""

_RM_EXAMPLES: Final = """\
examples:
  rdma-nfsd rm rdma://server/export/file
  rdma-nfsd rm -r rdma://server/export/results
"""

_MKDIR: Final = """\
Make directories on an NFS server.
"""

_MKDIR_EXAMPLES: Final = """\
examples:
  rdma-nfsd mkdir -p rdma://server/export/results/monday
"""

_DF: Final = """\
Show how full the file systems of an NFS server are, as the calling user sees them, in units of 1024 octets.
"""

_DF_EXAMPLES: Final = """\
examples:
  rdma-nfsd df -h rdma://server/export
"""


def add_commands(commands: Any) -> None:
    """Add the parsers of the client's commands to the subparsers of ``rdma-nfsd``."""
    _add_looking(commands)
    _add_copying(commands)
    _add_changing(commands)


def _add_looking(commands: Any) -> None:
    ls = _command(commands, "ls", "list files of an NFS server", _LS, _LS_EXAMPLES)
    ls.add_argument("urls", nargs="+", metavar="URL", help="a directory, or a file")
    for letter, name, text in (
        ("a", "all", "do not leave out names that begin with a dot"),
        ("l", "long", "permissions, links, owner, group, size, time of modification and name"),
        ("d", "directory", "directories themselves, not what is in them"),
        ("h", "human-readable", "sizes as 1.4K, 234M, 2.1G"),
        ("i", "inode", "the file's number in front"),
        ("n", "numeric-uid-gid", "as -l, with owners and groups as numbers"),
        ("R", "recursive", "directories and everything below them"),
        ("S", "by-size", "sorted by size, largest first"),
        ("t", "by-time", "sorted by time of modification, newest first"),
        ("r", "reverse", "sorted the other way round"),
        ("1", "one", "one name per line, also on a terminal"),
    ):
        ls.add_argument(f"-{letter}", f"--{name}", action="store_true", help=text)

    stat = _command(commands, "stat", "show all attributes of files of an NFS server", _STAT, _STAT_EXAMPLES)
    stat.add_argument("urls", nargs="+", metavar="URL", help="a file of any kind")
    stat.add_argument("-L", "--dereference", action="store_true", help="of what a symbolic link leads to")
    stat.add_argument("--json", action="store_true", help="one JSON object per line; times in nanoseconds")

    cat = _command(commands, "cat", "write files of an NFS server to standard output", _CAT, _CAT_EXAMPLES)
    cat.add_argument("urls", nargs="+", metavar="URL", help="a regular file")

    df = _command(commands, "df", "show how full an NFS server's file systems are", _DF, _DF_EXAMPLES)
    df.add_argument("urls", nargs="+", metavar="URL", help="any file of the file system")
    df.add_argument("-h", "--human-readable", action="store_true", help="sizes as 1.4K, 234M, 2.1G")
    df.add_argument("-i", "--inodes", action="store_true", help="numbers of files, not octets")
    df.add_argument("--json", action="store_true", help="one JSON object per line, in octets, with what -i shows")


def _add_copying(commands: Any) -> None:
    cp = _command(commands, "cp", "copy files to, from or between NFS servers", _CP, _CP_EXAMPLES)
    cp.add_argument("sources", nargs="+", metavar="SOURCE", help="a URL or a local path")
    cp.add_argument("target", metavar="TARGET", help="a URL or a local path")
    cp.add_argument("-r", "--recursive", action="store_true", help="directories too; symbolic links as links")
    cp.add_argument("-p", "--preserve", action="store_true", help="keep exact permissions and times")
    cp.add_argument("-n", "--no-clobber", action="store_true", help="leave what exists already")
    cp.add_argument("-v", "--verbose", action="store_true", help="name each file when it has been copied")
    cp.add_argument("--continue", action="store_true", help="go on with a copy that was interrupted")
    _add_progress(cp)

    mv = _command(commands, "mv", "move files of NFS servers", _MV, _MV_EXAMPLES)
    mv.add_argument("sources", nargs="+", metavar="SOURCE", help="a URL or a local path")
    mv.add_argument("target", metavar="TARGET", help="a URL or a local path")
    mv.add_argument("-n", "--no-clobber", action="store_true", help="leave what exists already")
    mv.add_argument("-v", "--verbose", action="store_true", help="name each file when it has been moved")
    _add_progress(mv)


def _add_progress(command: argparse.ArgumentParser) -> None:
    command.add_argument("--progress", action="store_true", help="show progress even if stderr is not a terminal")
    command.add_argument("--no-progress", action="store_true", help="never show progress")


def _add_changing(commands: Any) -> None:
    rm = _command(commands, "rm", "remove files of an NFS server", _RM, _RM_EXAMPLES)
    rm.add_argument("urls", nargs="+", metavar="URL", help="a file, or with -r a directory")
    rm.add_argument("-r", "--recursive", action="store_true", help="directories too, with all that is in them")
    rm.add_argument("-f", "--force", action="store_true", help="ignore files that do not exist")
    rm.add_argument("-v", "--verbose", action="store_true", help="name everything that is removed")

    mkdir = _command(commands, "mkdir", "make directories on an NFS server", _MKDIR, _MKDIR_EXAMPLES)
    mkdir.add_argument("urls", nargs="+", metavar="URL", help="the directory to make")
    mkdir.add_argument("-p", "--parents", action="store_true", help="make its parents too; no error if it exists")
    mkdir.add_argument("-m", "--mode", type=_mode, metavar="MODE", help="its permissions, in octal, as 0750")
    mkdir.add_argument("-v", "--verbose", action="store_true", help="name each directory that has been made")


def _command(commands: Any, name: str, brief: str, text: str, examples: str) -> argparse.ArgumentParser:
    # -h is free for ls -h; every command has --help.
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=brief, description=text, epilog=f"{examples}\n{_URLS}\n{_STATUS}", add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--help", action="help", help="show this and exit")
    group = parser.add_argument_group("how to talk to the server")
    group.add_argument("--nfs-version", choices=("3", "4.1"), help="default: 4.1, or 3 if the server has no 4.1")
    group.add_argument(
        "--rdma-version", type=int, choices=(1, 2), metavar="{1,2}",
        help="version of RPC-over-RDMA; default: 2 if the server speaks it, otherwise 1",
    )  # fmt: skip
    group.add_argument(
        "--provider", choices=("softiwarp", "verbs"), default="softiwarp",
        help="softiwarp: iWARP over an ordinary TCP socket (default); verbs: an RDMA device of this host",
    )  # fmt: skip
    group.add_argument(
        "--mount-port",
        type=_port,
        metavar="PORT",
        help="NFSv3: the TCP port of MOUNT; default: ask rpcbind, then 20048",
    )
    group.add_argument(
        "--tls-roots", metavar="FILE",
        help="tls://: PEM roots that the server's certificate is checked with; default: the system's",
    )  # fmt: skip
    group.add_argument("--tls-certificate", metavar="FILE", help="tls://: a PEM certificate of your own")
    group.add_argument("--tls-key", metavar="FILE", help="tls://: its private key, if it is in another file")
    group.add_argument(
        "--sec", choices=("sys", "krb5", "krb5i", "krb5p"), default="sys",
        help="krb5: prove who you are, with the ticket that kinit has got; krb5i: and let nobody change what is sent; "
        "krb5p: and let nobody read it (default: sys, the server has to believe you)",
    )  # fmt: skip
    group.add_argument(
        "--patience", type=float, default=120.0, metavar="SECONDS",
        help="how long to wait for a server that is busy, restarting or unreachable (default: 120)",
    )  # fmt: skip
    group.add_argument("--debug", action="store_true", help="log what happens to stderr")
    return parser


def _mode(text: str) -> int:
    number = int(text, 8)
    if not 0 <= number <= 0o7777:
        raise argparse.ArgumentTypeError(f"{text} is no mode")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 < number < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return number
