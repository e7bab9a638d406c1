//! Real processes, real sockets: each test starts this binary again, once per rank, and reads what the ranks
//! print.
//!
//! A rank process runs only the test `rank_process`, which does nothing unless `FOREBAY_CASE` names a case.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_c10d::{ProcessGroup, Store};
use tch::Tensor;

mod collectives;
mod faults;
mod training;

const TIMEOUT: Duration = Duration::from_secs(20);
/// The group's timeout in the cases where a peer stays silent.
const SHORT_TIMEOUT: Duration = Duration::from_secs(4);

/// One rank that ran to its end.
struct Finished {
    output: Output,
    seconds: f64,
}

impl Finished {
    /// The lines that the case printed by `say`.
    fn said(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.output.stdout);
        text.lines().filter_map(|line| line.split_once("SAY ")).map(|(_, said)| said.to_owned()).collect()
    }
}

fn run(case: &str, world: usize) -> Vec<Finished> {
    let store = Store::serve(world, TIMEOUT).unwrap();
    let port = store.port().unwrap().to_string();
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank_process", "--nocapture", "--test-threads=1"])
            .envs([("FOREBAY_CASE", case), ("MASTER_PORT", &port), ("OMP_NUM_THREADS", "1")])
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", world.to_string())])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let began = Instant::now();
    let children: Vec<_> = (0..world).map(start).collect();
    let wait = |child: Child| Finished {
        output: child.wait_with_output().unwrap(),
        seconds: began.elapsed().as_secs_f64(),
    };
    children.into_iter().map(wait).collect()
}

fn run_well(case: &str, world: usize) -> Vec<Vec<String>> {
    let finished = run(case, world);
    for (rank, one) in finished.iter().enumerate() {
        let error = String::from_utf8_lossy(&one.output.stderr);
        assert!(one.output.status.success(), "rank {rank} of `{case}`: {:?} {error}", one.said());
    }
    finished.iter().map(Finished::said).collect()
}

fn say(text: impl std::fmt::Display) {
    println!("\nSAY {text}");
}

#[test]
fn rank_process() {
    let Ok(case) = std::env::var("FOREBAY_CASE") else { return };
    let number = |key: &str| std::env::var(key).unwrap().parse::<usize>().unwrap();
    let (rank, world) = (number("RANK"), number("WORLD_SIZE"));
    let timeout = if ["silent", "late", "abandoned", "only"].contains(&case.as_str()) {
        SHORT_TIMEOUT
    } else {
        TIMEOUT
    };
    let port = number("MASTER_PORT") as u16;
    let store = |timeout| Store::tcp("127.0.0.1", port, world, false, timeout).unwrap();
    meet(&store(TIMEOUT), rank, world).unwrap();
    let store = store(timeout);
    let group = ProcessGroup::gloo(store, rank, world, timeout).unwrap();
    match case.as_str() {
        "collectives" => collectives::values(&group),
        "parts" => collectives::parts(&group),
        "pairs" => collectives::pairs(&group),
        "dropped" => collectives::dropped(&group),
        "gradients" => training::gradients(&group),
        "accumulate" => training::accumulate(&group),
        "settings" => training::settings(&group),
        "unused" => training::unused(&group),
        "buffers" => training::buffers(&group),
        "death" => faults::death(&group),
        "silent" => faults::silent(&group),
        "late" => faults::late(&group),
        "abandoned" => faults::abandoned(&group),
        "only" => faults::only(&group),
        "frozen" => faults::frozen(&group),
        "shapes" => faults::shapes(&group),
        "refusals" => faults::refusals(&group),
        other => panic!("no case {other}"),
    }
    .unwrap();
}

/// A short time counts only once all ranks have loaded libtorch, which takes some much longer than others.
fn meet(store: &Store, rank: usize, world: usize) -> forebay_c10d::Result<()> {
    let loaded = |rank: usize| format!("loaded/{rank}");
    store.add(&loaded(rank), 1)?;
    let all: Vec<_> = (0..world).map(loaded).collect();
    store.wait(&all.iter().map(String::as_str).collect::<Vec<_>>(), TIMEOUT)
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}
