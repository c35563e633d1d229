"""What a credential says of its caller."""

import pytest

from rpcrdma.rpc.program import AUTH_NONE, AUTH_SYS, RPCSEC_GSS, RpcCredential


@pytest.mark.parametrize(
    ("flavor", "service", "security"),
    [
        (AUTH_NONE, 0, "none"),
        (AUTH_SYS, 0, "sys"),
        *((RPCSEC_GSS, n, s) for n, s in ((1, "krb5"), (2, "krb5i"), (3, "krb5p"))),
    ],
)
def test_security_has_the_words_of_exports(flavor: int, service: int, security: str) -> None:
    assert RpcCredential(flavor, service=service).security == security


def test_principals_of_one_user_are_told_apart() -> None:
    """Slots remember by the mark who has used them: another principal is another caller, though it be mapped alike."""
    one, other = (RpcCredential(RPCSEC_GSS, 1000, 100, (), "", name, 1) for name in ("one@A", "other@A"))
    assert one.mark != other.mark
    assert one.mark == RpcCredential(RPCSEC_GSS, 0, 0, (), "", "one@A", 3).mark
