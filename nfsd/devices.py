"""``rdma-nfsd devices``: the host's RDMA devices for people and for programs.

Owns the text and the JSON; imports the inventory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from nfsd.tables import columns
from rpcrdma.verbs.inventory import Device, Host, Obstacle, Port
from rpcrdma.verbs.inventory.obstacles import usable

_MOST_GIDS = 8
"""A port shows no more GIDs in the table; the JSON has them all."""


def as_json(host: Host, found: list[Obstacle]) -> str:
    """Everything, for programs. The keys are the fields of :mod:`rpcrdma.verbs.inventory`."""
    document = asdict(host)
    for device, record in zip(host.devices, document["devices"], strict=True):
        record["usable"] = usable(device, found)
    document["obstacles"] = [asdict(obstacle) for obstacle in found]
    return json.dumps(document, indent=2)


def as_text(host: Host, found: list[Obstacle]) -> str:
    """The same for people."""
    lines: list[str] = []
    if host.devices:
        lines += [*_ports(host, found), "", *_capabilities(host), "", *_gids(host)]
        if host.pyverbs:
            lines += ["", f"Limits are unknown where they are missing. {host.pyverbs}"]
    for severity, title in (("blocks", "Keeps the server from using"), ("limits", "Worth knowing of")):
        chosen = [obstacle for obstacle in found if obstacle.severity == severity]
        for obstacle in chosen:
            lines += ["", f"{title} {obstacle.device or 'any device'}: {obstacle.problem}"]
            lines.append(f"    remedy: {obstacle.remedy}")
    ready = [device.name for device in host.devices if usable(device, found)]
    lines.append("")
    if ready:
        lines.append(f"The server can use {', '.join(ready)}.")
    else:
        lines.append("The server can use no device; rdma:// listeners use the embedded iWARP (provider softiwarp).")
    return "\n".join(lines).lstrip("\n")


def _each_port(host: Host) -> Iterator[tuple[Device, Port]]:
    for device in host.devices:
        for port in device.ports:
            yield device, port


def _ports(host: Host, found: list[Obstacle]) -> list[str]:
    rows = [["device", "port", "kind", "link", "state", "netdev", "addresses", "usable"]]
    for device, port in _each_port(host):
        blocked = any(
            o.severity == "blocks" and o.device in ("", device.name) and o.port in (0, port.number) for o in found
        )
        names, addresses = " ".join(port.netdevs) or "-", " ".join(port.addresses) or "-"
        shown = [device.name, str(port.number), device.kind, port.link_layer or "-", port.state, names, addresses]
        rows.append([*shown, "no" if blocked else "yes"])
    return columns(rows)


def _capabilities(host: Host) -> list[str]:
    """One row per device: what bounds the server there."""
    rows = [["device", "invalidate", "SRQ", "QPs", "WRs/QP", "SGEs", "Read SGEs", "Reads out/in", "CQEs", "firmware"]]
    for device in host.devices:
        can = {True: "yes", False: "no", None: "?"}[device.memory_management]
        known = device.attributes
        if known is None:
            numbers = ["?"] * 7
        else:
            numbers = [
                str(known.max_srq) if known.max_srq else "no",
                str(known.max_qp),
                str(known.max_qp_wr),
                str(known.max_sge),
                str(known.max_sge_rd),
                f"{known.max_qp_init_rd_atom}/{known.max_qp_rd_atom}",
                str(known.max_cqe),
            ]
        rows.append([device.name, can, *numbers, device.firmware or "-"])
    return columns(rows)


def _gids(host: Host) -> list[str]:
    rows = [["device", "port", "index", "GID", "type", "netdev"]]
    for device, port in _each_port(host):
        place = [device.name, str(port.number)]
        rows += [
            [*place, str(gid.index), gid.gid, gid.kind or "-", gid.netdev or "-"] for gid in port.gids[:_MOST_GIDS]
        ]
        if len(port.gids) > _MOST_GIDS:
            rows.append([*place, "...", f"{len(port.gids) - _MOST_GIDS} more", "", ""])
    return columns(rows)
