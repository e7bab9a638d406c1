//! The flags of optimizer and schedule.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use super::OptimizerSettings;
use crate::train::schedule::{Schedule, Shape};

/// How the parameters are moved.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Optimizer")]
pub struct OptimArgs {
    /// What moves the parameters
    #[arg(long, value_enum, default_value_t)]
    pub optimizer: OptimizerName,
    /// Highest learning rate [default: 0.1 for sgd, 0.001 for the others]
    #[arg(long)]
    pub lr: Option<f64>,
    /// How the learning rate changes over the run
    #[arg(long, value_enum, default_value_t)]
    pub schedule: Shape,
    /// Steps in which the learning rate rises [default: 15 % of them for one-cycle, 0 for the others]
    #[arg(long, value_name = "N")]
    pub warmup_steps: Option<u64>,
    /// Weight decay [default: 0.0001 for sgd, 0 for adam, 0.01 for adamw]
    #[arg(long, value_name = "X")]
    pub weight_decay: Option<f64>,
    /// Let adamw's weight decay shrink biases and the weights of norms too
    #[arg(long)]
    pub decay_all: bool,
    /// Momentum of sgd, which looks ahead by it (Nesterov)
    #[arg(long, value_name = "X", default_value_t = 0.9)]
    pub momentum: f64,
    /// Momentum of sgd without looking ahead
    #[arg(long)]
    pub no_nesterov: bool,
    /// Decay rates of adam's and adamw's means
    #[arg(long, value_name = "B1,B2", default_value = "0.9,0.999", value_parser = betas)]
    pub betas: (f64, f64),
    /// Shrink gradients whose norm, over all parameters, is above this
    #[arg(long, value_name = "X")]
    pub clip_norm: Option<f64>,
    /// Share each rank's rows of a step out to K passes, one after the other: memory of one, gradient of all
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub accumulate: u64,
}

/// What `--optimizer` takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    /// Stochastic gradient descent with momentum
    #[default]
    Sgd,
    /// Adam, whose weight decay is added to the gradient
    Adam,
    /// Adam with decoupled weight decay
    Adamw,
}

impl OptimArgs {
    /// Refuses numbers that make no sense. `rows` is what a rank has of a full step.
    pub fn check(&self, rows: u64) -> Result<()> {
        let lr = self.lr();
        ensure!(lr.is_finite() && lr > 0.0, "--lr must be a number above 0, not {lr}");
        let fine = |value: f64| value.is_finite() && value >= 0.0;
        let decay = self.weight_decay.unwrap_or(0.0);
        ensure!(fine(decay), "--weight-decay must be at least 0, not {decay}");
        let share = |value: f64| (0.0..1.0).contains(&value);
        ensure!(share(self.momentum), "--momentum must be from 0 to below 1, not {}", self.momentum);
        let (first, second) = self.betas;
        ensure!(
            share(first) && share(second),
            "--betas must be from 0 to below 1 each, not {first},{second}"
        );
        if let Some(clip) = self.clip_norm {
            ensure!(clip.is_finite() && clip > 0.0, "--clip-norm must be a number above 0, not {clip}");
        }
        ensure!(self.accumulate > 0, "--accumulate must be at least 1");
        ensure!(
            self.accumulate <= rows,
            "--accumulate {} passes cannot share the {rows} rows that a rank has of a step",
            self.accumulate
        );
        Ok(())
    }

    /// The optimizer that the flags ask for, with its own defaults for those that are not given.
    pub fn settings(&self) -> OptimizerSettings {
        let decay = |default| self.weight_decay.unwrap_or(default);
        let (betas, eps) = (self.betas, 1e-8);
        match self.optimizer {
            OptimizerName::Sgd => OptimizerSettings::Sgd {
                momentum: self.momentum,
                nesterov: !self.no_nesterov && self.momentum > 0.0,
                weight_decay: decay(1e-4),
            },
            OptimizerName::Adam => OptimizerSettings::Adam { betas, eps, weight_decay: decay(0.0) },
            OptimizerName::Adamw => {
                OptimizerSettings::AdamW { betas, eps, weight_decay: decay(0.01), decay_all: self.decay_all }
            }
        }
    }

    /// The highest learning rate of the run, or the default of the optimizer.
    pub fn lr(&self) -> f64 {
        self.lr.unwrap_or(if self.optimizer == OptimizerName::Sgd { 0.1 } else { 1e-3 })
    }

    /// The learning rates of a run of `steps` steps.
    pub fn schedule(&self, steps: u64) -> Schedule {
        Schedule { lr: self.lr(), shape: self.schedule, warmup_steps: self.warmup_steps, steps }
    }
}

fn betas(text: &str) -> Result<(f64, f64), String> {
    let parse = |part: &str| part.trim().parse::<f64>().map_err(|error| format!("`{part}`: {error}"));
    let (first, second) = text.split_once(',').ok_or("two numbers with a comma between, as in 0.9,0.999")?;
    Ok((parse(first)?, parse(second)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        optim: OptimArgs,
    }

    fn parse(line: &str) -> OptimArgs {
        Line::try_parse_from(format!("test {line}").split_whitespace()).unwrap().optim
    }

    #[test]
    fn defaults_follow_the_optimizer() {
        let sgd = OptimizerSettings::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-4 };
        assert_eq!((parse("").settings(), parse("").lr()), (sgd, 0.1));
        let adamw = parse("--optimizer adamw --betas 0.8,0.95");
        assert_eq!(adamw.lr(), 1e-3);
        assert_eq!(
            adamw.settings(),
            OptimizerSettings::AdamW { betas: (0.8, 0.95), eps: 1e-8, weight_decay: 0.01, decay_all: false }
        );
        assert!(matches!(
            parse("--optimizer adam").settings(),
            OptimizerSettings::Adam { weight_decay: 0.0, .. }
        ));
        let plain = parse("--momentum 0").settings();
        assert!(matches!(plain, OptimizerSettings::Sgd { nesterov: false, .. }));
        assert_eq!(parse("--lr 0.5 --schedule cosine --warmup-steps 3").schedule(9).rate(3).to_bits(), {
            Schedule { lr: 0.5, shape: Shape::Cosine, warmup_steps: Some(3), steps: 9 }.rate(3).to_bits()
        });
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for (line, expected) in [
            ("--lr nan", "--lr must be a number above 0, not NaN"),
            ("--lr 0", "--lr must be a number above 0, not 0"),
            ("--weight-decay=-1", "--weight-decay must be at least 0, not -1"),
            ("--momentum 1", "--momentum must be from 0 to below 1, not 1"),
            ("--betas 0.9,1", "--betas must be from 0 to below 1 each, not 0.9,1"),
            ("--clip-norm 0", "--clip-norm must be a number above 0, not 0"),
            ("--accumulate 0", "--accumulate must be at least 1"),
            ("--accumulate 65", "--accumulate 65 passes cannot share the 64 rows that a rank has of a step"),
        ] {
            assert_eq!(parse(line).check(64).unwrap_err().to_string(), expected);
        }
        parse("--accumulate 64").check(64).unwrap();
        assert!(Line::try_parse_from(["test", "--betas", "0.9"]).is_err());
    }
}
