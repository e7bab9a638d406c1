//! `forebay top`: the nodes of a cluster live in the terminal, a page a second; one page where there is no
//! terminal.

use crate::failure::{Failure, usage};
use crate::figures;
use crate::nodes::{Rates, UNTOLD};
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
        let endpoints = self.endpoint.endpoints().map_err(usage)?;
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
    let is_told = nodes.iter().flat_map(|n| &n.status).any(|s| s.counters.is_some());
    let figure = |n: u64| if is_told { figures::bytes(n) } else { UNTOLD.to_owned() };
    format!(
        "forebay: {} of {} answer, topology {}, {} of {} used, serving {}/s, from S3 {}/s\n\n{}",
        up,
        figures::of(nodes.len() as u64, "node"),
        topology.revision,
        figure(sum(|s| s.cache_bytes_used)),
        figure(sum(|s| s.cache_bytes_limit)),
        figure(served as u64),
        figure(fetched as u64),
        crate::nodes::table(nodes, rates)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_has_no_zeros_for_what_is_not_told() {
        let head = |counters| {
            let status = v1::StatusReply { counters, ..Default::default() };
            let node = Surveyed { node: v1::Node::default(), status: Ok(status) };
            let page = page(&v1::Topology::default(), &[node], &Rates::default());
            page.lines().next().expect("a line").to_owned()
        };
        let untold = "forebay: 1 of 1 node answer, topology 0, - of - used, serving -/s, from S3 -/s";
        assert_eq!(head(None), untold);
        let told = head(Some(v1::Counters::default()));
        assert!(told.ends_with("0 B of 0 B used, serving 0 B/s, from S3 0 B/s"), "{told}");
    }
}
