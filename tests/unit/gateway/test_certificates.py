"""The certificate of the gateway, also when it is renewed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.certificates import Files
from tickwheel.errors import BadCertificate
from tickwheel_gateway.certificates import Certificates


def test_a_new_one_counts_and_a_bad_one_does_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = Files(tmp_path)
    certificates = Certificates(files.certificate_path, files.key_path)
    first = certificates.current()
    files.issue()
    assert certificates.current() is first
    certificates.reload()
    second = certificates.current()
    assert second is not first
    Path(files.certificate_path).write_text("none")
    certificates.reload()
    assert certificates.current() is second
    assert "the old one stays" in caplog.text


def test_one_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadCertificate, match="cannot be used"):
        Certificates(str(tmp_path / "none.pem"))
