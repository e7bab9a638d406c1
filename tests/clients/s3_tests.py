"""Runs the tests of ceph/s3-tests that matter to an endpoint which reads, first against the bare object store, then with
GET and HEAD through a node. What passes the first time must pass the second.

The tests write first. So a splitter stands before both: it sends GET and HEAD to the node and all else to the object
store, with the same Host, which is signed. What the tests read to clean up after themselves, lists of buckets and of
versions, comes from the object store too."""

from __future__ import annotations

import configparser
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ElementTree
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BIN = Path(os.environ["FOREBAY_BIN"])
SELECTED = re.compile(
    r"bucket_list(v2)?_|object_get_if|get_object_if|object_raw_get|ranged|_get_part|bucket_head|_notexist|not_exist|list_buckets|attributes"
)


class Splitter(BaseHTTPRequestHandler):
    """Sends what reads to one address, and what writes to another."""

    protocol_version = "HTTP/1.1"
    reads = writes = ""

    def forward(self) -> None:
        is_for_store = self.path == "/" or re.search(r"[?&](versions|uploads)\b", self.path)
        place = self.reads if self.command in ("GET", "HEAD") and not is_for_store else self.writes
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length) if length else b""
        target = http.client.HTTPConnection(place, timeout=60)
        target.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect"):
                target.putheader(name, value)
        target.endheaders(body or None)
        answer = target.getresponse()
        data = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        if self.command == "HEAD" and answer.getheader("Content-Length"):
            self.send_header("Content-Length", answer.getheader("Content-Length"))
        elif answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        target.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_OPTIONS = forward

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            pass  # The client has gone.

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def split(reads: str, writes: str) -> ThreadingHTTPServer:
    places = {"reads": reads.removeprefix("http://"), "writes": writes.removeprefix("http://")}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Places", (Splitter,), places))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def run(suite: Path, folder: Path, server: ThreadingHTTPServer, key: str, secret: str) -> dict[str, str]:
    """The outcome of each test."""
    settings = configparser.RawConfigParser()
    settings.read(suite / "s3tests.conf.SAMPLE")
    settings.set("DEFAULT", "host", "127.0.0.1")
    settings.set("DEFAULT", "port", str(server.server_address[1]))
    settings.set("DEFAULT", "is_secure", "False")
    for section in settings.sections():
        if settings.has_option(section, "access_key"):
            settings.set(section, "access_key", key)
            settings.set(section, "secret_key", secret)
    with (folder / "s3tests.conf").open("w") as file:
        settings.write(file)
    environment = {**os.environ, "S3TEST_CONF": str(folder / "s3tests.conf"), "AWS_EC2_METADATA_DISABLED": "true"}
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    files = "s3tests/functional/test_s3.py"
    listed = subprocess.run([*pytest, "--collect-only", files], cwd=suite, env=environment, capture_output=True, text=True)
    names = [line for line in listed.stdout.splitlines() if "::" in line and SELECTED.search(line.split("::")[1])]
    assert names, listed.stdout + listed.stderr
    report = folder / "report.xml"
    subprocess.run([*pytest, f"--junitxml={report}", *names], cwd=suite, env=environment, capture_output=True)
    outcome = lambda case: case[0].tag if len(case) else "passed"
    return {case.get("name", ""): outcome(case) for case in ElementTree.parse(report).iter("testcase")}


def main() -> int:
    suite = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "none").mkdir()
        store = subprocess.Popen(
            [BIN / "forebay-test-cluster", "--data", folder / "none", "--nodes", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = json.loads(store.stdout.readline())
        key, secret = said["access_key"], said["secret_key"]
        keys = folder / "keys"
        keys.touch(0o600)
        keys.write_text(f"{key} {secret}\n")
        command = [BIN / "forebay-server", "--listen", f"unix:{folder}/socket", "--cache-dir", folder / "cache"]
        command += ["--allow", "s3://", "--s3-endpoint", said["s3_endpoint"], "--s3-region", said["s3_region"]]
        command += ["--s3-listen", "127.0.0.1:0", "--s3-keys", keys]
        others = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        environment = {**others, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        gateway = next(line.split()[1] for line in node.stdout if line.startswith("s3 "))
        try:
            bare = run(suite, folder, split(said["s3_endpoint"], said["s3_endpoint"]), key, secret)
            through = run(suite, folder, split(gateway, said["s3_endpoint"]), key, secret)
        finally:
            node.terminate()
            store.stdin.close()
    passed = [name for name, outcome in bare.items() if outcome == "passed"]
    lost = [name for name in passed if through.get(name) != "passed"]
    also = sum(outcome == "passed" for outcome in through.values())
    print(f"s3-tests: {len(bare)} selected; {len(passed)} pass against the bare object store, {also} through the endpoint")
    for name in lost:
        print(f"s3-tests: {name} passes against the object store only")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
