"""``rdma-nfsd stat``. Imports the client and what the commands share."""

from __future__ import annotations

import argparse
import json
import stat as modes
from typing import Any

from nfsd.client import FileSystem, NfsClientError, Stat
from nfsd.commands import format as words
from nfsd.commands.common import Context, run, urls


def main(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    return run(parsed, _stat)


async def _stat(context: Context, parsed: argparse.Namespace) -> None:
    for url, text in zip(urls(parsed.urls), parsed.urls, strict=True):
        try:
            fs, path = await context.locate(url)
            stat = await fs.stat(path, follow_symlinks=parsed.dereference)
            target = await fs.readlink(path) if modes.S_ISLNK(stat.st_mode) else None
        except NfsClientError:
            raise
        except OSError as error:
            context.complain(text, error)
            continue
        if parsed.json:
            context.write(json.dumps(as_json(text, fs, stat, target)) + "\n")
        else:
            context.write(as_text(context, text, fs, stat, target))


def as_json(url: str, fs: FileSystem, stat: Stat, target: str | None) -> dict[str, Any]:
    """Everything, for programs."""
    found: dict[str, Any] = {
        "url": url, "type": words.KINDS.get(modes.S_IFMT(stat.st_mode), "unknown"), "mode": modes.S_IMODE(stat.st_mode),
        "size": stat.st_size, "blocks": stat.st_blocks, "inode": stat.st_ino, "links": stat.st_nlink,
        "uid": stat.st_uid, "gid": stat.st_gid, "owner": stat.owner, "group": stat.group,
        "fsid": None if stat.fsid is None else list(stat.fsid),
        "rdev": list(stat.st_rdev), "atime_ns": stat.st_atime_ns, "mtime_ns": stat.st_mtime_ns,
        "ctime_ns": stat.st_ctime_ns, "nfs": fs.version,
    }  # fmt: skip
    if target is not None:
        found["target"] = target.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return found


def as_text(context: Context, url: str, fs: FileSystem, stat: Stat, target: str | None) -> str:
    """As stat(1) has it."""
    kind = words.KINDS.get(modes.S_IFMT(stat.st_mode), "unknown")
    if modes.S_ISREG(stat.st_mode) and not stat.st_size:
        kind = "regular empty file"
    name = context.shown(url if target is None else f"{url} -> {target}")
    device = "?"
    if stat.fsid is not None:
        device = f"{stat.fsid[0]:x}" + (f":{stat.fsid[1]:x}" if stat.fsid[1] else "")
    special = modes.S_ISCHR(stat.st_mode) or modes.S_ISBLK(stat.st_mode)
    access = f"Access: ({modes.S_IMODE(stat.st_mode):04o}/{modes.filemode(stat.st_mode)})"
    owner, group = context.shown(words.user(stat.owner)), context.shown(words.group(stat.group))
    lines = [
        f"  File: {name}",
        f"  Size: {stat.st_size:<15} Blocks: {stat.st_blocks:<10} IO Block: {fs.backend.read_size:<8} {kind}",
        f"Device: {device:<15} Inode: {words.told(stat.st_ino):<11} Links: {words.told(stat.st_nlink)}"
        + (f"     Device type: {stat.st_rdev[0]},{stat.st_rdev[1]}" if special else ""),
        f"{access}  Uid: ({stat.st_uid:5}/{owner:>8})   Gid: ({stat.st_gid:5}/{group:>8})",
        f"Access: {words.exact(stat.st_atime_ns)}",
        f"Modify: {words.exact(stat.st_mtime_ns)}",
        f"Change: {words.exact(stat.st_ctime_ns)}",
        f"   NFS: {fs.version}",
    ]
    return "\n".join(lines) + "\n"
