"""Certificates for tests, in files as a broker and its clients are given them."""

from __future__ import annotations

import os
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization


class Files:
    """A CA, and a certificate of it for a broker on this machine."""

    def __init__(self, directory: Path, *names: str) -> None:
        """`names`: whose certificate it is; this machine's without any."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ca = trustme.CA()
        self.names = names or ("localhost", "127.0.0.1", "::1")
        self.ca_path = str(directory / "ca.pem")
        self.client_ca_path = str(directory / "client-ca.pem")
        self.certificate_path = str(directory / "broker.pem")
        self.key_path = str(directory / "broker.key")
        self.ca.cert_pem.write_to_path(self.ca_path)
        self.ca.cert_pem.write_to_path(self.client_ca_path)
        self.issue()

    def issue(self, **options: object) -> None:
        """Write a new certificate and key; `options` are those of trustme."""
        leaf = self.ca.issue_cert(*self.names, **options)  # type: ignore[arg-type]
        certificates = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        Path(self.certificate_path).write_bytes(certificates)
        _write_private(self.key_path, leaf.private_key_pem.bytes())

    def client(self, name: str, ca: trustme.CA | None = None) -> tuple[str, str]:
        """Paths of certificate and key of a client."""
        leaf = (ca or self.ca).issue_cert(name)
        certificate, key = str(self.directory / f"{name}.pem"), str(self.directory / f"{name}.key")
        Path(certificate).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        _write_private(key, leaf.private_key_pem.bytes())
        return certificate, key

    def spoil_key(self) -> None:
        """Write something else where the key was."""
        Path(self.key_path).write_text("no key")

    def encrypt_key(self, password: str) -> str:
        """The path of the broker's key, encrypted."""
        key = serialization.load_pem_private_key(Path(self.key_path).read_bytes(), None)
        path = str(self.directory / "encrypted.key")
        encrypted = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
        _write_private(path, encrypted)
        return path


def _write_private(path: str, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
