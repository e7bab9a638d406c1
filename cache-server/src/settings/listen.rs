//! Where a node listens: a TCP address or a Unix socket, and who may use the socket.

use super::load::refuse;
use forebay_proto::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The name of the socket in the first cache directory.
const SOCKET: &str = "forebay.sock";

/// Bytes that the path of a socket may have (`sun_path` of unix(7), less its end and the name that it has
/// while it is made).
const PATH_BYTES_MAX: usize = 103;

/// The lines of it are `NAME:x:NUMBER:members`.
const GROUPS: &str = "/etc/group";

/// Where the gRPC service is: `HOST:PORT`, or `unix:/PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ListenAddress {
    /// An address of this machine and a port.
    Tcp(SocketAddr),
    /// The path of a socket.
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            refuse(!path.is_absolute(), format!("listen `{text}`: a socket has a full path: unix:/PATH"))?;
            return Ok(Self::Unix(path));
        }
        let wrong = |why| Error::invalid(format!("listen `{text}`: {why}, or unix:/PATH"));
        address(text).map(Self::Tcp).map_err(wrong)
    }
}

/// An address to listen at: `127.0.0.1:7070`, or a name of this machine and a port.
pub(super) fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    let resolved = || text.to_socket_addrs().ok()?.find(SocketAddr::is_ipv4);
    text.parse().ok().or_else(resolved).ok_or_else(|| match text.parse::<u16>() {
        Ok(port) => {
            format!("give an address and a port, as in 127.0.0.1:{port} (0.0.0.0:{port}: on all networks)")
        }
        Err(_) => "give an address and a port, as in 127.0.0.1:7070".to_owned(),
    })
}

impl TryFrom<String> for ListenAddress {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(at: SocketAddr) -> Self {
        Self::Tcp(at)
    }
}

impl From<ListenAddress> for String {
    fn from(at: ListenAddress) -> Self {
        at.to_string()
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(at) => at.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl ListenAddress {
    /// The TCP address, if it is one.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(at) => Some(*at),
            Self::Unix(_) => None,
        }
    }
}

/// A Unix socket to be made, and who may connect to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketPlan {
    pub path: PathBuf,
    pub mode: u32,
    /// The number of the group that it is given to.
    pub group: Option<u32>,
}

impl SocketPlan {
    /// The socket of a node that listens at `listen` and whose first cache directory is `dir`, by its
    /// settings `socket`, `mode` and `group`. `None` where it is to have none. `Invalid` names the setting.
    pub fn new(
        listen: &ListenAddress,
        dir: Option<&PathBuf>,
        socket: Option<&str>,
        mode: Option<&str>,
        group: Option<&String>,
    ) -> Result<Option<Self>> {
        let (path, default_mode) = match (listen, socket) {
            (ListenAddress::Unix(path), None) => (path.clone(), 0o600),
            (ListenAddress::Unix(_), Some(_)) => {
                return Err(Error::invalid(
                    "--listen unix:/PATH is the Unix socket already: leave --unix-socket out",
                ));
            }
            (ListenAddress::Tcp(_), Some("off")) => {
                let unused =
                    "--unix-socket-mode and --unix-socket-group make no sense with --unix-socket off";
                refuse(mode.is_some() || group.is_some(), unused)?;
                return Ok(None);
            }
            (ListenAddress::Tcp(_), Some(path)) => (PathBuf::from(path), 0o666),
            (ListenAddress::Tcp(_), None) => {
                let Some(dir) = dir else { return Ok(None) };
                let path = std::path::absolute(dir.join(SOCKET)).unwrap_or_else(|_| dir.join(SOCKET));
                if is_too_long(&path) {
                    tracing::info!(path = %path.display(), "no Unix socket: its path is too long, see --unix-socket");
                    return Ok(None);
                }
                (path, 0o666)
            }
        };
        let shown = path.display();
        refuse(!path.is_absolute(), format!("unix_socket `{shown}`: use a full path, or off"))?;
        let long = format!(
            "unix_socket `{shown}`: a socket's path has at most {PATH_BYTES_MAX} bytes, this one has {}: choose a \
             shorter one with --unix-socket",
            path.as_os_str().len()
        );
        refuse(is_too_long(&path), long)?;
        let group = group.map(|group| group_number(group)).transpose()?;
        Ok(Some(Self { mode: octal(mode, default_mode)?, path, group }))
    }
}

