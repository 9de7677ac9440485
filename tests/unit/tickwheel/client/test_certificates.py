"""What a client advises when it does not trust a certificate."""

from __future__ import annotations

import ssl

import pytest

from tickwheel.client.security import explain_tls
from tickwheel.client.url import TcpAddress

BROKER = TcpAddress("broker.example", 7411, tls=True)


@pytest.mark.parametrize(
    ("code", "told", "advice"),
    [
        (10, "certificate has expired", "Renew the broker's certificate"),
        (20, "unable to get local issuer certificate", "Give the broker's CA as ca_file="),
        (62, "Hostname mismatch", "Connect by a name that the certificate has"),
        (85, "Missing Authority Key Identifier", "Python 3.13 and newer look at the form"),
        (92, "CA cert does not include key usage extension", "Python 3.13 and newer look at the form"),
    ],
)
def test_what_is_wrong_with_a_certificate(code: int, told: str, advice: str) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, told
    explained = explain_tls(error, BROKER)
    assert explained is not None
    assert str(explained).startswith(f"The certificate of {BROKER} is not trusted: {told}. {advice}")
