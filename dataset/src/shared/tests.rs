pub(crate) mod files;

use super::channel::{FIRST, Grant, Hello, receive_grant, send_grant};
use super::*;
use crate::pool::Pool;
use bytes::Bytes;
use futures::FutureExt;
use proptest::prelude::*;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The descriptor, as the reader gets it.
fn sent(region: &SharedRegion) -> OwnedFd {
    let (node, reader) = UnixStream::pair().unwrap();
    let grant = Grant { instance: [1; 16], token: [2; 16], bytes: region.bytes() as u64 };
    send_grant(&node, &grant, Some(region.descriptor())).unwrap();
    let (told, descriptor) = receive_grant(&reader).unwrap();
    assert_eq!(told, grant);
    descriptor.unwrap()
}

fn filled(region: &SharedRegion, bytes: usize, value: u8) -> Bytes {
    let mut buffer = region.take(bytes).unwrap();
    buffer.as_slice_mut()[..bytes].fill(value);
    region.share(buffer, bytes)
}

#[test]
fn a_reader_sees_what_was_written_and_cannot_change_it() {
    let region = SharedRegion::new(100_000).unwrap();
    let descriptor = sent(&region);
    let map = SharedMap::new(&descriptor, region.bytes()).unwrap();
    let part = filled(&region, 50_000, 7);
    let lease = region.lease(&part[100..200]).unwrap();
    assert_eq!(map.get(lease.offset, 100).unwrap(), &[7; 100]);
    assert!(map.get(region.bytes() as u64 - 1, 2).is_none() && map.get(u64::MAX, 2).is_none());
    let file = std::fs::File::from(descriptor);
    assert!(file.set_len(10).is_err() && file.set_len(1 << 30).is_err(), "its length is sealed");
    assert!(std::os::unix::fs::FileExt::write_at(&file, b"x", 0).is_err(), "it is sealed against writing");
    assert!(memmap2::MmapOptions::new().map_raw(&file).is_err(), "and against maps that write");
}

#[test]
fn files_that_could_become_shorter_are_refused() {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = std::fs::File::from(rustix::fs::memfd_create("test", flags).unwrap());
    file.set_len(8192).unwrap();
    let e = SharedMap::new(&file.into(), 8192).unwrap_err();
    assert!(e.to_string().contains("sealed"), "{e}");
    let descriptor = sent(&SharedRegion::new(8192).unwrap());
    assert!(SharedMap::new(&descriptor, 8193).unwrap_err().to_string().contains("shorter"));
    assert!(SharedMap::new(&descriptor, 0).is_err());
}

#[test]
fn a_range_is_free_when_the_last_holder_has_let_it_go() {
    let region = SharedRegion::new(8192).unwrap();
    let part = filled(&region, 8000, 1);
    assert!(region.take(1).is_none() && region.room(1).now_or_never().is_none());
    let (lease, slice) = (region.lease(&part).unwrap(), part.slice(5..9));
    drop(part);
    drop(slice);
    assert!(region.take(1).is_none(), "the reader has it");
    drop(lease);
    assert_eq!(region.room(8192).now_or_never(), Some(true));
    assert!(region.lease(&[1, 2, 3]).is_none() && !region.has(b"elsewhere"));
    assert_eq!(region.room(8193).now_or_never(), Some(false), "it will never be that long");
    let part = filled(&region, 10, 3);
    region.close();
    assert!(region.take(1).is_none());
    assert_eq!(region.room(1).now_or_never(), Some(false), "the reader has gone");
    assert_eq!(&part[..], &[3; 10], "a range that is held stays");
}

#[tokio::test]
async fn who_waits_for_room_is_woken() {
    let region = SharedRegion::new(8192).unwrap();
    let part = filled(&region, 8192, 1);
    let waiting = tokio::spawn({
        let region = region.clone();
        async move { region.room(4096).await }
    });
    tokio::task::yield_now().await;
    drop(part);
    assert!(waiting.await.unwrap());
}

