"""nginx as a cache of slices before S3, for any client that reads ranges.

S3's signature covers the header Range, which nginx rewrites to whole slices. So the URLs are presigned: those sign the
path and the host alone. A URL reads the cache without a key, which is a limit of this way."""

import ctypes
import getpass
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from consumer import Cannot, Job, at_end
from row_groups import Files
from s3_files import range_files

CONFIG = """
daemon off;
user {user};
worker_processes 2;
pid {folder}/pid;
error_log {folder}/error.log error;
events {{ worker_connections 512; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  proxy_cache_path {folder}/cache levels=1:2 keys_zone=s3:50m max_size=20g inactive=7d use_temp_path=off;
  upstream s3 {{ server {host}; keepalive 32; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      slice 8m;
      proxy_pass http://s3;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host {host};
      proxy_set_header Range $slice_range;
      proxy_cache s3;
      proxy_cache_key $uri$slice_range;
      proxy_cache_valid 200 206 7d;
      proxy_ignore_headers Cache-Control Expires Set-Cookie Vary;
      proxy_cache_lock on;
      proxy_cache_lock_timeout 60s;
    }}
  }}
}}
"""


def nginx_files(job: Job) -> Files:
    """The objects through an nginx of this process alone, with an empty cache."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise Cannot("nginx is not installed")
    folder = Path(tempfile.mkdtemp(dir=job.scratch))
    port, host = free_port(), job.endpoint.removeprefix("http://")
    names = {"folder": folder, "port": port, "host": host, "user": getpass.getuser()}
    (folder / "nginx.conf").write_text(CONFIG.format(**names))
    command = [program, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=end_with_parent)

    def stop():
        child.terminate()
        child.wait()
        shutil.rmtree(folder, ignore_errors=True)

    at_end.append(stop)
    client = s3_client(job)
    objects = [{"Bucket": job.bucket, "Key": key} for key in job.keys]
    signed = [client.generate_presigned_url("get_object", name, ExpiresIn=86400) for name in objects]
    urls = [url.replace(job.endpoint, f"http://127.0.0.1:{port}", 1) for url in signed]
    wait_until_it_listens(port)
    return range_files(job, urls)


def end_with_parent():
    """Has the kernel end nginx, its workers with it, if this process is killed."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def s3_client(job: Job):
    # Imported here, as only nginx needs boto3.
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=job.endpoint,
        region_name=job.region,
        aws_access_key_id=job.access_key,
        aws_secret_access_key=job.secret_key,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )


def wait_until_it_listens(port: int):
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
