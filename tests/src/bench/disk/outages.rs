//! Outages of S3 that hurt: nobody listens, nothing is answered, answers break off or drip, the name is not
//! found. Meanwhile a job that checks every value and a training run read what only S3 has. Both wait for the
//! end of the outage and go on. Another job has less patience than the outage lasts: it ends, and says why.

use super::hits::stored_bytes;
use super::trainer::{self, Trained, TrainingBeside};
use crate::harness::check::Findings;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::reader::{EpochRead, Job, Reader};
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use crate::harness::wire::{Outage, Wire};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The host of S3 where its name is looked up.
const HOST: &str = "s3.forebay.test";

/// What a wait may take longer than the outage and one request together. Generous: the machine may be loaded.
const AFTERWARDS: Duration = Duration::from_secs(20);

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct OutagesSettings {
    /// Segments of the dataset, 1 MiB each.
    pub segments: u64,
    /// How long each outage lasts.
    pub outage_s: u64,
    /// How long the node waits for an answer of S3.
    pub request_timeout_s: u64,
    /// Whether a training run reads beside the jobs.
    pub trainer: bool,
    /// Whether another job has less patience than the outage lasts.
    pub hasty: bool,
    /// Decides the order of samples.
    pub seed: u64,
}

/// The outages, and the words for them in reports.
const OUTAGES: [(&str, Outage); 5] = [
    ("refused", Outage::Refused),
    ("black_hole", Outage::BlackHole),
    ("reset", Outage::Reset),
    ("drip", Outage::Drip),
    ("no_name", Outage::Moved),
];

/// Runs all of them, one after the other.
pub fn run(runtime: &Runtime, settings: &OutagesSettings) -> anyhow::Result<Findings> {
    let stage = runtime.block_on(OutagesStage::new(settings))?;
    let mut found = Findings::default();
    for (name, outage) in OUTAGES {
        found.add(runtime.block_on(stage.one(name, outage))?);
    }
    Ok(found)
}

/// A dataset, MNIST, and the object store that holds them.
pub struct OutagesStage {
    s3: S3Server,
    table: Table,
    stored_bytes: u64,
    settings: OutagesSettings,
}

/// The route to S3, and how it is broken.
struct RouteToS3 {
    wire: Wire,
    outage: Outage,
    /// The node's own `/etc/hosts` and `/etc/resolv.conf`, where the outage is one of names.
    names: Option<[PathBuf; 2]>,
}

impl RouteToS3 {
    fn new(s3: &S3Server, outage: Outage, folder: &Path) -> anyhow::Result<Self> {
        let names = (outage == Outage::Moved).then(|| ["hosts", "resolv.conf"].map(|name| folder.join(name)));
        if let Some([_, resolver]) = &names {
            // Nobody answers there, which is known at once.
            std::fs::write(resolver, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")?;
        }
        let route = Self { wire: Wire::start(&s3.endpoint)?, outage, names };
        route.mend()?;
        Ok(route)
    }

    fn endpoint(&self) -> String {
        match self.names {
            Some(_) => format!("http://{HOST}:{}", self.wire.address.port()),
            None => format!("http://{}", self.wire.address),
        }
    }

    /// A command that runs a node where names are looked up in this route's files.
    fn within(&self) -> Vec<String> {
        let Some(names) = &self.names else { return Vec::new() };
        let script =
            "mount --bind \"$0\" /etc/hosts && mount --bind \"$1\" /etc/resolv.conf && shift && exec \"$@\"";
        let words = ["unshare", "--mount", "sh", "-c", script].map(str::to_owned);
        words.into_iter().chain(names.iter().map(|path| path.to_string_lossy().into_owned())).collect()
    }

    fn cut(&self) -> anyhow::Result<()> {
        if let Some([hosts, _]) = &self.names {
            std::fs::write(hosts, "127.0.0.1 localhost\n")?;
        }
        self.wire.set(Some(self.outage));
        Ok(())
    }

    fn mend(&self) -> anyhow::Result<()> {
        self.wire.set(None);
        match &self.names {
            Some([hosts, _]) => Ok(std::fs::write(hosts, format!("127.0.0.1 localhost {HOST}\n"))?),
            None => Ok(()),
        }
    }
}

impl OutagesStage {
    /// Puts the data into an object store.
    pub async fn new(settings: &OutagesSettings) -> anyhow::Result<Self> {
        let s3 = S3Server::start();
        let table = Table::upload(&s3, "outages", settings.segments, MIB_ROWS)?;
        if settings.trainer {
            TrainingBeside::upload(&s3)?;
        }
        let stored_bytes = stored_bytes(&s3, &table).await?;
        Ok(Self { s3, table, stored_bytes, settings: *settings })
    }

    /// Nothing comes back on any connection.
    pub async fn black_hole(&self) -> anyhow::Result<Findings> {
        self.one("black_hole", Outage::BlackHole).await
    }

