//! The flags of how gradients travel between the ranks: DDP's, and NCCL's beside what its variables say.

use anyhow::{Result, ensure};
use clap::{ArgAction, Args, ValueEnum};
use forebay_c10d::{Compression, DdpSettings, NcclSettings};
use serde::Serialize;

/// PyTorch's defaults.
#[derive(Debug, Clone, Args, Serialize)]
#[command(next_help_heading = "Gradients between ranks")]
pub struct GradientArgs {
    /// Gradients travel in buckets of about this size
    #[arg(long, value_name = "SIZE", default_value = "25MiB", value_parser = forebay_proto::units::bytes)]
    pub bucket_bytes: u64,
    /// The bucket that travels first is smaller, so that it leaves early
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = forebay_proto::units::bytes)]
    pub first_bucket_bytes: u64,
    /// Round gradients for the way to half their bytes
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub gradient_compression: CompressionName,
    /// Look in each pass for parameters that it does not use; costs time
    #[arg(long, conflicts_with = "static_graph")]
    pub find_unused: bool,
    /// Every pass uses the same parameters equally often: unused ones are found once
    #[arg(long)]
    pub static_graph: bool,
    /// Let gradients be views of the buckets, which saves a copy of the model
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub gradient_as_bucket_view: bool,
    /// With --device cuda: collectives go before heavy computation on the GPU
    #[arg(long)]
    #[serde(skip)]
    pub nccl_high_priority: bool,
    /// Least thread blocks of a collective on the GPU; 0 leaves it to NCCL
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[serde(skip)]
    pub nccl_min_ctas: u16,
    /// Most thread blocks of a collective on the GPU; 0 leaves it to NCCL
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[serde(skip)]
    pub nccl_max_ctas: u16,
}

/// What `--gradient-compression` takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompressionName {
    /// As they are
    #[default]
    None,
    /// To fp16, in which large gradients overflow
    Fp16,
    /// To bf16: the range of 32 bits, 8 bits of precision
    Bf16,
}

/// What a report says of it.
#[derive(Debug, Clone, Serialize)]
pub struct GradientReport {
    #[serde(flatten)]
    gradients: GradientArgs,
    /// With NCCL alone.
    nccl: Option<NcclReport>,
}

#[derive(Debug, Clone, Serialize)]
struct NcclReport {
    high_priority: bool,
    min_ctas: u16,
    max_ctas: u16,
    /// Its own variables, and those of c10d's wrapper, as they were set.
    variables: Vec<(String, String)>,
}

impl GradientArgs {
    /// Refuses what cannot work.
    pub fn check(&self) -> Result<()> {
        let (least, most) = (self.nccl_min_ctas, self.nccl_max_ctas);
        ensure!(most == 0 || least <= most, "--nccl-min-ctas {least} is more than --nccl-max-ctas {most}");
        Ok(())
    }

    /// The same for the reducer, which times every pass.
    pub fn ddp(&self) -> DdpSettings {
        DdpSettings {
            bucket_bytes: self.bucket_bytes,
            first_bucket_bytes: self.first_bucket_bytes,
            find_unused: self.find_unused,
            static_graph: self.static_graph,
            gradient_as_bucket_view: self.gradient_as_bucket_view,
            compression: match self.gradient_compression {
                CompressionName::None => Compression::None,
                CompressionName::Fp16 => Compression::Fp16,
                CompressionName::Bf16 => Compression::Bf16,
            },
            // Every step's communication is told, and the slow rank of a short epoch found: every pass is
            // timed.
            sample_every: 1,
            ..Default::default()
        }
    }

    /// NCCL's, beside its variables.
    pub fn nccl(&self) -> NcclSettings {
        NcclSettings {
            high_priority_stream: self.nccl_high_priority,
            min_ctas: self.nccl_min_ctas,
            max_ctas: self.nccl_max_ctas,
        }
    }

    /// For the report of a run; `nccl` says that the ranks talk by it.
    pub fn report(&self, nccl: bool) -> GradientReport {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let ours = ["NCCL_", "TORCH_NCCL_"].iter().any(|start| name.starts_with(start));
            ours.then(|| (name, value.to_string_lossy().into_owned()))
        });
        let mut variables: Vec<_> = variables.collect();
        variables.sort_unstable();
        GradientReport {
            gradients: self.clone(),
            nccl: nccl.then_some(NcclReport {
                high_priority: self.nccl_high_priority,
                min_ctas: self.nccl_min_ctas,
                max_ctas: self.nccl_max_ctas,
                variables,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        gradients: GradientArgs,
    }

    fn parse(line: &str) -> GradientArgs {
        Line::try_parse_from(format!("test {line}").split_whitespace()).unwrap().gradients
    }

    #[test]
    fn flags_become_the_reducers_and_nccls_settings() {
        assert_eq!(parse("").ddp(), DdpSettings { sample_every: 1, ..Default::default() });
        assert_eq!(parse("").nccl(), NcclSettings::default());
        let all = "--bucket-bytes 4MiB --first-bucket-bytes 64KiB --gradient-compression bf16 --find-unused \
                   --gradient-as-bucket-view false --nccl-high-priority --nccl-min-ctas 2 --nccl-max-ctas 8";
        let all = parse(all);
        all.check().unwrap();
        let expected = DdpSettings {
            bucket_bytes: 4 << 20,
            first_bucket_bytes: 64 << 10,
            compression: Compression::Bf16,
            find_unused: true,
            gradient_as_bucket_view: false,
            sample_every: 1,
            ..Default::default()
        };
        assert_eq!(all.ddp(), expected);
        assert_eq!(all.nccl(), NcclSettings { high_priority_stream: true, min_ctas: 2, max_ctas: 8 });
        let report = serde_json::to_value(all.report(true)).unwrap();
        assert_eq!(
            (&report["gradient_compression"], &report["nccl"]["max_ctas"]),
            (&"bf16".into(), &8.into())
        );
        assert!(serde_json::to_value(all.report(false)).unwrap()["nccl"].is_null());
        assert!(parse("--static-graph").ddp().static_graph);
        assert!(Line::try_parse_from(["test", "--static-graph", "--find-unused"]).is_err());
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let error = parse("--nccl-min-ctas 3 --nccl-max-ctas 2").check().unwrap_err().to_string();
        assert_eq!(error, "--nccl-min-ctas 3 is more than --nccl-max-ctas 2");
        assert!(Line::try_parse_from(["test", "--bucket-bytes", "0"]).is_err());
        assert!(Line::try_parse_from(["test", "--gradient-compression", "int8"]).is_err());
    }
}
