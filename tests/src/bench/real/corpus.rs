//! The corpus: each dataset as every way delivers it, beside what pyarrow and deltalake read of it.

use crate::harness::check::Findings;
use crate::harness::ports::free_addresses;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::s3::{REGION, S3Server};
use anyhow::Context;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Datasets that there must be.
pub const DATASETS: usize = 40;

/// What writes the datasets, relative to the repository: the Python that it needs, the program, and whether
/// the rows have no order.
const WRITERS: [(&str, &str, bool); 3] = [
    (".venv/bin/python", "scripts/make_real_tables.py", false),
    (".real/bin/python", "tests/real/write.py", false),
    (".venv/bin/python", "scripts/make_delta_tables.py", true),
];

/// A dataset, as `cases.json` has it.
#[derive(Deserialize)]
struct RealCase {
    name: String,
    uri: String,
    options: Vec<String>,
    #[serde(default)]
    list: Vec<String>,
}

/// The datasets of one writer.
struct Family {
    root: PathBuf,
    prefix: String,
    any_order: bool,
    cases: Vec<RealCase>,
}

/// A way to the data: `cat` on a case, or a Flight client.
enum ReadWay<'a> {
    Direct,
    Node(&'a Server),
    Flight(&'a Server),
}

/// What there is, and where.
struct Corpus<'a> {
    repository: &'a Path,
    folder: tempfile::TempDir,
    s3: S3Server,
    families: Vec<Family>,
}

pub fn run(repository: &Path) -> anyhow::Result<Findings> {
    let corpus = Corpus::write(repository)?;
    let one = ServerOptions::for_s3(&corpus.s3).try_start()?;
    let addresses = free_addresses(3)?;
    let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let mut three = Vec::new();
    for address in &addresses {
        let options = ServerOptions::for_s3(&corpus.s3).args(["--listen", address]);
        three.push(options.args(urls.iter().flat_map(|url| ["--cluster-node", url.as_str()])).try_start()?);
    }
    let mut found = Findings::default();
    let mut unequal = BTreeSet::new();
    for (name, way) in [
        ("direct", ReadWay::Direct),
        ("cold", ReadWay::Node(&one)),
        ("warm", ReadWay::Node(&one)),
        ("three nodes", ReadWay::Node(&three[1])),
        ("Flight", ReadWay::Flight(&three[2])),
    ] {
        let (read, bad) = corpus.compare(&way).with_context(|| name.to_owned())?;
        found.check(bad.is_empty(), format!("{name}: {read} datasets read, unequal: {bad:?}"));
        unequal.extend(bad);
    }
    let datasets: usize = corpus.families.iter().map(|family| family.cases.len()).sum();
    found.value("real_datasets", "datasets", datasets as f64);
    found.value("real_unequal", "datasets", unequal.len() as f64);
    found.check(datasets >= DATASETS, format!("{datasets} datasets, at least {DATASETS} wanted"));
    one.try_stop()?;
    three.into_iter().try_for_each(Server::try_stop)?;
    Ok(found)
}

impl<'a> Corpus<'a> {
    fn write(repository: &'a Path) -> anyhow::Result<Self> {
        let (folder, s3) = (tempfile::tempdir()?, S3Server::start());
        let mut families = Vec::new();
        for (number, (python, script, any_order)) in WRITERS.into_iter().enumerate() {
            let python = repository.join(python);
            anyhow::ensure!(python.exists(), "there is no {}: run `make bench-real`", python.display());
            let prefix = number.to_string();
            let root = folder.path().join(&prefix);
            let made = Run::program(python, script).arg(repository.join(script)).arg(&root);
            made.limit(Duration::from_secs(300)).stdout()?;
            let cases = serde_json::from_slice(&std::fs::read(root.join("cases.json"))?)?;
            super::files::upload(&s3, &root, &prefix)?;
            // Shallow clones name their objects by full URIs, which lie here.
            let cloned = root.join("cloned");
            if cloned.is_dir() {
                super::files::upload(&s3, &cloned, "cloned")?;
            }
            families.push(Family { root, prefix, any_order, cases });
        }
        Ok(Self { repository, folder, s3, families })
    }

    /// How many datasets a way can be asked for, and those that were not equal.
    fn compare(&self, way: &ReadWay<'_>) -> anyhow::Result<(usize, Vec<String>)> {
        let (mut read, mut unequal) = (0, Vec::new());
        for family in &self.families {
            for case in &family.cases {
                let Some(stream) = self.read(way, family, case)? else { continue };
                read += 1;
                let file = self.folder.path().join("stream");
                std::fs::write(&file, stream.unwrap_or_default())?;
                let named = if family.any_order { &case.uri } else { &case.name };
                let wanted = family.root.join(format!("{named}.arrow"));
                let script = self.repository.join("scripts/compare.py");
                let run = Run::program(self.repository.join(".venv/bin/python"), "compare.py");
                let run = run.arg(script).arg(wanted).arg(&file);
                let run = if family.any_order { run.arg("--any-order") } else { run };
                if run.try_end()?.code != Some(0) {
                    unequal.push(format!("{}/{}", family.prefix, case.uri));
                }
            }
        }
        Ok((read, unequal))
    }

    /// The rows of a case; none of a way that cannot be asked for it, nothing if it fails.
    fn read(
        &self,
        way: &ReadWay<'_>,
        family: &Family,
        case: &RealCase,
    ) -> anyhow::Result<Option<Option<Vec<u8>>>> {
        let mut uri = self.s3.uri(&format!("{}/{}", family.prefix, case.uri));
        if family.any_order {
            uri = format!("delta+{uri}");
        }
        if !case.list.is_empty() {
            let list = self.folder.path().join("list");
            let keys = case.list.iter().map(|key| self.s3.uri(&format!("{}/{key}", family.prefix)));
            std::fs::write(&list, keys.collect::<Vec<_>>().join("\n"))?;
            uri = format!("@{}", list.display());
        }
        let cat = || Ok::<_, anyhow::Error>(Run::find("forebay")?.args(["cat", &uri, "--format", "arrow"]));
        let ended = match way {
            ReadWay::Direct => {
                let run = cat()?.args(["--direct", "--s3-region", REGION]).envs(self.s3.credentials());
                run.args(["--s3-endpoint", &self.s3.endpoint]).args(&case.options).try_end()?
            }
            ReadWay::Node(node) => {
                cat()?.args(["--endpoint", &node.endpoint]).args(&case.options).try_end()?
            }
            // A descriptor is a URI and nothing else.
            ReadWay::Flight(_) if !case.options.is_empty() || !case.list.is_empty() => return Ok(None),
            ReadWay::Flight(node) => {
                let run = Run::program(self.repository.join(".venv/bin/python"), "flight_read.py");
                let run = run.arg(self.repository.join("scripts/flight_read.py"));
                run.arg(node.endpoint.replace("http://", "grpc://")).arg(&uri).try_end()?
            }
        };
        Ok(Some((ended.code == Some(0)).then_some(ended.stdout)))
    }
}
