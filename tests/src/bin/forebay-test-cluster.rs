//! A cluster for tests in other languages: an S3 server and nodes that read it, until standard input ends.
//!
//! Its first line on standard output is JSON: `s3_endpoint`, `s3_region`, `bucket`, `access_key`,
//! `secret_key`, `nodes`, the URLs of the nodes, and `etcd`, those of etcd's members if the nodes find each
//! other there; with `--gateway` also `gateways`, the URLs of the nodes' S3 endpoints, and `gateway_key`, id
//! and secret for those. After that it does what each line on standard input says: `kill N` kills
//! node N (counted from 0) and writes `done`; `gets` writes how many objects were read from the S3 server so
//! far, wholly or in part.

use anyhow::Context;
use clap::Parser;
use forebay_tests::harness::etcd::Etcd;
use forebay_tests::harness::mnist;
use forebay_tests::harness::ports::free_addresses;
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::{REGION, S3Server};
use serde_json::json;
use std::io::BufRead;
use std::path::{Path, PathBuf};

#[derive(Parser)]
struct Options {
    /// Put the files of each folder in this one into the bucket, under the folder's name
    #[arg(long)]
    data: PathBuf,
    /// How many nodes
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Have them find each other in etcd
    #[arg(long)]
    etcd: bool,
    /// Have the nodes serve S3
    #[arg(long)]
    gateway: bool,
    /// Further flags of each node
    #[arg(last = true)]
    flags: Vec<String>,
}

/// For the S3 endpoints of the nodes.
const GATEWAY_KEY: [&str; 2] = ["reader", "secret-of-the-reader"];

fn main() -> anyhow::Result<()> {
    let Options { data, nodes, etcd, gateway, flags } = Options::parse();
    let s3 = S3Server::start();
    for entry in std::fs::read_dir(&data).with_context(|| format!("list {}", data.display()))? {
        let folder = entry?.path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        mnist::upload_folder(&s3, &folder, &name)?;
    }
    let etcd = etcd.then(|| Etcd::try_start(1)).transpose()?;
    let keys = tempfile::NamedTempFile::new()?;
    std::fs::write(keys.path(), GATEWAY_KEY.join(" "))?;
    let mut servers = start(&s3, nodes, etcd.as_ref(), gateway.then_some(keys.path()), &flags)?;
    let endpoints: Vec<&str> = servers.iter().map(|server| server.endpoint.as_str()).collect();
    println!(
        "{}",
        json!({
            "s3_endpoint": s3.endpoint,
            "s3_region": REGION,
            "bucket": s3.bucket,
            "access_key": s3.access_key,
            "secret_key": s3.secret_key,
            "nodes": endpoints,
            "gateways": servers.iter().filter_map(|server| server.s3.as_deref()).collect::<Vec<_>>(),
            "gateway_key": GATEWAY_KEY,
            "etcd": etcd.as_ref().map(Etcd::endpoints).unwrap_or_default(),
        })
    );
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match (words[0], words.get(1).and_then(|number| number.parse::<usize>().ok())) {
            ("kill", Some(node)) if node < servers.len() => {
                servers[node].kill();
                println!("done");
            }
            ("gets", None) => println!("{}", s3.log().iter().filter(|seen| seen.is_object_get()).count()),
            _ => anyhow::bail!("`{line}` is no command: use `kill N` or `gets`"),
        }
    }
    // What the nodes logged is the business of the tests, which may kill them.
    servers.iter_mut().for_each(Server::kill);
    Ok(())
}

/// Nodes that know each other, each at a port of its own.
fn start(
    s3: &S3Server,
    count: usize,
    etcd: Option<&Etcd>,
    keys: Option<&Path>,
    flags: &[String],
) -> anyhow::Result<Vec<Server>> {
    let addresses = free_addresses(count)?;
    let names = |address: &String| format!("http://{address}");
    let members: Vec<String> = addresses.iter().map(names).collect();
    let one = |address: &String| {
        // Tests kill nodes and stop readers in mid-stream: then nodes warn. The empty text is in every line.
        let mut options = ServerOptions::for_s3(s3).args(["--listen", address]).allow_log("");
        options = options.args(["--cache-bytes", "1GB", "--memory-bytes", "512MB"]).args(flags);
        if let Some(keys) = keys {
            options = options.args(["--s3-listen", "127.0.0.1:0", "--s3-keys", &keys.to_string_lossy()]);
        }
        if let Some(etcd) = etcd {
            options = options.args(etcd.arguments());
        } else if count > 1 {
            options = options.args(members.iter().flat_map(|member| ["--cluster-node", member]));
        }
        options.try_start()
    };
    addresses.iter().map(one).collect()
}
