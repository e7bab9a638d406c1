//! The node's Unix socket: made at start, even where one was left behind, and removed at the end. gRPC comes
//! over it, and beside it the readers that share memory.

use super::accept;
use super::admission::Place;
use super::grpc::GrpcServer;
use crate::node::Node;
use crate::settings::SocketPlan;
use forebay_dataset::shared::channel::FIRST;
use forebay_proto::{Error, Result};
use rustix::net::{RecvFlags, recv};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long one may say nothing.
const PATIENCE: Duration = Duration::from_secs(20);

/// A Unix socket that listens. Its file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    pub listener: UnixListener,
    pub file: SocketFile,
}

/// The file of a socket; removed when dropped.
#[derive(Debug)]
pub struct SocketFile {
    pub path: PathBuf,
    /// Device and inode: another server may have taken the path since.
    id: (u64, u64),
}

impl Socket {
    /// Makes the socket. One that a dead server left behind is replaced; `Invalid` if a live one is there, or
    /// anything that is no socket.
    pub fn bind(plan: &SocketPlan) -> Result<Self> {
        let path = &plan.path;
        check_free(path)?;
        // It takes its path only with the right mode.
        let new = PathBuf::from(format!("{}.new", path.display()));
        std::fs::remove_file(&new).ok();
        let fail = |e: std::io::Error| {
            std::fs::remove_file(&new).ok();
            let path = path.display();
            Error::denied(format!(
                "cannot listen on unix:{path}: {e}; choose another path with --unix-socket"
            ))
        };
        let listener = UnixListener::bind(&new).map_err(fail)?;
        if let Some(group) = plan.group {
            chown(&new, None, Some(group)).map_err(fail)?;
        }
        std::fs::set_permissions(&new, PermissionsExt::from_mode(plan.mode)).map_err(fail)?;
        std::fs::rename(&new, path).map_err(fail)?;
        let id = id(path).map_err(fail)?;
        Ok(Self { listener, file: SocketFile { path: path.clone(), id } })
    }
}

/// Takes connections until `accepting` is called off: those that speak gRPC are handed on, the others are
/// readers that share memory, until `stop` is called.
pub async fn run(
    listener: UnixListener,
    node: Arc<Node>,
    grpc: Arc<GrpcServer>,
    accepting: CancellationToken,
    stop: CancellationToken,
) {
    let serve = |socket, place: Place| {
        let (node, grpc, stop) = (node.clone(), grpc.clone(), stop.clone());
        tokio::spawn(async move {
            let evicted = place.evicted.clone();
            let first = timeout(PATIENCE, first_byte(&socket));
            match evicted.run_until_cancelled(first).await {
                Some(Ok(Ok(FIRST))) => {
                    place.has_asked();
                    let authority = &node.guard.authority;
                    let policy = authority.is_on().then(|| authority.generation());
                    stop.run_until_cancelled(node.shared.serve(socket, policy)).await;
                }
                Some(Ok(Ok(_))) => grpc.serve(socket, place),
                _ => {}
            }
        });
    };
    accept::run(listener, node.listeners.grpc.clone(), accepting, serve, drop).await;
}

/// The first byte that comes, which is left where it is.
async fn first_byte(socket: &UnixStream) -> std::io::Result<u8> {
    let mut byte = [0];
    let peek = || Ok(recv(socket, &mut byte[..], RecvFlags::PEEK)?.0);
    match socket.async_io(Interest::READABLE, peek).await? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(byte[0]),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if id(&self.path).is_ok_and(|id| id == self.id) {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

fn id(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

fn check_free(path: &Path) -> Result<()> {
    let Ok(file) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let shown = path.display();
    if !file.file_type().is_socket() {
        let why = format!("{shown} exists and is no socket: choose another path with --unix-socket");
        return Err(Error::invalid(why));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(e) => Err(Error::denied(format!("the socket {shown} is another's: {e}"))),
        Ok(_) => {
            let why = format!("{shown} is in use by another program: choose another path with --unix-socket");
            Err(Error::invalid(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(path: &Path) -> SocketPlan {
        SocketPlan { path: path.to_owned(), mode: 0o640, group: None }
    }

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind");
        let socket = Socket::bind(&plan(&path)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert!(tokio::net::UnixStream::connect(&path).await.is_ok());
        let e = Socket::bind(&plan(&path)).unwrap_err();
        assert!(e.message.contains("in use"), "{e}");
        drop(socket);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "removed at the end");
    }

    #[tokio::test]
    async fn anything_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        std::fs::write(&path, "mine").unwrap();
        let e = Socket::bind(&plan(&path)).unwrap_err();
        assert!(e.message.contains("no socket"), "{e}");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        let e = Socket::bind(&plan(&folder.path().join("no/s"))).unwrap_err();
        assert!(e.message.contains("cannot listen") && e.message.contains("--unix-socket"), "{e}");
        let listener = Socket::bind(&plan(&folder.path().join("t"))).unwrap();
        std::fs::remove_file(&listener.file.path).unwrap();
        std::fs::write(&listener.file.path, "another's").unwrap();
        let path = listener.file.path.clone();
        drop(listener);
        assert!(path.exists(), "what another put there stays");
    }
}
