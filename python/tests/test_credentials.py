"""Certificates and tokens: given as keywords, pickled as paths, and told when they are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from conftest import BIN, ROWS, SEGMENT_BYTES, Cluster

import forebay
from forebay.fs import ForebayFileSystem

# A set of files counts for a whole process, so each of these is one of its own.
READ = """
import sys, forebay
uri, endpoint, segment_bytes, *files = sys.argv[1:]
keywords = dict(file.split("=") for file in files)
ds = forebay.dataset(uri, endpoint=endpoint, segment_bytes=int(segment_bytes), **keywords)
print(sum(len(batch) for batch in forebay.Loader(ds, batch_size=50, epochs=1)))
"""
PICKLE = """
import pickle, sys, forebay
uri, endpoint, segment_bytes, *files = sys.argv[1:]
keywords = dict(file.split("=") for file in files)
ds = forebay.dataset(uri, endpoint=endpoint, segment_bytes=int(segment_bytes), **keywords)
pickle.dump(ds, open("copy", "wb"))
"""
UNPICKLE = """
import pickle, sys
print(pickle.load(open(sys.argv[1], "rb")).num_rows)
"""
LIST = """
import sys, forebay.fs
uri, endpoint, _, *files = sys.argv[1:]
fs = forebay.fs.ForebayFileSystem(endpoint, **dict(file.split("=") for file in files))
print(len(fs.ls(uri)), fs.cat_file(f"{uri}/0.parquet")[:4])
"""


def forebay_makes(*arguments: str) -> None:
    subprocess.run([str(BIN / "forebay"), *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60)


def said(script: str, *arguments: str, folder: Path | None = None, variables: Mapping[str, str] = MappingProxyType({})) -> str:
    """What it prints, or the last line of its error."""
    command = [sys.executable, "-c", script, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env={**os.environ, **variables})
    return (run.stdout or run.stderr).strip().rpartition("\n")[2]


def certificates(folder: Path, client: str) -> tuple[str, str]:
    """Makes an authority, and certificates of a node and of a client; where, as a flag of `forebay cert`."""
    within = ("--dir", str(folder))
    forebay_makes("cert", "init", *within)
    forebay_makes("cert", "node", "localhost", "--host", "127.0.0.1", *within)
    forebay_makes("cert", "client", client, *within)
    return within


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an authority, certificates of a node and of a client, and a policy with a token."""
    folder = tmp_path_factory.mktemp("certificates")
    certificates(folder, "trainer")
    token = ("--policy", str(folder / "policy.toml"), "--role", "reader", "--prefix", "s3://forebay/")
    forebay_makes("token", "create", "trainer", *token, "--out", str(folder / "token"))
    return folder


@pytest.fixture(scope="module")
def by_tls(data: Path, folder: Path) -> Iterator[Cluster]:
    """A node that takes connections by TLS, from clients with a certificate."""
    named = [("--tls-cert", "localhost.pem"), ("--tls-key", "localhost-key.pem"), ("--tls-ca", "ca.pem")]
    cluster = Cluster(data, 1, "--", *(word for flag, name in named for word in (flag, str(folder / name))))
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def by_token(data: Path, folder: Path) -> Iterator[Cluster]:
    """A node with a policy."""
    cluster = Cluster(data, 1, "--", "--auth-policy", str(folder / "policy.toml"))
    yield cluster
    cluster.stop()


def files(folder: Path) -> dict[str, Path]:
    return {"ca": folder / "ca.pem", "cert": folder / "trainer.pem", "key": folder / "trainer-key.pem"}


def words(named: dict[str, Path]) -> list[str]:
    return [f"{keyword}={path}" for keyword, path in named.items()]


