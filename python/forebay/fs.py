"""Any object of the store through the cache, as a filesystem of fsspec, which may only be read.

>>> import fsspec
>>> fs = fsspec.filesystem("forebay", endpoint="http://node:7070")  # doctest: +SKIP
>>> fs.cat_file("s3://bucket/tokenizer.json")  # doctest: +SKIP

It is registered as `forebay`: ``forebay://bucket/key`` works wherever fsspec's URLs do (pandas, dask, DuckDB, zarr).
"""

from __future__ import annotations

import base64
import errno
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import fsspec
from fsspec.caching import BaseCache, register_cache
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from forebay import _forebay
from forebay._errors import InvalidError, NotFoundError, RetryError
from forebay._local_node import LocalNode
from forebay._place import place, shown

_SCHEMES = ("s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss", "file")
"""What may stand before a path, besides ``forebay``."""

_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}

_OF_S3FS = {"key": "s3_access_key_id", "secret": "s3_secret_access_key", "token": "s3_session_token", "anon": "s3_anonymous"}
"""Names that s3fs has for our keywords."""

_AHEAD = (128 << 10, 8 << 20)
"""Bytes read ahead of a reader that goes on where it was, at first and at most."""


class ForebayFileSystem(AbstractFileSystem):
    """Objects of the store, read through the cache.

    `endpoint` is a node of the cache, or several, as for `forebay.dataset`: unset, it is ``$FOREBAY_ENDPOINT``, else this
    machine's own node. `etcd_hosts` names etcd's instead (``"host"``, ``"host:port"``, several with commas), which is asked
    once for the nodes of the cluster with the prefix `etcd_prefix`. With ``direct=True`` the store is read without a cache.
    `ca`, `cert`, `key` and `token_file` are those of `forebay.dataset`.

    `target_protocol` is what paths belong to that do not say so themselves. Paths may be ``bucket/key``,
    ``s3://bucket/key`` or ``forebay://bucket/key``. `target_options` are s3fs's: ``key``, ``secret``, ``token``, ``anon``,
    ``endpoint_url``, ``client_kwargs``; like the ``s3_...`` keywords of `forebay.dataset` they are for this machine's node
    and for ``direct=True``, as a cluster has its own.

    Directories are prefixes. What an open file reads is one version of the object from beginning to end: when it was
    overwritten meanwhile, `ChangedError`. How old an answer about an object may be is the cache's setting `metadata_age`.
    Everything that writes is an ``OSError`` (EROFS). It is synchronous, holds no lock while it waits, and has no thread of
    its own in Python.
    """

    protocol = "forebay"
    root_marker = ""

    def __init__(
        self,
        endpoint: str | Sequence[str] | LocalNode | None = None,
        *,
        etcd_hosts: str | Sequence[str] | None = None,
        etcd_port: int = 2379,
        etcd_prefix: str = "/forebay",
        direct: bool = False,
        zone: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        target_protocol: str = "s3",
        target_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        store = {name: options.pop(name) for name in list(options) if name.startswith("s3_") or name == "patience_s"}
        super().__init__(**options)
        if target_protocol not in _SCHEMES:
            raise InvalidError(f"target_protocol={target_protocol!r}: there are {', '.join(_SCHEMES)}")
        self.target_protocol = _SAME.get(target_protocol, target_protocol)
        if etcd_hosts is not None:
            if endpoint is not None or direct:
                raise InvalidError("etcd_hosts= says where the nodes are: leave out endpoint= and direct=")
            endpoint = _nodes(etcd_hosts, etcd_port, etcd_prefix)
        store = {**_store(target_options), **store}
        files = shown(ca, cert, key, token_file)
        where = place("ForebayFileSystem", endpoint=endpoint, direct=direct, zone=zone, shown=files, store=store)
        self._objects = _forebay.Objects(where)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        scheme, separator, rest = path.partition("://")
        if separator and (scheme == cls.protocol or scheme in _SCHEMES):
            path = rest
        return path.rstrip("/")

    def unstrip_protocol(self, name: str) -> str:
        """The path as a URL of this filesystem."""
        return f"{self.protocol}://{self._strip_protocol(name)}"

    @property
    def fsid(self) -> str:
        """Names the filesystem."""
        return f"forebay+{self.target_protocol}"

    def _uri(self, path: Any) -> str:
        scheme, separator, _ = os.fspath(path).partition("://")
        if separator and scheme in _SCHEMES and _SAME.get(scheme, scheme) != self.target_protocol:
            raise InvalidError(f"{path}: this filesystem reads {self.target_protocol}://: make one with target_protocol={scheme!r}")
        return f"{self.target_protocol}://{self._strip_protocol(path)}"

    def _name(self, uri: str) -> str:
        return uri.partition("://")[2]

    def _listed(self, path: Any, recursive: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Objects and directories below."""
        uri = self._uri(path)
        files, folders, token = [], [], ""
        while True:
            objects, prefixes, token = self._objects.list(uri, recursive, token)
            files += [_file(self._name(name), size, etag, modified) for name, size, etag, modified in objects if name != uri]
            folders += [_folder(self._name(name)) for name in prefixes]
            if not token:
                return files, folders

    def ls(self, path: Any, detail: bool = True, **_: Any) -> list[Any]:
        """What lies directly under a path; of an object, itself. Asks the object store each time."""
        name = self._strip_protocol(path)
        if not name:
            raise InvalidError(f"a path begins with a bucket: {self.protocol}://BUCKET")
        files, folders = self._listed(path, False)
        entries = sorted(files + folders, key=lambda entry: str(entry["name"]))
        if not entries:
            entries = [self._info(path)]
        return entries if detail else [entry["name"] for entry in entries]

    def _info(self, path: Any) -> dict[str, Any]:
        version = self._objects.version(self._uri(path))
        return _file(self._name(version.uri), version.size, version.etag, version.modified_ms)

    def info(self, path: Any, **_: Any) -> dict[str, Any]:
        """Name, size and type; of an object also `ETag` and `LastModified`."""
        name = self._strip_protocol(path)
        if "/" in name.strip("/"):
            try:
                return self._info(path)
            except NotFoundError:
                pass
        # The first page says it.
        objects, prefixes, _token = self._objects.list(self._uri(path), False, "")
        if not objects and not prefixes:
            raise NotFoundError(f"{self._uri(path)}: no such object, and none below it")
        return _folder(name)

    def exists(self, path: Any, **_: Any) -> bool:
        """Whether there is such an object, or any below. Errors but that one are raised."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def find(self, path: Any, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any) -> Any:
        """All objects below a path, by one recursive listing. They are named as the path is: with ``s3://`` if it has that,
        which pyarrow's datasets of folders need.
        """
        if maxdepth is not None or withdirs:
            entries = super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **options).values()
        else:
            entries, _folders = self._listed(path, True)
        if not entries:
            try:
                entries = [self._info(path)]
            except NotFoundError:
                entries = []
        scheme, separator, _ = os.fspath(path).rpartition("://")
        named = ({**entry, "name": f"{scheme}{separator}{entry['name']}"} for entry in entries)
        found = {entry["name"]: entry for entry in sorted(named, key=lambda entry: str(entry["name"]))}
        return found if detail else list(found)

    def modified(self, path: Any) -> datetime:
        """When the object was written."""
        written: datetime | None = self.info(path).get("LastModified")
        if written is None:
            raise IsADirectoryError(errno.EISDIR, "a directory has no time", str(path))
        return written

    def _open(self, path: Any, mode: str = "rb", block_size: Any = None, cache_type: str | None = None, **options: Any) -> ForebayFile:
        if mode != "rb":
            _read_only(path)
        return ForebayFile(self, path, block_size=block_size, cache_type=cache_type or AheadCache.name, **options)

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """An object's bytes, or a range of them: numbers below 0 count from its end."""
        read: bytes = self.cat_ranges([path], [start], [end], on_error="raise")[0]
        return read

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """The bytes of an object, or, by name, of several, which are read at once."""
        paths = self.expand_path(path, recursive=recursive)
        folders = {parent for name in paths for parent in _parents(name)}
        paths = [name for name in paths if name not in folders or self.info(name)["type"] == "file"]
        if len(paths) == 1 and not isinstance(path, list) and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0])
        read = self.cat_ranges(paths, None, None, on_error="raise" if on_error == "raise" else "return")
        of = zip(paths, read, strict=True)
        return {name: data for name, data in of if on_error != "omit" or not isinstance(data, BaseException)}

    def cat_ranges(
        self,
        paths: Sequence[Any],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Ranges of objects, all at once in one call: of each its bytes, or the exception."""
        if not isinstance(starts, Iterable):
            starts = [starts] * len(paths)
        if not isinstance(ends, Iterable):
            ends = [ends] * len(paths)
        read = self._objects.cat([(self._uri(path), start, end) for path, start, end in zip(paths, starts, ends, strict=True)])
        if on_error == "raise":
            for data in read:
                if isinstance(data, BaseException):
                    raise data
        return read

    def mkdir(self, path: Any, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        _read_only(path)

    # What fsspec would do in parts, or not at all.
    makedir = makedirs = rmdir = rm = rm_file = _rm = touch = pipe = pipe_file = put = put_file = mkdir
    copy = cp_file = mv = move = rename = upload = write_text = write_bytes = mkdir


class ForebayFile(AbstractBufferedFile):
    """An object that is open for reading, in the version that it had then."""

    def __init__(self, fs: ForebayFileSystem, path: Any, **options: Any) -> None:
        self.version = fs._objects.version(fs._uri(path))
        super().__init__(fs, fs._strip_protocol(path), mode="rb", **{**options, "size": self.version.size})

    @property
    def details(self) -> dict[str, Any]:
        """What `info` says of this version."""
        version = self.version
        return _file(self.path, version.size, version.etag, version.modified_ms)

    def _fetch_range(self, start: int, end: int) -> bytes:
        read: bytes = self.fs._objects.read(self.version, start, min(end, self.version.size))
        return read


class AheadCache(BaseCache):
    """Reads no more than it is asked for, until the reader goes on where it was: then ahead, twice as far each time.

    Readers of Parquet ask for what they need, and get just that; readers of lines ask for a few bytes at a time.
    """

    name = "forebay"

    def __init__(self, blocksize: int, fetcher: Any, size: int) -> None:
        super().__init__(blocksize, fetcher, size)
        self._start, self._held, self._ahead = 0, b"", 0
        # Where the reader is if it goes on.
        self._next = -1

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        start, stop = start or 0, self.size if stop is None else min(stop, self.size)
        if start >= stop:
            return b""
        goes_on, self._next = start == self._next, stop
        held_to = self._start + len(self._held)
        if self._start <= start and stop <= held_to:
            self.hit_count += 1
            return self._held[start - self._start : stop - self._start]
        self.miss_count += 1
        self._ahead = min(max(2 * self._ahead, _AHEAD[0]), _AHEAD[1]) if goes_on else 0
        # Bytes that are held already are not fetched again.
        begun = self._held[start - self._start :] if self._start <= start < held_to else b""
        fetched = start + len(begun)
        until = min(max(stop, fetched + self._ahead), self.size)
        self.total_requested_bytes += until - fetched
        data: bytes = self.fetcher(fetched, until)
        data = begun + data if begun else data
        # Nothing is kept of what was asked for as it is.
        self._start, self._held = (start, data) if until > stop else (0, b"")
        return data if until == stop else data[: stop - start]


register_cache(AheadCache, clobber=True)


def _file(name: str, size: int, etag: str, modified_ms: int) -> dict[str, Any]:
    modified = datetime.fromtimestamp(modified_ms / 1000, UTC)
    return {"name": name, "size": size, "type": "file", "ETag": etag, "LastModified": modified}


def _parents(name: str) -> Iterable[str]:
    """The paths above one."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _read_only(path: Any) -> NoReturn:
    raise OSError(errno.EROFS, "a cache is only read: write to the object store itself", str(path))


def _store(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """s3fs's options as our keywords."""
    left = dict(options or {})
    client = dict(left.pop("client_kwargs", {}))
    store = {ours: left.pop(theirs) for theirs, ours in _OF_S3FS.items() if theirs in left}
    for theirs, ours in [("endpoint_url", "s3_endpoint"), ("region_name", "s3_region")]:
        found = [given.pop(theirs) for given in (left, client) if theirs in given]
        store.update({ours: value for value in found[:1]})
    if left or client:
        unknown = min([*left, *client])
        raise InvalidError(f"target_options has {unknown!r}: there are {', '.join(_OF_S3FS)}, endpoint_url and region_name")
    return store


def _nodes(hosts: str | Sequence[str], port: int, prefix: str) -> list[str]:
    """The addresses of a cluster's nodes, from the first etcd that answers; over HTTP, so it needs no client."""
    names = [host.strip() for host in (hosts.split(",") if isinstance(hosts, str) else hosts)]
    begin = f"{prefix.rstrip('/')}/nodes/".encode()
    end = begin[:-1] + bytes([begin[-1] + 1])
    body = json.dumps({"key": base64.b64encode(begin).decode(), "range_end": base64.b64encode(end).decode()}).encode()
    failed = []
    for name in filter(None, names):
        url = name if "://" in name else f"http://{name}"
        if ":" not in url.rpartition("/")[2].rpartition("]")[2]:
            url = f"{url}:{port}"
        request = urllib.request.Request(f"{url}/v3/kv/range", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                kvs = json.load(answer).get("kvs", [])
        except (OSError, ValueError) as e:
            failed.append(f"{url}: {getattr(e, 'reason', e)}")
            continue
        members = [json.loads(base64.b64decode(kv["value"])) for kv in kvs]
        found = [member["address"] for member in members if not member.get("leaving")]
        if not found:
            raise NotFoundError(f"{url}: no node of a cache is registered under {prefix}: is etcd_prefix= right?")
        return found
    raise RetryError(f"no etcd answers: {'; '.join(failed) or 'etcd_hosts= names none'}")


fsspec.register_implementation(ForebayFileSystem.protocol, ForebayFileSystem, clobber=True)
