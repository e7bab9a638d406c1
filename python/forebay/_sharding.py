"""What would shard a second time a dataset that is sharded already."""

from __future__ import annotations

import sys

from forebay._errors import InvalidError


def refuse_sharding(world: int) -> None:
    """`InvalidError` if accelerate's own data loader is reading: it gives each rank a share of what it gets, and this is
    one rank's share already. With one rank there is nothing to share."""
    frame = sys._getframe(1) if world > 1 else None
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            raise InvalidError(
                f"accelerate would share out again one of {world} ranks' shares: give accelerator.prepare() "
                "the model and the optimizer only, and iterate over a forebay.torch.Loader (for the Trainer of transformers: "
                "forebay.hf.TrainerMixin)"
            )
        frame = frame.f_back
