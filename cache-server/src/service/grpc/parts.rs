//! Requests that come in parts: no part becomes more, once it is decoded, than all parts together may.
//!
//! A part is looked at as the method asks for it, so that nobody's parts lie here beside those of others.

use super::decoded::decoded_bytes;
use crate::runtime::blocking;
use crate::service::message::HEAD_BYTES;
use bytes::{Bytes, BytesMut};
use forebay_proto::object_list::LIST_BYTES_MAX;
use forebay_proto::{Error, Result};
use futures::stream::try_unfold;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tonic::Status;
use tonic::body::Body;

/// Bytes that a part may have.
const PART_BYTES_MAX: usize = 4 << 20;

/// The same request; its body ends with an error before a part that would become too much.
pub fn each_counted(request: Request<Body>) -> Request<Body> {
    let path = request.uri().path().to_owned();
    request.map(|body| {
        let parts = try_unfold(Parts { path, body, buffered: BytesMut::new() }, |mut parts| async {
            let part = parts.next().await.map_err(Status::from)?;
            Ok::<_, Status>(part.map(|part| (Frame::data(part), parts)))
        });
        Body::new(StreamBody::new(parts))
    })
}

struct Parts {
    path: String,
    body: Body,
    /// What came of the next part.
    buffered: BytesMut,
}

impl Parts {
    /// The next part, with its head; what was cut off as it is, at the end.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(part) = self.whole()? {
                return within(self.path.clone(), part).await.map(Some);
            }
            match self.body.frame().await {
                Some(frame) => {
                    let frame = frame.map_err(|e| Error::invalid(format!("the list cannot be read: {e}")))?;
                    self.buffered.extend_from_slice(&frame.into_data().unwrap_or_default());
                }
                None if self.buffered.is_empty() => return Ok(None),
                None => return Ok(Some(self.buffered.split().freeze())),
            }
        }
    }

    fn whole(&mut self) -> Result<Option<Bytes>> {
        let Some(([_, length @ ..], rest)) = self.buffered.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let bytes = u32::from_be_bytes(*length) as usize;
        if bytes > PART_BYTES_MAX {
            let problem = format!("a part of the list has {bytes} bytes, and may have {PART_BYTES_MAX}");
            return Err(Error::invalid(problem));
        }
        let is_whole = rest.len() >= bytes;
        Ok(is_whole.then(|| self.buffered.split_to(HEAD_BYTES + bytes).freeze()))
    }
}

/// The part, if it becomes no more than a list may.
async fn within(path: String, part: Bytes) -> Result<Bytes> {
    let (message, most) = (part.slice(HEAD_BYTES..), LIST_BYTES_MAX as u64);
    match blocking(move || decoded_bytes(&path, &mut &message[..], most)).await? > most {
        true => Err(Error::invalid(format!(
            "a part of the list would take more than {most} bytes of memory: send it in smaller parts"
        ))),
        false => Ok(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::v1;
    use http_body_util::Full;
    use prost::Message as _;

    fn framed(objects: usize) -> Vec<u8> {
        let dataset = v1::DatasetSpec { objects: vec![Default::default(); objects], ..Default::default() };
        let message = v1::OpenRequest { dataset: Some(dataset), ..Default::default() }.encode_to_vec();
        [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat()
    }

    /// What comes out, by parts, of bytes that come in pieces of this size.
    async fn through(bytes: &[u8], piece: usize) -> std::result::Result<Vec<Vec<u8>>, String> {
        let pieces: Vec<_> = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
        let pieces = pieces.into_iter().map(|piece| Ok::<_, Status>(Frame::data(piece)));
        let body = Body::new(StreamBody::new(futures::stream::iter(pieces)));
        let mut body =
            each_counted(Request::post("/forebay.v1.Cache/OpenParts").body(body).unwrap()).into_body();
        let mut parts = Vec::new();
        while let Some(frame) = body.frame().await {
            parts.push(frame.map_err(|e| e.message().to_owned())?.into_data().unwrap().to_vec());
        }
        Ok(parts)
    }

    #[tokio::test]
    async fn parts_come_through_as_they_are() {
        let sent = [framed(3), framed(0), framed(2000)];
        for piece in [1, 4, 7, 1000, 1 << 20] {
            assert_eq!(through(&sent.concat(), piece).await.unwrap(), sent, "{piece}");
        }
        // The decoder tells the caller.
        let cut = &sent.concat()[..20];
        assert_eq!(through(cut, 6).await.unwrap().concat(), cut);
        assert!(through(&[], 1).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_part_that_would_become_too_much_is_refused() {
        let e = through(&[framed(1), framed(1_000_000)].concat(), 64 << 10).await.unwrap_err();
        assert!(e.contains("more than 134217728 bytes of memory"), "{e}");
        let e = through(&[0, 0xff, 0, 0, 0, 1], 1).await.unwrap_err();
        assert!(e.contains("has 4278190080 bytes, and may have 4194304"), "{e}");
    }

    #[tokio::test]
    async fn what_a_client_sends_is_taken() {
        let object = |i: usize| v1::Object { key: format!("{i}"), size: 1, ..Default::default() };
        let dataset = v1::DatasetSpec { objects: (0..300_000).map(object).collect(), ..Default::default() };
        let request = v1::OpenRequest { dataset: Some(dataset), ..Default::default() };
        for part in forebay_proto::object_list::parts(request) {
            let message = part.encode_to_vec();
            let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
            let body = Body::new(Full::from(framed.clone()));
            let request = Request::post("/forebay.v1.Cache/OpenParts").body(body).unwrap();
            let whole = each_counted(request).into_body().collect().await.unwrap();
            assert_eq!(whole.to_bytes(), framed);
        }
    }
}
