//! `forebay top`: the nodes of a cluster live in the terminal, a page a second; one page where there is no
//! terminal.

use crate::failure::Failure;
use crate::figures;
use crate::nodes::Rates;
use crate::output::Out;
use clap::Args;
use console::{Key, Term};
use forebay_client::args::EndpointArgs;
use forebay_client::survey::{self, Surveyed};
use forebay_proto::v1;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::time::sleep;

#[derive(Debug, Args)]
pub(crate) struct Top {
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Seconds between pages
    #[arg(long, default_value_t = 1.0, value_name = "S", value_parser = seconds)]
    every: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let bad = || "use 0.1 to 3600 seconds".to_owned();
    text.parse().ok().filter(|s| (0.1..=3600.0).contains(s)).ok_or_else(bad)
}

impl Top {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let endpoints = self.endpoint.endpoints()?;
        let every = Duration::from_secs_f64(self.every);
        let mut rates = Rates::default();
        let (mut topology, first) = survey::survey(&endpoints).await?;
        rates.add(&first);
        if !std::io::stdout().is_terminal() {
            sleep(every).await;
            let nodes = survey::each(&topology).await;
            rates.add(&nodes);
            return Ok(out.write_all(page(&topology, &nodes, &rates).as_bytes())?);
        }
        let term = Term::stdout();
        let keys = term.clone();
        // Reading a key blocks; the process ends around it.
        let mut quitted = tokio::task::spawn_blocking(move || {
            while !matches!(keys.read_key(), Ok(Key::Char('q' | 'Q') | Key::Escape) | Err(_)) {}
        });
        term.hide_cursor()?;
        let done = loop {
            tokio::select! {
                _ = &mut quitted => break Ok(()),
                () = sleep(every) => {}
            }
            // The last topology serves while nobody tells a new one.
            topology = survey::topology(&endpoints).await.unwrap_or(topology);
            let nodes = survey::each(&topology).await;
            rates.add(&nodes);
            let text = page(&topology, &nodes, &rates);
            // Written over the page before, line by line: clearing it first would flicker.
            let lines: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
            if let Err(e) = term.write_str(&format!("\x1b[H{lines}\x1b[Jq: quit")) {
                break Err(e.into());
            }
        };
        term.show_cursor()?;
        term.write_line("")?;
        done
    }
}

fn page(topology: &v1::Topology, nodes: &[Surveyed], rates: &Rates) -> String {
    let sum = |of: fn(&v1::StatusReply) -> u64| nodes.iter().flat_map(|n| &n.status).map(of).sum::<u64>();
    let up = nodes.iter().filter(|n| n.status.is_ok()).count() as u64;
    let (served, fetched) = rates.total();
    format!(
        "forebay: {} of {} answer, topology {}, {} of {} used, serving {}/s, from S3 {}/s\n\n{}",
        up,
        figures::of(nodes.len() as u64, "node"),
        topology.revision,
        figures::bytes(sum(|s| s.cache_bytes_used)),
        figures::bytes(sum(|s| s.cache_bytes_limit)),
        figures::bytes(served as u64),
        figures::bytes(fetched as u64),
        crate::nodes::table(nodes, rates)
    )
}
