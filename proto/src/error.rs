//! Errors classed by what the caller must do, and their one mapping to and from gRPC status.

use tonic::{Code, Status};

/// What the caller must do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The named thing does not exist: correct the name.
    NotFound,
    /// The request is wrong as it stands: correct it.
    Invalid,
    /// The caller may not do this: correct the credentials or the settings.
    Denied,
    /// Try again later; nothing is wrong with the request.
    Retry,
    /// Data failed its checks: the source or a disk is damaged.
    Corrupt,
    /// An object is no longer the version that the manifest froze: open the dataset again.
    Changed,
    /// No room (disk, budget): free some or raise the limit.
    Full,
    /// The other side is shutting down or gone for good.
    Closed,
}

/// An error: its kind and one line that says what happened, to which object, and what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What the caller must do.
    pub kind: Kind,
    /// One line for a person.
    pub message: String,
}

/// A result whose error, unless another is named, says what the caller must do.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident),* $(,)?) => {
        impl Error {
            $($(#[$doc])* pub fn $name(message: impl Into<String>) -> Self {
                Self::new(Kind::$kind, message)
            })*
        }
    };
}

constructors! {
    /// See [`Kind::NotFound`].
    not_found => NotFound,
    /// See [`Kind::Invalid`].
    invalid => Invalid,
    /// See [`Kind::Denied`].
    denied => Denied,
    /// See [`Kind::Retry`].
    retry => Retry,
    /// See [`Kind::Corrupt`].
    corrupt => Corrupt,
    /// See [`Kind::Changed`].
    changed => Changed,
    /// See [`Kind::Full`].
    full => Full,
    /// See [`Kind::Closed`].
    closed => Closed,
}

impl Error {
    /// An error of `kind`; line breaks in `message` become spaces.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        let message: String = message.into();
        let message = match message.contains(['\n', '\r']) {
            true => message.split_whitespace().collect::<Vec<_>>().join(" "),
            false => message,
        };
        Self { kind, message }
    }

    /// The same error with `context: ` put before its message.
    pub fn context(self, context: impl std::fmt::Display) -> Self {
        Self { kind: self.kind, message: format!("{context}: {}", self.message) }
    }
}

/// The gRPC code of each kind.
const CODES: [(Kind, Code); 8] = [
    (Kind::NotFound, Code::NotFound),
    (Kind::Invalid, Code::InvalidArgument),
    (Kind::Denied, Code::PermissionDenied),
    (Kind::Retry, Code::Unavailable),
    (Kind::Corrupt, Code::DataLoss),
    (Kind::Changed, Code::FailedPrecondition),
    (Kind::Full, Code::ResourceExhausted),
    (Kind::Closed, Code::Aborted),
];

impl From<Error> for Status {
    fn from(e: Error) -> Self {
        let code = CODES.iter().find(|(kind, _)| *kind == e.kind).map_or(Code::Unknown, |(_, code)| *code);
        Status::new(code, e.message)
    }
}

impl From<Status> for Error {
    fn from(s: Status) -> Self {
        let kind = match s.code() {
            Code::Unauthenticated => Kind::Denied,
            // Transport failures surface as these (a reset stream as Internal): worth another try.
            Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Internal => Kind::Retry,
            code => CODES.iter().find(|(_, of)| *of == code).map_or(Kind::Invalid, |(kind, _)| *kind),
        };
        Error::new(kind, s.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in [
            Kind::NotFound,
            Kind::Invalid,
            Kind::Denied,
            Kind::Retry,
            Kind::Corrupt,
            Kind::Changed,
            Kind::Full,
            Kind::Closed,
        ] {
            let back = Error::from(Status::from(Error::new(kind, "s3://b/k: gone")));
            assert_eq!((back.kind, back.message.as_str()), (kind, "s3://b/k: gone"));
        }
    }

    #[test]
    fn messages_are_one_line() {
        assert_eq!(Error::retry("a\n  b\r\nc").message, "a b c");
    }
}
