"""Batches on the device that computes with them, copied while the step before computes."""

from __future__ import annotations

import copy
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from forebay._errors import InvalidError


@dataclass(frozen=True)
class Sent:
    """Something on its way to a device."""

    value: Any
    copied: torch.cuda.Event | None
    """Where the copy is through; None if nothing has to wait for it."""


class Device:
    """Where tensors go.

    To a CUDA device they go from pinned memory, on a stream of its own. The thread that made them puts the copy on that
    stream; the stream that computes waits for it, the host does not. The loader's own memory is pinned once it is used
    again; other tensors are copied into pinned memory that torch keeps.
    """

    # None for devices other than CUDA's.
    _copies: torch.cuda.Stream | None = None

    def __init__(self, device: str | torch.device) -> None:
        self.device = _checked(device)
        self._process = os.getpid()
        if self.device.type == "cuda":
            self._copies = torch.cuda.Stream(self.device)
        # What copies read that may not be through: the loader would use its memory again. Oldest first.
        self._sources: deque[Sent] = deque()
        self._lock = Lock()

    @property
    def cuda_index(self) -> int | None:
        """The number of a CUDA device; None for other devices."""
        return self.device.index if self._copies is not None else None

    def send(self, value: Any) -> Sent:
        """Begins to copy all tensors within it, from any thread."""
        if self.device.type == "cpu":
            return Sent(value, None)
        if self._copies is None:
            return Sent(moved(value, self.device), None)
        # Torch gives its own pinned memory to nobody else before the copies out of it are through.
        with torch.cuda.stream(self._copies):
            try:
                sent = _each(value, lambda tensor: _pinned(tensor).to(self.device, non_blocking=True))
            except BaseException:
                # Some may be on their way.
                self._copies.synchronize()
                raise
            copied = torch.cuda.Event()
            copied.record(self._copies)
        with self._lock:
            self._sources.append(Sent(value, copied))
        self._let_go()
        return Sent(sent, copied)

    def _let_go(self) -> None:
        """Lets go of what was copied."""
        with self._lock:
            while self._sources and (copied := self._sources[0].copied) is not None and copied.query():
                self._sources.popleft()

    def close(self) -> None:
        """Waits until all copies are through. A forked process has none, and cannot use CUDA."""
        if self._copies is not None and self._process == os.getpid():
            self._copies.synchronize()
            self._sources.clear()

    def __del__(self) -> None:
        # Memory that is still copied must not be freed before; when the process ends it is not.
        if not sys.is_finalizing():
            self.close()

    def receive(self, sent: Sent) -> Any:
        """What was sent, for operations on the stream that is current here."""
        if sent.copied is None:
            return sent.value
        computing = torch.cuda.current_stream(self.device)
        computing.wait_event(sent.copied)
        self._let_go()

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            # Its memory belongs to the stream of the copies, which must not take it back while this one reads it.
            tensor.record_stream(computing)
            return tensor

        return _each(sent.value, keep)


def _checked(device: str | torch.device) -> torch.device:
    try:
        wanted = torch.device(device)
    except RuntimeError as e:
        raise InvalidError(f"device={device!r}: {str(e).splitlines()[0]}") from e
    if wanted.type != "cuda":
        return wanted
    if not torch.cuda.is_available():
        raise InvalidError(
            f"device={str(device)!r}: torch {torch.__version__} sees no CUDA device here: leave device= out, or pass "
            "device='cpu'"
        )
    count, index = torch.cuda.device_count(), torch.cuda.current_device() if wanted.index is None else wanted.index
    if index >= count:
        raise InvalidError(f"device={str(device)!r}: this machine shows {count} CUDA devices, from 0 on")
    return torch.device("cuda", index)


def moved(value: Any, device: str | int | torch.device, non_blocking: bool = False) -> Any:
    """The same with all tensors within it on a device."""
    return _each(value, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def _each(value: Any, f: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with `f` of each tensor: within mappings, lists and tuples, and the mask of a batch."""
    if isinstance(value, torch.Tensor):
        return f(value)
    if isinstance(value, Mapping):
        return _mapping(value, {name: _each(item, f) for name, item in value.items()}, f)
    if isinstance(value, PackedSequence):
        # Torch wants the sizes of its batches on the CPU.
        return PackedSequence(f(value.data), value.batch_sizes, *(_each(order, f) for order in value[2:]))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(item, f) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_each(item, f) for item in value)
    return value


def _mapping(value: Mapping[Any, Any], items: dict[Any, Any], f: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A mapping of the same type and attributes with other items; a dict where its items cannot be set."""
    if not isinstance(value, MutableMapping):
        return items
    made = copy.copy(value)
    for name, item in items.items():
        made[name] = item
    # Of a Batch. Sample numbers stay where programs look at them.
    attributes = getattr(made, "__dict__", {})
    if isinstance(attributes.get("mask"), torch.Tensor):
        attributes["mask"] = f(attributes["mask"])
    return made