    async fn one(&self, name: &str, outage: Outage) -> anyhow::Result<Findings> {
        let mut found = Findings::default();
        if outage == Outage::Moved && !may_unshare() {
            found.skip(format!("outage {name}: no mount namespace can be made here"));
            return Ok(found);
        }
        let folder = tempfile::tempdir()?;
        let route = RouteToS3::new(&self.s3, outage, folder.path())?;
        let server = self.node(&route, folder.path())?;
        let lasts = Duration::from_secs(self.settings.outage_s);
        let mut patient = self.reader(&server, 4 * lasts + Duration::from_secs(120)).await?;
        let mut hasty = match self.settings.hasty {
            true => Some(self.reader(&server, lasts / 4).await?),
            false => None,
        };
        let mut read = patient.epoch().await?;
        let training = match self.settings.trainer {
            true => Some(TrainingBeside::start_fetching(&server, &self.s3, folder.path()).await?),
            false => None,
        };

        route.cut()?;
        let began = Instant::now();
        training.as_ref().map_or(Ok(()), |training| training.forget(&server))?;
        let gives_up = async {
            let hasty = hasty.as_mut()?;
            loop {
                if let Err(error) = hasty.epoch().await {
                    return Some((began.elapsed(), format!("{error:#}")));
                }
            }
        };
        let goes_on = async {
            while began.elapsed() < lasts {
                read = read.and(patient.epoch().await?);
            }
            anyhow::Ok(read.and(patient.epoch().await?))
        };
        let mends = async {
            tokio::time::sleep(lasts).await;
            route.mend()
        };
        let limited = tokio::time::timeout(lasts + AFTERWARDS, gives_up);
        let (gave_up, outcome, mended) = tokio::join!(limited, goes_on, mends);
        mended?;
        let struck = route.wire.struck();
        found.check(struck > 0, format!("outage {name}: {struck} connections were struck"));
        self.judge_patient(name, outcome, &mut found);
        if self.settings.hasty {
            self.judge_hasty(name, gave_up.ok().flatten(), &mut found);
        }
        self.judge_training(name, &trainer::end(training), &mut found)?;
        let panicked = server.log().contains("panicked");
        let stopped = server.try_stop();
        found.check(
            !panicked && stopped.is_ok(),
            format!("outage {name}: the node lives and stops when told"),
        );
        Ok(found)
    }

    /// It read what only S3 had, so it waited as long as the outage lasted; and not for ever.
    fn judge_patient(&self, name: &str, outcome: anyhow::Result<EpochRead>, found: &mut Findings) {
        let read = match outcome {
            Ok(read) => read,
            Err(error) => {
                return found.check(false, format!("outage {name}: the patient job failed: {error:#}"));
            }
        };
        let (stall, least, most) = (read.stall.as_secs_f64(), self.least_wait_s(), self.most_wait_s());
        found.value(format!("outage_{name}_wrong_values"), "values", read.wrong_values as f64);
        found.value(format!("outage_{name}_stall_s"), "s", stall);
        let (rows, wrong) = (read.rows, read.wrong_values);
        found.check(wrong == 0, format!("outage {name}: {rows} rows, {wrong} wrong values"));
        let text = format!("outage {name}: the longest wait was {stall:.1} s, of {least:.1} to {most:.1} s");
        found.check((least..=most).contains(&stall), text);
    }

    /// It waited as long as it was told to, gave up before the outage was over, and said what it waited for.
    fn judge_hasty(&self, name: &str, gave_up: Option<(Duration, String)>, found: &mut Findings) {
        let patience = (Duration::from_secs(self.settings.outage_s) / 4).as_secs_f64();
        let Some((after, why)) = gave_up else {
            return found.check(false, format!("outage {name}: the hasty job did not give up"));
        };
        let after = after.as_secs_f64();
        found.value(format!("outage_{name}_gave_up_s"), "s", after);
        let is_in_time = after >= 0.9 * patience && after < self.settings.outage_s as f64;
        let is_right = is_in_time && why.contains(&self.table.uri);
        found.check(
            is_right,
            format!(
                "outage {name}: with a patience of {patience:.0} s a job gave up after {after:.1} s: {why}"
            ),
        );
    }

    fn judge_training(
        &self,
        name: &str,
        trained: &anyhow::Result<Option<Trained>>,
        found: &mut Findings,
    ) -> anyhow::Result<()> {
        let (what, row) = (format!("outage {name}"), format!("outage_{name}_training_wait_s"));
        trainer::judge_wait(&what, row, self.least_wait_s(), trained, found);
        trainer::judge_end(&what, trained, &self.s3, found)
    }

    /// A job that needs S3 waits nearly as long as the outage lasts: it may have read ahead.
    fn least_wait_s(&self) -> f64 {
        0.5 * self.settings.outage_s as f64
    }

    /// A request that was lost is given up after its time, and tried again after a pause.
    fn most_wait_s(&self) -> f64 {
        (self.settings.outage_s + self.settings.request_timeout_s) as f64 + AFTERWARDS.as_secs_f64()
    }

    /// A quarter of the data fits, so that S3 is needed all the time.
    fn node(&self, route: &RouteToS3, folder: &Path) -> anyhow::Result<Server> {
        let options = ServerOptions::for_endpoint(&self.s3, &route.endpoint()).within(route.within());
        let (bytes, timeout) = (self.stored_bytes / 4, self.settings.request_timeout_s);
        let options = options.args(["--cache-bytes", &bytes.to_string()]);
        let options = options.env("FOREBAY_SOURCE__REQUEST_TIMEOUT_S", &timeout.to_string());
        // It may well complain.
        options.folder(folder.join("node")).allow_log("").try_start()
    }

    async fn reader(&self, server: &Server, patience: Duration) -> anyhow::Result<Reader> {
        let mut job = Job::new(self.settings.seed, u64::MAX / 2);
        job.settings.patience = patience;
        Reader::start(&server.endpoint, &self.table, &job).await
    }
}

/// Whether a process may have mounts of its own here.
fn may_unshare() -> bool {
    let tried =
        Run::program("unshare", "unshare").args(["--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"]);
    tried.try_end().is_ok_and(|ended| ended.code == Some(0))
}
