//! Whether a node is on the reader's own host and its Unix socket can be reached: then batch streams go over
//! it, and their messages through shared memory. Whatever fails on the way, the stream goes by the node's
//! address as if there were nothing else.

use crate::credentials::NodeChannel;
use crate::idle_slot::IdleSlot;
use crate::stream::{SessionRequest, SharedSession};
use bytes::Bytes;
use forebay_dataset::shared::host_id;
use forebay_proto::v1;
use forebay_proto::v1::cache_client::CacheClient;
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long a node may take to say where it is.
const PATIENCE: Duration = Duration::from_millis(500);

/// As much as is known of a node's place.
#[derive(Debug, Default)]
pub(crate) struct HostOf {
    place: Mutex<Place>,
    /// Of a stream that came to its end.
    idle: IdleSlot<SharedSession>,
}

#[derive(Debug, Default, Clone)]
enum Place {
    #[default]
    Unknown,
    /// On another host, or without a socket.
    Elsewhere,
    Here(Arc<Door>),
}

/// The way in on the same host.
#[derive(Debug)]
struct Door {
    socket: String,
    instance: Bytes,
    /// Who asks there; zeros where everybody may.
    ticket: [u8; 16],
    lends_files: bool,
}

impl HostOf {
    /// The address of the node's socket and a region that it shares with one batch stream: that of a stream
    /// before, if it is as long. `None` where the node's own address is the way.
    pub async fn session(
        &self,
        node: &CacheClient<NodeChannel>,
        url: &str,
        bytes: u32,
    ) -> Option<(String, SharedSession)> {
        for _ in 0..2 {
            let (door, is_known) = self.door(node, url).await?;
            let request = SessionRequest { bytes, ticket: door.ticket, takes_files: door.lends_files };
            let address = format!("unix:{}", door.socket);
            if let Some(session) = self.idle.take(|idle| idle.is_like(&door.instance, request)) {
                return Some((address, session));
            }
            let (socket, instance) = (door.socket.clone(), door.instance.clone());
            match SharedSession::open(socket, instance, request, self.idle.downgrade()).await {
                Ok(session) => return Some((address, session)),
                Err(e) => {
                    tracing::debug!(error = %e, socket = door.socket, "no memory is shared with a node");
                    // A node that was restarted is another process, and says so when it is asked again.
                    if !is_known || e.kind() == ErrorKind::OutOfMemory {
                        return None;
                    }
                    *self.place.lock() = Place::Unknown;
                }
            }
        }
        None
    }

    /// The way in, and whether that was known before.
    async fn door(&self, node: &CacheClient<NodeChannel>, url: &str) -> Option<(Arc<Door>, bool)> {
        let known = self.place.lock().clone();
        match known {
            Place::Elsewhere => return None,
            Place::Here(door) => return Some((door, true)),
            Place::Unknown => {}
        }
        let reply = timeout(PATIENCE, node.clone().same_host(v1::SameHostRequest {})).await.ok()?;
        let place = match reply {
            Ok(reply) => place(reply.into_inner(), url, &host_id()),
            // It does not know the question.
            Err(status) if status.code() == tonic::Code::Unimplemented => Place::Elsewhere,
            Err(_) => Place::Unknown,
        };
        let door = if let Place::Here(door) = &place { Some(door.clone()) } else { None };
        if door.is_none() {
            tracing::debug!(url, ?place, "batches come by the node's own address");
        }
        *self.place.lock() = place;
        Some((door?, false))
    }
}

fn place(reply: v1::SameHostReply, url: &str, host: &str) -> Place {
    // By its own socket's path it can be reached, whatever it calls it.
    let socket = url.strip_prefix("unix:").map_or(reply.socket, str::to_owned);
    match !host.is_empty() && reply.host == host && socket.starts_with('/') {
        true => {
            let ticket = reply.ticket.as_ref().try_into().unwrap_or_default();
            let (instance, lends_files) = (reply.instance, reply.lends_files);
            Place::Here(Arc::new(Door { socket, instance, ticket, lends_files }))
        }
        false => Place::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_on_this_host_with_a_socket_is_here() {
        let reply = |host: &str, socket: &str| v1::SameHostReply {
            host: host.into(),
            socket: socket.into(),
            instance: Bytes::from_static(b"i"),
            ticket: Bytes::new(),
            lends_files: false,
        };
        let socket = |reply, url: &str, host: &str| match place(reply, url, host) {
            Place::Here(door) => Some(door.socket.clone()),
            _ => None,
        };
        let url = "http://h:1";
        assert_eq!(socket(reply("a", "/s"), url, "a").as_deref(), Some("/s"));
        assert_eq!(socket(reply("a", "/s"), "unix:/here/s", "a").as_deref(), Some("/here/s"));
        for (reply, host) in [
            (reply("b", "/s"), "a"),
            (reply("a", ""), "a"),
            (reply("", "/s"), ""),
            (v1::SameHostReply::default(), "a"),
        ] {
            assert_eq!(socket(reply, url, host), None);
        }
    }
}
