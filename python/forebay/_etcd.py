"""The nodes of a cluster, as etcd lists them.

etcd is asked over its own HTTP interface, which needs no client of it. It is reached directly, whatever proxy the
environment names, and its answers send nobody elsewhere. Where it has users it gives a token for a password.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from forebay._errors import DeniedError, InvalidError, NotFoundError, RetryError
from forebay._place import Shown

_PATIENCE_S = 5
"""How long one member of etcd may be silent before another one is asked."""


class _RefusedError(Exception):
    """An answer that asking again does not change."""


@dataclass(frozen=True)
class Asked:
    """Which etcd is asked, for what and as whom."""

    hosts: str | Sequence[str]
    port: int
    """Of hosts that name none."""
    prefix: str
    own: Shown
    """The files for etcd."""
    of_nodes: Shown
    """The files for the nodes, which count where there are none for etcd."""
    user: str | None = None
    password_file: str | os.PathLike[str] | None = None


def nodes(asked: Asked) -> list[str]:
    """The addresses of a cluster's nodes, from the first member of etcd that answers.

    Raises `InvalidError` for hosts and files that make no sense, `DeniedError` where etcd does not believe this process or
    this process does not believe etcd, `RetryError` where no member answers.
    """
    hosts, own = asked.hosts, asked.own
    is_tls = any(own[name] is not None for name in ("ca", "cert", "key"))
    names = [host.strip() for host in (hosts.split(",") if isinstance(hosts, str) else hosts)]
    members = [_member(name, asked.port, is_tls) for name in filter(None, names)]
    if not members:
        raise InvalidError("etcd_hosts= names none")
    context = _context(own, asked.of_nodes) if any(member.scheme == "https" for member in members) else None
    login = _login(asked.user, asked.password_file)
    failed, is_refused = [], False
    for member in members:
        url = member.geturl()
        try:
            found = _listed(member, context, login, asked.prefix)
        except (OSError, ValueError, http.client.HTTPException, _RefusedError) as e:
            # Who breaks off in the middle of a handshake may be about to start or to end.
            is_refused |= isinstance(e, (_RefusedError, ssl.SSLError)) and not isinstance(e, ssl.SSLEOFError)
            failed.append(f"{url}: {str(e) or type(e).__name__}")
            continue
        if not found:
            raise NotFoundError(f"{url}: no node of a cache is registered under {asked.prefix}: is etcd_prefix= right?")
        return found
    if is_refused:
        raise DeniedError(f"etcd cannot be asked for the nodes: {'; '.join(failed)}")
    raise RetryError(f"no etcd answers: {'; '.join(failed)}")


def _member(name: str, port: int, is_tls: bool) -> SplitResult:
    """The URL of a member of etcd, with its port."""
    try:
        url = urlsplit(name if "://" in name else f"{'https' if is_tls else 'http'}://{name}")
        own_port = url.port
    except ValueError:
        own_port, url = None, urlsplit("")
    if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc or url.path.strip("/") or url.query:
        # Nobody is to find a password in a log.
        shown = name.rpartition("@")[2]
        raise InvalidError(f"etcd_hosts= has {shown!r}: name HOST, HOST:PORT or a URL such as https://etcd-1:2379")
    if is_tls and url.scheme == "http":
        raise InvalidError(f"etcd_hosts= has {name!r}: etcd_ca=, etcd_cert= and etcd_key= are for https://")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return SplitResult(url.scheme, f"{host}:{own_port or port}", "", "", "")


def _context(own: Shown, of_nodes: Shown) -> ssl.SSLContext:
    """Whom to believe and what to show."""
    ca = own["ca"] or of_nodes["ca"] or os.environ.get("FOREBAY_CA") or None
    cert, key = own["cert"], own["key"]
    if (cert is None) != (key is None):
        raise InvalidError("etcd_cert= and etcd_key= go together: name both files or neither")
    cert = cert or of_nodes["cert"] or os.environ.get("FOREBAY_CERT") or None
    key = key or of_nodes["key"] or os.environ.get("FOREBAY_KEY") or None
    try:
        # Without files it believes the authorities of this machine, as readers of nodes do.
        context = ssl.create_default_context(cafile=ca)
    except OSError as e:
        raise InvalidError(f"etcd_ca= names a PEM file with the authorities of etcd: {ca}: {e}") from e
    if cert is not None:
        try:
            # No key with a password: else OpenSSL asks for it at the terminal.
            context.load_cert_chain(cert, key, password=lambda: "")
        except OSError as e:
            raise InvalidError(f"etcd_cert= and etcd_key= name PEM files for etcd: {cert}, {key}: {e}") from e
    return context


def _login(user: str | None, password_file: str | os.PathLike[str] | None) -> dict[str, str] | None:
    """What etcd gives a token for."""
    if (user is None) != (password_file is None):
        raise InvalidError("etcd_user= and etcd_password_file= go together: name both or neither")
    if user is None or password_file is None:
        return None
    try:
        with open(password_file, encoding="utf-8", newline="") as file:
            return {"name": user, "password": file.read().rstrip("\r\n")}
    except (OSError, ValueError) as e:
        raise DeniedError(f"etcd_password_file= names the file that holds the password of {user}: {e}") from e


def _listed(member: SplitResult, context: ssl.SSLContext | None, login: Mapping[str, str] | None, prefix: str) -> list[str]:
    """The addresses of the nodes that one member knows."""
    begin = f"{prefix.rstrip('/')}/nodes/".encode()
    end = begin[:-1] + bytes([begin[-1] + 1])
    wanted = {"key": base64.b64encode(begin).decode(), "range_end": base64.b64encode(end).decode()}
    host = member.hostname or ""
    if member.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, member.port, timeout=_PATIENCE_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, member.port, timeout=_PATIENCE_S)
    with closing(connection):
        headers = {"Content-Type": "application/json"}
        if login is not None:
            headers["Authorization"] = str(_post(connection, "auth/authenticate", login, headers).get("token"))
        kvs = _post(connection, "kv/range", wanted, headers).get("kvs")
    addresses = map(_address, kvs if isinstance(kvs, list) else [])
    return [address for address in addresses if address]


def _post(connection: http.client.HTTPConnection, call: str, body: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, Any]:
    """What etcd answers to a call."""
    connection.request("POST", f"/v3/{call}", json.dumps(body).encode(), dict(headers))
    answer = connection.getresponse()
    text = answer.read()
    if answer.status == 200:
        said = json.loads(text)
        if not isinstance(said, dict):
            raise ValueError(f"{call}: no answer of etcd's")
        return said
    why = f"{call}: {answer.status}: {_why(text)}"
    if not 400 <= answer.status < 500:
        raise ConnectionError(why)
    advice = ": name one by etcd_user= and etcd_password_file=" if "user name is empty" in why else ""
    raise _RefusedError(why + advice)


def _why(text: bytes) -> str:
    """An error in etcd's words, in one line."""
    try:
        said = json.loads(text)["error"]
    except (ValueError, TypeError, LookupError):
        said = text.decode(errors="replace")
    return " ".join(str(said).split())[:300]


def _address(kv: Any) -> str | None:
    """Where a node is, by its key in etcd; None where that makes no sense, or says that the node is about to go."""
    try:
        node = json.loads(base64.b64decode(kv["value"]))
        address = None if node.get("leaving") else node["address"]
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    return address if isinstance(address, str) else None
