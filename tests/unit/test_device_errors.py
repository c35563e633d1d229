"""What the device provider says when something is missing or fails: device, call, reason, remedy."""

from __future__ import annotations

import errno

import pytest

from rpcrdma.verbs.device import limits
from rpcrdma.verbs.device.errors import ABSENT, failure, missing_library


@pytest.mark.parametrize(
    ("call", "number", "remedy"),
    [
        ("ibv_reg_mr", errno.ENOMEM, "LimitMEMLOCK"),
        ("rdma_create_qp", errno.ENOMEM, "LimitMEMLOCK"),
        ("rdma_create_event_channel", errno.ENODEV, "modprobe rdma_ucm"),
        ("rdma_bind_addr", errno.ENODEV, "rdma link"),
        ("rdma_listen", errno.EADDRINUSE, "has this port"),
        ("ibv_create_cq", errno.EPERM, "group rdma"),
    ],
)
def test_a_failure_names_device_call_reason_and_remedy(call: str, number: int, remedy: str) -> None:
    error = failure(call, "mlx5_0", number)
    assert error.errno == number
    assert error.strerror is not None
    assert error.strerror.startswith(f"mlx5_0: {call}: ")
    assert remedy in error.strerror


def test_library_calls_that_return_a_negative_errno_are_understood() -> None:
    assert failure("ibv_post_send", "siw0", -errno.ENOTCONN).errno == errno.ENOTCONN


def test_a_failure_without_a_reason_is_one_still() -> None:
    error = failure("ibv_alloc_pd", "", 0)
    assert error.errno == errno.EIO
    assert str(error.strerror).startswith("ibv_alloc_pd: failed without a reason")


def test_only_what_time_may_mend_is_waited_for() -> None:
    assert errno.ENODEV in ABSENT
    assert errno.EADDRNOTAVAIL in ABSENT
    assert ABSENT.isdisjoint({errno.EADDRINUSE, errno.EACCES, errno.EPERM, errno.ENOMEM})


def test_missing_libraries_and_missing_extensions_have_different_remedies() -> None:
    library = missing_library(ImportError("librdmacm.so.1: cannot open shared object file: No such file or directory"))
    assert "librdmacm1" in library
    assert "-dev" not in library
    extension = missing_library(ModuleNotFoundError("No module named 'rpcrdma.verbs.device.cm'"))
    assert "libibverbs-dev" in extension


def test_a_small_limit_on_locked_memory_is_raised_or_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit = (8 << 20, 8 << 20)
    allowed = False

    def setrlimit(_: int, wanted: tuple[int, int]) -> None:
        nonlocal limit
        if not allowed and wanted[1] != limit[1]:
            raise ValueError("not allowed to raise maximum limit")
        limit = wanted

    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: limit)
    monkeypatch.setattr(limits.resource, "setrlimit", setrlimit)
    limits.raise_memory_lock()
    limits.warn_of_memory_lock(64 << 20)
    assert "only 8 of 64 MiB of buffers may be locked" in caplog.text
    assert "LimitMEMLOCK" in caplog.text
    caplog.clear()
    allowed = True
    limits.raise_memory_lock()
    limits.warn_of_memory_lock(64 << 20)
    assert not caplog.records
