"""Training by Ray Train that goes on where it was stopped.

    python ray_train.py URI STORAGE [STEPS]

Two workers train on the columns `image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT.
Ray keeps checkpoints in the folder STORAGE. With STEPS the run stops after that number; started again, it goes on with
the very next batch. The last line is the loss.
"""

import os
import sys
import tempfile
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

import forebay.torch

EPOCHS = 2


def train(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    model = ray.train.torch.prepare_model(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    # Ray has torch.distributed running here, which says rank and world.
    loader = forebay.torch.Loader(config["uri"], global_batch=256, seed=1, columns=["image", "label"])
    before = ray.train.get_checkpoint()
    if before:
        with before.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])

    loss, steps = torch.zeros(()), config["steps"]
    while loader.epoch < EPOCHS and steps != 0:
        for batch in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch["image"].float() / 255), batch["label"])
            loss.backward()
            optimizer.step()
            if steps is not None and (steps := steps - 1) == 0:
                break

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}
            torch.save(state, os.path.join(folder, "state.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        weights = float(sum(parameter.detach().double().sum() for parameter in model.parameters()))
        said = {"epoch": loader.epoch, "steps_left": loader.steps_left, "loss": float(loss.detach()), "weights": weights}
        ray.train.report(said, checkpoint=checkpoint)


def main(uri: str, storage: str, steps: int | None) -> None:
    endpoint = {"FOREBAY_ENDPOINT": os.environ["FOREBAY_ENDPOINT"]}
    ray.init(num_cpus=3, runtime_env={"env_vars": endpoint}, include_dashboard=False)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"uri": uri, "steps": steps},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        # A run of this name that is there already goes on: Ray hands out its latest checkpoint.
        run_config=ray.train.RunConfig(name="mnist", storage_path=storage),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
    )
    result = trainer.fit()
    assert result.metrics is not None
    said = result.metrics
    print(f"epoch {said['epoch']}, {said['steps_left']} steps left, loss {said['loss']:.6f}, weights {said['weights']:.9f}")


main(sys.argv[1], os.path.abspath(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
