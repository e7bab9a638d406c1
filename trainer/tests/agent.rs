//! The trainer under torchrun's agents, imitated: they serve the store, which outlives the ranks, and restart
//! the ranks when one has ended by an error, or when a machine has left.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay_c10d::Store;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);
/// The promise is 10 s, which the benchmark looks after: here a busy machine may end processes slowly.
const SOON: Duration = Duration::from_secs(60);

/// A job: one store, one directory of checkpoints.
struct Job {
    folder: tempfile::TempDir,
    store: Store,
}

impl Job {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, store: Store::serve(1, PATIENCE).unwrap() }
    }

    fn checkpoints(&self) -> PathBuf {
        self.folder.path().join("checkpoints")
    }

    fn error_file(&self, rank: usize) -> PathBuf {
        self.folder.path().join(format!("error-{rank}.json"))
    }

    /// The message in torchrun's file.
    fn error(&self, rank: usize) -> String {
        let text = std::fs::read(self.error_file(rank)).unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        value["message"]["message"].as_str().unwrap().to_owned()
    }

    fn command(&self) -> Command {
        self.set_up(Command::new(env!("CARGO_BIN_EXE_forebay-train")))
    }

    /// The same by a script that waits for it, as scripts that load modules or profile do.
    fn script(&self) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$0\" \"$@\"; exit $?", env!("CARGO_BIN_EXE_forebay-train")]);
        self.set_up(shell)
    }

    fn set_up(&self, mut command: Command) -> Command {
        for variable in ["RANK", "WORLD_SIZE", "FOREBAY_ENDPOINT", "LD_LIBRARY_PATH", "RUST_BACKTRACE"] {
            command.env_remove(variable);
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let uri = format!("file://{}/tests/data/mnist/test", root.display());
        command.args(["--direct", "--train", &uri, "--epochs", "2", "--batch", "60", "--seed", "7"]);
        command.args(["--checkpoint-every", "5", "--fresh", "--checkpoint-dir"]).arg(self.checkpoints());
        command.arg("--report").arg(self.folder.path().join("report.json")).env("OMP_NUM_THREADS", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The ranks of a start, as the agents' variables make them.
    fn start(&self, restart: u32, world: usize) -> Vec<Child> {
        self.start_by(restart, world, || self.command())
    }

    fn start_by(&self, restart: u32, world: usize, command: impl Fn() -> Command) -> Vec<Child> {
        let rank = |rank: usize| {
            let mut command = command();
            command.envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())]);
            command.envs([("WORLD_SIZE", world.to_string()), ("LOCAL_WORLD_SIZE", world.to_string())]);
            command.envs([("MASTER_ADDR", "127.0.0.1"), ("TORCHELASTIC_USE_AGENT_STORE", "True")]);
            command.envs([("TORCHELASTIC_RUN_ID", "test"), ("GLOO_SOCKET_IFNAME", "lo")]);
            command.env("MASTER_PORT", self.store.port().unwrap().to_string());
            command.env("TORCHELASTIC_RESTART_COUNT", restart.to_string());
            command.env("TORCHELASTIC_ERROR_FILE", self.error_file(rank)).env("TORCH_CPP_LOG_LEVEL", "FATAL");
            command.spawn().unwrap()
        };
        (0..world).map(rank).collect()
    }

    fn last_step(&self) -> u64 {
        let entries = std::fs::read_dir(self.checkpoints()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).max().unwrap_or(0)
    }

    fn wait_for(&self, step: u64) {
        let began = Instant::now();
        while self.last_step() < step {
            assert!(began.elapsed() < PATIENCE, "no checkpoint of step {step}");
            sleep(Duration::from_millis(5));
        }
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.folder.path().join("report.json")).unwrap()).unwrap()
    }
}

fn signal(rank: &Child, signal: Signal) {
    let pid = i32::try_from(rank.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

fn end(ranks: Vec<Child>) -> Vec<Output> {
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_job_outlives_a_killed_rank_and_a_machine_that_is_taken_away() {
    let straight = Job::new();
    let output = straight.command().output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let job = Job::new();

    let ranks = job.start(0, 2);
    job.wait_for(20);
    signal(&ranks[1], Signal::KILL);
    let began = Instant::now();
    let ended = end(ranks);
    assert!(began.elapsed() < SOON, "took {:?}", began.elapsed());
    assert_eq!(ended[0].status.code(), Some(3), "{}", stderr(&ended[0]));
    assert!(job.error(0).ends_with("; rank 1 gave no sign of life"), "{}", job.error(0));
    let last = stderr(&ended[0]).lines().last().map(str::to_owned);
    assert_eq!(last, Some(format!("forebay-train: rank 0 of 2: {}", job.error(0))));

    // All start again, one more of them, at the same store. The machine of the last one is told to go.
    let before = job.last_step();
    let ranks = job.start(1, 3);
    job.wait_for(before + 10);
    signal(&ranks[2], Signal::TERM);
    let ended = end(ranks);
    assert!(ended[2].status.success(), "{}", stderr(&ended[2]));
    let said = String::from_utf8_lossy(&ended[0].stdout);
    assert!(
        said.contains("resumed after step ") && said.contains("stopped by SIGTERM after step "),
        "{said}"
    );
    for rank in [0, 1] {
        // An agent whose ranks end well takes the job for done.
        assert_eq!(ended[rank].status.code(), Some(3), "rank {rank}: {}", stderr(&ended[rank]));
        assert!(
            job.error(rank).starts_with("other ranks were told to stop (SIGTERM)"),
            "{}",
            job.error(rank)
        );
    }
    assert_eq!(job.report()["steps"], job.last_step());

    let ended = end(job.start(2, 2));
    assert!(ended.iter().all(|output| output.status.success()), "{}", stderr(&ended[0]));
    let report = job.report();
    assert_eq!(report["order_digest"], straight.report()["order_digest"]);
    assert_eq!((report["steps"].as_u64(), report["stopped"].as_bool()), (Some(334), Some(false)));
    assert_eq!(report["resumed"]["world_size"], 3);
}

#[test]
fn fresh_is_obeyed_once_though_each_start_has_a_script_of_its_own() {
    let job = Job::new();
    let ranks = job.start_by(0, 2, || job.script());
    job.wait_for(20);
    // Its child is rank 1: the script itself only waits.
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", ranks[1].id())).unwrap();
    let rank = children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?)).unwrap();
    kill_process(rank, Signal::KILL).unwrap();
    end(ranks);

    let before = job.last_step();
    let ended = end(job.start_by(1, 2, || job.script()));
    assert!(ended.iter().all(|output| output.status.success()), "{}", stderr(&ended[0]));
    assert!(job.report()["resumed"]["step"].as_u64() >= Some(before), "{}", job.report()["resumed"]);
    assert!(!job.checkpoints().join("before-1").exists());
}

#[test]
fn told_all_at_once_all_end_well() {
    let job = Job::new();
    let ranks = job.start(0, 2);
    job.wait_for(10);
    signal(&ranks[1], Signal::TERM);
    sleep(Duration::from_millis(50));
    signal(&ranks[0], Signal::TERM);
    let ended = end(ranks);
    assert!(ended.iter().all(|output| output.status.success()), "{}", stderr(&ended[0]));
    assert!(!job.error_file(0).exists());
}
