"""Any object of an object store through the cache, as a filesystem of fsspec, which may only be read.

>>> import fsspec
>>> fs = fsspec.filesystem("forebay", endpoint="http://node:7070")  # doctest: +SKIP
>>> fs.cat_file("s3://bucket/tokenizer.json")  # doctest: +SKIP

It is registered as `forebay`: ``forebay://bucket/key`` works wherever fsspec's URLs do (pandas, dask, DuckDB, zarr).
"""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import fsspec
from fsspec.caching import BaseCache, register_cache
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from forebay import _etcd, _forebay
from forebay._errors import ChangedError, InvalidError, NotFoundError, RetryError
from forebay._local_node import LocalNode
from forebay._pickled import check_pickled
from forebay._place import place, shown

_SCHEMES = ("s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss", "file")
"""What may stand before a path, besides ``forebay``."""

_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_OF_S3FS = {"key": "s3_access_key_id", "secret": "s3_secret_access_key", "token": "s3_session_token", "anon": "s3_anonymous"}
"""Names that s3fs has for our keywords."""

_OF_FSSPEC = (
    *("skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths"),
    *("asynchronous", "loop", "add_docs", "add_aliases"),
)
"""Keywords that fsspec has for any filesystem. Nothing depends on them here."""

_ELSEWHERE = {
    **dict.fromkeys(
        ("secret", "token", "anon", "endpoint_url", "client_kwargs"),
        "options of s3fs go into target_options={'key': ..., 'secret': ...}; here key= is the file of a private key",
    ),
    **dict.fromkeys(("username", "password"), "s3fs takes it for 'key' and 'secret': put those into target_options="),
    **dict.fromkeys(
        ("use_ssl", "requester_pays", "version_aware", "config_kwargs", "cache_regions", "session", "max_concurrency"),
        "this option of s3fs has no counterpart here: leave it out",
    ),
    **dict.fromkeys(
        ("default_block_size", "default_cache_type", "default_fill_cache", "block_size", "cache_type", "cache_options"),
        "files read as much ahead as their reader needs: leave it out, or pass block_size= and cache_type= to open()",
    ),
    "worker_hosts": "what alluxiofs has in worker_hosts= is endpoint= here: the nodes of the cache",
    "worker_http_port": "the port is part of endpoint=, as in http://node:7070",
    **dict.fromkeys(
        ("preload_path", "options", "concurrency", "logger", "fs", "test_options", "load_balance_domain"),
        "this option of alluxiofs has no counterpart here: leave it out",
    ),
    "fo": "a chain of URLs ends with this filesystem: simplecache::forebay://bucket/key",
}
"""What to do about keywords of other filesystems, in the place of which this one is used."""

_AHEAD = (128 << 10, 8 << 20)
"""Bytes read ahead of a reader that goes on where it was, at first and at most."""


class _PathOfItsOwn:
    """`_strip_protocol`, which is the first that fsspec does with a path: it makes ``bucket/key`` of it.

    The class takes any scheme, as it cannot know. A filesystem refuses those of other object stores.
    """

    def __get__(self, fs: ForebayFileSystem | None, _: Any) -> Callable[[Any], Any]:
        return functools.partial(_stripped, fs)


