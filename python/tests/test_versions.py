"""A node and a client of versions that do not understand each other: what a program is told."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit

import pytest
from conftest import Cluster

import forebay

RELEASE = forebay.__version__.encode()
OURS = b"\x08\x01\x1a" + bytes([len(RELEASE)]) + RELEASE
"""A `Protocol` as Protobuf writes it, which both sides say of themselves: version 1, this release."""

LATER = b"9." + b"0" * (len(RELEASE) - 4)
OTHERS = b"\x08\x03\x10\x02\x1a" + bytes([len(LATER)]) + LATER
"""One of versions 2 to 3, in as many bytes, so that nothing else in a message changes."""


def pump(source: socket.socket, sink: socket.socket, other: bool) -> None:
    """Passes bytes on until one side ends; with `other`, they say another version."""
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data.replace(OURS, OTHERS) if other else data)
    except OSError:
        pass
    finally:
        for end in [source, sink]:
            end.close()


def connect(listener: socket.socket, node: str, newer: str) -> None:
    """Passes one connection on to a node."""
    url = urlsplit(node)
    client, _ = listener.accept()
    server = socket.create_connection((url.hostname, url.port))
    for source, sink, side in [(client, server, "client"), (server, client, "node")]:
        threading.Thread(target=pump, args=[source, sink, side == newer], daemon=True).start()


@pytest.mark.parametrize("newer", ["node", "client", "neither"])
def test_versions_without_one_in_common_are_refused_with_the_advice(cluster: Cluster, newer: str) -> None:
    node = cluster.endpoint.split(",")[0]
    later = f"versions 2 to 3 of the protocol (Forebay {LATER.decode()})"
    ours = f"versions 0 to 1 of the protocol (Forebay {forebay.__version__})"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=connect, args=[listener, node, newer], daemon=True).start()
        if newer == "neither":
            assert forebay.dataset(cluster.uri(), endpoint=url).num_rows == 600
            return
        with pytest.raises(forebay.Error) as caught:
            forebay.dataset(cluster.uri(), endpoint=url)
    told = {
        "node": f"the node at {url} speaks {later}, this client {ours}: upgrade this client to a release that both know",
        "client": f"this client speaks {later}, the node {ours}: upgrade the node to a release that both know",
    }
    assert isinstance(caught.value, forebay.InvalidError) and isinstance(caught.value, ValueError)
    assert told[newer] in str(caught.value) and "\n" not in str(caught.value)
