"""Asks pyverbs for the attributes of every device and prints them as JSON: for the interpreter that has pyverbs.

Debian's python3-pyverbs belongs to /usr/bin/python3, which need not be the interpreter that runs the server; so this is
run as a program of its own, and imports nothing but the standard library and pyverbs. The answer:
``{"version": ..., "devices": {name: {attribute: number}}, "errors": {name: why}}``.
"""

import importlib
import json
import sys
from importlib import metadata

NUMBERS = (
    *("max_qp", "max_qp_wr", "max_sge", "max_sge_rd", "max_qp_rd_atom", "max_qp_init_rd_atom", "max_cq", "max_cqe"),
    *("max_mr", "max_mr_size", "max_srq", "max_srq_wr"),
)
MEM_MGT_EXTENSIONS = 1 << 21


def main() -> int:
    """Print the answer; 3 when there is no pyverbs here."""
    try:
        pyverbs = importlib.import_module("pyverbs.device")
    except Exception as error:  # its own libraries may be missing, or of another version
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    try:
        version = metadata.version("pyverbs")
    except metadata.PackageNotFoundError:
        version = ""  # Debian's package carries no metadata
    devices, errors = {}, {}
    for device in pyverbs.get_device_list():
        name = device.name.decode()
        try:
            with pyverbs.Context(name=name) as context:
                attributes = context.query_device()
                devices[name] = {key: int(getattr(attributes, key)) for key in NUMBERS}
                devices[name]["memory_management"] = bool(attributes.device_cap_flags & MEM_MGT_EXTENSIONS)
        except Exception as error:
            errors[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
    json.dump({"version": version, "devices": devices, "errors": errors}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
