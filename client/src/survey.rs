//! All nodes of a cluster asked at once: who they are, and what each holds and has done.

use crate::access::Access;
use crate::counters::Readings;
use crate::endpoints::Endpoints;
use crate::node::{CONNECT_TIMEOUT, Node};
use forebay_proto::v1::StatusReply;
use forebay_proto::{Backoff, Error, Kind, Result, v1};
use futures::future::join_all;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long a node of several may take to answer; then it is shown as silent.
const ANSWER: Duration = Duration::from_secs(3);

/// One node of the topology.
#[derive(Debug, Clone)]
pub struct Surveyed {
    /// What the topology says of it.
    pub node: v1::Node,
    /// What it says itself, or why it does not.
    pub status: Result<v1::StatusReply>,
}

/// The topology, as a node that answers tells it. A node that is alone is called by the URL by which it was
/// reached.
pub async fn topology(endpoints: &Endpoints) -> Result<v1::Topology> {
    let mut told = endpoints.ask(|node| async move { told(&node).await }).await?;
    endpoints.learn(&told);
    // One that is left when the others are drained has its own address, also where one of these told of it.
    if told.leaving.is_empty()
        && let [only] = told.nodes.as_mut_slice()
    {
        only.address = endpoints.url().to_owned();
    }
    Ok(told)
}

async fn told(node: &Node) -> Result<v1::Topology> {
    let none = || Error::retry(format!("{} tells no topology", node.url()));
    let call = async {
        let mut told = node.reply(node.client().watch_topology(v1::WatchTopologyRequest {})).await?;
        told.message().await.map_err(|s| node.error(s))?.ok_or_else(none)
    };
    timeout(2 * CONNECT_TIMEOUT, call).await.unwrap_or_else(|_| Err(none()))
}

/// Why no node of a topology without any can be asked; a node that was reached at `url` told it.
pub fn all_drained(topology: &v1::Topology, url: &str) -> Error {
    let url = topology.leaving.first().map_or(url, |node| node.address.as_str());
    Error::retry(format!("all nodes are drained: `forebay undrain {url}` brings one back"))
}

/// Asks every node of the topology, in the topology's order.
pub async fn survey(endpoints: &Endpoints) -> Result<(v1::Topology, Vec<Surveyed>)> {
    let topology = topology(endpoints).await?;
    let nodes = each(&topology).await;
    if let [Surveyed { status: Err(e), .. }] = nodes.as_slice() {
        return Err(e.clone());
    }
    Ok((topology, nodes))
}

/// The same of a topology that is known.
pub async fn each(topology: &v1::Topology) -> Vec<Surveyed> {
    let alone = topology.nodes.len() == 1;
    let limit = if alone { Duration::MAX } else { ANSWER };
    let asked = ask_each(topology, limit, |node| async move { node.status().await }).await;
    asked.into_iter().map(|(node, status)| Surveyed { node, status }).collect()
}

/// Asks every node of the topology something, in the topology's order, with a limit for each.
pub async fn ask_each<T, F: Future<Output = Result<T>>>(
    topology: &v1::Topology,
    limit: Duration,
    call: impl Fn(Node) -> F,
) -> Vec<(v1::Node, Result<T>)> {
    let call = &call;
    join_all(topology.nodes.iter().map(|node| async move {
        let reply = async { call(Node::new(&node.address)?).await };
        let late = |_| Err(Error::retry(format!("{} did not answer in {} s", node.address, limit.as_secs())));
        (node.clone(), timeout(limit, reply).await.unwrap_or_else(late))
    }))
    .await
}

/// The counters of the processes that read the object store: of each node that answers and tells its
/// figures to this caller, or of this process.
/// Differences tell what a stretch of reading cost. They include what others read from the cache at the same
/// time.
pub async fn readings(access: &Access) -> Result<Readings> {
    let mut readings = Readings::default();
    let direct = access.direct_source();
    if let Access::Endpoint(nodes) = access {
        let surveyed = match survey(nodes).await {
            Err(e) if e.kind == Kind::Retry && direct.is_some() => Vec::new(),
            surveyed => surveyed?.1,
        };
        for Surveyed { node, status } in surveyed {
            if let Ok(StatusReply { counters: Some(counters), uptime_s, .. }) = status {
                let who = format!("{} at {}", node.name, node.address);
                readings.add(who, counters, Instant::now(), Duration::from_secs(uptime_s));
            }
        }
    }
    if let Some(direct) = direct {
        readings.add_own(direct.counters());
    }
    Ok(readings)
}

