"""``rdma-nfsd check``: reports mistakes in a configuration, or sums it up. Imports the findings and the tables."""

from __future__ import annotations

import dataclasses
import json
import sys

from nfsd.config import Config
from nfsd.config_file import ConfigError
from nfsd.findings import Finding, examine
from nfsd.tables import columns


def check(config: Config, *, file_only: bool, in_json: bool) -> int:
    """Print what is found. Returns the exit status: 1 where something could not be served."""
    found = [] if file_only else examine(config)
    errors = [one for one in found if one.severity == "error"]
    if in_json:
        print(_as_json(config.file, found))
    elif errors:
        for one in found:
            print(one, file=sys.stderr)
    else:
        print(summary(config))
        if found:
            print("", *(f"warning: {one}" for one in found), sep="\n")
    return 1 if errors else 0


def wrong_as_json(file: str, error: ConfigError) -> str:
    """The problems of a file that cannot be used, in the form of findings."""
    found = []
    for problem in error.problems:
        message, separator, remedy = problem.message.rpartition("; ")
        if not separator:
            message, remedy = remedy, ""
        found.append(Finding(problem.file, problem.line, problem.key, "error", message, remedy))
    return _as_json(file, found)


def _as_json(file: str, found: list[Finding]) -> str:
    good = all(one.severity != "error" for one in found)
    return json.dumps({"file": file, "good": good, "findings": [dataclasses.asdict(one) for one in found]}, indent=2)


def summary(config: Config) -> str:
    """The configuration in a few lines for people."""
    server = config.server
    lines = [f"{config.file}: good", ""]
    listeners = [["listen", "provider"]]
    listeners += [[str(e.address), e.provider if e.address.scheme == "rdma" else "-"] for e in server.listen]
    lines += [*columns(listeners), "", f"mountd port  {server.mountd_port}", f"state        {server.state_dir}", ""]
    if server.processes > 1:
        lines[-1:] = [f"processes    {server.processes}, each with a part of the clients", ""]
    exports = [["export", "path", "access", "squash", "clients", "id"]]
    for export in config.exports:
        overridden = {override.host for override in export.overrides}
        clients = " ".join(host + ("+" if host in overridden else "") for host in export.clients) or "nobody"
        access = "ro" if export.read_only else "rw"
        if export.referral:
            places = " ".join(f"-> {place}" for place in export.referral)
            exports.append([export.pseudo, places, "-", "-", clients, str(export.id)])
            continue
        files = str(export.backend) if export.backend else export.path
        exports.append([export.pseudo, files, access, export.squash, clients, str(export.id)])
    lines += columns(exports)
    if any(export.overrides for export in config.exports):
        lines += ["", "+ with settings of its own"]
    return "\n".join(lines)
