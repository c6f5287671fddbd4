"""A Java trust store with Python's certificate authorities of this machine.

A Java that came from a wheel knows the public authorities only. Behind a proxy that looks into TLS
connections the machine's own bundle names one more, which Python follows (``SSL_CERT_FILE``, the
system's folder) and Java does not.

The file is in Java's oldest format (JKS), which every Java reads and which needs no library: a
header, the certificates, a keyed SHA-1 of all that. Nothing in it is secret.
"""

import hashlib
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

TRUST_STORE_PASSWORD: Final = "changeit"  # noqa: S105 - Java's customary one; it guards nothing
_MAGIC: Final = 0xFEEDFEED
_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2
_WHITENER: Final = b"Mighty Aphrodite"
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


def write_trust_store(target: Path) -> int:
    """Write the store and return how many authorities are in it."""
    authorities = sorted(set(_authorities()))
    target.write_bytes(_encode(authorities))
    return len(authorities)


def _authorities() -> Iterator[bytes]:
    """Yield the certificates (DER) of Python's trust store, some repeatedly."""
    yield from ssl.create_default_context().get_ca_certs(binary_form=True)
    paths = ssl.get_default_verify_paths()
    if paths.capath is None:
        return
    # OpenSSL opens the files of a folder only when it meets a server that needs them.
    for file in Path(paths.capath).iterdir():
        with suppress(OSError, ValueError):  # other files may lie there, and links to nowhere
            yield from _certificates(file.read_text(encoding="ascii"))


def _certificates(text: str) -> Iterator[bytes]:
    for part in text.split(_BEGIN)[1:]:
        yield ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{part.partition(_END)[0]}{_END}\n")


def _encode(authorities: list[bytes]) -> bytes:
    data = struct.pack(">III", _MAGIC, _VERSION, len(authorities))
    for number, certificate in enumerate(authorities):
        data += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"authority-{number}")
        data += struct.pack(">q", 0) + _text("X.509")
        data += struct.pack(">I", len(certificate)) + certificate
    key = TRUST_STORE_PASSWORD.encode("utf-16-be") + _WHITENER
    return data + hashlib.sha1(key + data, usedforsecurity=False).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
