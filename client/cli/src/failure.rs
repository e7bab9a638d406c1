//! How a command ends other than well.

use arrow::error::ArrowError;
use forebay_proto::{Error, Kind};
use std::io;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something to tell.
    Error(Error),
    /// The same, of a command line that makes no sense: the exit status is 2.
    Usage(Error),
    /// The reader of standard output stopped (`forebay cat ... | head`): nothing to tell.
    ReaderGone,
}

/// Of what the command line says, or a variable in place of a flag.
pub(crate) fn usage(e: Error) -> Failure {
    match e.kind {
        Kind::Invalid => Failure::Usage(e),
        _ => Failure::Error(e),
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Error(e)
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            io::ErrorKind::StorageFull => {
                Failure::Error(Error::new(Kind::Full, format!("cannot write standard output: {e}")))
            }
            _ => Failure::Error(Error::invalid(format!("cannot write standard output: {e}"))),
        }
    }
}

impl From<ArrowError> for Failure {
    /// Of writing batches: the writers hand the output's own errors on.
    fn from(e: ArrowError) -> Self {
        match e {
            ArrowError::IoError(_, e) => e.into(),
            e => Failure::Error(Error::invalid(format!("cannot print this data: {e}"))),
        }
    }
}
