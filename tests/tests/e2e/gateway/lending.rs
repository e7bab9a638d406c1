//! Bytes that are sent as they lie in the cache's files: what happens to these meanwhile.

use super::*;
use forebay_tests::harness::process::Run;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const SIZE: usize = 64 << 20;

/// Far more than the kernel takes of an answer whose reader waits, in blocks of 4 MiB, and in the cache.
fn warm() -> (Gateway, Vec<u8>) {
    let gateway = Gateway::with(|options| {
        let options = options.env("FOREBAY_OBJECTS__BLOCK_BYTES", "4194304");
        options.allow_log("a segment file is damaged")
    });
    let wanted = bytes_of(1, SIZE);
    gateway.s3.put("large", wanted.clone());
    let line = ["load", "--raw", &gateway.s3.uri("large"), "--endpoint", &gateway.server.endpoint];
    Run::new("forebay").args(line).end().expect_success();
    gateway.s3.take_log();
    (gateway, wanted)
}

/// Reads the object; after its first megabyte something happens. What came, with the head of the answer.
fn read_with(gateway: &Gateway, happens: impl FnOnce()) -> Vec<u8> {
    let target = format!("/{}/large", gateway.s3.bucket);
    let ask = gateway.client().sign(&S3Ask::new("GET", target)).expect("sign");
    let address = gateway.client().endpoint.replace("http://", "");
    let headers: String = ask.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head =
        format!("GET {} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n", ask.target);
    let mut stream = TcpStream::connect(&address).expect("connect");
    stream.write_all(head.as_bytes()).expect("ask");
    let mut came = vec![0; 1 << 20];
    stream.read_exact(&mut came).expect("a megabyte");
    happens();
    // A connection that is cut may end with an error.
    stream.read_to_end(&mut came).ok();
    assert!(came.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&came[..200]));
    let end = came.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    came.split_off(end + 4)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn an_answer_of_which_a_file_is_changed_meanwhile_has_no_end() {
    let (gateway, wanted) = warm();
    let segments = gateway.server.folder.join("cache/v1/segments");
    let came = read_with(&gateway, || {
        for file in files(&segments) {
            let file = std::fs::File::options().read(true).write(true).open(file).expect("open");
            let mut byte = [0];
            file.read_exact_at(&mut byte, 2 << 20).expect("read");
            file.write_all_at(&[!byte[0]], 2 << 20).expect("write");
        }
    });
    assert!(came.len() < SIZE, "all {} bytes came", came.len());
    // What was changed is found out, and comes from the store again.
    let again = gateway.ask(&S3Ask::new("GET", format!("/{}/large", gateway.s3.bucket)));
    assert!(again.status == 200 && again.body == wanted, "{} bytes", again.body.len());
    gateway.server.stop();
}

#[test]
fn who_reads_what_is_freed_meanwhile_gets_all_of_it() {
    let (gateway, wanted) = warm();
    let came = read_with(&gateway, || {
        let line = ["free", &gateway.s3.uri("large"), "--endpoint", &gateway.server.endpoint];
        Run::new("forebay").args(line).end().expect_success();
    });
    assert!(came == wanted, "{} bytes", came.len());
    gateway.server.stop();
}

#[test]
fn what_is_warm_is_sent_without_a_question_to_the_disk_or_the_store() {
    let (gateway, wanted) = warm();
    let came = read_with(&gateway, || ());
    assert!(came == wanted, "{} bytes", came.len());
    assert_eq!(gateway.s3.take_log().iter().filter(|seen| seen.is_object_get()).count(), 0);
    for (first, last) in [(0, 65_535), (4_194_303, 4_194_304), (300_000, 900_000), (SIZE - 1, SIZE - 1)] {
        let ask = S3Ask::new("GET", format!("/{}/large", gateway.s3.bucket));
        let reply = gateway.ask(&ask.header("range", &format!("bytes={first}-{last}")));
        assert!(
            reply.status == 206 && reply.body == wanted[first..=last],
            "{first}-{last}: {}",
            reply.status
        );
    }
    gateway.server.stop();
}