fn octal(text: Option<&str>, default: u32) -> Result<u32> {
    let Some(text) = text else { return Ok(default) };
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    let wrong = || format!("unix_socket_mode `{text}`: use octal digits as for chmod, e.g. 660");
    mode.ok_or_else(|| Error::invalid(wrong()))
}

fn group_number(group: &str) -> Result<u32> {
    let groups = || std::fs::read_to_string(GROUPS).unwrap_or_default();
    let number = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    let number = group.parse().ok().or_else(|| groups().lines().find_map(number));
    number.ok_or_else(|| Error::invalid(format!("unix_socket_group `{group}`: there is no such group")))
}

fn is_too_long(path: &Path) -> bool {
    path.as_os_str().len() > PATH_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["127.0.0.1:7070", "[::1]:7070", "unix:/run/forebay.sock"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["nowhere", "7070", "unix:forebay.sock", "/run/forebay.sock"] {
            assert!(text.parse::<ListenAddress>().unwrap_err().message.contains(text));
        }
    }

    #[test]
    fn groups_go_by_name_or_number() {
        assert_eq!(group_number("1234").unwrap(), 1234);
        assert_eq!(group_number("root").unwrap(), 0);
        for none in ["", "roo", "no such group"] {
            assert!(group_number(none).unwrap_err().message.contains("no such group"), "{none}");
        }
    }

    #[test]
    fn a_group_that_there_is_not_is_told_of_the_default_socket_too() {
        let tcp = ListenAddress::Tcp(([127, 0, 0, 1], 7070).into());
        let plan = |socket: Option<&str>, group: &str| {
            SocketPlan::new(&tcp, Some(&"/c".into()), socket, None, Some(&group.to_owned()))
        };
        assert_eq!(plan(None, "root").unwrap().and_then(|plan| plan.group), Some(0));
        assert!(plan(None, "nope").unwrap_err().message.contains("unix_socket_group `nope`"));
        assert!(plan(Some("off"), "root").unwrap_err().message.contains("--unix-socket off"));
    }

    #[test]
    fn a_socket_is_in_the_first_cache_directory_unless_told_otherwise() {
        let tcp = ListenAddress::Tcp(([127, 0, 0, 1], 7070).into());
        let unix = ListenAddress::Unix("/run/f.sock".into());
        let plan = |unix_socket: Option<&str>, mode: Option<&str>, listen: &ListenAddress, dir: &str| {
            let plan =
                SocketPlan::new(listen, Some(&dir.into()), unix_socket, mode, None).map_err(|e| e.message)?;
            Ok::<_, String>(plan.map(|plan| (plan.path.display().to_string(), plan.mode)))
        };
        let at = |path: &str, mode| Ok(Some((path.to_owned(), mode)));
        assert_eq!(plan(None, None, &tcp, "/c"), at("/c/forebay.sock", 0o666));
        assert_eq!(plan(Some("/s"), Some("660"), &tcp, "/c"), at("/s", 0o660));
        assert_eq!(plan(None, None, &unix, "/c"), at("/run/f.sock", 0o600));
        assert_eq!(plan(Some("off"), None, &tcp, "/c"), Ok(None));
        assert_eq!(plan(None, None, &tcp, &"/long".repeat(30)), Ok(None), "the node works without");
        let long = plan(Some(&"/long".repeat(30)), None, &tcp, "/c").unwrap_err();
        assert!(long.contains("150") && long.contains("103"), "{long}");
        assert!(plan(Some("s"), None, &tcp, "/c").unwrap_err().contains("full path"));
        assert!(plan(Some("/s"), Some("rw"), &tcp, "/c").unwrap_err().contains("660"));
        assert!(plan(Some("/s"), None, &unix, "/c").is_err());
    }
}
