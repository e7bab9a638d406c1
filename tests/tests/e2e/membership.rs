//! Nodes that find each other through etcd, and what they do when etcd stops, pauses, comes back or forgets.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use forebay_client::Node;
use forebay_proto::v1;
use forebay_tests::harness::etcd::Etcd;
use forebay_tests::harness::ports::free_address;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::wait::until;
use tokio::runtime::Runtime;

use crate::commands::cached;
use crate::refused::refused;

/// Generous: the machine may be loaded.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(etcd: &Etcd, name: &str) -> ServerOptions {
    with_lease(etcd, name, "2")
}

fn with_lease(etcd: &Etcd, name: &str, ttl_s: &str) -> ServerOptions {
    let options = ServerOptions::bare().args(["--allow", "s3://bucket/", "--node", name]);
    // On a machine that stalls it may not, though nobody has stopped it.
    let options = options.allow_log("etcd does not answer");
    options.args(etcd.arguments()).args(["--lease-ttl-s", ttl_s])
}

fn status(runtime: &Runtime, server: &Server) -> v1::MembershipStatus {
    let node = Node::new(&server.endpoint).expect("a URL");
    runtime.block_on(node.status()).expect("a status").membership.expect("a membership")
}

/// The topology that a server tells now.
fn topology(runtime: &Runtime, server: &Server) -> v1::Topology {
    let node = Node::new(&server.endpoint).expect("a URL");
    runtime.block_on(async {
        let mut updates =
            node.client().watch_topology(v1::WatchTopologyRequest {}).await.expect("a watch").into_inner();
        updates.message().await.expect("a topology").expect("a topology")
    })
}

fn names(topology: &v1::Topology) -> Vec<&str> {
    topology.nodes.iter().map(|node| node.name.as_str()).collect()
}

