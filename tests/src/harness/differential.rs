//! The same request to an object store (S3) and to a node's endpoint before it: status, body and headers are
//! equal, but for dates and request ids. Of a refusal the code counts, not the words.

use bytes::Bytes;
use std::collections::BTreeMap;

use super::s3_client::{S3Ask, S3Client, S3Reply};

const SIZES: [usize; 6] = [1, 1000, 65_535, 65_536, 65_537, 300_000];

/// Keys that clients, proxies and libraries get wrong.
const ODD: [&str; 24] = [
    "sp ace",
    "plus+plus",
    "uml\u{e4}ut",
    "emoji-\u{1f600}",
    "per%cent",
    "per%2520cent",
    "q?mark",
    "hash#tag",
    "semi;colon",
    "amp&and=eq",
    "quote'\"",
    "tilde~",
    "star*",
    "colon:",
    "at@",
    "back\\slash",
    "comma,",
    "brackets[]{}<>",
    "dollar$",
    "trail/",
    "dbl//slash",
    "/lead",
    "dir/.hidden",
    "..dots..",
];

/// Headers that are compared.
const HEADERS: [&str; 15] = [
    "accept-ranges",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "etag",
    "expires",
    "last-modified",
    "x-amz-bucket-region",
    "x-amz-mp-parts-count",
    "x-amz-storage-class",
    "x-amz-version-id",
];

const RANGES: [&str; 23] = [
    "bytes=0-0",
    "bytes=0-",
    "bytes=-1",
    "bytes=5-10",
    "bytes=65530-65540",
    "bytes=65536-65536",
    "bytes=65536-",
    "bytes=300000-",
    "bytes=299999-",
    "bytes=0-99999999",
    "bytes=-99999999",
    "bytes=-0",
    "bytes=7-6",
    "bytes=a-b",
    "bytes=0-1,5-6",
    "bytes=",
    "bytes=-",
    "octets=0-1",
    "bytes 0-1",
    "0-1",
    "bytes=1000000000000-",
    "bytes=0-1000000000000",
    "bytes=1-0x2",
];

/// An object store, the endpoint of a node before it, and a bucket that is in both.
pub struct Twins {
    /// The object store itself.
    pub store: S3Client,
    /// The endpoint.
    pub node: S3Client,
    /// The bucket that is read.
    pub bucket: String,
}

/// What a comparison found.
#[derive(Debug, Default)]
pub struct Compared {
    /// How many were sent to both.
    pub requests: usize,
    /// Those whose answers differ, in words.
    pub unequal: Vec<String>,
}

impl Twins {
    /// Path and query of a key.
    pub fn target(&self, key: &str, query: &str) -> String {
        format!("/{}/{}{query}", self.bucket, escaped(key))
    }