#[test]
fn messages_lie_in_the_region_while_it_has_room() {
    let region = SharedRegion::new(200_000).unwrap();
    let pool = MessagePool::new(Pool::new(1 << 20), Some(region.clone()));
    let take = |bytes: usize| {
        let mut buffer = pool.take(bytes);
        buffer.as_slice_mut()[..bytes].fill(9);
        pool.share(buffer, bytes)
    };
    let (first, small, second) = (take(100_000), take(1000), take(150_000));
    assert!(
        region.has(&first) && !region.has(&small) && !region.has(&second),
        "there is no room for a second"
    );
    assert!([&first[..], &small, &second].iter().all(|part| part.iter().all(|byte| *byte == 9)));
    let place = |sizes: &[usize]| pool.place(sizes.iter().map(|bytes| vec![4; *bytes].into()).collect());
    let (body, is_shared) = place(&[10_000, 1000, 20_000]);
    assert!(is_shared && body.iter().flatten().all(|byte| *byte == 4));
    assert_eq!(body.iter().map(|part| pool.is_shared(part)).collect::<Vec<_>>(), [true, false, true]);
    assert!(!place(&[1000, 1000]).1, "not worth it");
    let (body, is_shared) = place(&[10_000, 100_000]);
    assert!(!is_shared && pool.is_shared(&body[0]), "there is no room for all");
}

#[test]
fn what_is_said_beside_the_stream_is_understood_or_refused() {
    let hello = Hello { bytes: 12_345_678, ticket: [9; 16], takes_files: true };
    assert_eq!(Hello::decode(hello.encode()), Some(hello));
    let alone = Hello { takes_files: false, ..hello };
    assert_eq!(Hello::decode(alone.encode()), Some(alone));
    assert_eq!(hello.encode()[0], FIRST);
    let mut later = hello.encode();
    later[7] += 1;
    assert_eq!(Hello::decode(later), None, "another version");
    let (node, reader) = UnixStream::pair().unwrap();
    let none = Grant { instance: [0; 16], token: [0; 16], bytes: 0 };
    send_grant(&node, &none, None).unwrap();
    let (told, descriptor) = receive_grant(&reader).unwrap();
    assert!(told == none && descriptor.is_none());
    drop(node);
    assert!(receive_grant(&reader).is_err());
}

proptest! {
    /// The model: what each holder wrote is what it reads, whatever else is taken and dropped meanwhile.
    #[test]
    fn nobody_writes_where_another_holds(steps in prop::collection::vec((0..3u8, 1..30_000usize), 1..80)) {
        let region = SharedRegion::new(128 << 10).unwrap();
        let map = SharedMap::new(&sent(&region), region.bytes()).unwrap();
        let mut held: Vec<(u8, Bytes)> = Vec::new();
        let mut leased: Vec<(u8, u64, usize, SharedLease)> = Vec::new();
        for (number, (what, size)) in steps.into_iter().enumerate() {
            let value = number as u8;
            match what {
                0 => if let Some(mut buffer) = region.take(size) {
                    buffer.as_slice_mut()[..size].fill(value);
                    held.push((value, region.share(buffer, size)));
                },
                1 if !held.is_empty() => {
                    let (value, part) = held.swap_remove(size % held.len());
                    let lease = region.lease(&part).unwrap();
                    leased.push((value, lease.offset, part.len(), lease));
                }
                _ if !leased.is_empty() => drop(leased.swap_remove(size % leased.len())),
                _ => {}
            }
            for (value, part) in &held {
                prop_assert!(part.iter().all(|byte| byte == value));
            }
            for (value, offset, bytes, _) in &leased {
                prop_assert!(map.get(*offset, *bytes as u64).unwrap().iter().all(|byte| byte == value));
            }
        }
        drop((held, leased));
        prop_assert_eq!(region.room(region.bytes()).now_or_never(), Some(true));
    }
}

#[test]
fn a_connection_is_open_until_the_other_end_has_gone() {
    let (node, reader) = UnixStream::pair().unwrap();
    assert!(channel::is_open(&reader) && channel::is_open(&reader));
    send_grant(&node, &Grant { instance: [1; 16], token: [2; 16], bytes: 0 }, None).unwrap();
    assert!(channel::is_open(&reader), "something has come");
    assert_eq!(receive_grant(&reader).unwrap().0.token, [2; 16], "and was only looked at");
    drop(node);
    assert!(!channel::is_open(&reader));
}
