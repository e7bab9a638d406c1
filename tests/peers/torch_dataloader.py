"""PyTorch's DataLoader over row groups that pyarrow decodes: in order, or over a permuted buffer of 16 row groups, which
the workers share out. Workers yield whole batches, so no row passes through Python by itself."""

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from consumer import Job, run
from row_groups import in_order, local_files, permuted, processors


class RowGroups(IterableDataset):
    """Workers live as long as the loader, so each counts its epochs and keeps its files open."""

    def __init__(self, job: Job):
        self.job, self.epoch, self.files = job, -1, None

    def __iter__(self):
        self.epoch += 1
        self.files = self.files or local_files(self.job)
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        groups = self.files.groups()[at::of]
        threads = max(1, processors() // of)
        if self.job.shuffle:
            window = self.job.share(self.job.window)
            arrays = permuted(self.job, self.files, groups, self.epoch, threads, window)
        else:
            arrays = in_order(self.job, self.files, groups, threads)
        for batch in arrays:
            yield {name: torch.from_numpy(values) for name, values in batch.items()}


def epochs(job: Job):
    loader = DataLoader(RowGroups(job), batch_size=None, num_workers=job.workers, persistent_workers=job.workers > 0)
    return lambda _: iter(loader)


# The sums of the consumer count as the work of one thread.
torch.set_num_threads(1)
run(epochs, resume="DataLoader has no state: an epoch begins again")
