import hashlib
import ssl
import struct

from pylog_spark.java import TRUST_STORE_PASSWORD, write_trust_store


def read_store(data: bytes) -> list[bytes]:
    """The certificates of a trust store, read by the layout of Java's documentation."""
    certificates, at = [], 12
    (count,) = struct.unpack_from(">I", data, 8)
    for _ in range(count):
        assert struct.unpack_from(">I", data, at) == (2,)
        (alias_length,) = struct.unpack_from(">H", data, at + 4)
        at += 6 + alias_length + 8
        assert data[at : at + 7] == b"\x00\x05X.509"
        (length,) = struct.unpack_from(">I", data, at + 7)
        certificates.append(data[at + 11 : at + 11 + length])
        at += 11 + length
    assert at == len(data) - 20
    return certificates


def test_the_store_has_what_the_bundle_of_the_machine_has(tmp_path, monkeypatch):
    known = ssl.create_default_context().get_ca_certs(binary_form=True)[:3]
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("some words\n" + "".join(map(ssl.DER_cert_to_PEM_cert, known)))
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "empty"))
    assert write_trust_store(tmp_path / "store") == len(known)
    assert sorted(read_store((tmp_path / "store").read_bytes())) == sorted(known)


def test_authorities_in_a_folder_are_found_and_other_files_there_are_not_minded(
    tmp_path, monkeypatch
):
    known = ssl.create_default_context().get_ca_certs(binary_form=True)[:2]
    folder = tmp_path / "folder"
    folder.mkdir()
    for number, certificate in enumerate(known):
        (folder / f"{number}.0").write_text(ssl.DER_cert_to_PEM_cert(certificate))
    (folder / "noise").write_bytes(b"\xff\xfe")
    (folder / "gone").symlink_to(folder / "nowhere")
    (tmp_path / "none.pem").write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    assert write_trust_store(tmp_path / "store") == len(known)


def test_the_store_ends_in_the_digest_that_java_checks(tmp_path):
    write_trust_store(tmp_path / "store")
    data = (tmp_path / "store").read_bytes()
    secret = TRUST_STORE_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    assert hashlib.sha1(secret + data[:-20]).digest() == data[-20:]
