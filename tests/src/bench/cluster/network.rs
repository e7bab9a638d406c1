//! Nodes in network namespaces of their own, so that one can be cut off from some of the others. Packets are
//! dropped silently, as in a broken network. Needs root, `ip` and `iptables`.
//!
//! Each pair of nodes, and each node and the benchmark, has a cable of its own (a veth pair): on a bridge the
//! machine's own firewall would filter too.

use super::nodes::Seat;
use crate::harness::process::Run;
use anyhow::Context;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// The port of every node.
const PORT: u16 = 7070;

/// The namespaces; removed when dropped.
pub struct Network {
    count: usize,
    /// Names begin with it.
    id: u32,
    relays: Vec<JoinHandle<()>>,
}

/// The peers that a node is cut off from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutFrom<'a> {
    /// Clients that connect to it from outside.
    Clients,
    /// The other nodes.
    Peers,
    /// Services at these addresses outside.
    Services(&'a [SocketAddr]),
}

impl Network {
    /// Why there can be no such network here.
    pub fn obstacle() -> Option<String> {
        let tries = [("ip", "ip", vec!["netns", "list"]), ("iptables", "iptables", vec!["-S"])];
        tries.into_iter().find_map(|(program, name, words)| {
            let ended = Run::program(program, name).args(words).try_end();
            match ended {
                Ok(ended) if ended.code == Some(0) => None,
                Ok(ended) => Some(format!("{name}: {}", ended.stderr.trim())),
                Err(e) => Some(format!("{e:#}")),
            }
        })
    }

    /// Makes it.
    pub fn new(count: usize) -> anyhow::Result<Self> {
        let network = Self { count, id: std::process::id(), relays: Vec::new() };
        let host = network.host();
        for node in 0..count {
            let (space, address, outer) = (network.space(node), network.address(node), network.link(node));
            ip(&["netns", "add", &space])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
            ip(&["-n", &space, "addr", "add", &address, "dev", "lo"])?;
            ip(&["link", "add", &outer, "type", "veth", "peer", "name", "bench", "netns", &space])?;
            ip(&["addr", "add", &host, "dev", &outer])?;
            ip(&["link", "set", &outer, "up"])?;
            ip(&["route", "add", &address, "dev", &outer, "src", &host])?;
            network.plug(node, "bench", &host)?;
            for other in 0..node {
                let (there, end, far) = (network.space(other), format!("to{other}"), format!("to{node}"));
                ip(&[
                    "-n", &space, "link", "add", &end, "type", "veth", "peer", "name", &far, "netns", &there,
                ])?;
                network.plug(node, &end, &network.address(other))?;
                network.plug(other, &far, &address)?;
            }
        }
        Ok(network)
    }

    /// A seat in each namespace. Their metrics can be had from outside too.
    pub fn seats(&self) -> Vec<Seat> {
        let seat = |node| {
            let address = self.address(node);
            let seat = Seat::at(format!("{address}:{PORT}"));
            let seat = seat.args(["--metrics-listen", &format!("{address}:0")]);
            seat.within(["ip", "netns", "exec", &self.space(node)])
        };
        (0..self.count).map(seat).collect()
    }

    /// Makes a service at `http://127.0.0.1:port` reachable from the nodes, and returns its address there.
    pub fn relay(&mut self, runtime: &Runtime, url: &str) -> anyhow::Result<SocketAddr> {
        let to: SocketAddr = url.strip_prefix("http://").context("an http URL")?.parse()?;
        let listener = runtime.block_on(TcpListener::bind((self.host(), 0)))?;
        let address = listener.local_addr()?;
        self.relays.push(runtime.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    // Whichever side ends, the connection does.
                    if let Ok(mut server) = TcpStream::connect(to).await {
                        let _ = (client.set_nodelay(true), server.set_nodelay(true));
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        }));
        Ok(address)
    }

    /// Drops every packet between a node and some others.
    pub fn cut(&self, node: usize, from: CutFrom<'_>) -> anyhow::Result<()> {
        let host = self.host();
        match from {
            CutFrom::Clients => self.drop(node, &host, Some(("--dport", "--sport", PORT))),
            CutFrom::Peers => {
                let mut others = (0..self.count).filter(|&other| other != node);
                others.try_for_each(|other| self.drop(node, &self.address(other), None))
            }
            CutFrom::Services(addresses) => {
                let mut ports = addresses.iter().map(SocketAddr::port);
                ports.try_for_each(|port| self.drop(node, &host, Some(("--sport", "--dport", port))))
            }
        }
    }

    /// Ends all cuts of a node.
    pub fn heal(&self, node: usize) -> anyhow::Result<()> {
        ip(&["netns", "exec", &self.space(node), "iptables", "-F"])
    }

    /// `ports`: how a packet that comes in names the port, how one that goes out does, and the port.
    fn drop(&self, node: usize, peer: &str, ports: Option<(&str, &str, u16)>) -> anyhow::Result<()> {
        let space = self.space(node);
        for (chain, side, flag) in [("INPUT", "-s", ports.map(|p| p.0)), ("OUTPUT", "-d", ports.map(|p| p.1))]
        {
            let port = ports.map(|p| p.2.to_string()).unwrap_or_default();
            let mut words = vec!["netns", "exec", &space, "iptables", "-A", chain, side, peer];
            if let Some(flag) = flag {
                words.extend(["-p", "tcp", flag, &port]);
            }
            words.extend(["-j", "DROP"]);
            ip(&words)?;
        }
        Ok(())
    }

    /// Brings up a cable's end in a node's namespace, with a route to its other end.
    fn plug(&self, node: usize, end: &str, to: &str) -> anyhow::Result<()> {
        let space = self.space(node);
        ip(&["-n", &space, "link", "set", end, "up"])?;
        ip(&["-n", &space, "route", "add", to, "dev", end, "src", &self.address(node)])
    }

    fn space(&self, node: usize) -> String {
        format!("forebay-{}-{node}", self.id)
    }

    /// The bench's end of the cable to a node.
    fn link(&self, node: usize) -> String {
        format!("fb{}n{node}", self.id)
    }

    /// The bench's own address.
    fn host(&self) -> String {
        format!("{}.1", self.subnet())
    }

    fn address(&self, node: usize) -> String {
        format!("{}.{}", self.subnet(), node + 2)
    }

    fn subnet(&self) -> String {
        format!("10.{}.{}", 100 + self.id / 250 % 100, self.id % 250)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.relays.iter().for_each(JoinHandle::abort);
        // Fails for spaces and links that were never made.
        for node in 0..self.count {
            let _ = ip(&["netns", "del", &self.space(node)]);
            let _ = ip(&["link", "del", &self.link(node)]);
        }
    }
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    let ended = Run::program("ip", "ip").args(words).try_end()?;
    anyhow::ensure!(ended.code == Some(0), "ip {}: {}", words.join(" "), ended.stderr.trim());
    Ok(())
}
