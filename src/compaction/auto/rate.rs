//! How many bytes a slot of a side merges in a second, by the jobs that ended lately.

/// What is assumed of either side before it has been measured, in input bytes a second and slot.
const UNMEASURED: f64 = (32 << 20) as f64;
/// What the newest job counts for, beside all before it.
const NEWEST: f64 = 0.5;
/// Milliseconds of work from which on a job counts in full: a moment says little.
const TELLING_MS: f64 = 1_000.0;

/// A rate, measured by job.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredRate {
    bytes_per_second: f64,
}

impl Default for MeasuredRate {
    fn default() -> Self {
        Self {
            bytes_per_second: UNMEASURED,
        }
    }
}

impl MeasuredRate {
    /// Takes in a job of whose tasks slots read `bytes` in `elapsed_ms` together.
    ///
    /// The mean is the geometric one: a job at twice the rate and one at half of it cancel out, so that a side is
    /// believed to have become fast as soon as it is believed to have become slow.
    pub(super) fn add(&mut self, bytes: u64, elapsed_ms: u64) {
        let elapsed_ms = elapsed_ms.max(1) as f64;
        let newest = bytes.max(1) as f64 * 1_000.0 / elapsed_ms;
        let weight = NEWEST * (elapsed_ms / TELLING_MS).min(1.0);
        self.bytes_per_second *= (newest / self.bytes_per_second).powf(weight);
    }

    /// Input bytes a second and slot.
    pub(super) fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_jobs_and_begins_with_the_assumption() {
        let mib = |rate: &MeasuredRate| rate.bytes_per_second as u64 >> 20;
        let mut rate = MeasuredRate::default();
        assert_eq!(mib(&rate), 32);
        // A moment says little.
        rate.add(1 << 30, 1);
        assert_eq!(mib(&rate), 32);
        rate.add(80 << 20, 10_000);
        assert_eq!(mib(&rate), 16, "half way from 32 to 8");
        (0..10).for_each(|_| rate.add(80 << 20, 10_000));
        assert_eq!(mib(&rate), 8);
        (0..10).for_each(|_| rate.add(1_280 << 20, 10_000));
        assert_eq!(mib(&rate), 127);
    }
}
