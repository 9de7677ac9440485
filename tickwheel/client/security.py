"""TLS and tokens on the client's side: which broker is trusted, and who we say that we are."""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from tickwheel.client.checks import shown, text
from tickwheel.client.plain_socket import without_layers
from tickwheel.client.url import Address, TcpAddress, UnixAddress
from tickwheel.protocol.errors import BadArgument, BadCertificate, ConfigError, TlsFailed, TokenNeedsTls

TOKEN_VARIABLE = "TICKWHEEL_TOKEN"
TOKEN_FILE_VARIABLE = "TICKWHEEL_TOKEN_FILE"
CA_VARIABLE = "TICKWHEEL_CA"
CERTIFICATE_VARIABLE = "TICKWHEEL_CERTIFICATE"
KEY_VARIABLE = "TICKWHEEL_KEY"
PLAIN_TOKEN_VARIABLE = "TICKWHEEL_PLAIN_TOKEN"

_WITHOUT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
_WANTS_CERTIFICATE = frozenset(
    {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV1_ALERT_UNKNOWN_CA"}
    | {"SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_UNKNOWN"}
)
_ADVICE_FOR_CODE = {
    10: "Renew the broker's certificate, then reload it (SIGHUP); check this machine's clock, too.",
    9: "Check the clocks of both machines: the certificate is for later.",
    62: "Connect by a name that the certificate has, or issue one for this name.",
    64: "Connect by an address that the certificate has, or issue one for this address.",
}
_STRICT_CODES = range(79, 95)
"""What OpenSSL finds wrong in the form of certificates. Python asks it to look since 3.13."""
_STRICT = (
    "Python 3.13 and newer look at the form of certificates (RFC 5280): issue the broker's anew, with the identifier of"
    " its CA's key, by a CA that has a key usage."
)
_UNKNOWN_CA = "Give the broker's CA as ca_file= (--ca, TICKWHEEL_CA) if you trust it."


@dataclass(frozen=True)
class Security:
    """How a client proves who it is, and has the broker prove it. Files are read anew for each connection."""

    ca_file: str = ""
    certificate: str = ""
    key: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    plain_token: bool = False

    def check(self, address: Address) -> None:
        """Raises TokenNeedsTls, ConfigError: what can be known to be wrong before there is a connection."""
        if self.token and self.token_file:
            raise ConfigError("Two tokens are given, by token and by token_file.", advice="Give one of them.")
        if self.key and not self.certificate:
            raise ConfigError("A key is given, but no certificate.", advice="Give both, or neither.")
        has_token = bool(self.token or self.token_file)
        if has_token and not self.plain_token and is_exposed(address):
            raise TokenNeedsTls(f"The token would go to {address} in plain text.")

    def current_token(self) -> str:
        """The token to log in with; empty: none. Raises ConfigError."""
        if not self.token_file:
            return self.token
        try:
            return Path(self.token_file).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(
                f"The token file {self.token_file} cannot be read: {reason}.",
                advice="Name a file that holds nothing but the token.",
            ) from None

    def context(self) -> ssl.SSLContext:
        """For one connection. Raises BadCertificate."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror if not isinstance(error, ssl.SSLError) else "it holds no certificate"
            raise BadCertificate(f"The CA file {self.ca_file} cannot be used: {reason}.") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key or None, password=_refuse_password)
            except (OSError, ValueError) as error:
                raise BadCertificate(
                    f"The certificate {self.certificate} and its key cannot be used: {error}."
                ) from error
        return context


_Path: TypeAlias = str | os.PathLike[str]


def _path(path: _Path, name: str) -> str:
    try:
        return text(os.fspath(path), name)
    except TypeError:
        raise BadArgument(f"{name} is {shown(path)}.", advice="Use the path of a file.") from None


def security_of(
    *, ca_file: _Path | None, certificate: _Path | None, key: _Path | None, token: str | None, token_file: _Path | None,
    plain_token: bool,
) -> Security:  # fmt: skip
    """What is given; what is None, from the environment. A token that is given hides those of the environment."""
    environment = os.environ.get
    is_given = token is not None or token_file is not None
    return Security(
        ca_file=environment(CA_VARIABLE, "") if ca_file is None else _path(ca_file, "ca_file"),
        certificate=environment(CERTIFICATE_VARIABLE, "")
        if certificate is None
        else _path(certificate, "certificate"),
        key=environment(KEY_VARIABLE, "") if key is None else _path(key, "key"),
        token=(text(token or "", "token") if is_given else environment(TOKEN_VARIABLE, "")).strip(),
        token_file=_path(token_file or "", "token_file")
        if is_given
        else environment(TOKEN_FILE_VARIABLE, ""),
        plain_token=plain_token or environment(PLAIN_TOKEN_VARIABLE, "") == "1",
    )


def is_exposed(address: Address) -> bool:
    """Whether others than this machine may listen on the way."""
    if isinstance(address, UnixAddress) or address.tls:
        return False
    if address.host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return True


async def dial(address: Address, security: Security | None = None) -> ByteStream:
    """Opens a byte stream to a broker. Raises OSError, TlsFailed, BadCertificate."""
    if isinstance(address, UnixAddress):
        return without_layers(await anyio.connect_unix(address.path))
    if not address.tls:
        return without_layers(await anyio.connect_tcp(address.host, address.port))
    context = (security or Security()).context()
    stream = await anyio.connect_tcp(address.host, address.port)
    try:
        return await TLSStream.wrap(
            stream, hostname=address.host, ssl_context=context, standard_compatible=False
        )
    except BaseException as error:
        await anyio.aclose_forcefully(stream)
        explained = explain_tls(error, address)
        if explained is not None:
            raise explained from error
        raise


def explain_tls(error: BaseException, address: Address) -> TlsFailed | None:
    """What a failure of TLS means to people; None if it is none."""
    if not isinstance(address, TcpAddress) or not address.tls:
        return None
    cause = error if isinstance(error, ssl.SSLError) else error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        otherwise = _STRICT if cause.verify_code in _STRICT_CODES else _UNKNOWN_CA
        advice = _ADVICE_FOR_CODE.get(cause.verify_code, otherwise)
        return TlsFailed(
            f"The certificate of {address} is not trusted: {cause.verify_message.rstrip('.')}.", advice=advice
        )
    if isinstance(cause, ssl.SSLError) and cause.reason in _WITHOUT_TLS:
        return TlsFailed(
            f"{address} does not speak TLS.", advice="Use tickwheel:// if that is meant, or another port."
        )
    if isinstance(cause, ssl.SSLError) and cause.reason in _WANTS_CERTIFICATE:
        return TlsFailed(
            f"{address} does not accept this client's certificate ({cause.reason}).",
            advice="Give one that the broker's tls_client_ca has issued: certificate= and key=.",
        )
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        failure = TlsFailed(f"TLS with {address} failed: {cause.reason or cause}.")
        failure.retryable = True
        return failure
    return None


def _refuse_password() -> str:
    """Without this OpenSSL would ask on the terminal, and wait for an answer."""
    raise ValueError("the key is encrypted with a password")
