"""For pytest: the options that name the backend which the suite tries. An entry point of the group ``pytest11``.

Every pytest of an environment imports this, whatever it is to test. The suite, and with it client and server, is
imported when it is asked for.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nfsd.backend_suite.trying import Entry


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("rdma-nfsd backends")
    group.addoption(
        "--backend", help="for nfsd.backend_suite: package.module:factory, or the name of an installed backend"
    )
    group.addoption("--backend-options", default="{}", metavar="JSON", help="what the backend is made with")
    for name, what in (
        ("read-only", "nothing can be written"),
        ("no-hard-links", "files have one name each"),
        ("no-symlinks", "there are no symbolic links"),
        ("no-modes", "setting a mode has no effect"),
        ("names-are-text", "names are UTF-8, and can be printed"),
    ):
        group.addoption(f"--backend-{name}", action="store_true", help=f"in this backend {what}")


def entry_of(config: pytest.Config) -> Entry:
    """The export to be tried."""
    from nfsd.backend_suite.trying import Entry

    name = config.getoption("--backend") or "memory"
    settings: dict[str, Any] = {"options": json.loads(config.getoption("--backend-options"))}
    settings |= {"backend": "python", "module": name} if ":" in name else {"backend": name}
    return Entry(
        settings,
        writable=not config.getoption("--backend-read-only"),
        hard_links=not config.getoption("--backend-no-hard-links"),
        symlinks=not config.getoption("--backend-no-symlinks"),
        modes=not config.getoption("--backend-no-modes"),
        any_names=not config.getoption("--backend-names-are-text"),
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each scenario and way, and for each question."""
    if metafunc.module.__name__ != "nfsd.backend_suite.test_backend":
        return
    if "question" in metafunc.fixturenames:
        from nfsd.backend_suite.operations import QUESTIONS

        metafunc.parametrize("question", QUESTIONS.values(), ids=lambda question: question.__name__)
    if "scenario" in metafunc.fixturenames:
        from nfsd.backend_suite.scenarios import SCENARIOS, WRITING
        from nfsd.backend_suite.trying import WAYS

        scenarios = SCENARIOS + (WRITING if entry_of(metafunc.config).writable else ())
        metafunc.parametrize("scenario", scenarios, ids=lambda scenario: scenario.__name__)
        metafunc.parametrize("way", WAYS, ids="-".join)
