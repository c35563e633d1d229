"""What is told of faults: by the control socket, which also changes them, and by the metrics.

Owns both; imports the rules and the chooser.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from nfsd.config_document import ConfigError
from nfsd.control import Command
from nfsd.faults.choosing import Faults
from nfsd.faults.rules import Rule, Rules, load


def commands(faults: Faults | None) -> dict[str, Command]:
    """The request ``faults``: with ``file``, those are the rules; with ``clear``, there are none; otherwise show."""

    async def answer(asked: dict[str, Any]) -> dict[str, Any]:
        if set(asked) - {"file", "clear"} or not isinstance(asked.get("file", ""), str):
            raise ValueError("not a request")
        if faults is None:
            raise ValueError(
                "this server was not started to misbehave; start it with --faults FILE (it may have no rules)"
            )
        if asked.get("clear") is True:
            faults.replace(Rules())
        elif asked.get("file"):
            try:
                faults.replace(load(asked["file"]), asked["file"])
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return shown(faults)

    return {"faults": answer}


def shown(faults: Faults) -> dict[str, Any]:
    """The rules, and what each has done."""
    rows = [
        {"name": use.rule.name, "rule": _said(use.rule), "matched": use.matched, "acted": use.acted}
        for use in faults.uses
    ]
    return {"file": faults.file, "seed": faults.rules.seed, "rules": rows}


def _said(rule: Rule) -> dict[str, Any]:
    """What a rule says that differs from the defaults."""
    plain = asdict(Rule())
    return {key: value for key, value in asdict(rule).items() if value != plain[key] and key != "name"}


class FaultCollector(Collector):
    """The metrics of faults."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        done = CounterMetricFamily(
            "rdma_nfsd_faults", "What was done to calls on purpose (--faults)", labels=["rule", "action"]
        )
        for (rule, action), count in list(self._faults.done.items()):
            done.add_metric([rule, action], count)
        yield done