/// Waits until a server tells a topology of these nodes, and returns it.
fn wait_for(runtime: &Runtime, server: &Server, nodes: &[&str]) -> v1::Topology {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = topology(runtime, server);
        if names(&now) == nodes && now.revision > 0 {
            return now;
        }
        assert!(Instant::now() < deadline, "{:?} instead of {nodes:?}; log:\n{}", names(&now), server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn nodes_come_and_go() {
    let runtime = Runtime::new().expect("a runtime");
    let etcd = Etcd::start(1);
    let a = options(&etcd, "a").args(["--weight", "2.5", "--zone", "z1"]).start();
    let b = options(&etcd, "b").start();
    let mut c = options(&etcd, "c").start();
    let all = wait_for(&runtime, &a, &["a", "b", "c"]);
    assert_eq!((all.nodes[0].weight, all.nodes[0].zone.as_str()), (2.5, "z1"));
    assert_eq!(all.nodes[1].address, b.endpoint);
    let told_by_b = wait_for(&runtime, &b, &["a", "b", "c"]);
    assert_eq!((told_by_b.cluster, told_by_b.cluster > 0), (all.cluster, true));
    // One that leaves is gone at once, one that dies when its lease has run out.
    b.stop();
    let two = wait_for(&runtime, &a, &["a", "c"]);
    assert!(two.revision > all.revision);
    let folder = tempfile::tempdir().expect("a folder");
    c.kill();
    let one = wait_for(&runtime, &a, &["a"]);
    assert!(one.revision > two.revision);
    let c = options(&etcd, "c").folder(folder.path()).start();
    wait_for(&runtime, &a, &["a", "c"]);
    [a, c].into_iter().for_each(Server::stop);
}

#[test]
fn a_successor_at_the_same_address_takes_the_name_at_once_and_others_never() {
    let runtime = Runtime::new().expect("a runtime");
    let etcd = Etcd::start(1);
    let address = free_address().expect("a free port");
    let start = || with_lease(&etcd, "a", "60").args(["--listen", &address]).start();
    let mut first = start();
    let before = wait_for(&runtime, &first, &["a"]);
    first.kill();
    let second = start();
    until("the successor is a member", PATIENCE, || status(&runtime, &second).registered);
    let after = wait_for(&runtime, &second, &["a"]);
    assert_eq!(before.nodes, after.nodes);
    // A live node's name is refused, and the live one is not disturbed.
    let mut other = options(&etcd, "a").allow_log("").start();
    let deadline = Instant::now() + PATIENCE;
    while !other.log().contains("taken by a live node") {
        assert!(Instant::now() < deadline, "{}", other.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(other.log().contains(&second.endpoint) && other.log().contains("--node"), "{}", other.log());
    other.kill();
    until("the live one is a member", PATIENCE, || status(&runtime, &second).registered);
    second.stop();
}

/// A way to etcd on which answers are late, for the first who takes it.
fn late_for_one(etcd: &Etcd, late: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let to = etcd.endpoints()[0].replace("http://", "");
    std::thread::spawn(move || {
        let delays = std::iter::once(late).chain(std::iter::repeat(Duration::ZERO));
        for (client, delay) in listener.incoming().flatten().zip(delays) {
            let Ok(server) = TcpStream::connect(&to) else { continue };
            let (mut from_client, mut to_server) = (client.try_clone().expect("a socket"), server);
            let (mut from_server, mut to_client) = (to_server.try_clone().expect("a socket"), client);
            std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
            std::thread::spawn(move || {
                std::thread::sleep(delay);
                std::io::copy(&mut from_server, &mut to_client)
            });
        }
    });
    url
}

#[test]
fn a_successor_that_hears_late_of_its_predecessor_stays() {
    let runtime = Runtime::new().expect("a runtime");
    let etcd = Etcd::start(1);
    let address = free_address().expect("a free port");
    let start = |url: &str| {
        let options = ServerOptions::bare().args(["--allow", "s3://bucket/", "--node", "a"]);
        options.allow_log("etcd does not answer").args(["--etcd", url, "--listen", &address]).start()
    };
    let mut first = start(&etcd.endpoints()[0]);
    until("a member", PATIENCE, || status(&runtime, &first).registered);
    first.kill();
    // It asks for the list of nodes before it puts its own key, and has the answer only after that.
    let mut second = start(&late_for_one(&etcd, Duration::from_millis(1500)));
    let member = |second: &mut Server| {
        assert!(second.ended().is_none(), "it ended by itself:\n{}", second.log());
        let state = status(&runtime, second);
        state.registered && state.connected
    };
    until("a member", PATIENCE, || member(&mut second));
    std::thread::sleep(Duration::from_millis(500));
    assert!(member(&mut second));
    second.stop();
}

#[test]
fn a_node_serves_without_etcd_and_joins_when_it_comes() {
    let runtime = Runtime::new().expect("a runtime");
    let mut etcd = Etcd::start(1);
    etcd.kill_all();
    let a = options(&etcd, "a").start();
    until("it says so", PATIENCE, || a.log().contains("etcd does not answer"));
    let alone = topology(&runtime, &a);
    assert_eq!((alone.revision, names(&alone)), (0, vec!["a"]));
    let state = status(&runtime, &a);
    assert!(!state.connected && !state.registered && state.error.contains(&etcd.endpoints()[0]), "{state:?}");
    etcd.restart().expect("a restart");
    wait_for(&runtime, &a, &["a"]);
    until("a member", PATIENCE, || status(&runtime, &a).registered);
    a.stop();
}

#[test]
fn a_quiet_watch_lasts() {
    let runtime = Runtime::new().expect("a runtime");
    let etcd = Etcd::start(1);
    let a = options(&etcd, "a").start();
    until("a member", PATIENCE, || status(&runtime, &a).registered);
    // Longer than two pings: etcd hangs up on clients that send them too often.
    std::thread::sleep(Duration::from_secs(14));
    let log = a.log();
    a.stop();
    // A machine that stalls for three seconds may cost the watch too; then nobody answered in time.
    let broken: Vec<&str> = log.lines().filter(|line| line.contains("the watch of etcd broke off")).collect();
    let is_silence = |line: &&str| line.contains("timed out") || line.contains("no answer within");
    assert!(broken.iter().all(is_silence), "{log}");
    let answers = log.matches("etcd answers").count();
    assert!((1..=1 + broken.len()).contains(&answers), "{log}");
}

#[test]
fn what_was_last_heard_stays_in_force_while_etcd_is_away() {
    let runtime = Runtime::new().expect("a runtime");
    let mut etcd = Etcd::start(1);
    let (a, b) = (options(&etcd, "a").start(), options(&etcd, "b").start());
    let before = wait_for(&runtime, &a, &["a", "b"]);
    // Away for longer than a lease; then silent for longer; then back without anything it knew.
    etcd.kill_all();
    until("it is noticed", PATIENCE, || status(&runtime, &a).silent_s > 3.0);
    assert_eq!(topology(&runtime, &a), before);
    etcd.restart().expect("a restart");
    until("it is found", PATIENCE, || status(&runtime, &a).connected && status(&runtime, &a).registered);
    etcd.pause(0);
    until("it is noticed", PATIENCE, || status(&runtime, &a).silent_s > 3.0);
    etcd.resume(0);
    until("it is found", PATIENCE, || {
        [&a, &b].iter().all(|n| status(&runtime, n).connected && status(&runtime, n).registered)
    });
    assert_eq!(topology(&runtime, &a).nodes, before.nodes);
    etcd.kill_all();
    etcd.restart_empty().expect("a restart");
    until("they are back", PATIENCE, || [&a, &b].iter().all(|n| status(&runtime, n).registered));
    assert_eq!(topology(&runtime, &a).nodes, before.nodes);
    assert_ne!(topology(&runtime, &a).cluster, 0);
    [a, b].into_iter().for_each(Server::stop);
}

#[test]
fn losing_a_member_or_the_quorum_changes_nothing() {
    let runtime = Runtime::new().expect("a runtime");
    let mut etcd = Etcd::start(3);
    let (a, b) = (options(&etcd, "a").start(), options(&etcd, "b").start());
    let before = wait_for(&runtime, &a, &["a", "b"]);
    let leader = etcd.wait_for_leader().expect("a leader");
    etcd.kill(leader);
    etcd.kill((leader + 1) % 3);
    until("it is noticed", PATIENCE, || [&a, &b].iter().all(|n| !status(&runtime, n).connected));
    assert_eq!(topology(&runtime, &a).nodes, before.nodes);
    etcd.restart().expect("a restart");
    until("they are back", PATIENCE, || {
        [&a, &b].iter().all(|n| status(&runtime, n).connected && status(&runtime, n).registered)
    });
    assert_eq!(topology(&runtime, &b).nodes, before.nodes);
    [a, b].into_iter().for_each(Server::stop);
}

#[test]
fn a_drained_node_runs_on_outside_the_topology_and_can_come_back() {
    let runtime = Runtime::new().expect("a runtime");
    let etcd = Etcd::start(1);
    let (a, b) = (options(&etcd, "a").start(), options(&etcd, "b").start());
    wait_for(&runtime, &a, &["a", "b"]);
    let node = Node::new(&b.endpoint).expect("a URL");
    let drain = |undo| {
        runtime.block_on(async { node.client().drain(v1::DrainRequest { undo }).await }).expect("drained");
    };
    drain(false);
    wait_for(&runtime, &a, &["a"]);
    assert!(status(&runtime, &b).draining);
    drain(true);
    wait_for(&runtime, &a, &["a", "b"]);
    assert!(!status(&runtime, &b).draining);
    [a, b].into_iter().for_each(Server::stop);
}

#[test]
fn nodes_that_are_drained_at_once_do_not_all_go() {
    let runtime = Runtime::new().expect("a runtime");
    let etcd = Etcd::start(1);
    let nodes = ["a", "b", "c"].map(|name| options(&etcd, name).start());
    nodes.iter().for_each(|node| drop(wait_for(&runtime, node, &["a", "b", "c"])));
    let drains = nodes.each_ref().map(|node| {
        let url = node.endpoint.clone();
        std::thread::spawn(move || Run::new("forebay").args(["drain", &url, "--endpoint", &url]).end())
    });
    let ended = drains.map(|drain| drain.join().expect("it ends"));
    let drained: Vec<bool> = ended.iter().map(|ended| ended.code == Some(0)).collect();
    assert!(drained.contains(&false), "all of them said that they may be stopped");
    let refused = ended.iter().filter(|ended| ended.code != Some(0));
    for ended in refused {
        assert!(ended.stderr.contains("no other node could take over"), "{}", ended.stderr);
    }
    for (node, drained) in nodes.iter().zip(&drained) {
        assert_eq!(status(&runtime, node).draining, *drained, "{}", node.endpoint);
    }
    let left = ["a", "b", "c"].into_iter().zip(&drained).filter(|(_, drained)| !**drained);
    let left: Vec<&str> = left.map(|(name, _)| name).collect();
    nodes.iter().for_each(|node| drop(wait_for(&runtime, node, &left)));
    nodes.into_iter().for_each(Server::stop);
}

#[test]
fn a_dead_node_takes_nothing_over() {
    let runtime = Runtime::new().expect("a runtime");
    let addresses = [0, 1].map(|_| free_address().expect("a free port"));
    let [a, mut b] = addresses.each_ref().map(|address| {
        let options = ServerOptions::bare().args(["--allow", "s3://bucket/", "--listen", address]);
        let named = addresses.iter().zip(["a", "b"]).map(|(at, name)| format!("{name}=http://{at}"));
        named.fold(options, |options, node| options.args(["--cluster-node", &node])).start()
    });
    let ended = |arguments: &[&str]| cached(&a, arguments).end().expect_success();
    ended(&["drain", "a"]);
    assert!(status(&runtime, &a).draining, "the other one serves");
    ended(&["undrain", "a"]);
    b.kill();
    refused(cached(&a, &["drain", "a"]), &["no other node could take over", &b.endpoint]);
    assert!(!status(&runtime, &a).draining);
    a.stop();
}

#[test]
fn that_all_nodes_are_drained_is_said_and_how_to_bring_one_back() {
    let runtime = Runtime::new().expect("a runtime");
    let etcd = Etcd::start(1);
    let (a, mut b) = (options(&etcd, "a").start(), options(&etcd, "b").start());
    wait_for(&runtime, &a, &["a", "b"]);
    cached(&a, &["drain", "a"]).end().expect_success();
    wait_for(&runtime, &a, &["b"]);
    wait_for(&runtime, &b, &["b"]);
    // Asked by way of the one that is drained.
    refused(cached(&a, &["drain", "b"]), &["no other node could take over"]);
    assert!(!status(&runtime, &b).draining);
    b.kill();
    wait_for(&runtime, &a, &[]);
    let undrain = format!("`forebay undrain {}`", a.endpoint);
    refused(cached(&a, &["status"]), &["all nodes are drained", &undrain]);
    let both = format!("{},{}", b.endpoint, a.endpoint);
    let two = refused(Run::new("forebay").args(["status", "--endpoint", &both]), &["is drained", &undrain]);
    assert!(!two.contains("all nodes are drained"), "the other one is gone: {two}");
    cached(&a, &["undrain", &a.endpoint]).end().expect_success();
    wait_for(&runtime, &a, &["a"]);
    a.stop();
}

#[test]
fn commands_tell_of_nodes_that_are_drained_missing_or_too_few() {
    let runtime = Runtime::new().expect("a runtime");
    let etcd = Etcd::start(1);
    let (a, b) = (options(&etcd, "a").start(), options(&etcd, "b").start());
    wait_for(&runtime, &a, &["a", "b"]);
    let said = |run: Run| String::from_utf8(run.end().expect_success()).expect("text");
    // The mistake comes first, and advice about nodes that are drained where it helps.
    let wrong = refused(cached(&a, &["drain", "cache-9"]), &["there are a, b"]);
    assert!(wrong.starts_with("forebay: error: no node `cache-9`") && !wrong.contains("URL"), "{wrong}");
    refused(cached(&a, &["undrain", "cache-9"]), &["no node `cache-9`", "named by its URL"]);
    let replicas = said(cached(&a, &["replicas", "s3://bucket/d", "9"]));
    assert!(replicas.contains("9 nodes hold each segment, 2 now: there are no more"), "{replicas}");
    // One that is drained is shown, with the way back, and has its name still.
    said(cached(&a, &["drain", "b"]));
    wait_for(&runtime, &a, &["a"]);
    let mut status = String::new();
    let line = format!("b: out of the topology, at {} (`forebay undrain b` brings it back)", b.endpoint);
    until("it is shown", PATIENCE, || {
        status = said(cached(&a, &["status"]));
        status.contains(&line)
    });
    said(cached(&a, &["undrain", "b"]));
    wait_for(&runtime, &a, &["a", "b"]);
    [a, b].into_iter().for_each(Server::stop);
}

#[test]
fn an_etcd_with_users_knows_a_node_by_its_password() {
    let runtime = Runtime::new().expect("a runtime");
    let etcd = Etcd::start(1);
    etcd.require_password("of-etcd");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let with = |name: &str, password: &str| {
        std::fs::write(file.path(), format!("{password}\n")).expect("write it");
        let path = file.path().display().to_string();
        options(&etcd, name).args(["--etcd-user", "root", "--etcd-password-file", &path]).start()
    };
    // The file is read again for each connection: what was wrong may be mended.
    let server = with("a", "another");
    until("it is refused", PATIENCE, || status(&runtime, &server).error.contains("authentication failed"));
    std::fs::write(file.path(), "of-etcd\n").expect("write it");
    until("it is a member", PATIENCE, || status(&runtime, &server).registered);
    assert_eq!(names(&wait_for(&runtime, &server, &["a"])), ["a"]);
    assert!(!server.log().contains("of-etcd"));
    server.stop();
}

#[test]
fn an_address_that_nobody_can_reach_is_refused() {
    let etcd = Etcd::start(1);
    let everywhere =
        options(&etcd, "a").args(["--listen", "0.0.0.0:0", "--insecure"]).allow_log("--insecure");
    let error = everywhere.try_start().err().expect("a refusal").to_string();
    assert!(error.contains("--advertise http://HOST:"), "{error}");
    let both = options(&etcd, "a")
        .args(["--cluster-node", "http://h:1"])
        .try_start()
        .err()
        .expect("a refusal")
        .to_string();
    assert!(both.contains("contradict"), "{both}");
}