    /// Puts an object into the object store as a client does.
    pub async fn put(
        &self,
        key: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> anyhow::Result<()> {
        let ask = S3Ask::new("PUT", self.target(key, ""));
        let ask = headers.iter().fold(ask, |ask, (name, value)| ask.header(name, value));
        let reply = self.store.send(&S3Ask { body: body.into(), ..ask }).await?;
        anyhow::ensure!(reply.status == 200, "{key}: {reply:?}");
        Ok(())
    }

    /// Fills the object store with what the requests ask for.
    pub async fn fill(&self) -> anyhow::Result<()> {
        for (seed, size) in (0..).zip(SIZES) {
            self.put(&format!("sizes/{size}"), &[], bytes_of(seed, size)).await?;
        }
        self.put("sizes/0", &[], "").await?;
        for key in ODD {
            self.put(&format!("odd/{key}"), &[("content-type", "text/x-odd")], key).await?;
        }
        self.put(&long_key(), &[], "long").await?;
        let described = [
            ("content-type", "text/plain; charset=utf-8"),
            ("cache-control", "max-age=5"),
            ("content-disposition", "attachment; filename=\"a b.txt\""),
            ("content-encoding", "gzip"),
            ("content-language", "de"),
            ("x-amz-meta-one", "1"),
            ("x-amz-meta-two-words", "two words"),
        ];
        self.put("meta/described", &described, bytes_of(9, 5000)).await?;
        for n in 0..25 {
            self.put(&format!("tree/{}/{n:02}", n % 3), &[], "x").await?;
        }
        self.upload_in_parts().await
    }

    async fn upload_in_parts(&self) -> anyhow::Result<()> {
        let begun = self.store.send(&S3Ask::new("POST", self.target("parts", "?uploads="))).await?;
        let text = String::from_utf8_lossy(&begun.body).into_owned();
        let id = text.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<'));
        let id = id.ok_or_else(|| anyhow::anyhow!("no upload is begun: {text}"))?.0;
        let mut list = String::new();
        for (number, size) in [(1, 100_000), (2, 70_000), (3, 11)] {
            let ask = S3Ask::new("PUT", self.target("parts", &format!("?partNumber={number}&uploadId={id}")));
            let reply = self.store.send(&S3Ask { body: bytes_of(number, size).into(), ..ask }).await?;
            let tag = reply.headers.get("etag").map_or("", String::as_str);
            list += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>");
        }
        let ask = S3Ask::new("POST", self.target("parts", &format!("?uploadId={id}")));
        let body = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
        let done = self.store.send(&S3Ask { body: body.into(), ..ask }).await?;
        anyhow::ensure!(done.status == 200, "{done:?}");
        Ok(())
    }

    /// Sends every request to both, twice: the second time most of it is in the cache.
    pub async fn compare(&self) -> anyhow::Result<Compared> {
        let requests = self.requests().await?;
        let mut compared = Compared { requests: requests.len(), unequal: Vec::new() };
        for round in ["cold", "warm"] {
            for ask in &requests {
                let (store, node) = tokio::try_join!(self.store.send(ask), self.node.send(ask))?;
                let (store, node) = (Served::from(store), Served::from(node));
                if store != node {
                    let S3Ask { method, target, headers, .. } = ask;
                    let text =
                        format!("{round} {method} {target} {headers:?}\n  store {store}\n  node  {node}");
                    compared.unequal.push(text);
                }
            }
        }
        Ok(compared)
    }

    /// Every operation, with conditions, ranges and keys of all kinds.
    async fn requests(&self) -> anyhow::Result<Vec<S3Ask>> {
        let mut all = self.of_keys();
        for key in ["sizes/0", "sizes/1", "sizes/65537", "sizes/300000"] {
            for text in RANGES {
                all.extend(both(self.target(key, "")).map(|ask| ask.header("range", text)));
            }
        }
        all.extend(self.conditions().await?);
        all.extend(self.listings());
        for key in ["parts", "sizes/0", "no/such/key"] {
            let ask = S3Ask::new("GET", self.target(key, "?attributes="));
            all.push(ask.header("x-amz-object-attributes", "ETag,ObjectSize"));
        }
        let bucket = format!("/{}", self.bucket);
        all.push(S3Ask::new("HEAD", bucket.clone()));
        all.push(S3Ask::new("HEAD", format!("{bucket}/")));
        all.push(S3Ask::new("GET", format!("{bucket}?location=")));
        all.push(
            S3Ask::new("GET", self.target("meta/described", "")).header("x-amz-checksum-mode", "ENABLED"),
        );
        Ok(all)
    }

    fn of_keys(&self) -> Vec<S3Ask> {
        let mut keys: Vec<String> = ODD.iter().map(|key| format!("odd/{key}")).collect();
        keys.extend(["sizes/0", "sizes/65537", "meta/described", "parts", "no/such/key"].map(String::from));
        keys.push(long_key());
        let mut all = Vec::new();
        for ask in keys.iter().flat_map(|key| both(self.target(key, ""))) {
            all.extend([
                ask.clone(),
                ask.clone().header("range", "bytes=1-2"),
                ask.header("range", "bytes=-3"),
            ]);
        }
        for part in ["1", "2", "3", "4"] {
            for key in ["parts", "sizes/1000"] {
                all.extend(both(self.target(key, &format!("?partNumber={part}"))));
            }
        }
        for query in [
            "?response-content-type=text/x-a",
            "?response-cache-control=no-cache&response-content-language=en",
            "?response-content-disposition=inline",
            "?response-content-encoding=br",
            "?response-expires=Tue%2C%2014%20Nov%202023%2022%3A13%3A20%20GMT",
            "?x-id=GetObject",
        ] {
            all.push(S3Ask::new("GET", self.target("meta/described", query)));
        }
        all
    }

    async fn conditions(&self) -> anyhow::Result<Vec<S3Ask>> {
        let target = self.target("sizes/1000", "");
        let head = self.store.send(&S3Ask::new("HEAD", target.clone())).await?;
        let known = |name: &str| head.headers.get(name).map_or("", String::as_str);
        let (tag, at) = (known("etag"), known("last-modified"));
        let dates = ["Tue, 14 Nov 2023 22:13:20 GMT", at, "Thu, 14 Nov 2047 22:13:20 GMT"];
        let mut sets: Vec<Vec<(&str, &str)>> = Vec::new();
        for value in [tag, "\"other\"", "*"] {
            sets.push(vec![("if-match", value)]);
            sets.push(vec![("if-none-match", value)]);
            for date in dates {
                sets.push(vec![("if-match", value), ("if-unmodified-since", date)]);
                sets.push(vec![("if-none-match", value), ("if-modified-since", date)]);
            }
        }
        for date in dates {
            sets.push(vec![("if-modified-since", date)]);
            sets.push(vec![("if-unmodified-since", date)]);
        }
        let mut all = Vec::new();
        for set in sets {
            for ask in both(target.clone()) {
                let ask = set.iter().fold(ask, |ask, (name, value)| ask.header(name, value));
                all.extend([ask.clone(), ask.header("range", "bytes=10-19")]);
            }
        }
        Ok(all)
    }

    fn listings(&self) -> Vec<S3Ask> {
        let list = |query: &str| S3Ask::new("GET", format!("/{}?{query}", self.bucket));
        let mut all = Vec::new();
        for version in ["", "list-type=2&"] {
            for prefix in
                ["", "prefix=tree/&", "prefix=tree&", "prefix=odd/&", "prefix=none&", "prefix=odd/dbl/&"]
            {
                for delimiter in ["", "delimiter=/&", "delimiter=e&", "delimiter=%20&"] {
                    for rest in ["", "encoding-type=url", "max-keys=2", "max-keys=0"] {
                        all.push(list(&format!("{version}{prefix}{delimiter}{rest}")));
                    }
                }
            }
        }
        let rest = [
            "list-type=2&start-after=tree/1",
            "list-type=2&fetch-owner=true&prefix=sizes/",
            "marker=tree/1/04&prefix=tree/",
            "list-type=2&continuation-token=forged",
            "list-type=2&max-keys=1001",
        ];
        all.extend(rest.map(list));
        all
    }
}

/// What must be equal.
#[derive(Debug, PartialEq, Eq)]
struct Served {
    status: u16,
    code: Option<String>,
    body: Bytes,
    headers: BTreeMap<String, String>,
}

impl From<S3Reply> for Served {
    fn from(reply: S3Reply) -> Self {
        let (status, code) = (reply.status, reply.code());
        let is_error = status >= 400;
        let is_compared = |name: &str| match is_error {
            true => name == "content-range",
            false => HEADERS.contains(&name) || name.starts_with("x-amz-meta-"),
        };
        let headers = reply.headers.into_iter().filter(|(name, _)| is_compared(name)).collect();
        Self { status, code, body: if is_error { Bytes::new() } else { reply.body }, headers }
    }
}

impl std::fmt::Display for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let code = self.code.as_deref().unwrap_or_default();
        let start = String::from_utf8_lossy(&self.body[..self.body.len().min(3000)]);
        let body = if start.starts_with("<?xml") { &*start } else { "" };
        write!(f, "{} {code} {} bytes {:?} {body}", self.status, self.body.len(), self.headers)
    }
}

fn both(target: String) -> [S3Ask; 2] {
    ["GET", "HEAD"].map(|method| S3Ask::new(method, target.clone()))
}

/// As long as a key may be.
fn long_key() -> String {
    format!("long/{}", "k".repeat(1019))
}

/// Bytes that differ at every place.
pub fn bytes_of(seed: u64, count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}

/// A key as a part of a path.
fn escaped(key: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~/".contains(&b);
    key.bytes().fold(String::new(), |path, b| match is_plain(b) {
        true => path + char::from(b).encode_utf8(&mut [0; 1]),
        false => path + &format!("%{b:02X}"),
    })
}
