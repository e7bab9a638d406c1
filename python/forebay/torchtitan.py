"""Tokens for TorchTitan's trainer: a data loader that its configuration builds.

>>> import forebay.torchtitan  # doctest: +SKIP
>>> config.dataloader = forebay.torchtitan.DataLoader.Config(dataset="s3://bucket/tokens", seed=1)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

from forebay._errors import InvalidError
from forebay._torch_loader import Batch, Loader

__all__ = ["DataLoader"]


class DataLoader(BaseDataLoader):
    """Batches `({"input", "positions"}, labels)`, each tensor `[local_batch_size, seq_len]` of int64, of rows that are
    `seq_len` + 1 tokens each: `labels` are the tokens that follow those of `input`.

    Ranks that share their layers or their sequence read the same rows: TorchTitan says which ranks those are. The state is
    small, the same on every rank, and resumes on any number of them, which TorchTitan's own loaders refuse.

    Raises what `forebay.torch.Loader` raises; iterating, also `InvalidError` for rows of another length.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Settings of the loader; the rank, the length of sequences and the size of batches are TorchTitan's."""

        dataset: str = ""
        """The URI of the dataset, read through the cache at $FOREBAY_ENDPOINT, or a node of this machine's own."""
        tokens: str = "tokens"
        """The column: lists of integers, one more than the sequence is long."""
        seed: int = 0
        """The run's seed."""
        shuffle: int = 4
        """How many segments are mixed at a time; 0 for file order."""
        infinite: bool = True
        """Whether the next epoch follows when one has ended."""

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **others: Any
    ) -> None:
        """`others` (the tokenizer, how often the state is asked for) do not matter here: rows are tokens already."""
        self._tokens, self._infinite, self._length = config.tokens, config.infinite, seq_len + 1
        self._loader: Loader[Batch] = Loader(
            config.dataset,
            columns=[config.tokens],
            batch_size=local_batch_size,
            seed=config.seed,
            shuffle=config.shuffle or None,
            rank=dp_rank,
            world=dp_world_size,
        )

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Batches from where the run stands: one epoch, or with `infinite` one after the other.

        Raises as the class says.
        """
        while True:
            for batch in self._loader:
                tokens = batch[self._tokens]
                if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.shape[1] != self._length:
                    kind = self._loader.data.schema.types[0]
                    raise InvalidError(
                        f"column {self._tokens!r} of {self._loader.data.uri} is {kind}, but a sequence of "
                        f"{self._length - 1} takes lists of {self._length} integers: set training.seq_len, or another column"
                    )
                tokens = tokens.long()
                positions = torch.arange(self._length - 1, device=tokens.device).expand(len(tokens), -1)
                yield {"input": tokens[:, :-1], "positions": positions}, tokens[:, 1:]
            if not self._infinite:
                return

    def state_dict(self) -> dict[str, Any]:
        """The loader's `state_dict()`: after the batch that was given last, the same on every rank."""
        return {**self._loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iteration goes on there, on any number of ranks; an empty state changes nothing.

        Raises what `Loader.load_state_dict` raises.
        """
        # TorchTitan loads an empty one where a checkpoint has none.
        if state_dict:
            self._loader.load_state_dict(state_dict)  # type: ignore[arg-type]
