//! nginx as a cache of slices before the object store, from Debian's package. A request's signature covers
//! the header Range, which nginx rewrites to slices, so its requests carry theirs in the URL.

use crate::harness::ports::free_addresses;
use crate::harness::process::tie;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PLACES: [&str; 3] = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"];

/// nginx; told to end when dropped.
pub struct Nginx {
    child: Child,
    pub address: String,
}

/// Where nginx is, if it is installed.
pub fn program() -> Option<PathBuf> {
    PLACES.into_iter().map(PathBuf::from).find(|path| path.exists())
}

impl Nginx {
    /// Starts it before an object store, with an empty cache in this folder.
    pub fn start(program: &Path, store: &str, folder: &Path) -> anyhow::Result<Self> {
        let address = free_addresses(1)?.pop().context("an address")?;
        let host = store.trim_start_matches("http://");
        std::fs::write(folder.join("nginx.conf"), config(folder, &address, host))?;
        let mut command = Command::new(program);
        command
            .arg("-p")
            .arg(folder)
            .arg("-c")
            .arg(folder.join("nginx.conf"))
            .arg("-e")
            .arg(folder.join("error.log"));
        tie::tie(&mut command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("start nginx")?;
        let mut nginx = Self { child, address };
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(&nginx.address).is_err() {
            let log = std::fs::read_to_string(folder.join("error.log")).unwrap_or_default();
            anyhow::ensure!(nginx.child.try_wait()?.is_none(), "nginx has ended: {log}");
            anyhow::ensure!(Instant::now() < deadline, "nginx does not listen: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(nginx)
    }

    /// Seconds of processor time of all its processes.
    pub fn cpu_s(&self) -> anyhow::Result<f64> {
        let master = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children"))?;
        let workers = children.split_whitespace().map(str::parse::<u32>);
        let all = std::iter::once(Ok(master)).chain(workers).collect::<Result<Vec<_>, _>>()?;
        all.into_iter().map(cpu_s_of).sum()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        crate::harness::process::run::send_signal(self.child.id(), rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

fn cpu_s_of(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(')').context("a name in /proc/PID/stat")?.1;
    let ticks = after.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<u64, _>>()? as f64 / 100.0)
}

fn config(folder: &Path, address: &str, host: &str) -> String {
    let folder = folder.display();
    let user = if rustix::process::getuid().is_root() { "user root;" } else { "" };
    format!(
        "daemon off; {user} worker_processes 2; pid {folder}/pid; error_log {folder}/error.log error;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  proxy_cache_path {folder}/cache levels=1:2 keys_zone=s3:50m max_size=20g inactive=7d use_temp_path=off;
  upstream s3 {{ server {host}; keepalive 32; }}
  server {{
    listen {address};
    location / {{
      slice 1m; proxy_pass http://s3; proxy_http_version 1.1;
      proxy_set_header Connection \"\"; proxy_set_header Host {host}; proxy_set_header Range $slice_range;
      proxy_cache s3; proxy_cache_key $uri$slice_range; proxy_cache_valid 200 206 7d;
      proxy_ignore_headers Cache-Control Expires Set-Cookie Vary;
      proxy_cache_lock on; proxy_cache_lock_timeout 60s;
    }}
  }}
}}
"
    )
}
