//! What a request takes in memory once it is decoded, said before it is: a message of two bytes, or a number
//! of one, becomes many times as large.

use bytes::Buf;
use forebay_proto::v1::DESCRIPTORS;
use prost::Message as _;
use prost::encoding::{WireType, decode_key, decode_varint};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use std::collections::HashMap;
use std::sync::LazyLock;

/// What a message, a text or a number takes, about: in a list that grows, and without the text's own bytes.
const MESSAGE_BYTES: u64 = 256;
const TEXT_BYTES: u64 = 48;
const NUMBER_BYTES: u64 = 8;

/// Messages in messages: the decoder goes no deeper.
const DEPTH_MAX: usize = 100;

/// The requests of this package, by path; tickets, by theirs.
static REQUESTS: LazyLock<Shapes> = LazyLock::new(Shapes::of_descriptors);

/// Of a ticket, which comes in another package's message.
pub const TICKET: &str = ".forebay.v1.Ticket";

/// What fields hold.
#[derive(Debug, Clone)]
enum FieldShape {
    Message(usize),
    Text,
    Number,
}

#[derive(Debug, Default)]
struct Shapes {
    /// By the number of the message, and of the field.
    messages: Vec<HashMap<u32, FieldShape>>,
    /// The message of a method's request, by path; and [`TICKET`].
    requests: HashMap<String, usize>,
}

/// About what the request of a method, or a [`TICKET`], takes once it is decoded. Stops counting where
/// that is more than `enough`. A message that cannot be decoded counts as far as it can.
pub fn decoded_bytes(path: &str, message: &mut dyn Buf, enough: u64) -> u64 {
    let Some(shape) = REQUESTS.requests.get(path) else { return 0 };
    let mut count = Count { taken: MESSAGE_BYTES, enough };
    let bytes = message.remaining();
    count.message(&REQUESTS.messages, *shape, message, (bytes, 0));
    count.taken
}

struct Count {
    taken: u64,
    enough: u64,
}

impl Count {
    /// Counts the fields of a message of these bytes; `None`: no more can be counted.
    fn message(
        &mut self,
        shapes: &[HashMap<u32, FieldShape>],
        shape: usize,
        mut message: &mut dyn Buf,
        (bytes, depth): (usize, usize),
    ) -> Option<()> {
        let end = message.remaining().checked_sub(bytes)?;
        while message.remaining() > end {
            let (field, wire) = decode_key(&mut message).ok()?;
            let left = message.remaining().checked_sub(end)?;
            match wire {
                WireType::Varint => {
                    decode_varint(&mut message).ok()?;
                    self.taken += NUMBER_BYTES;
                }
                WireType::SixtyFourBit | WireType::ThirtyTwoBit => {
                    let width = if wire == WireType::SixtyFourBit { 8 } else { 4 };
                    message.advance(Some(width).filter(|width| *width <= left)?);
                    self.taken += NUMBER_BYTES;
                }
                WireType::LengthDelimited => {
                    let before = message.remaining();
                    let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
                    let left = left.checked_sub(before - message.remaining())?;
                    let length = Some(length).filter(|length| *length <= left)?;
                    match shapes.get(shape)?.get(&field) {
                        Some(FieldShape::Message(inner)) if depth < DEPTH_MAX => {
                            self.taken += MESSAGE_BYTES;
                            self.message(shapes, *inner, &mut *message, (length, depth + 1))?;
                        }
                        Some(FieldShape::Number) => self.taken += NUMBER_BYTES * numbers(message, length),
                        Some(_) => {
                            self.taken += TEXT_BYTES + length as u64;
                            message.advance(length);
                        }
                        None => message.advance(length),
                    }
                }
                WireType::StartGroup | WireType::EndGroup => return None,
            }
            if self.taken > self.enough {
                return None;
            }
        }
        Some(())
    }
}

/// How many numbers there may be in a packed list: each ends with a byte whose highest bit is not set, and
/// those of a fixed width have four bytes at least.
fn numbers(list: &mut dyn Buf, bytes: usize) -> u64 {
    let (mut left, mut ends) = (bytes, 0);
    while left > 0 && list.has_remaining() {
        let part = &list.chunk()[..left.min(list.chunk().len())];
        ends += part.iter().filter(|byte| **byte < 0x80).count();
        let read = part.len();
        list.advance(read);
        left -= read;
    }
    ends.max(bytes / 4) as u64
}

impl Shapes {
    fn of_descriptors() -> Self {
        let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap_or_default();
        let mut all = Vec::new();
        for file in &set.file {
            let start = format!(".{}", file.package());
            file.message_type.iter().for_each(|message| add(&start, message, &mut all));
        }
        let numbers: HashMap<&str, usize> =
            all.iter().enumerate().map(|(i, (name, _))| (&**name, i)).collect();
        let shape = |field: &prost_types::FieldDescriptorProto| {
            let shape = match field.r#type() {
                Type::Message => {
                    numbers.get(field.type_name()).map_or(FieldShape::Text, |n| FieldShape::Message(*n))
                }
                Type::String | Type::Bytes | Type::Group => FieldShape::Text,
                _ => FieldShape::Number,
            };
            (field.number() as u32, shape)
        };
        let messages = all.iter().map(|(_, message)| message.field.iter().map(shape).collect()).collect();
        let mut requests: HashMap<_, _> =
            numbers.get(TICKET).map(|n| (TICKET.to_owned(), *n)).into_iter().collect();
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    requests.extend(numbers.get(method.input_type()).map(|number| (path, *number)));
                }
            }
        }
        Self { messages, requests }
    }
}

