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
}

impl Error {
    pub(crate) fn new(operation: &'static str, rank: Option<(usize, usize)>, text: &str) -> Self {
        Self { operation, rank, message: first_line(text), missing: Vec::new() }
    }

    /// True when the cause lies with another process (it died, closed its connection or stayed silent), as far as
    /// the message tells: the report worth reading is then the other's.
    pub fn peer_lost(&self) -> bool {
        if !self.missing.is_empty() {
            return true;
        }
        let text = self.message.to_lowercase();
        // NCCL says "NCCL error" whatever it is; some are this rank's own.
        let own = ["invalid usage", "invalid argument", "unhandled cuda error", "duplicate gpu"];
        let signs = ["connection", "timed out", "timeout", "broken pipe", "socket", "recv"];
        let nccl = ["nccl error", "remote process exited", "network error", "ncclremoteerror"];
        !own.iter().any(|sign| text.contains(sign))
            && signs.iter().chain(&nccl).any(|sign| text.contains(sign))
    }

    fn side(&self) -> String {
        self.rank.map(|(rank, world)| format!("rank {rank} of {world}: ")).unwrap_or_default()
    }
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
        let text = "\n[/pytorch/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4\nframe #0: x";
        let error = Error::new("all_reduce", Some((0, 2)), text);
        assert_eq!(error.to_string(), "rank 0 of 2: all_reduce: Connection closed by peer [127.0.0.1]:4");
        assert!(error.peer_lost());
        assert!(!Error::new("ddp", None, "params[4] has sizes [9]").peer_lost());
        let nccl = |text| Error::new("all_reduce", Some((0, 2)), text).peer_lost();
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
}
