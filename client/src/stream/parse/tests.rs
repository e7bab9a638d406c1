use super::*;
use arrow_flight::{FlightData, FlightDescriptor};
use bytes::{BufMut, BytesMut};
use proptest::prelude::*;

/// A message of these parts, as any encoder in order of fields writes it.
fn framed(data: &FlightData) -> Vec<u8> {
    let mut out = BytesMut::new();
    out.put_u8(0);
    out.put_u32(data.encoded_len() as u32);
    out.put_slice(&data.encode_to_vec());
    out.to_vec()
}

fn data(header: &[u8], meta: &[u8], body: &[u8]) -> FlightData {
    FlightData {
        flight_descriptor: None,
        data_header: header.to_vec().into(),
        app_metadata: meta.to_vec().into(),
        data_body: body.to_vec().into(),
    }
}

type Parts = (Bytes, Bytes, Vec<u8>);

/// Feeds pieces and puts the messages together again.
fn parse<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<(Vec<Parts>, bool)> {
    let mut parser = Parser::default();
    let mut messages: Vec<Parts> = Vec::new();
    let mut open: Option<(Head, Vec<u8>)> = None;
    for piece in pieces {
        let mut input = Bytes::copy_from_slice(piece);
        while let Some(event) = parser.next(&mut input)? {
            match event {
                StreamEvent::Head(head) => {
                    assert!(open.is_none());
                    open = Some((head, Vec::new()));
                }
                StreamEvent::Body(bytes) => {
                    assert!(!bytes.is_empty());
                    open.as_mut().unwrap().1.extend_from_slice(&bytes);
                }
                StreamEvent::Shared(_) | StreamEvent::Rows(_) | StreamEvent::Segments(_) => {
                    panic!("the parser has no shared memory")
                }
                StreamEvent::End => {
                    let (head, body) = open.take().unwrap();
                    assert_eq!(head.body_bytes, body.len());
                    messages.push((head.header, head.meta, body));
                }
            }
        }
        assert!(input.is_empty());
    }
    Ok((messages, parser.between_messages() && open.is_none()))
}