def test_a_node_with_tls_is_read(by_tls: Cluster, folder: Path) -> None:
    assert by_tls.endpoint.startswith("https://")
    asked = (by_tls.uri(), by_tls.endpoint, str(SEGMENT_BYTES))
    all_files = files(folder)
    assert said(READ, *asked, *words(all_files)) == str(ROWS)
    assert said(LIST, *asked, *words(all_files)) == "3 b'PAR1'"
    variables = {f"FOREBAY_{keyword.upper()}": str(path) for keyword, path in all_files.items()}
    assert said(READ, *asked, variables=variables) == str(ROWS)
    # A keyword that is left out comes from the environment, one that is given does not.
    ca = {"FOREBAY_CA": variables.pop("FOREBAY_CA")}
    assert said(READ, *asked, *words({name: all_files[name] for name in ["cert", "key"]}), variables=ca) == str(ROWS)
    wrong = {**variables, "FOREBAY_CA": "/nonexistent"}
    assert said(READ, *asked, f"ca={all_files['ca']}", variables=wrong) == str(ROWS)
    assert "forebay._errors.RetryError" in said(READ, *asked, f"ca={all_files['ca']}"), "no certificate is shown"


def test_a_token_is_shown(by_token: Cluster, folder: Path) -> None:
    asked = (by_token.uri(), by_token.endpoint, str(SEGMENT_BYTES))
    assert said(READ, *asked, f"token_file={folder / 'token'}") == str(ROWS)
    assert said(LIST, *asked, f"token_file={folder / 'token'}") == "3 b'PAR1'"
    assert "forebay._errors.DeniedError" in said(READ, *asked)


def test_copies_take_the_paths_along(by_tls: Cluster, folder: Path, tmp_path: Path) -> None:
    """To processes with another working directory; what the files hold stays where it is."""
    for name in ["ca.pem", "trainer.pem", "trainer-key.pem"]:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "trainer-key.pem").chmod(0o600)
    asked = (by_tls.uri(), by_tls.endpoint, str(SEGMENT_BYTES), "ca=ca.pem", "cert=trainer.pem", "key=trainer-key.pem")
    assert said(PICKLE, *asked, folder=tmp_path) == ""
    pickled = (tmp_path / "copy").read_bytes()
    assert str(tmp_path / "trainer-key.pem").encode() in pickled and b"PRIVATE" not in pickled
    assert said(UNPICKLE, str(tmp_path / "copy"), folder=folder) == str(ROWS)
    (tmp_path / "trainer-key.pem").unlink()
    gone = said(UNPICKLE, str(tmp_path / "copy"), folder=folder)
    assert gone.startswith("forebay._errors.InvalidError") and f"{tmp_path}/trainer-key.pem: cannot be read" in gone


def test_what_is_wrong_is_told(cluster: Cluster, folder: Path, tmp_path: Path) -> None:
    def refused(keywords: dict[str, Any], error: type[Exception], told: str) -> None:
        given = {"endpoint": "https://localhost:1", **keywords}
        with pytest.raises(error, match=told):
            forebay.dataset(cluster.uri(), **given)
        with pytest.raises(error, match=told):
            ForebayFileSystem(**given)

    missing, loose = tmp_path / "none.pem", tmp_path / "loose.pem"
    loose.write_bytes((folder / "trainer-key.pem").read_bytes())
    loose.chmod(0o644)
    named = files(folder)
    refused({"ca": missing}, forebay.InvalidError, f"ca=, cert= and key= name PEM files: {missing}: cannot be read")
    refused({"cert": named["cert"]}, forebay.InvalidError, "cert= needs key= beside it: name both files or neither")
    refused({"key": named["key"]}, forebay.InvalidError, "key= needs cert= beside it: name both files or neither")
    refused({**named, "key": loose}, forebay.InvalidError, f"{loose}: its mode is 0644, .* chmod 600")
    refused({"ca": named["key"]}, forebay.InvalidError, f"{named['key']}: ")
    refused({"token_file": missing}, forebay.DeniedError, f"token_file= names the file that holds your token: .*{missing}")
    places: list[dict[str, Any]] = [{"endpoint": None, "direct": True}, {"endpoint": "local"}]
    for elsewhere in places:
        refused({"ca": named["ca"], **elsewhere}, forebay.InvalidError, "are for the nodes of a cluster: name one by endpoint=")
