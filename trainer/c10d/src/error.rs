//! The one error of this crate: which operation failed, on which rank, and the first line of what C++ said.

/// What every fallible call here returns.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed c10d or libtorch call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{operation}: {message}", self.side())]
pub struct Error {
    /// What was being done, for example `all_reduce`.
    pub operation: &'static str,
    /// (rank, world) of the process that saw it, where a process group was involved.
    pub rank: Option<(usize, usize)>,
    /// One line: C++'s message without its source position and its stack.
    pub message: String,
    /// The ranks whose fault it is, as far as their heartbeats tell: dead, or not come to the operation.
    pub missing: Vec<usize>,
    pub(crate) fault: Fault,
}

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This process's, or nobody's.
    Own,
    /// Another process's: it died, closed its connection or stayed silent.
    Peer,
}

/// A failure below the crate's surface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub text: String,
    pub fault: Fault,
}

impl Failure {
    pub fn own(text: impl Into<String>) -> Self {
        Self { text: text.into(), fault: Fault::Own }
    }

    pub fn peers(text: impl Into<String>) -> Self {
        Self { text: text.into(), fault: Fault::Peer }
    }

    /// From a message of the shim, whose first letter says which exception it was (`shim/common.h`).
    pub fn thrown(message: &str) -> Self {
        let (thrower, text) = message.split_at_checked(1).unwrap_or_default();
        let is_peers = match thrower {
            "P" => true,
            "N" => is_nccls_word_of_a_peer(text),
            _ => is_gloos_word_of_a_peer(text),
        };
        if is_peers { Self::peers(text) } else { Self::own(text) }
    }
}

impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Self::own(text)
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::own(text)
    }
}

impl From<tch::TchError> for Failure {
    fn from(error: tch::TchError) -> Self {
        match error {
            // Its own first words, `Internal torch error`, say nothing.
            tch::TchError::Torch(text) => Self::own(text),
            other => Self::own(other.to_string()),
        }
    }
}

/// What a failure of an operation that no group takes part in becomes.
pub(crate) fn named<F: Into<Failure>>(operation: &'static str) -> impl Fn(F) -> Error {
    move |failure| Error::new(operation, None, failure)
}

impl Error {
    pub(crate) fn new(
        operation: &'static str,
        rank: Option<(usize, usize)>,
        failure: impl Into<Failure>,
    ) -> Self {
        let Failure { text, fault } = failure.into();
        Self { operation, rank, message: first_line(&text), missing: Vec::new(), fault }
    }

    /// True when the cause lies with another process (it died, closed its connection or stayed silent), as
    /// far as the failure tells: the report worth reading is then that process's.
    pub fn peer_lost(&self) -> bool {
        !self.missing.is_empty() || self.fault == Fault::Peer
    }

    fn side(&self) -> String {
        self.rank.map(|(rank, world)| format!("rank {rank} of {world}: ")).unwrap_or_default()
    }
}

/// Gloo's exceptions have types that libtorch's headers do not show. What its transport throws begins with
/// the place in its source; what goes wrong while the ranks connect, and a wait without a result, libtorch
/// puts in words of its own.
fn is_gloos_word_of_a_peer(text: &str) -> bool {
    let text = text.trim_start();
    let text = text.strip_prefix("Gloo connectFullMesh failed with ").unwrap_or(text);
    let place = text.strip_prefix('[').and_then(|rest| rest.split_once("] ")).map(|(place, _)| place);
    place.is_some_and(|place| place.contains("gloo/transport/")) || text.starts_with("Operation timed out!")
}

/// NCCL's failures have one type, whatever they are. Some name what this rank itself did wrong.
fn is_nccls_word_of_a_peer(text: &str) -> bool {
    let own = ["invalid usage", "invalid argument", "unhandled cuda error", "Duplicate GPU"];
    let any = ["NCCL error", "NCCL communicator was aborted", "collective operation timeout"];
    any.iter().any(|sign| text.contains(sign)) && !own.iter().any(|sign| text.contains(sign))
}

/// The first line that is not blank, without gloo's leading `[/path/pair.cc:538] `.
fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no message");
    let without_source = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
        .filter(|(source, _)| source.contains(".cc:") || source.contains(".cpp:") || source.contains(".h:"));
    without_source.map_or(line, |(_, message)| message).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_one_line_and_names_the_rank() {
        let text = "O\n[/pytorch/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4\nframe #0: x";
        let error = Error::new("all_reduce", Some((0, 2)), Failure::thrown(text));
        assert_eq!(error.to_string(), "rank 0 of 2: all_reduce: Connection closed by peer [127.0.0.1]:4");
        assert!(error.peer_lost());
        assert!(!Error::new("ddp", None, "params[4] has sizes [9]").peer_lost());
        let nccl = |text: &str| {
            Error::new("all_reduce", Some((0, 2)), Failure::thrown(&format!("N{text}"))).peer_lost()
        };
        assert!(nccl(
            "NCCL error in: ProcessGroupNCCL.cpp:2093, remote process exited or there was a network error"
        ));
        assert!(nccl("NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"));
        assert!(!nccl(
            "NCCL error in: NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details)"
        ));
        assert_eq!(Error::new("x", None, "[4, 5] is no shape").message, "[4, 5] is no shape");
        assert_eq!(Error::new("x", None, "").message, "no message");
    }

    #[test]
    fn the_thrower_tells_whose_fault_it_is_and_a_word_in_the_text_does_not() {
        let peers = |message: &str| Failure::thrown(message).fault == Fault::Peer;
        assert!(peers("PConnection reset by peer"));
        assert!(peers(
            "OGloo connectFullMesh failed with [/pytorch/gloo/transport/tcp/device.cc:9] no answer"
        ));
        assert!(peers("OOperation timed out!"));
        for text in [
            "column `socket` has no timeout",
            "open /data/connections: recv is a folder",
            "[enforce fail at /pytorch/gloo/allreduce.cc:7] a connection of the wrong kind",
            "the words [/pytorch/gloo/transport/tcp/pair.cc:538] Connection closed by peer",
        ] {
            assert!(!peers(&format!("O{text}")), "{text}");
            assert!(!Error::new("x", None, text).peer_lost(), "{text}");
        }
        assert!(!peers("NProcessGroupNCCL: the socket of GPU 3 is not there"));
        assert!(!peers(""));
    }
}
