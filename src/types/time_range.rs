//! Time ranges and windows, in the unit of the table's time column: no conversion loses precision.

use std::time::Duration;

use arrow::datatypes::TimeUnit;

use crate::error::{Error, Result};

/// Times from `start` (inclusive) to `end` (exclusive), in the time column's own unit since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeRange {
    /// The first time inside.
    pub start: i64,
    /// The first time outside.
    pub end: i64,
}

impl TimeRange {
    /// Whether any time from `min` to `max`, both inclusive, lies inside.
    pub fn overlaps(&self, min: i64, max: i64) -> bool {
        max >= self.start && min < self.end
    }

    /// Whether `time` lies inside.
    pub fn contains(&self, time: i64) -> bool {
        self.overlaps(time, time)
    }
}

/// The number of a window: window *n* of width *w* holds times from *n·w* to *(n+1)·w*. Negative times
/// lie in negative windows. A table without windows keeps everything in window 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Window(pub i64);

/// A window's width in the unit of the time column; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowWidth(i64);

impl WindowWidth {
    /// `width` in units of `unit`.
    ///
    /// # Errors
    /// `Invalid` when the width is shorter than one unit or does not fit into 63 bits of it.
    pub fn new(width: Duration, unit: TimeUnit) -> Result<Self> {
        let per_second: i128 = match unit {
            TimeUnit::Second => 1,
            TimeUnit::Millisecond => 1_000,
            TimeUnit::Microsecond => 1_000_000,
            TimeUnit::Nanosecond => 1_000_000_000,
        };
        let units = width.as_nanos() as i128 * per_second / 1_000_000_000;
        match i64::try_from(units) {
            Ok(units) if units > 0 => Ok(Self(units)),
            _ => Err(Error::invalid(format!(
                "window of {width:?} is not between one and 2^63 units of the time column ({unit:?})"
            ))),
        }
    }

    /// The window that holds `time`.
    pub fn window_of(self, time: i64) -> Window {
        Window(time.div_euclid(self.0))
    }

    /// The times that `window` holds; cut off at the ends of `i64`.
    pub fn times_of(self, window: Window) -> TimeRange {
        TimeRange {
            start: window.0.saturating_mul(self.0),
            end: window.0.saturating_add(1).saturating_mul(self.0),
        }
    }

    /// The width in units of the time column.
    pub fn units(self) -> i64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_negative_and_extreme_times() {
        let width = WindowWidth::new(Duration::from_secs(10), TimeUnit::Second).unwrap();
        for (time, window) in [(0, 0), (9, 0), (10, 1), (-1, -1), (-10, -1), (-11, -2)] {
            assert_eq!(width.window_of(time), Window(window), "{time}");
            assert!(width.times_of(Window(window)).contains(time));
        }
        for time in [i64::MIN, i64::MAX - 1] {
            assert!(
                width.times_of(width.window_of(time)).contains(time),
                "{time}"
            );
        }
        assert!(WindowWidth::new(Duration::from_millis(999), TimeUnit::Second).is_err());
    }
}
