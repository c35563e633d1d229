"""Figures for people, and the comparison with earlier ones. Imports scenarios and studies for their names and goals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench import sides
from bench.ganesha import Ganesha
from bench.scenarios import BY_NAME, Scenario
from bench.servers import IN_GUEST, OURS, RdmaNfsd
from bench.study import Study, markdown

Result = Mapping[str, Any]


def unit(scenario: Scenario, bounds: Mapping[str, float]) -> float:
    """What one operation costs at the least: one round trip, and one system call on the file."""
    return bounds["round_trip_us"] + bounds["pwrite_us" if scenario.direction == "write" else "pread_us"]


def _unpaced(bounds: Mapping[str, float]) -> str:
    """The stream without pacing; earlier results do not have it."""
    rate = bounds.get("unpaced_octets_per_s")
    return "" if rate is None else f" ({rate / 1e9:.2f} where TCP does not pace)"


def machine(result: Result) -> list[str]:
    """What the machine can do."""
    bounds = result["limits"]
    return [
        f"The machine: a round trip {bounds['round_trip_us']:.2f} µs, pread {bounds['pread_us']:.2f} µs, "
        f"pwrite {bounds['pwrite_us']:.2f} µs of CPU; {bounds['round_trips_per_s']:,.0f} round trips/s; loopback "
        f"{bounds['loopback_octets_per_s'] / 1e9:.2f} GB/s{_unpaced(bounds)}; "
        f"memcpy {bounds['memcpy_octets_per_s'] / 1e9:.1f} GB/s.",
    ]


def scenarios(result: Result) -> list[str]:
    """The scenarios, one table per server."""
    lines = []
    for server, found in result["servers"].items():
        if found["scenarios"] or found.get("failures"):
            lines += ["", f"{server}, at most {found['peak_memory'] / (1 << 20):.0f} MiB of memory:", ""]
            lines += _server_table(result, server)
    return lines


def everything(result: Result, studies: Sequence[Study]) -> list[str]:
    """All that was measured, as Markdown."""
    lines = machine(result) + scenarios(result)
    if not result.get("disks"):
        lines = sides.crowd(result) + lines
    if result.get("disks"):
        lines += ["", *in_places(result)]
    if "guest" in result:
        lines += ["", *guest(result)]
    for study, rows in _measured(result, studies):
        lines += ["", f"{study.name}: {study.summary}", "", *study.table(rows, result["limits"])]
    lines += [f"{name} failed: {why}" for name, why in result.get("studies_failed", {}).items()]
    return lines


def in_places(result: Result) -> list[str]:
    """Memory and disks side by side."""
    told = [*sides.head(result), "", "CPU µs per call (calls per second), over TCP:", "", *sides.beside(result)]
    return [*told, "", *sides.flushes(result)]


def _measured(result: Result, studies: Sequence[Study]) -> Iterator[tuple[Study, list[dict[str, Any]]]]:
    for study in studies:
        rows = result.get("studies", {}).get(study.name)
        if rows:
            yield study, rows


def has_goal(other: str) -> bool:
    """Whether every scenario has a goal in units of what this server takes."""
    return other.startswith(Ganesha.name)


def _server_table(result: Result, server: str) -> list[str]:
    found, bounds = result["servers"][server]["scenarios"], result["limits"]
    failures = result["servers"][server].get("failures", {})
    ours = server == RdmaNfsd.name
    others = [name for name in result["servers"] if name not in OURS] if ours else []
    heads = ["scenario", "over", "CPU µs per call", "of which user", "times the limit"]
    heads += [word for name in others for word in (f"times {name}", *(["goal"] if has_goal(name) else []))]
    heads += ["calls/s", "p50 µs", "p99 µs", "p999 µs", "copied by it", "by the kernel"]
    heads += ["work requests", "RDMA octets", "not natively"] if ours else []
    lines = []
    for key in dict.fromkeys((*found, *failures)):
        name, transport = key.split(" ")
        figures = found.get(key)
        if figures is None:
            lines.append([name, transport, failed(failures[key]), *[""] * (len(heads) - 3)])
            continue
        scenario = BY_NAME[name]
        cpu = f"{figures['cpu_us']:.2f}" + (f" ({failed(failures[key])})" if key in failures else "")
        cells = [name, transport, cpu, f"{figures['user_us']:.2f}"]
        times = figures["cpu_us"] / unit(scenario, bounds)
        aim = f" (≤ {scenario.goal})" if scenario.goal is not None and transport == "tcp" and ours else ""
        cells.append(f"{times:.2f}{aim}" if scenario.size <= 4096 and scenario.outstanding > 1 else "")
        for other in others:
            theirs = result["servers"][other]["scenarios"].get(f"{name} tcp")
            cells.append("" if theirs is None else f"{figures['cpu_us'] / theirs['cpu_us']:.2f}")
            if has_goal(other):
                cells.append("" if theirs is None else f"≤ {scenario.rival}")
        cells += [f"{figures['calls_per_s']:,.0f}"]
        cells += [f"{figures[part]:.0f}" for part in ("p50_us", "p99_us", "p999_us")]
        cells += [octets(figures, "copied"), octets(figures, "kernel_in", "kernel_out")]
        if ours:
            over_rdma = transport == "rdma" and "work_requests" in figures
            cells += [f"{figures['work_requests']:.2f}", f"{figures['rdma_octets']:,.0f}"] if over_rdma else ["", ""]
            cells.append(declined(figures))
        lines.append(cells)
    return markdown(heads, lines)


def guest(result: Result) -> list[str]:
    """The servers in the guest, beside each other and nobody else."""
    there = result["guest"]
    heads = [
        "scenario",
        "over",
        "CPU µs per call, rdma-nfsd",
        "kernel",
        "ratio",
        "calls/s, rdma-nfsd",
        "kernel",
        "ratio",
    ]
    heads += ["p50 µs, rdma-nfsd / kernel", "p99 µs", "copied by rdma-nfsd", "work requests"]
    servers = [there["servers"].get(name, {"scenarios": {}, "failures": {}}) for name in IN_GUEST]
    lines = []
    for key in dict.fromkeys(key for server in servers for kind in server.values() for key in kind):
        ours, theirs = (server["scenarios"].get(key) for server in servers)
        cells = key.split(" ")
        for figure, style in (("cpu_us", "{:.0f}"), ("calls_per_s", "{:,.0f}")):
            for found, server in zip((ours, theirs), servers, strict=True):
                failures = server["failures"].get(key)
                cells.append(style.format(found[figure]) if found else failed(failures) if failures else "-")
            cells.append(f"**{ours[figure] / theirs[figure]:.2f}**" if ours and theirs else "")
        for figure in ("p50_us", "p99_us"):
            cells.append(" / ".join(f"{found[figure]:,.0f}" if found else "-" for found in (ours, theirs)))
        cells.append(octets(ours or {}, "copied"))
        cells.append(f"{ours['work_requests']:.2f}" if ours and cells[1] == "rdma" else "")
        lines.append(cells)
    return [
        f"In one guest, Linux {there['kernel']} under {there['accelerator']} on {there['processors']} processors; "
        "the load comes from outside. CPU is what the host spends on running the whole guest's processors. These "
        "figures compare with each other only: neither with those of servers outside nor with the machine's limits.",
        "",
        *markdown(heads, lines),
    ]


def has_failed(result: Result) -> bool:
    """Whether a scenario failed with our own server, or a study."""
    inside = result.get("guest", {}).get("servers", {}).get(IN_GUEST[0], {})
    places = [servers.get(RdmaNfsd.name, {}) for servers in sides.everywhere(result).values()]
    return bool(result.get("studies_failed")) or any(found.get("failures") for found in [*places, inside])


def failed(reasons: Sequence[str]) -> str:
    """What happened instead of an answer, in as many rounds as there are reasons."""
    return "failed: " + ", ".join(dict.fromkeys(reasons))


def octets(figures: Mapping[str, float], *names: str) -> str:
    """Octets per call; a dash where nobody knows."""
    return f"{sum(figures[name] for name in names):,.0f}" if all(name in figures for name in names) else "-"


def declined(figures: Mapping[str, float]) -> str:
    """What part of the calls was not answered natively, and why; nothing where that is less than one in a thousand."""
    found = {name.removeprefix("declined "): part for name, part in figures.items() if name.startswith("declined ")}
    return ", ".join(f"{part:.1%} {why}" for why, part in sorted(found.items()) if part >= 0.001)


def watched(result: Result, studies: Sequence[Study]) -> dict[str, float]:
    """What a comparison looks at: CPU per call in units of the run's own limit, so that the clocks cancel out, and the
    studies' ratios."""
    found = {
        key: figures["cpu_us"] / unit(BY_NAME[key.split(" ")[0]], result["limits"])
        for key, figures in result["servers"].get(RdmaNfsd.name, {}).get("scenarios", {}).items()
    }
    ours, theirs = (result.get("guest", {}).get("servers", {}).get(name, {}).get("scenarios", {}) for name in IN_GUEST)
    for key in ours.keys() & theirs.keys():
        found[f"{key} in a guest, times the kernel's server"] = ours[key]["cpu_us"] / theirs[key]["cpu_us"]
    for study, rows in _measured(result, studies):
        found |= {f"{study.name}: {what}": value for what, value in study.watched(rows, result["limits"]).items()}
    return found


def compare(result: Result, before: Result, tolerance: float, studies: Sequence[Study]) -> list[str]:
    """What has become worse by more than the tolerance."""
    earlier = watched(before, studies)
    return [
        f"{what}: {now:.2f}, {earlier[what]:.2f} before"
        for what, now in watched(result, studies).items()
        if what in earlier and now > earlier[what] * (1 + tolerance)
    ]
