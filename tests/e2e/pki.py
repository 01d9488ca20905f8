"""Certificate authorities and certificates for tests, made with the openssl program (EC keys: milliseconds each)."""
import pathlib
import ssl
import subprocess


def openssl(*args, **kwargs):
    result = subprocess.run(["openssl", *map(str, args)], capture_output=True, text=True, **kwargs)
    assert result.returncode == 0, result.stderr
    return result


def write_key(path):
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
    path.chmod(0o600)


class Authority:
    def __init__(self, folder, name):
        self.folder = pathlib.Path(folder)
        self.name = name
        self.key, self.cert = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        write_key(self.key)
        openssl("req", "-x509", "-new", "-key", self.key, "-subj", f"/CN={name}", "-days", "30", "-out", self.cert)
        (self.folder / f"{name}.index").write_text("")
        (self.folder / f"{name}.serial").write_text("01\n")

    def issue(self, stem, cn, san="", expired=False):
        """(certificate, key) paths for a name; san such as "DNS:localhost,IP:127.0.0.1"."""
        key, request, cert = (self.folder / f"{stem}.{e}" for e in ("key", "csr", "pem"))
        config = self.folder / f"{stem}.cnf"
        write_key(key)
        openssl("req", "-new", "-key", key, "-subj", f"/CN={cn}", "-out", request)
        config.write_text(
            f"[ca]\ndefault_ca=d\n[d]\ndatabase={self.folder}/{self.name}.index\nserial={self.folder}/{self.name}.serial\n"
            f"new_certs_dir={self.folder}\ndefault_md=sha256\npolicy=p\nunique_subject=no\nx509_extensions=x\n[p]\n"
            f"commonName=supplied\n[x]\nbasicConstraints=CA:FALSE\n{'subjectAltName=' + san if san else ''}\n")
        dates = (["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"] if expired
                 else ["-days", "30"])
        openssl("ca", "-batch", "-config", config, "-cert", self.cert, "-keyfile", self.key, "-in", request, "-out", cert,
                "-notext", *dates)
        return cert, key


def client_hello(protocol="h2"):
    """Returns the first message of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
    raise AssertionError("a handshake of one side")
