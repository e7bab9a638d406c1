"""The nodes that `etcd_hosts=` finds: real etcds in the clear, by TLS, with certificates and with users."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from conftest import Cluster
from test_credentials import certificates, forebay_makes

import forebay
from forebay import _etcd
from forebay._place import shown
from forebay.fs import ForebayFileSystem

PASSWORD = "of the reader"


def test_nodes_are_found_in_etcd(data: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snippet of users of other caches, with the names changed."""
    cluster = Cluster(data, 2, "--etcd")
    # A proxy is for what lies outside: etcd is not asked through it.
    for name in ["http_proxy", "https_proxy", "all_proxy"]:
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    try:
        hosts = ",".join(["http://127.0.0.1:1", *cluster.etcd])
        fs = fsspec.filesystem("forebay", etcd_hosts=hosts, target_protocol="s3")
        dataset = ds.dataset(f"s3://{cluster.bucket}/rows", filesystem=fs)
        assert dataset.count_rows() == 600
        assert dataset.schema == table.schema
        assert dataset.take([0, 599]) == table.take([0, 599])
        assert dataset.to_table() == table
        with pytest.raises(forebay.NotFoundError, match="no node of a cache is registered under /other"):
            fsspec.filesystem("forebay", etcd_hosts=hosts, etcd_prefix="/other")
        cluster.kill(0)
        assert ds.dataset(f"s3://{cluster.bucket}/rows", filesystem=fs).to_table() == table
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an authority, and certificates of an etcd and of a client."""
    folder = tmp_path_factory.mktemp("certificates")
    within = certificates(folder, "reader")
    forebay_makes("cert", "node", "elsewhere", *within)
    (folder / "password").write_text(PASSWORD + "\n")
    (folder / "wrong").write_text("wrong")
    return folder


class Etcd:
    """A running etcd of one member."""

    def __init__(self, data: Path, folder: Path, scheme: str, *options: str) -> None:
        with contextlib.ExitStack() as stack:
            ports = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
        self.port = ports[0]
        self.url, peer = f"{scheme}://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
        self.tls = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        self.tls.load_cert_chain(folder / "reader.pem", folder / "reader-key.pem")
        command = ["etcd", "--name", "one", "--data-dir", str(data), "--logger", "zap", "--log-level", "error"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}", *options]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        limit = time.monotonic() + 30
        while True:
            try:
                self.ask("kv/range", key=base64.b64encode(b"a").decode())
                return
            except OSError:
                assert time.monotonic() < limit and self.process.poll() is None, "etcd does not answer"
                time.sleep(0.05)

    def ask(self, call: str, **body: Any) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.tls))
        with opener.open(f"{self.url}/v3/{call}", json.dumps(body).encode(), timeout=5) as answer:
            return json.load(answer)

    def register(self, cluster: Cluster) -> None:
        """As nodes do, beside keys that are none of theirs."""
        nodes = [json.dumps({"address": address}).encode() for address in cluster.endpoint.split(",")]
        gone = b'{"address": "http://127.0.0.1:1", "leaving": true}'
        for number, value in enumerate([b"no JSON", b"[]", b'{"address": 1}', gone, *nodes]):
            key = base64.b64encode(b"/forebay/nodes/%d" % number).decode()
            self.ask("kv/put", key=key, value=base64.b64encode(value).decode())

    def require_password(self) -> None:
        """A reader may read the cluster's keys; all else is root's."""
        ends = {"key": base64.b64encode(b"/forebay/").decode(), "range_end": base64.b64encode(b"/forebay0").decode()}
        self.ask("auth/role/add", name="readers")
        self.ask("auth/role/grant", name="readers", perm={"permType": "READ", **ends})
        for user, role in [("root", "root"), ("reader", "readers")]:
            self.ask("auth/user/add", name=user, password=PASSWORD)
            self.ask("auth/user/grant", user=user, role=role)
        self.ask("auth/enable")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def by_certificates(cluster: Cluster, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    own = ["--cert-file", f"{folder}/localhost.pem", "--key-file", f"{folder}/localhost-key.pem"]
    etcd = Etcd(
        tmp_path_factory.mktemp("etcd"), folder, "https", *own, "--client-cert-auth", "--trusted-ca-file", f"{folder}/ca.pem"
    )
    etcd.register(cluster)
    yield etcd
    etcd.stop()


@pytest.fixture(scope="module", params=["http", "https"])
def by_users(request: Any, cluster: Cluster, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    own = ["--cert-file", f"{folder}/localhost.pem", "--key-file", f"{folder}/localhost-key.pem"]
    etcd = Etcd(tmp_path_factory.mktemp("etcd"), folder, request.param, *(own if request.param == "https" else []))
    etcd.register(cluster)
    etcd.require_password()
    yield etcd
    etcd.stop()


def lists(cluster: Cluster, hosts: str, **keywords: Any) -> bool:
    """Whether the cluster is found."""
    fs = ForebayFileSystem(etcd_hosts=hosts, skip_instance_cache=True, **keywords)
    return fs.cat_file(f"s3://{cluster.bucket}/rows/0.parquet", 0, 4) == b"PAR1"


def test_etcd_with_certificates(
    cluster: Cluster, folder: Path, by_certificates: Etcd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    etcd = by_certificates
    files = {"etcd_ca": folder / "ca.pem", "etcd_cert": folder / "reader.pem", "etcd_key": folder / "reader-key.pem"}
    monkeypatch.chdir(folder)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    assert lists(cluster, etcd.url, **files)
    # With files for TLS a bare name is at https://; and they may be named as of the folder that one is in.
    assert lists(cluster, f"127.0.0.1:1, localhost:{etcd.port}", **{name: path.name for name, path in files.items()})
    assert lists(cluster, "localhost", etcd_port=etcd.port, **files)
    # Those for the nodes count where none are for etcd. A process has one set of these: no node is asked here.
    found = cluster.endpoint.split(",")
    none, of_nodes = shown(None, None, None, None), shown(files["etcd_ca"], files["etcd_cert"], files["etcd_key"], None)
    bare = _etcd.Asked([etcd.url], 1, "/forebay", none, none)
    assert _etcd.nodes(_etcd.Asked([etcd.url], 1, "/forebay", none, of_nodes)) == found
    with pytest.raises(forebay.DeniedError, match=f"{etcd.url}: .*certificate verify failed"):
        _etcd.nodes(bare)
    for name in ["ca", "cert", "key"]:
        monkeypatch.setenv(f"FOREBAY_{name.upper()}", str(files[f"etcd_{name}"]))
    assert _etcd.nodes(bare) == found
    for name in ["ca", "cert", "key"]:
        monkeypatch.delenv(f"FOREBAY_{name.upper()}")
    # Without a certificate etcd hangs up, and chance decides which error is seen first.
    with pytest.raises((forebay.DeniedError, forebay.RetryError), match=etcd.url):
        lists(cluster, etcd.url, etcd_ca=files["etcd_ca"])


def test_etcd_with_users(cluster: Cluster, folder: Path, by_users: Etcd) -> None:
    etcd = by_users
    tls: dict[str, Any] = {"etcd_ca": folder / "ca.pem"} if etcd.url.startswith("https") else {}
    login = {"etcd_user": "reader", "etcd_password_file": folder / "password"}
    assert lists(cluster, etcd.url, **login, **tls)
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "user name is empty: name one by etcd_user= and etcd_password_file="),
        ({**login, "etcd_password_file": folder / "wrong"}, "authentication failed"),
        ({**login, "etcd_user": "nobody"}, "authentication failed"),
        ({**login, "etcd_prefix": "/another"}, "permission denied"),
        ({**login, "etcd_password_file": folder / "none"}, "holds the password of reader: .*none"),
    ]
    for keywords, why in refused:
        with pytest.raises(forebay.DeniedError, match=why) as caught:
            lists(cluster, etcd.url, **keywords, **tls)
        assert PASSWORD not in str(caught.value) and "\n" not in str(caught.value)


def test_etcd_without_users_is_shown_no_password(cluster: Cluster, folder: Path, by_certificates: Etcd) -> None:
    files = {"etcd_ca": folder / "ca.pem", "etcd_cert": folder / "reader.pem", "etcd_key": folder / "reader-key.pem"}
    with pytest.raises(forebay.DeniedError, match="authentication is not enabled"):
        lists(cluster, by_certificates.url, etcd_user="reader", etcd_password_file=folder / "password", **files)


def test_wrong_keywords(folder: Path) -> None:
    ca, cert, key, password = (folder / name for name in ["ca.pem", "reader.pem", "reader-key.pem", "password"])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"etcd_hosts": None, "etcd_ca": ca}, "need etcd_hosts="),
        ({"etcd_hosts": None, "etcd_user": "u"}, "need etcd_hosts="),
        ({"etcd_hosts": " , "}, "names none"),
        ({"etcd_hosts": "ftp://h"}, "has 'ftp://h': name HOST"),
        ({"etcd_hosts": "https://u:secret@h:1"}, "has 'h:1': name HOST"),
        ({"etcd_hosts": "h:port"}, "has 'h:port': name HOST"),
        ({"etcd_hosts": "h/path"}, "has 'h/path': name HOST"),
        ({"etcd_hosts": "http://h", "etcd_ca": ca}, "has 'http://h': etcd_ca=, .* are for https://"),
        ({"etcd_cert": cert}, "etcd_cert= and etcd_key= go together"),
        ({"etcd_key": key}, "etcd_cert= and etcd_key= go together"),
        ({"etcd_user": "u"}, "etcd_user= and etcd_password_file= go together"),
        ({"etcd_password_file": password}, "etcd_user= and etcd_password_file= go together"),
        ({"etcd_ca": folder / "none"}, "etcd_ca= names a PEM file .*none"),
        ({"etcd_ca": password}, "etcd_ca= names a PEM file .*password"),
        ({"etcd_cert": cert, "etcd_key": password}, "name PEM files for etcd: .*reader.pem, .*password"),
        ({"etcd_cert": cert, "etcd_key": folder / "localhost-key.pem"}, "name PEM files for etcd: .*KEY_VALUES_MISMATCH"),
        ({"etcd_hosts": "127.0.0.1:1", "endpoint": "h:1"}, "leave out endpoint="),
    ]
    for keywords, why in wrong:
        with pytest.raises(forebay.InvalidError, match=why):
            ForebayFileSystem(**{"etcd_hosts": "127.0.0.1:1", **keywords}, skip_instance_cache=True)
    with pytest.raises(forebay.RetryError, match=r"no etcd answers: http://127.0.0.1:1: .*refused; http://\[::1\]:2: "):
        ForebayFileSystem(etcd_hosts=["127.0.0.1", "[::1]:2"], etcd_port=1, skip_instance_cache=True)


class Odd(BaseHTTPRequestHandler):
    """Answers as etcd does not."""

    answer = (200, b"")
    sent: list[str] = []

    def do_POST(self) -> None:
        self.sent.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        status, body = self.answer
        self.send_response(status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body) + (status == 299)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, format: str, *_: Any) -> None:
        pass


def test_odd_answers_are_errors(folder: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server, socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hosts = f"http://127.0.0.1:{server.server_address[1]}"
        odd: list[tuple[int, bytes, type[forebay.Error], str]] = [
            (200, b"<html>", forebay.RetryError, "no etcd answers"),
            (200, b"[1]", forebay.RetryError, "no answer of etcd's"),
            (200, b'{"kvs": 1}', forebay.NotFoundError, "no node"),
            (200, b'{"kvs": [1, {"value": 1}, {"value": "!"}]}', forebay.NotFoundError, "no node"),
            (299, b"", forebay.RetryError, "IncompleteRead"),
            (302, b"", forebay.RetryError, "302"),
            (404, b"404\npage not found", forebay.DeniedError, "kv/range: 404: 404 page not found"),
            (503, b'{"error": "no leader"}', forebay.RetryError, "503: no leader"),
        ]
        for status, body, error, why in odd:
            Odd.answer = (status, body)
            with pytest.raises(error, match=why):
                ForebayFileSystem(etcd_hosts=hosts, skip_instance_cache=True)
        assert set(Odd.sent) == {"/v3/kv/range"}, "etcd's answers send nobody elsewhere"
        # Another host's certificate, of the authority that is believed.
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder / "elsewhere.pem", folder / "elsewhere-key.pem")
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        with pytest.raises(forebay.DeniedError, match="certificate verify failed: IP address mismatch"):
            ForebayFileSystem(etcd_hosts=hosts.replace("http", "https"), etcd_ca=folder / "ca.pem", skip_instance_cache=True)
        # One that takes the connection and says nothing is given up.
        begun = time.monotonic()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(forebay.RetryError, match="timed out"):
            patch.setattr(_etcd, "_PATIENCE_S", 0.2)
            ForebayFileSystem(etcd_hosts=f"127.0.0.1:{silent.getsockname()[1]}", skip_instance_cache=True)
        assert time.monotonic() - begun < 4
        server.shutdown()
