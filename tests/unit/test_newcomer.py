"""The table of docs/install.md that ``tests.distributions.newcomer`` writes: its form, and where it stands."""

import subprocess
import sys

from tests.distributions.newcomer import BLOCK, PAGE, REPO, Steps, parse, table

TOLD = "packages\t47.4\t8.4\t1.7\t9.0\n`make setup`\t388.3\t88.2\t3.3\t11.5\n"


def test_what_the_steps_leave_becomes_a_table() -> None:
    steps = parse(TOLD)
    assert steps == {"packages": (47.4, 10.1, 9.0), "`make setup`": (388.3, 91.5, 11.5)}
    one, other = Steps("12", steps, "3 passed in 2.1s"), Steps("13", {"packages": (1.0, 0.6, 1.0)}, "")
    assert table([one, other]).splitlines() == [
        "| | Debian 12 | Debian 13 |",
        "|---|---|---|",
        "| packages | 47 s (10 s) | 1 s (1 s) |",
        "| `make setup` | 388 s (92 s) |  |",
        "| its result | 3 passed in 2.1s |  |",
    ]


def test_the_page_has_a_table_of_the_scripts() -> None:
    found = BLOCK.search(PAGE.read_text())
    assert found
    assert found[0].startswith("| | Debian 12 ")
    assert "rdma-nfsd cat" in found[0]
    assert "mounted" in found[0]


def test_the_demonstration_takes_no_more_than_make_setup_installs() -> None:
    absent = ["bench.generator", "hypothesis", "matplotlib", "pytest", "rich"]
    script = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\nimport tests.vm.build, tests.vm.demo"
    subprocess.run([sys.executable, "-c", script], cwd=REPO, check=True)