fn three() -> (Vec<u8>, Vec<FlightData>) {
    let mut described = data(b"", b"m", b"with a descriptor");
    described.flight_descriptor =
        Some(FlightDescriptor { r#type: 1, cmd: "abc".into(), path: vec!["p".into()] });
    let all =
        vec![data(&[7; 300], b"", b""), data(b"head", b"meta", &[9; 500]), described, data(b"", b"", b"")];
    (all.iter().flat_map(framed).collect(), all)
}

fn same(messages: &[Parts], want: &[FlightData]) {
    let want: Vec<_> =
        want.iter().map(|d| (d.data_header.clone(), d.app_metadata.clone(), d.data_body.to_vec())).collect();
    assert_eq!(messages, &want[..]);
}

#[test]
fn cut_at_any_byte() {
    let (bytes, want) = three();
    for cut in 0..=bytes.len() {
        let (messages, whole) = parse([&bytes[..cut], &bytes[cut..]].into_iter()).unwrap();
        same(&messages, &want);
        assert!(whole);
    }
    let (messages, whole) = parse(bytes.chunks(1)).unwrap();
    same(&messages, &want);
    assert!(whole);
}

#[test]
fn a_truncated_stream_is_never_whole() {
    let (bytes, want) = three();
    let mut ends = vec![0];
    for d in &want {
        ends.push(ends.last().unwrap() + framed(d).len());
    }
    for cut in 0..bytes.len() {
        let (_, whole) = parse(std::iter::once(&bytes[..cut])).unwrap();
        assert_eq!(whole, ends.contains(&cut), "cut at {cut}");
    }
}

#[test]
fn absurd_lengths_are_refused_before_anything_is_kept() {
    let message = |body: &[u8]| [&[0, 0xff, 0xff, 0xff, 0xff], body].concat();
    let cases: [&[u8]; 5] = [
        // A header of 2^35 bytes, one of 1 GiB, a body of 4 GiB - 1, a varint that does not end, a group.
        &[0x12, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
        &[0x12, 0x80, 0x80, 0x80, 0x80, 0x04],
        &[0xc2, 0x3e, 0xf0, 0xff, 0xff, 0xff, 0x0f],
        &[0xff; 11],
        &[0x0b],
    ];
    for case in cases {
        let bytes = message(case);
        let e = parse(bytes.chunks(1)).unwrap_err();
        assert!(e.message.contains("malformed"), "{e}");
    }
    assert!(parse(std::iter::once(&[1u8, 0, 0, 0, 0][..])).is_err(), "compressed");
    // Fields of a message that is shorter than they are.
    for body in [&[0x12u8, 5, 1][..], &[0x09, 1, 2], &[0x0d, 1], &[0x08, 0x80], &[0x12, 0x80]] {
        let mut bytes = vec![0];
        bytes.put_u32(body.len() as u32);
        bytes.extend_from_slice(body);
        assert!(parse(std::iter::once(&bytes[..])).is_err(), "{body:?}");
    }
    // Something after the body.
    let mut bytes = vec![0, 0, 0, 0, 6, 0xc2, 0x3e, 1, 7];
    bytes.extend_from_slice(&[0x12, 0]);
    assert!(parse(std::iter::once(&bytes[..])).is_err());
}

#[test]
fn unknown_fields_are_skipped() {
    let known = data(b"head", b"", b"body").encode_to_vec();
    let mut bytes = BytesMut::new();
    // Fields 15, 14, 13 and 12: a varint, 8 bytes, 4 bytes, and 3 bytes of length 3.
    let unknown =
        [&[0x78, 0x80, 0x01][..], &[0x71, 1, 2, 3, 4, 5, 6, 7, 8], &[0x6d, 1, 2, 3, 4], &[0x62, 3, 1, 2, 3]];
    let unknown = unknown.concat();
    bytes.put_u8(0);
    bytes.put_u32((unknown.len() + known.len()) as u32);
    bytes.put_slice(&unknown);
    bytes.put_slice(&known);
    let (messages, _) = parse(bytes.chunks(1)).unwrap();
    same(&messages, &[data(b"head", b"", b"body")]);
}

#[test]
fn a_body_may_lie_elsewhere() {
    let part = |length| v1::SharedPart { offset: 4096, length, ..Default::default() };
    let told = |parts| {
        let mut message = data(b"head", b"meta", b"").encode_to_vec();
        prost::encoding::message::encode(999, &v1::SharedBody { lease: 7, parts }, &mut message);
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(message.len() as u32);
        bytes.put_slice(&message);
        let (mut parser, mut bytes) = (Parser::default(), bytes.freeze());
        parser.next(&mut bytes)
    };
    let inline = v1::SharedPart { bytes: Bytes::from_static(b"abc"), ..Default::default() };
    let Some(StreamEvent::Head(head)) = told(vec![part(100), inline.clone()]).unwrap() else {
        panic!("a head")
    };
    assert_eq!((head.body_bytes, &head.meta[..]), (103, &b"meta"[..]));
    assert_eq!(head.shared.unwrap().parts, [part(100), inline]);
    assert!(told(vec![part(u64::MAX), part(2)]).is_err() && told(vec![part(1 << 40)]).is_err());
}

proptest! {
    #[test]
    fn any_messages_in_any_pieces(
        parts in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(any::<u8>(), 0..40),
             prop::collection::vec(any::<u8>(), 0..200)), 0..6),
        sizes in prop::collection::vec(1usize..60, 1..40),
    ) {
        let want: Vec<_> = parts.iter().map(|(h, m, b)| data(h, m, b)).collect();
        let bytes: Vec<u8> = want.iter().flat_map(framed).collect();
        let mut pieces = Vec::new();
        let mut rest = &bytes[..];
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        let (messages, whole) = parse(pieces.into_iter()).unwrap();
        same(&messages, &want);
        prop_assert!(whole);
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), size in 1usize..20) {
        let mut framed = vec![0, 0, 0, 1, 0];
        framed.extend_from_slice(&bytes);
        let _ = parse(framed.chunks(size));
        let _ = parse(bytes.chunks(size));
    }
}
