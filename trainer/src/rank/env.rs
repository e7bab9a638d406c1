//! Which rank this process is: torchrun's contract of environment variables.
//!
//! `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`; `LOCAL_WORLD_SIZE`,
//! `TORCHELASTIC_USE_AGENT_STORE` and `TORCHELASTIC_RESTART_COUNT` where they are set. Our own launcher
//! speaks the same language.

use anyhow::{Context, Result, ensure};

/// Set by our own launcher to its process id: it reads the error files and speaks for its ranks.
pub const LAUNCHER: &str = "FOREBAY_LAUNCHER";

/// How often the ranks have been restarted, as torchrun and our own launcher say it.
pub const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";

/// Set by torchrun's agents.
const RUN_ID: &str = "TORCHELASTIC_RUN_ID";

/// One rank among all: its number, and where the others are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankEnv {
    /// 0 to `world - 1`.
    pub rank: usize,
    /// The number of ranks.
    pub world: usize,
    /// Its number among the ranks of this machine, and that of its GPU.
    pub local_rank: usize,
    /// The number of ranks on this machine.
    pub local_world: usize,
    /// Host of the store.
    pub master_addr: String,
    /// Port of the store.
    pub master_port: u16,
    /// Whether the launcher serves the store, rather than rank 0.
    pub agent_store: bool,
    /// The process id of our own launcher, if that started it.
    pub launcher: Option<u32>,
    /// How often the ranks have been restarted after one failed.
    pub restart: u64,
    /// The process that starts and restarts this rank, if one does: no other has had, or will have, that
    /// name.
    pub agent: Option<String>,
}

impl RankEnv {
    /// What the environment says; `None` if it names no rank.
    pub fn from_env() -> Result<Option<Self>> {
        let env = Self::from_variables(|key| std::env::var(key).ok())?;
        let has_agent = [LAUNCHER, RUN_ID].iter().any(|key| std::env::var_os(key).is_some());
        Ok(env.map(|env| Self { agent: if has_agent { agent() } else { None }, ..env }))
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        if get("RANK").is_none() && get("WORLD_SIZE").is_none() {
            return Ok(None);
        }
        let text = |key: &str| {
            get(key).with_context(|| {
                format!(
                    "{key} is not set, though RANK or WORLD_SIZE is: start ranks by --nproc or by torchrun"
                )
            })
        };
        let number = |key: &str| -> Result<usize> {
            let text = text(key)?;
            text.parse().with_context(|| format!("{key}=`{text}` is not a number"))
        };
        let (rank, world) = (number("RANK")?, number("WORLD_SIZE")?);
        ensure!(world > 0, "WORLD_SIZE is 0: the world size must be at least 1");
        ensure!(rank < world, "RANK={rank} is not below WORLD_SIZE={world}");
        let local_world = if get("LOCAL_WORLD_SIZE").is_some() { number("LOCAL_WORLD_SIZE")? } else { 1 };
        ensure!(local_world > 0, "LOCAL_WORLD_SIZE is 0: this rank is one itself");
        let local_rank = if get("LOCAL_RANK").is_some() { number("LOCAL_RANK")? } else { 0 };
        let port = number("MASTER_PORT")?;
        let restart = if get(RESTART_COUNT).is_some() { number(RESTART_COUNT)? as u64 } else { 0 };
        let agent_store = get("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True");
        Ok(Some(Self {
            rank,
            world,
            local_rank,
            local_world,
            master_addr: text("MASTER_ADDR")?,
            master_port: u16::try_from(port).with_context(|| format!("MASTER_PORT={port} is not a port"))?,
            agent_store,
            launcher: get(LAUNCHER).is_some().then(|| number(LAUNCHER)).transpose()?.map(|pid| pid as u32),
            restart,
            agent: None,
        }))
    }

    /// Whether one of torchrun's agents started it, which judges its machine by the exit codes of its ranks.
    pub fn has_elastic_agent(&self) -> bool {
        self.agent.is_some() && self.launcher.is_none()
    }

    /// Whether this rank speaks for all.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }
}

/// What started this process as a rank, by machine, number and the moment of its start (proc(5)): its parent,
/// or with a script between the two the nearest ancestor that was not told of a run itself.
fn agent() -> Option<String> {
    let mut pid = rustix::process::getppid()?.as_raw_nonzero().get();
    let mut stat = Stat::of(pid)?;
    while is_told_of_a_run(pid) && stat.parent > 0 {
        pid = stat.parent;
        stat = Stat::of(pid)?;
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{} {pid} {}", boot.trim(), stat.started))
}

/// Whether the process began with the variables of one of torchrun's ranks. One of another user tells nobody.
fn is_told_of_a_run(pid: i32) -> bool {
    let name = format!("{RUN_ID}=");
    let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    variables.split(|byte| *byte == 0).any(|variable| variable.starts_with(name.as_bytes()))
}

/// A running process, as the system tells it.
struct Stat {
    parent: i32,
    /// In ticks since the machine started.
    started: String,
}

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name, in parentheses, may hold anything. Behind it are the 3rd field and all others.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        Some(Self { parent, started: fields.nth(17)?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(variables: &[(&str, &str)]) -> Result<Option<RankEnv>> {
        let find =
            |key: &str| variables.iter().find(|(name, _)| *name == key).map(|(_, value)| value.to_string());
        RankEnv::from_variables(find)
    }

    const FULL: [(&str, &str); 4] =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];

    fn with(key: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
        FULL.iter().copied().filter(|(name, _)| *name != key).chain([(key, value)]).collect()
    }

    #[test]
    fn without_variables_there_is_no_place() {
        assert_eq!(env(&[]).unwrap(), None);
        assert_eq!(env(&[("MASTER_PORT", "1")]).unwrap(), None);
    }

    #[test]
    fn a_restart_is_counted_and_may_come_with_another_world() {
        assert_eq!(env(&FULL).unwrap().unwrap().restart, 0);
        let mut again = with("WORLD_SIZE", "3");
        again.extend([(RESTART_COUNT, "2"), ("LOCAL_RANK", "1")]);
        let again = env(&again).unwrap().unwrap();
        assert_eq!((again.restart, again.world, again.local_rank), (2, 3, 1));
    }

    #[test]
    fn a_parent_has_one_name() {
        let name = agent().unwrap();
        assert_eq!(agent().unwrap(), name);
        let (rest, started) = name.rsplit_once(' ').unwrap();
        assert!(rest.contains(' ') && started.parse::<u64>().unwrap() > 0, "{name}");
    }

    #[test]
    fn a_broken_contract_is_an_error_that_names_the_variable() {
        for (key, value, expected) in [
            ("WORLD_SIZE", "0", "WORLD_SIZE is 0: the world size must be at least 1"),
            ("RANK", "2", "RANK=2 is not below WORLD_SIZE=2"),
            ("RANK", "first", "RANK=`first` is not a number"),
            ("MASTER_PORT", "70000", "MASTER_PORT=70000 is not a port"),
            ("LOCAL_WORLD_SIZE", "0", "LOCAL_WORLD_SIZE is 0: this rank is one itself"),
            ("TORCHELASTIC_RESTART_COUNT", "once", "TORCHELASTIC_RESTART_COUNT=`once` is not a number"),
        ] {
            assert_eq!(env(&with(key, value)).unwrap_err().to_string(), expected);
        }
        let error = env(&FULL[..2]).unwrap_err().to_string();
        assert!(error.starts_with("MASTER_PORT is not set"), "{error}");
    }
}
