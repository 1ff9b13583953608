"""TLS 1.3, and nothing older: our own certificate, and the contexts for those who come to us and those we go to.

Owns the certificate that the exchange makes for itself, what a client may show, and what stands for the chain of trust:
the authorities of this system, or a *pin*, the SHA-256 of a public key (its SubjectPublicKeyInfo) in base64, as in
RFC 7469. Does not own connections (``listener``, ``client``).

Invariant: with a context that has a pin no handshake succeeds with any other key, whoever uses the context.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import ipaddress
import ssl
from pathlib import Path
from typing import Final

from trunkline import key_files
from trunkline.errors import ConfigError

OWN_FILE: Final = "tls.pem"
# Whoever pins our key does not want it to change; nobody is there to renew it either.
YEARS: Final = 10
# Machines whose clocks are a little behind ours trust it from the start.
CLOCK_SLACK: Final = dt.timedelta(days=1)


# --- our own certificate ----------------------------------------------------------------------------------------------


def own_certificate(folder: Path, wall: float) -> Path:
    """The file with our certificate and its key, made in ``folder`` at the first start; ``wall`` is the time now."""
    path = folder / OWN_FILE
    key_files.kept(path, lambda: _made(wall))
    return path


def _made(wall: float) -> bytes:
    """A key on P-256 and a certificate for this machine that vouches for itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    purpose = x509.oid.ExtendedKeyUsageOID
    public = key.public_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "trunkline")])
    now = dt.datetime.fromtimestamp(wall, dt.UTC)
    names: list[x509.GeneralName] = [
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")),
        x509.DNSName("localhost"),
    ]
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + dt.timedelta(days=round(YEARS * 365.25)))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose.SERVER_AUTH, purpose.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + certificate.public_bytes(pem)


def shown_certificate(path: Path) -> bytes:
    """The certificate of such a file, without its key: for those who want to trust it."""
    start = b"-----BEGIN CERTIFICATE-----"
    return start + key_files.read_private(path).partition(start)[2]


def pin_of(certificate: bytes) -> str:
    """The pin of a certificate (DER): base64 of the SHA-256 of its SubjectPublicKeyInfo."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = x509.load_der_x509_certificate(certificate).public_key()
    spki = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(spki).digest()).decode()


# --- those who come to us ---------------------------------------------------------------------------------------------


def server_context(
    certificate: str | Path,
    key: str | Path | None = None,
    authorities: str | Path | None = None,
    *,
    required: bool = False,
) -> ssl.SSLContext:
    """TLS 1.3 with this certificate; ``key`` is in the same file unless it is given.

    With ``authorities`` a client may show a certificate that one of them vouches for, and has to if ``required``: the
    listener then knows its pin (``listener.peer_pin``). One that shows another is refused. ``ConfigError`` names a file
    that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    place = str(certificate)
    try:
        context.load_cert_chain(certificate, key)
        if authorities is not None:
            place = str(authorities)
            context.load_verify_locations(authorities)
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except ssl.SSLError as error:
        raise ConfigError(f"cannot be used for TLS: {error.reason or 'it holds no certificate'}", place) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", place) from None
    return context


# --- those we go to ---------------------------------------------------------------------------------------------------


def client_context(pin: str = "") -> ssl.SSLContext:
    """TLS 1.3 to a server whose key has this pin, whatever its certificate says; without one, to a server that an
    authority of this system vouches for. To make the latter takes some 30 ms.
    """
    if pin:
        context: ssl.SSLContext = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        assert isinstance(context, _PinnedContext)
        context.pin = pin
        # The pin says more than a name in a certificate would.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.sslobject_class = _PinnedObject
        context.sslsocket_class = _PinnedSocket
    else:
        context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class _PinnedContext(ssl.SSLContext):
    """A context that knows whom it is for."""

    pin = ""


class WrongPin(ssl.SSLCertVerificationError):
    """The server has another key than the pinned one: ``seen`` is the pin of that."""

    def __init__(self, seen: str) -> None:
        super().__init__("the server's key is not the pinned one")
        # As OpenSSL would say it of a certificate.
        self.verify_message = "its key is not the pinned one"
        self.seen = seen


def _check_pin(context: ssl.SSLContext, certificate: bytes | None) -> None:
    """Right after the handshake and before anything is said: the server has proved that it has this key."""
    assert isinstance(context, _PinnedContext)
    seen = "" if certificate is None else pin_of(certificate)
    if seen != context.pin:
        raise WrongPin(seen)


class _PinnedObject(ssl.SSLObject):
    """TLS over memory, as asyncio and uvloop use it."""

    def do_handshake(self) -> None:
        super().do_handshake()
        _check_pin(self.context, self.getpeercert(binary_form=True))


class _PinnedSocket(ssl.SSLSocket):
    """TLS over a socket."""

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        _check_pin(self.context, self.getpeercert(binary_form=True))
