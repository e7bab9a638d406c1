//! How busy the node is: with serving bytes, and on its processors.

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::available_parallelism;
use std::time::Duration;

/// The load, smoothed over a few measurements.
#[derive(Debug)]
pub struct LoadMeter {
    limit_bytes_per_s: Option<u64>,
    /// Bytes since the last measurement.
    served: AtomicU64,
    load: Mutex<f64>,
}

impl LoadMeter {
    pub fn new(limit_bytes_per_s: Option<u64>) -> Self {
        Self { limit_bytes_per_s, served: AtomicU64::new(0), load: Mutex::new(0.0) }
    }

    pub fn served(&self, bytes: u64) {
        self.served.fetch_add(bytes, Relaxed);
    }

    /// 0 to 1.
    pub fn get(&self) -> f64 {
        *self.load.lock()
    }

    /// Measures the load of the time since the last measurement; `processor` is the share of the machine's
    /// processors.
    pub fn measure(&self, elapsed: Duration, processor: f64) -> f64 {
        let served = self.served.swap(0, Relaxed) as f64 / elapsed.as_secs_f64();
        let of_limit = self.limit_bytes_per_s.map_or(0.0, |limit| served / limit as f64);
        let mut load = self.load.lock();
        *load = (*load + of_limit.max(processor).min(1.0)) / 2.0;
        *load
    }
}

/// The processor time of this process.
pub struct ProcessorMeter {
    used: Duration,
    cores: f64,
}

impl ProcessorMeter {
    pub fn new() -> Self {
        Self { used: processor_time(), cores: available_parallelism().map_or(1.0, |n| n.get() as f64) }
    }

    /// The process's share of the machine since it was last asked, which was `elapsed` ago.
    pub fn share(&mut self, elapsed: Duration) -> f64 {
        let before = std::mem::replace(&mut self.used, processor_time());
        self.used.saturating_sub(before).as_secs_f64() / elapsed.as_secs_f64() / self.cores
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn load_is_the_larger_of_bytes_and_processors() {
        let meter = LoadMeter::new(Some(10_000_000));
        meter.served(1_000_000);
        assert!(meter.measure(Duration::from_millis(100), 0.0) > 0.45);
        assert!(meter.measure(Duration::from_millis(100), 1.0) > 0.7);
        assert!(meter.measure(Duration::from_millis(100), 0.0) < 0.4);
    }

    #[test]
    fn processor_time_is_finer_than_a_hundredth_of_a_second() {
        for _ in 0..20 {
            let (mut meter, began) = (ProcessorMeter::new(), Instant::now());
            while began.elapsed() < Duration::from_millis(1) {}
            assert!(meter.share(began.elapsed()) > 0.0);
        }
    }
}
