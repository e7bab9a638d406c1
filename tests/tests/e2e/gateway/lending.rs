//! Bytes that are sent as they lie in the cache's files: what happens to these meanwhile.

use super::*;
use forebay_tests::harness::check::must_try_all;
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
    // What was changed is found out, and comes from the object store again.
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

/// Faults of a node that waited for a disk: those of its async threads, and of the others.
fn faults(pid: u32) -> (u64, u64) {
    let (mut of_async, mut of_others) = (0, 0);
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads") {
        // One that has ended meanwhile has no file.
        let Ok(stat) = std::fs::read_to_string(thread.expect("a thread").path().join("stat")) else {
            continue;
        };
        let (name, rest) = stat.rsplit_once(')').expect("a name");
        let major = rest.split_whitespace().nth(9).and_then(|n| n.parse::<u64>().ok()).expect("a number");
        match name.contains("forebay-async") {
            true => of_async += major,
            false => of_others += major,
        }
    }
    (of_async, of_others)
}

/// Bytes that a process has had read from disks.
fn disk_bytes(pid: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).expect("the node lives");
    let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")).expect("a number");
    line.parse().expect("a number")
}

#[test]
fn cold_pages_never_meet_an_async_thread() {
    // Few files keep their pages mapped: of the others the kernel can forget them, while the maps stay.
    let gateway = Gateway::with(|options| {
        options.args(["--memory-bytes", "32MiB"]).env("FOREBAY_OBJECTS__BLOCK_BYTES", "262144")
    });
    let wanted = bytes_of(1, SIZE);
    gateway.s3.put("large", wanted.clone());
    let (uri, pid) = (gateway.s3.uri("large"), gateway.server.pid());
    let forebay = |line: &[&str]| {
        Run::new("forebay").args(line).args(["--endpoint", &gateway.server.endpoint]).end().expect_success()
    };
    forebay(&["load", "--raw", &uri]);
    let target = format!("/{}/large", gateway.s3.bucket);
    let whole = || gateway.ask(&S3Ask::new("GET", target.clone())).body == wanted;
    let ranges = || {
        (0..SIZE).step_by(1 << 20).all(|at| {
            let ask = S3Ask::new("GET", target.clone());
            let reply = gateway.ask(&ask.header("range", &format!("bytes={at}-{}", at + 65_535)));
            reply.body == wanted[at..at + 65_536]
        })
    };
    let by_the_library = || forebay(&["get", &uri]) == wanted;
    assert!(whole(), "every file is mapped now");
    let reads: [(&str, &dyn Fn() -> bool); 3] =
        [("whole", &whole), ("ranges", &ranges), ("by the library", &by_the_library)];
    for (what, read) in reads {
        for file in files(&gateway.server.folder.join("cache/v1/segments")) {
            let file = std::fs::File::open(file).expect("open");
            rustix::fs::fsync(&file).expect("it is on the disk");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("forget it");
        }
        let (before, read_before) = (faults(pid), disk_bytes(pid));
        assert!(read(), "{what}: other bytes");
        let (after, bytes) = (faults(pid), disk_bytes(pid) - read_before);
        let (of_async, of_others) = (after.0 - before.0, after.1 - before.1);
        println!("{what}: {bytes} bytes from the disk; major faults: async {of_async}, others {of_others}");
        if bytes == 0 {
            assert!(!must_try_all(), "TMPDIR is no disk, and CI is set: cold pages are not tested");
            eprintln!("TMPDIR is no disk: cold pages are not tested");
            break;
        }
        // Pages of the program itself may be cold too.
        assert!(of_async <= 4, "{what}: {of_async} faults of async threads, {of_others} of others");
    }
    gateway.server.stop();
}