class ForebayFileSystem(AbstractFileSystem):
    """Objects of an object store, read through the cache.

    `endpoint` is a node of the cache, or several, as for `forebay.dataset`: unset, it is ``$FOREBAY_ENDPOINT``, else this
    machine's own node. `etcd_hosts` names etcd's instead (``"host"``, ``"host:port"``, several with commas), which is asked
    once for the nodes of the cluster with the prefix `etcd_prefix`. With ``direct=True`` the object store is read without a
    cache. `ca`, `cert`, `key` and `token_file` are those of `forebay.dataset`.

    etcd at ``https://`` is believed by `etcd_ca` and shown `etcd_cert` and `etcd_key`; unset, these are `ca`, `cert` and
    `key`. Where etcd has users, it knows this process by `etcd_user` and the password in `etcd_password_file`.

    `target_protocol` is what paths belong to that do not say so themselves. Paths may be ``bucket/key``,
    ``s3://bucket/key`` or ``forebay://bucket/key``. `target_options` are s3fs's: ``key``, ``secret``, ``token``, ``anon``,
    ``endpoint_url``, ``client_kwargs``; like the ``s3_...`` keywords of `forebay.dataset` they are for this machine's node
    and for ``direct=True``, as a cluster has its own.

    Directories are prefixes. What an open file reads is one version of the object from beginning to end: when it was
    overwritten meanwhile, `ChangedError`. How old an answer about an object may be is the cache's setting `metadata_age`.
    Everything that writes is an ``OSError`` (EROFS). It is synchronous, holds no lock while it waits, and has no thread of
    its own in Python.

    Making one raises `InvalidError` for keywords that contradict each other or make no sense, `DeniedError` if etcd refuses
    this process or a token or password cannot be read, `NotFoundError` if etcd lists no node, `RetryError` if etcd does not
    answer. A keyword that neither this class nor fsspec knows is a `TypeError`.

    Its methods raise `InvalidError` for a path of another object store, `NotFoundError` if nothing is there, `DeniedError` if
    the cache or the object store refuses this process, `RetryError` if the cache or the object store does not answer,
    `ClosedError` in a forked process; those that read, also `CorruptError` for damaged bytes, and `FullError` if a node has
    no memory for more readers.
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
        etcd_ca: str | os.PathLike[str] | None = None,
        etcd_cert: str | os.PathLike[str] | None = None,
        etcd_key: str | os.PathLike[str] | None = None,
        etcd_user: str | None = None,
        etcd_password_file: str | os.PathLike[str] | None = None,
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
        _check_known(options)
        super().__init__(**options)
        if target_protocol not in _SCHEMES:
            raise InvalidError(f"target_protocol={target_protocol!r}: there are {', '.join(_SCHEMES)}")
        self.target_protocol = _SAME.get(target_protocol, target_protocol)
        files, of_etcd = shown(ca, cert, key, token_file), shown(etcd_ca, etcd_cert, etcd_key, None)
        if etcd_hosts is not None:
            if endpoint is not None or direct:
                raise InvalidError("etcd_hosts= says where the nodes are: leave out endpoint= and direct=")
            asked = _etcd.Asked(etcd_hosts, etcd_port, etcd_prefix, of_etcd, files, etcd_user, etcd_password_file)
            endpoint = _etcd.nodes(asked)
        elif any([*of_etcd.values(), etcd_user, etcd_password_file]):
            raise InvalidError("etcd_ca=, etcd_cert=, etcd_key=, etcd_user= and etcd_password_file= need etcd_hosts=")
        store = {**_store(target_options), **store}
        where = place("ForebayFileSystem", endpoint=endpoint, direct=direct, zone=zone, shown=files, store=store)
        self._objects = _forebay.Objects(where)

    def __reduce__(self) -> tuple[Callable[..., ForebayFileSystem], tuple[Any, ...]]:
        return _unpickled, (type(self), self.storage_args, self.storage_options, _forebay.__version__)

    _strip_protocol = _PathOfItsOwn()

    def unstrip_protocol(self, name: str) -> str:
        """The path as a URL of this filesystem. Raises `InvalidError` for one of another object store."""
        return f"{self.protocol}://{self._strip_protocol(name)}"

    @property
    def fsid(self) -> str:
        """Names the filesystem."""
        return f"forebay+{self.target_protocol}"

    def _uri(self, path: Any) -> str:
        return f"{self.target_protocol}://{self._strip_protocol(path)}"

    def _name(self, uri: str) -> str:
        return uri.partition("://")[2]

    def _listed(self, path: Any, recursive: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Objects and directories below."""
        uri, root = self._uri(path), self._strip_protocol(path)
        # Files behind a link are listed where they are; they go by the name that was asked for.
        real = os.path.realpath(root) if self.target_protocol == "file" else root

        def name(uri: str) -> str:
            found = self._name(uri)
            return root + found[len(real) :] if found == real or found.startswith(real + "/") else found

        files, folders, token = [], [], ""
        while True:
            objects, prefixes, token = self._objects.list(uri, recursive, token)
            files += [_file(name(found), size, etag, at) for found, size, etag, at in objects if name(found) != root]
            folders += [_folder(name(found)) for found in prefixes]
            if not token:
                return files, folders

    def _below(self, path: Any, maxdepth: int | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Objects and directories below, in all levels or the first ones. What cannot be listed is raised."""
        if maxdepth is None:
            root, names = self._strip_protocol(path), set[str]()
            files, _ = self._listed(path, True)
            for file in files:
                for parent in _parents(file["name"]):
                    if parent == root or parent in names:
                        break
                    names.add(parent)
            names |= self._markers([file["name"] for file in files if file["size"] == 0], names)
            return [file for file in files if file["size"] or file["name"] not in names], [_folder(name) for name in names]
        files, folders = self._listed(path, False)
        level = folders
        for _ in range(1, maxdepth):
            deeper = []
            for folder in level:
                try:
                    objects, prefixes = self._listed(folder["name"], False)
                except NotFoundError:
                    # Its objects were deleted meanwhile.
                    continue
                files += objects
                deeper += prefixes
            folders, level = [*folders, *deeper], deeper
            if not level:
                break
        return files, folders

    def _markers(self, empty: Sequence[str], folders: set[str]) -> set[str]:
        """Which objects without bytes are no objects, but what some tools leave to mark a directory: ``KEY/``, which a
        recursive listing names like ``KEY``. Where others lie below it is taken for that; the rest is asked for.
        """
        asked = [name for name in empty if name not in folders and self.target_protocol != "file"]
        read = self._objects.cat([(self._uri(name), None, None) for name in asked]) if asked else []
        for data in read:
            if isinstance(data, RetryError):
                raise data
        missing = {name for name, data in zip(asked, read, strict=True) if isinstance(data, NotFoundError)}
        return missing | folders.intersection(empty)

    def ls(self, path: Any, detail: bool = True, **_: Any) -> list[Any]:
        """What lies directly under a path, in the order of names; of an object, itself. With `detail` each is a dict as of
        `info`, else a name. Asks the object store each time.

        Raises `NotFoundError` if nothing is there, `InvalidError` for a path without a bucket, otherwise as the class says.
        """
        name = self._strip_protocol(path)
        if not name:
            raise InvalidError(f"a path begins with a bucket: {self.protocol}://BUCKET")
        files, folders = self._listed(path, False)
        entries = sorted(files + folders, key=lambda entry: str(entry["name"]))
        if not entries:
            # It is an object, or a directory of which there is only the mark.
            entries = [entry for entry in [self.info(path)] if entry["type"] == "file"]
        return entries if detail else [entry["name"] for entry in entries]

    def _info(self, path: Any) -> dict[str, Any]:
        version = self._objects.version(self._uri(path))
        return _file(self._strip_protocol(path), version.size, version.etag, version.modified_ms)

    def info(self, path: Any, **_: Any) -> dict[str, Any]:
        """Name, size in bytes and type ("file" or "directory"); of an object also `ETag` and `LastModified`, a time in UTC.

        Raises `NotFoundError` if there is no such object and none below, otherwise as the class says.
        """
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
        if not prefixes and [self._name(found) for found, *_ in objects] == [name]:
            try:
                # It has come since, unless it is the mark of a directory.
                return self._info(path)
            except NotFoundError:
                pass
        return _folder(name)

    def exists(self, path: Any, **_: Any) -> bool:
        """Whether there is such an object, or any below. All errors but `NotFoundError` are raised."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: Any) -> bool:
        """Whether objects lie below. All errors but `NotFoundError` are raised."""
        return self._type(path) == "directory"

    def isfile(self, path: Any) -> bool:
        """Whether there is such an object. All errors but `NotFoundError` are raised."""
        return self._type(path) == "file"

    def _type(self, path: Any) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def find(self, path: Any, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any) -> Any:
        """All objects below a path, with `withdirs` the directories too, by one recursive listing and a question for each
        empty object, which may be a directory's mark; down to `maxdepth`, by one listing of each directory. They are named as
        the path is: with ``s3://`` if it has that, which pyarrow's datasets of folders need. With `detail` they come as a
        dict of what `info` says, by name, else as a list of names. Where nothing is, there are none; all other errors are
        raised, and `ValueError` for a `maxdepth` below 1.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        root = self._strip_protocol(path)
        try:
            files, folders = self._below(path, maxdepth)
            if files or folders:
                folders.append(_folder(root))
            elif "/" in root.strip("/"):
                files = [self._info(path)]
        except NotFoundError:
            files, folders = [], []
        scheme, separator, _ = os.fspath(path).rpartition("://")
        # An object may have a directory's name: then it is the object that counts, as in `info`.
        entries = {entry["name"]: entry for entry in [*(folders if withdirs else []), *files]}
        named = {f"{scheme}{separator}{name}": entries[name] for name in sorted(entries)}
        return {name: {**entry, "name": name} for name, entry in named.items()} if detail else list(named)

    def walk(
        self,
        path: Any,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: str | Callable[[OSError], Any] | None = None,
        detail: bool = False,
        **_: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """Each directory with the names of directories and objects in it, by one listing each. Where nothing is, there are
        none; all other errors are raised, and `ValueError` for a `maxdepth` below 1. With `on_error` it is as fsspec has it:
        ``"raise"``, ``"omit"`` or a function.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        root = self._strip_protocol(path)
        try:
            listing = self.ls(root)
        except OSError as error:
            if on_error == "raise" or (on_error is None and not isinstance(error, FileNotFoundError)):
                raise
            if callable(on_error):
                on_error(error)
            return
        # An object of this very name has an empty one.
        entries = [(entry["name"][len(root) + 1 :], entry) for entry in listing]
        found = [{name: entry for name, entry in entries if entry["type"] == kind} for kind in ("directory", "file")]
        folders, files = found if detail else map(list, found)
        if topdown:
            yield root, folders, files
        if maxdepth != 1:
            deeper = None if maxdepth is None else maxdepth - 1
            for name in folders:
                yield from self.walk(f"{root}/{name}", deeper, topdown, on_error, detail)
        if not topdown:
            yield root, folders, files

    def modified(self, path: Any) -> datetime:
        """When the object was written, in UTC.

        Raises `NotFoundError` if it is not there, `IsADirectoryError` for a directory, otherwise as the class says.
        """
        written: datetime | None = self.info(path).get("LastModified")
        if written is None:
            raise IsADirectoryError(errno.EISDIR, "a directory has no time", str(path))
        return written

    def _open(self, path: Any, mode: str = "rb", block_size: Any = None, cache_type: str | None = None, **options: Any) -> ForebayFile:
        if mode != "rb":
            _read_only(path)
        return ForebayFile(self, path, block_size=block_size, cache_type=cache_type or AheadCache.name, **options)

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """An object's bytes, or a range of them, cut off at its end: numbers below 0 count from there.

        Raises `NotFoundError` if it is not there, `ChangedError` if it is overwritten meanwhile, otherwise as the class says.
        """
        read: bytes = self.cat_ranges([path], [start], [end], on_error="raise")[0]
        return read

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """The bytes of an object, or, by name, of several, which are read at once. With ``on_error="omit"`` those that cannot
        be read are left out, with ``"return"`` their exceptions stand in their places.

        Raises what `cat_file` raises, and `FileNotFoundError` where a pattern or `recursive` finds none.
        """
        paths = self.expand_path(path)
        if recursive:
            paths = sorted({name for root in paths for name in self.find(root)})
            if not paths:
                raise NotFoundError(f"{path}: no such object, and none below it")
        else:
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
        """Ranges of objects, all at once in one call: of each its bytes, or the exception. `starts` and `ends` are those of
        `cat_file`, one for each path or one for all.

        Raises `ValueError` unless there is one for each path, and with ``on_error="raise"`` the first of the exceptions.
        """
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
        """Refused, as is all that writes. Raises `OSError` (EROFS)."""
        _read_only(path)

    # What fsspec would do in parts, or not at all.
    makedir = makedirs = rmdir = rm = rm_file = _rm = touch = pipe = pipe_file = put = put_file = mkdir
    copy = cp_file = mv = move = rename = upload = write_text = write_bytes = mkdir


class ForebayFile(AbstractBufferedFile):
    """An object that is open for reading, in the version that it had then.

    Opening it raises `NotFoundError` if it is not there, reading it `ChangedError` if it was overwritten meanwhile, and both
    what `ForebayFileSystem` says.
    """

    def __init__(self, fs: ForebayFileSystem, path: Any, **options: Any) -> None:
        self.version = fs._objects.version(fs._uri(path))
        super().__init__(fs, fs._strip_protocol(path), mode="rb", **{**options, "size": self.version.size})

    @property
    def details(self) -> dict[str, Any]:
        """What `info` says of this version."""
        version = self.version
        return _file(self.path, version.size, version.etag, version.modified_ms)

    def __reduce__(self) -> tuple[Callable[..., ForebayFile], tuple[Any, ...]]:
        cache_type = self.cache.name if self.cache else "none"
        options = {**self.kwargs, "block_size": self.blocksize, "cache_type": cache_type}
        return _reopened, (self.fs, self.path, self.version.etag, self.loc, options)

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


def _stripped(fs: ForebayFileSystem | None, path: Any) -> Any:
    if isinstance(path, list):
        return [_stripped(fs, one) for one in path]
    path = os.fspath(path)
    named = _SCHEME.match(path)
    if named is None:
        return path.rstrip("/")
    scheme = named[1]
    is_store = scheme in _SCHEMES
    if fs is not None and scheme != fs.protocol and _SAME.get(scheme, scheme) != fs.target_protocol:
        advice = f": make one with target_protocol={scheme!r}" if is_store else ""
        raise InvalidError(f"{path}: this filesystem reads {fs.target_protocol}://{advice}")
    return (path[named.end() :] if is_store or scheme == ForebayFileSystem.protocol else path).rstrip("/")


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


def _check_known(options: Mapping[str, Any]) -> None:
    """A keyword that nobody knows is a mistake; with one that is dropped, another cache may be read."""
    unknown = sorted(set(options) - set(_OF_FSSPEC))
    if unknown:
        own = ", ".join(ForebayFileSystem.__init__.__kwdefaults__ or ())
        remedy = _ELSEWHERE.get(unknown[0], f"there are endpoint, {own}, and the s3_... of forebay.dataset")
        raise TypeError(f"forebay.ForebayFileSystem() knows no keyword {unknown[0]!r}: {remedy}")


def _unpickled(
    kind: type[ForebayFileSystem], args: tuple[Any, ...], options: dict[str, Any], package: str | None = None
) -> ForebayFileSystem:
    check_pickled("the filesystem", package, "make it there by fsspec.filesystem()")
    return kind(*args, **options)


def _reopened(fs: ForebayFileSystem, path: str, etag: str, loc: int, options: dict[str, Any]) -> ForebayFile:
    """A copy of an open file reads on in the version of the file."""
    file: ForebayFile = fs.open(path, "rb", **options)
    if file.version.etag != etag:
        raise ChangedError(f"{fs._uri(path)}: was overwritten since the open file was pickled: open it again")
    file.seek(loc)
    return file


fsspec.register_implementation(ForebayFileSystem.protocol, ForebayFileSystem, clobber=True)
