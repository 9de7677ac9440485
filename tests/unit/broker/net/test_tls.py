"""Certificates: loaded, refused with what is wrong, and loaded anew."""

import os
import ssl
from pathlib import Path

import pytest
import trustme

from tests.support.clients.certificates import Files
from tickwheel.protocol.errors import BadCertificate, ConfigError
from tickwheel_broker.config.load import from_arguments
from tickwheel_broker.net.tls import Certificates, certificates_of


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """Shakes hands in memory; the server's certificate. Raises what either side objects to."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    right = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (left, right):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = left.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def client_of(files: Files) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files.ca_path)


def test_without_certificate_there_is_no_tls() -> None:
    assert certificates_of(from_arguments()) is None


def test_a_reload_serves_the_new_certificate_from_both_contexts(tmp_path: Path) -> None:
    files = Files(tmp_path)
    certificates = Certificates(files.certificate_path, files.key_path)
    kept = certificates.context
    first = handshake(kept, client_of(files))
    assert first == handshake(certificates.current, client_of(files))
    files.issue()
    assert certificates.reload()
    second = handshake(kept, client_of(files))
    assert second != first
    assert second == handshake(certificates.current, client_of(files))


def test_a_bad_new_certificate_leaves_the_old_one(tmp_path: Path) -> None:
    files = Files(tmp_path)
    certificates = Certificates(files.certificate_path, files.key_path)
    first = handshake(certificates.current, client_of(files))
    Path(files.certificate_path).write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    assert not certificates.reload()
    assert handshake(certificates.current, client_of(files)) == first
    assert handshake(certificates.context, client_of(files)) == first


def test_a_client_authority_that_was_replaced_is_forgotten(tmp_path: Path) -> None:
    files = Files(tmp_path)
    old_client, new_ca = client_of(files), trustme.CA()
    files.ca.issue_cert("worker").configure_cert(old_client)
    certificates = Certificates(files.certificate_path, files.key_path, files.client_ca_path)
    assert certificates.verifies_clients
    handshake(certificates.context, old_client)
    new_ca.cert_pem.write_to_path(files.client_ca_path)
    assert certificates.reload()
    for context in (certificates.context, certificates.current):
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.verify.failed"):
            handshake(context, old_client)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_refused(tmp_path: Path, version: ssl.TLSVersion) -> None:
    files = Files(tmp_path)
    certificates = Certificates(files.certificate_path, files.key_path)
    client = client_of(files)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        client.minimum_version = client.maximum_version = version
    client.set_ciphers("ALL:@SECLEVEL=0")  # otherwise the client itself would not even try
    with pytest.raises(ssl.SSLError):
        handshake(certificates.current, client)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    handshake(certificates.current, client)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    files, other = Files(tmp_path), Files(tmp_path / "other")
    missing = str(tmp_path / "gone.pem")
    with pytest.raises(BadCertificate, match=r"tls_certificate .*gone\.pem cannot be read: No such file"):
        Certificates(missing)
    with pytest.raises(BadCertificate, match="key does not belong to the certificate"):
        Certificates(files.certificate_path, other.key_path)
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(BadCertificate, match="cannot be used"):
        Certificates(files.certificate_path, str(tmp_path / "empty.pem"))
    with pytest.raises(BadCertificate, match=r"empty\.pem holds no certificate of a CA"):
        Certificates(files.certificate_path, files.key_path, str(tmp_path / "empty.pem"))
    with pytest.raises(BadCertificate, match="encrypted with a password"):
        Certificates(files.certificate_path, files.encrypt_key("secret"))


def test_a_key_that_others_may_read_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = Files(tmp_path)
    Certificates(files.certificate_path, files.key_path)
    assert "other users may read" not in caplog.text
    os.chmod(files.key_path, 0o644)
    Certificates(files.certificate_path, files.key_path)
    assert caplog.text.count("other users may read the TLS key") == 1


def test_settings_that_mean_tls_need_a_certificate() -> None:
    with pytest.raises(ConfigError, match=r"tls_key is set .*but not tls_certificate"):
        from_arguments(tls_key="k.pem")
    with pytest.raises(ConfigError, match="tls_client_ca is set"):
        from_arguments(tls_client_ca="ca.pem")
    assert from_arguments(listen_host="0.0.0.0", tls_certificate="c.pem").listen_host == "0.0.0.0"