/// A message and those that are declared in it, with their names.
fn add<'a>(start: &str, message: &'a DescriptorProto, all: &mut Vec<(String, &'a DescriptorProto)>) {
    let name = format!("{start}.{}", message.name());
    message.nested_type.iter().for_each(|nested| add(&name, nested, all));
    all.push((name, message));
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use forebay_proto::v1;
    use std::mem::size_of;

    const OPEN: &str = "/forebay.v1.Cache/Open";
    const LEARN: &str = "/forebay.v1.Peer/Learn";

    fn taken(path: &str, message: &[u8]) -> u64 {
        // In pieces, as they come.
        let (first, rest) = message.split_at(message.len() / 3);
        decoded_bytes(path, &mut Bytes::copy_from_slice(first).chain(rest), u64::MAX)
    }

    fn open(dataset: v1::DatasetSpec) -> Vec<u8> {
        v1::OpenRequest { dataset: Some(dataset), ..Default::default() }.encode_to_vec()
    }

    #[test]
    fn many_small_things_count_as_what_they_become() {
        const COUNT: usize = 10_000;
        let objects = v1::DatasetSpec { objects: vec![v1::Object::default(); COUNT], ..Default::default() };
        assert_eq!(taken(OPEN, &open(objects)), (COUNT as u64 + 2) * MESSAGE_BYTES);
        let mix = v1::DatasetSpec { mix: vec![v1::MixPart::default(); COUNT], ..Default::default() };
        assert_eq!(taken(OPEN, &open(mix)), (COUNT as u64 + 2) * MESSAGE_BYTES);
        let columns = v1::OpenRequest { columns: vec!["abc".into(); COUNT], ..Default::default() };
        let columns = taken(OPEN, &columns.encode_to_vec());
        assert_eq!(columns, COUNT as u64 * (TEXT_BYTES + 3) + MESSAGE_BYTES);
        let segments =
            v1::Segments { object: vec![0; COUNT], rows: vec![1 << 40; COUNT], ..Default::default() };
        let manifest = v1::Manifest { segments: Some(segments), ..Default::default() };
        let numbers = taken(LEARN, &manifest.encode_to_vec());
        assert!(numbers > 2 * NUMBER_BYTES * COUNT as u64 && numbers < 3 * NUMBER_BYTES * COUNT as u64);
        let rows = v1::RowsTicket { segment: vec![0; COUNT], row: vec![1; COUNT], ..Default::default() };
        let ticket = v1::Ticket { kind: Some(v1::ticket::Kind::Rows(rows)), ..Default::default() };
        let numbers = taken(TICKET, &ticket.encode_to_vec());
        assert_eq!(numbers, 2 * MESSAGE_BYTES + 2 * NUMBER_BYTES * COUNT as u64);
        let forms = v1::Shape { forms: vec![u64::MAX; COUNT], ..Default::default() };
        let manifest = v1::Manifest { shape: Some(forms), ..Default::default() };
        assert!(taken(LEARN, &manifest.encode_to_vec()) > NUMBER_BYTES * COUNT as u64);
        for size in [
            size_of::<v1::Object>(),
            size_of::<v1::MixPart>(),
            size_of::<v1::CopyItem>(),
            size_of::<v1::TableObject>(),
            size_of::<v1::DatasetSpec>(),
        ] {
            assert!(size as u64 <= MESSAGE_BYTES, "{size}");
        }
    }

    #[test]
    fn what_cannot_be_decoded_counts_as_far_as_it_can() {
        let good = open(v1::DatasetSpec { uri: "s3://b/t".into(), ..Default::default() });
        let whole = taken(OPEN, &good);
        assert_eq!(whole, 2 * MESSAGE_BYTES + TEXT_BYTES + 8);
        assert!((0..good.len()).all(|cut| taken(OPEN, &good[..cut]) <= whole));
        for bytes in
            [&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, b'a'][..], &[0x0b; 9], &[0xff; 20], &[0x09, 1], &[0x0d]]
        {
            assert!(taken(OPEN, bytes) <= 2 * MESSAGE_BYTES, "{bytes:?}");
        }
        let deep = (0..10_000).fold(Vec::new(), |inner: Vec<u8>, _| {
            let mut outer = vec![0x0a];
            prost::encoding::encode_varint(inner.len() as u64, &mut outer);
            outer.extend(inner);
            outer
        });
        assert!(taken(OPEN, &deep) < 1 << 20);
        assert_eq!(taken("/grpc.health.v1.Health/Check", &good), 0);
    }

    #[test]
    fn counting_ends_where_there_is_enough() {
        let objects =
            v1::DatasetSpec { objects: vec![v1::Object::default(); 1_000_000], ..Default::default() };
        let message = open(objects);
        let some = decoded_bytes(OPEN, &mut &message[..], 1 << 20);
        assert!(some > 1 << 20 && some < 2 << 20, "{some}");
    }
}
