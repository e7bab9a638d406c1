"""A loader written by hand on pyarrow: it decodes 16 row groups at a time in threads, and permutes their rows. From a
local copy, from S3, or through nginx."""

import functools

from consumer import Job, run
from nginx import nginx_files
from row_groups import in_order, local_files, permuted, processors
from s3_files import s3_files

FILES = {"local": local_files, "s3": s3_files, "nginx": nginx_files}


def epochs(job: Job):
    # Opened in the first epoch, so that its time has the footers in it.
    opened = functools.cache(FILES[job.source])
    # Behind S3 there are more reads at once than processors.
    threads = processors() if job.source == "local" else 16

    def epoch(number):
        files = opened(job)
        if job.shuffle:
            return permuted(job, files, files.groups(), number, threads, job.window)
        return in_order(job, files, files.groups(), threads)

    return epoch


run(epochs)
