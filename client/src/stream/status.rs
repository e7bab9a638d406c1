//! How a gRPC call ended, read from headers or trailers.

use forebay_proto::{Error, Result};
use http::HeaderMap;
use tonic::{Code, Status};

/// The outcome that headers or trailers name; `None` if they name none.
pub fn of(headers: &HeaderMap) -> Option<Result<()>> {
    let code = headers.get("grpc-status")?;
    let code = Code::from_bytes(code.as_bytes());
    if code == Code::Ok {
        return Some(Ok(()));
    }
    let message = headers.get("grpc-message").map(|m| unescape(m.as_bytes())).unwrap_or_default();
    let message = match message.is_empty() {
        true => format!("the server ended the stream with {code:?} and no message"),
        false => message,
    };
    Some(Err(Error::from(Status::new(code, message))))
}

/// Undoes gRPC's percent-encoding; what is not well-formed stands as it is.
fn unescape(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        match digits.filter(|_| *first == b'%').and_then(|d| u8::from_str_radix(d, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[2..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Kind;

    fn headers(status: &str, message: &str) -> HeaderMap {
        let mut h = HeaderMap::new();
        h.insert("grpc-status", status.parse().unwrap());
        h.insert("grpc-message", message.parse().unwrap());
        h
    }

    #[test]
    fn kinds_and_messages_come_through() {
        assert!(of(&HeaderMap::new()).is_none());
        assert!(of(&headers("0", "")).unwrap().is_ok());
        let e = of(&headers("15", "s3://b/k: 100%25 damaged%0A%C3%BC %zz %4")).unwrap().unwrap_err();
        assert_eq!((e.kind, e.message.as_str()), (Kind::Corrupt, "s3://b/k: 100% damaged ü %zz %4"));
        assert_eq!(of(&headers("5", "x")).unwrap().unwrap_err().kind, Kind::NotFound);
        assert_eq!(of(&headers("nonsense", "")).unwrap().unwrap_err().kind, Kind::Retry);
    }
}