/// [`readings`] in the middle of a run, which must not end because the cache is away for less than
/// `patience`.
pub async fn readings_within(access: &Access, patience: Duration) -> Result<Readings> {
    let since = Instant::now();
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    loop {
        match readings(access).await {
            Err(e) if e.kind == Kind::Retry && since.elapsed() < patience => sleep(backoff.next()).await,
            readings => return readings,
        }
    }
}

/// The node that a person means, by its name, or else by its address with or without a scheme. One that is
/// drained still answers the others, and so is known. `NotFound` names those of the topology.
pub fn find<'a>(topology: &'a v1::Topology, wanted: &str) -> Result<&'a v1::Node> {
    let plain = |url: &str| {
        let at = url.trim_start_matches("http://").trim_start_matches("https://");
        at.trim_end_matches('/').to_owned()
    };
    let all = || topology.leaving.iter().chain(&topology.nodes);
    let is_there = |node: &&v1::Node| plain(&node.address) == plain(wanted);
    all().find(|node| node.name == wanted).or_else(|| all().find(is_there)).ok_or_else(|| {
        let names: Vec<&str> = topology.nodes.iter().map(|n| n.name.as_str()).collect();
        Error::not_found(format!("no node `{wanted}` in the topology: there are {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, address: &str) -> v1::Node {
        v1::Node { name: name.into(), address: address.into(), ..Default::default() }
    }

    #[test]
    fn nodes_by_name_or_url() {
        // Some have names by default: hosts and ports, whatever is spoken there.
        let nodes = vec![node("a:7", "https://a:7"), node("b", "http://b:7")];
        let leaving = vec![node("c:7", "https://c:7"), node("d", "https://d:7")];
        let topology = v1::Topology { nodes, leaving, ..Default::default() };
        for (wanted, address) in [
            ("a:7", "https://a:7"),
            ("b", "http://b:7"),
            ("b:7", "http://b:7"),
            ("http://b:7/", "http://b:7"),
            ("c:7", "https://c:7"),
            ("d", "https://d:7"),
            ("d:7", "https://d:7"),
        ] {
            let found = find(&topology, wanted).map(|node| node.address.as_str());
            assert_eq!(found.map_err(|e| e.message).as_deref(), Ok(address), "{wanted}");
        }
        let e = find(&topology, "e:7").unwrap_err();
        assert!(e.kind == Kind::NotFound && e.message.ends_with("there are a:7, b"), "{e}");
    }

    #[test]
    fn a_name_goes_before_an_address() {
        let nodes = vec![node("x", "http://y:7"), node("y:7", "http://z:7")];
        let topology = v1::Topology { nodes, ..Default::default() };
        assert_eq!(find(&topology, "y:7").unwrap().address, "http://z:7");
    }

    #[test]
    fn a_topology_without_nodes_says_how_to_bring_one_back() {
        let message = |topology: &v1::Topology| all_drained(topology, "http://a:7").message;
        let undrain = |url: &str| format!("all nodes are drained: `forebay undrain {url}` brings one back");
        assert_eq!(message(&v1::Topology::default()), undrain("http://a:7"));
        let leaving = vec![v1::Node { address: "http://b:7".into(), ..Default::default() }];
        assert_eq!(message(&v1::Topology { leaving, ..Default::default() }), undrain("http://b:7"));
    }

    #[tokio::test]
    async fn a_refused_connection_names_the_endpoint_soon() {
        let started = Instant::now();
        let e = readings(&Access::endpoint("127.0.0.1:1").unwrap()).await.unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(30));
        assert_eq!(e.kind, Kind::Retry);
        let start = "cannot reach the cache at http://127.0.0.1:1: Connection refused";
        assert!(e.message.starts_with(start), "{e}");
        assert!(!e.message.contains('\n'));
    }

    #[tokio::test]
    async fn something_else_at_the_port_is_said_so() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        });
        let e = readings(&Access::endpoint(&format!("localhost:{port}")).unwrap()).await.unwrap_err();
        assert!(e.message.contains(&format!("cannot reach the cache at http://localhost:{port}")), "{e}");
    }
}
