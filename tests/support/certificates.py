"""A certificate authority for a test, and the certificates that it signs, all as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(2200, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """A certificate authority; `ca_file` is its own certificate."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._builder(self._name, self._key).add_extension(constraints, critical=True)
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def certificate(
        self, name: str, *, hosts: tuple[str, ...] = ("localhost", "127.0.0.1"), key_password: str = ""
    ) -> tuple[Path, Path]:
        """Returns the files of a certificate and its key, for a client with this `name` or for a server with these
        `hosts`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        certificate = self._builder(subject, key).add_extension(names, critical=False)
        certificate_file, key_file = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate_file.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        protection = BestAvailableEncryption(key_password.encode()) if key_password else NoEncryption()
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))
        return certificate_file, key_file

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(BEGIN)
            .not_valid_after(END)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
