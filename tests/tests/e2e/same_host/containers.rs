//! Readers in containers on the node's host: processes with mounts, process numbers and a network of their
//! own, which see nothing of the node but the folder of its socket.
//!
//! Only root may make them. Where that fails, a line says that this is not tested.

use crate::commands::{cached, digests, direct, json, metric};
use forebay_tests::harness::check::must_try_all;
use forebay_tests::harness::mnist;
use forebay_tests::harness::process::{Run, Server, ServerOptions, binary};
use forebay_tests::harness::s3::S3Server;
use std::path::Path;
use tempfile::TempDir;

/// What a container has of its own, beside a network.
const FLAGS: [&str; 5] = ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];

/// Its mounts: of the folder `$0` only `$0/run` is left, which appears at `$2`. It is at `$1`
/// meanwhile.
const MOUNTS: &str = r#"mount --bind "$0/run" "$1" && mount -t tmpfs tmpfs "$0" && mkdir -p "$2" &&
    mount --bind "$1" "$2" && shift 2 && exec "$@""#;

/// Bytes of rows in an epoch of the training images, at least.
const ROWS_BYTES: u64 = 45_000_000;

/// A node that has the training images of MNIST on its disk, and its socket in a folder that can be shared.
struct ContainerHost {
    /// Dropped before the object store that it reads.
    server: Server,
    _s3: S3Server,
    uri: String,
    /// The digests of an epoch that is read from the object store.
    wanted: (String, String),
    /// What the node has, in `node`, and its socket, in `run`.
    folder: TempDir,
    /// Another place for the socket's folder in a container.
    elsewhere: TempDir,
}

impl ContainerHost {
    fn start(arguments: &[&str]) -> Self {
        let s3 = S3Server::start();
        mnist::upload(&s3).expect("read MNIST");
        let uri = s3.uri("mnist/train/");
        let [folder, elsewhere] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let run = folder.path().join("run");
        std::fs::create_dir(&run).expect("a folder");
        let socket = run.join("forebay.sock").to_string_lossy().into_owned();
        let options = ServerOptions::for_s3(&s3).folder(folder.path().join("node")).args(arguments);
        let options = options.allow_log("can be reached from other machines");
        let server = options.args(["--unix-socket", &socket]).start();
        let wanted = digests(&json(direct(&s3, &["epoch", &uri, "--verify"])), 0);
        // From now on the rows lie in files.
        let filled = json(cached(&server, &["epoch", &uri, "--verify", "--same-host", "off"]));
        assert_eq!(digests(&filled, 0), wanted);
        Self { server, _s3: s3, uri, wanted, folder, elsewhere }
    }

    /// Reads an epoch in a container, which `enter` brings into its network. The socket's folder is at `at`.
    fn epoch(&self, enter: &[&str], at: &Path, endpoint: &str) -> Run {
        let paths = [self.folder.path(), self.elsewhere.path(), at];
        let run = container(enter).args(["sh", "-c", MOUNTS]).args(paths).arg(binary("forebay"));
        run.args(["epoch", &self.uri, "--verify", "--endpoint", endpoint])
    }

    /// The same must give the same rows in the same order. Returns the bytes that came through the socket, of
    /// which the second number was copied out of files that the node had lent.
    fn read(&self, enter: &[&str], at: &Path, endpoint: &str) -> [u64; 2] {
        let came = || ["shared_bytes_total", "lent_bytes_total"].map(|name| metric(&self.server, name));
        let before = came();
        assert_eq!(digests(&json(self.epoch(enter, at, endpoint)), 0), self.wanted);
        let after = came();
        [after[0] - before[0], after[1] - before[1]]
    }
}

/// A program in a container.
fn container(enter: &[&str]) -> Run {
    let (program, words) = enter.split_first().expect("a program");
    Run::program(program, "a container").args(words).args(FLAGS)
}

/// Whether containers can be made here.
fn can_be_made(enter: &[&str]) -> bool {
    let tried = container(enter).args(["mount", "-t", "tmpfs", "tmpfs", "/tmp"]).try_end();
    tried.and_then(|ended| ended.success()).inspect_err(not_tested).is_ok()
}

/// Says so; fails where everything must be tried.
fn not_tested(why: &anyhow::Error) {
    assert!(!must_try_all(), "no container can be made here, and CI is set: {why:#}");
    eprintln!("no container can be made here, so readers in containers are not tested: {why:#}");
}

/// A network namespace with one cable (a veth pair) to this machine's own network, as a container has one to
/// a bridge. Removed when dropped.
struct CabledSpace {
    name: String,
    /// The cable's end outside.
    link: String,
    /// That end's address.
    host: String,
}

impl CabledSpace {
    fn new() -> anyhow::Result<Self> {
        let id = std::process::id();
        let subnet = format!("10.{}.{}", 200 + id / 250 % 50, id % 250);
        let (name, link) = (format!("forebay-c{id}"), format!("fbc{id}"));
        let space = Self { name, link, host: format!("{subnet}.1") };
        let Self { name, link, host } = &space;
        ip(&["netns", "add", name])?;
        ip(&["link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name])?;
        ip(&["addr", "add", &format!("{host}/30"), "dev", link])?;
        ip(&["link", "set", link, "up"])?;
        ip(&["-n", name, "addr", "add", &format!("{subnet}.2/30"), "dev", "eth0"])?;
        ip(&["-n", name, "link", "set", "eth0", "up"])?;
        Ok(space)
    }
}

impl Drop for CabledSpace {
    fn drop(&mut self) {
        // The cable goes with the namespace, unless that was never made.
        let _ = ip(&["netns", "del", &self.name]);
        let _ = ip(&["link", "del", &self.link]);
    }
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    Run::program("ip", "ip").args(words).try_end()?.success().map(drop)
}

#[test]
fn a_container_without_a_network_gets_rows_out_of_lent_files() {
    let enter = ["unshare", "--net"];
    if !can_be_made(&enter) {
        return;
    }
    let host = ContainerHost::start(&[]);
    // The container has the volume at a path of its own, and its user names the socket there.
    let at = host.elsewhere.path();
    let endpoint = format!("unix:{}", at.join("forebay.sock").display());
    let [shared, lent] = host.read(&enter, at, &endpoint);
    assert!(lent > ROWS_BYTES, "{lent} of {shared} bytes were copied out of files");
    let by_tcp = host.epoch(&enter, at, &host.server.endpoint).end().expect_failure();
    assert!(by_tcp.contains("cannot reach the cache at"), "{by_tcp}");
    host.server.stop();
}

#[test]
fn a_container_in_another_network_gets_rows_out_of_lent_files_if_it_sees_the_socket() {
    let space = match CabledSpace::new() {
        Ok(space) => space,
        Err(error) => return not_tested(&error),
    };
    let enter = ["ip", "netns", "exec", &space.name, "unshare"];
    if !can_be_made(&enter) {
        return;
    }
    let host = ContainerHost::start(&["--listen", &format!("{}:0", space.host), "--insecure"]);
    let endpoint = &host.server.endpoint;
    // The node says where its socket is, and the container has it there.
    let [shared, lent] = host.read(&enter, &host.folder.path().join("run"), endpoint);
    assert!(lent > ROWS_BYTES, "{lent} of {shared} bytes were copied out of files");
    // Where it has it at another path, batches come by the node's address.
    assert_eq!(host.read(&enter, host.elsewhere.path(), endpoint), [0, 0]);
    host.server.stop();
}
