//! A node that reads from Google and Azure: datasets and raw objects through it, and objects that change.

use arrow::array::RecordBatch;
use forebay_client::objects::Objects;
use forebay_client::{Access, Dataset, DatasetSpec, Kind, Result, rows};
use forebay_tests::harness::cloud::Required;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use futures::TryStreamExt;

use crate::commands::{ACCOUNT, ACCOUNT_KEY, Cloud, SCHEMES, lines, text};
use crate::parquet;

/// Bytes of a raw object: more than a block, which has 4 MiB.
const RAW_BYTES: usize = (5 << 20) + 7;

/// A node that may read all of these, with the credentials that their variables name.
fn node(clouds: &[&Cloud]) -> Server {
    let options = clouds.iter().fold(ServerOptions::bare(), |options, cloud| {
        let options = options.args(["--allow", &cloud.uri("")]);
        cloud.variables.iter().fold(options, |options, (name, value)| options.env(name, value))
    });
    options.start()
}

/// What `forebay COMMAND URI ..` prints that asks the node, and has no credentials.
fn printed(node: &Server, command: &[&str], uri: &str) -> Vec<u8> {
    Run::new("forebay").args(command).args([uri, "--endpoint", &node.endpoint]).end().expect_success()
}

fn bytes(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(RAW_BYTES).collect()
}

async fn scanned(dataset: &Dataset) -> Result<Vec<RecordBatch>> {
    rows::scan(dataset, None).await?.try_collect().await
}

#[test]
fn datasets_and_objects_of_both_clouds_come_through_one_node() {
    let (mut google, mut azure) = (Cloud::start("gs"), Cloud::start("az"));
    google.server.require(Required::InstanceToken("token-of-the-instance".to_owned()));
    let host = google.server.endpoint.trim_start_matches("http://").to_owned();
    google.variables.push(("GCE_METADATA_HOST", host));
    azure.server.require(Required::SharedKey { account: ACCOUNT, key: ACCOUNT_KEY });
    azure.variables.push(("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY.to_owned()));
    let node = node(&[&google, &azure]);
    for (seed, cloud) in (0..).zip([&google, &azure]) {
        // Values of its own, so that no answer can be the other cloud's.
        let first = 1000 * seed as i64;
        cloud.put("train/a.parquet", parquet(first..first + 250));
        cloud.put("train/x/b.parquet", parquet(first + 250..first + 300));
        for time in ["cold", "warm"] {
            let rows = text(printed(&node, &["cat"], &cloud.uri("train")));
            assert_eq!(rows, lines(first..first + 300), "{time}");
        }
        let (uri, raw) = (cloud.uri("raw.bin"), bytes(seed));
        cloud.put("raw.bin", raw.clone());
        for time in ["cold", "warm"] {
            assert!(printed(&node, &["get"], &uri) == raw, "{time}: other bytes of {uri}");
        }
        assert_eq!(printed(&node, &["get", "-r", "4194300-4194310"], &uri), raw[4_194_300..=4_194_310]);
    }
    node.stop();
}

/// Reads of a version are refused when the object has another one, which comes when it is opened again.
#[tokio::test(flavor = "multi_thread")]
async fn versions_are_not_mixed_when_objects_change() {
    for scheme in SCHEMES {
        let cloud = Cloud::open(scheme);
        let (train, raw, new) = (cloud.uri("train"), cloud.uri("raw.bin"), bytes(1));
        cloud.put("train/a.parquet", parquet(0..250));
        cloud.put("raw.bin", bytes(0));
        let node = node(&[&cloud]);
        let access = Access::endpoint(&node.endpoint).expect("an endpoint");
        let dataset = Dataset::open(&access, &DatasetSpec::new(&train)).await.expect("open");
        let objects = Objects::new(&access);
        let version = objects.version(&raw).await.expect("a version");

        cloud.put("train/a.parquet", parquet(1000..1250));
        cloud.put("raw.bin", new.clone());
        let e = scanned(&dataset).await.expect_err("it was overwritten");
        assert!(e.kind == Kind::Changed && e.message.contains("overwritten"), "{e}");
        let read = objects.read(&version, 0..version.size).expect("a range of it");
        let e = read.try_collect::<Vec<_>>().await.expect_err("it was overwritten");
        assert!(e.kind == Kind::Changed && e.message.contains("overwritten"), "{e}");

        assert_eq!(text(printed(&node, &["cat"], &train)), lines(1000..1250));
        assert!(printed(&node, &["get"], &raw) == new, "other bytes of {raw}");
        node.stop();
    }
}
