//! Time ranges and windows, in the unit of the table's time column: no conversion loses precision.

use std::{fmt, time::Duration};

use arrow::datatypes::TimeUnit;

use crate::error::{Error, Result};

/// Times from `start` (inclusive) to `end` (exclusive), in the time column's own unit since the epoch. An end
/// of `i64::MAX` is inclusive, so that a range can hold every time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeRange {
    /// The first time inside.
    pub start: i64,
    /// The first time outside.
    pub end: i64,
}

impl TimeRange {
    /// Every time.
    pub const ALL: TimeRange = TimeRange {
        start: i64::MIN,
        end: i64::MAX,
    };

    /// Whether any time from `min` to `max`, both inclusive, lies inside.
    pub fn overlaps(&self, min: i64, max: i64) -> bool {
        max >= self.start && (min < self.end || self.end == i64::MAX)
    }

    /// Whether all times from `min` to `max`, both inclusive, lie inside.
    pub fn covers(&self, min: i64, max: i64) -> bool {
        self.contains(min) && self.contains(max)
    }

    /// The times that lie in both.
    #[must_use]
    pub fn and(&self, other: TimeRange) -> TimeRange {
        TimeRange {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        }
    }

    /// Whether no time lies inside.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end && !self.contains(i64::MAX)
    }

    /// Whether `time` lies inside.
    pub fn contains(&self, time: i64) -> bool {
        self.overlaps(time, time)
    }
}

/// A time range that no SST of it crosses, in the unit of the time column. A table without windows keeps
/// everything in [`Window::ALL`]. Windows of a table are disjoint, unless their width was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Window {
    start: i64,
    end: i64,
}

impl Window {
    /// Holds every time.
    pub const ALL: Window = Window {
        start: i64::MIN,
        end: i64::MAX,
    };

    /// The window of the times from `start` (inclusive) to `end` (exclusive, unless it is `i64::MAX`).
    pub fn new(start: i64, end: i64) -> Self {
        Self { start, end }
    }

    /// The times that it holds.
    pub fn times(self) -> TimeRange {
        TimeRange {
            start: self.start,
            end: self.end,
        }
    }

    /// Whether the two can hold the same time.
    pub fn overlaps(self, other: Window) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => f.write_str("all times"),
            Self { start, end } => write!(f, "[{start}, {end})"),
        }
    }
}

impl serde::Serialize for Window {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Nanoseconds in a unit.
pub(super) fn nanos(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// A window's width in the unit of the time column; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowWidth(i64);

impl WindowWidth {
    /// `width` in units of `unit`.
    ///
    /// # Errors
    /// `Invalid` when the width is shorter than one unit or does not fit into 63 bits of it.
    pub fn new(width: Duration, unit: TimeUnit) -> Result<Self> {
        let units = width.as_nanos() as i128 / nanos(unit);
        match i64::try_from(units) {
            Ok(units) if units > 0 => Ok(Self(units)),
            _ => Err(Error::invalid(format!(
                "window of {width:?} is not between one and 2^63 units of the time column ({unit:?})"
            ))),
        }
    }

    /// A round width for windows of about a gigabyte, at the rate of `bytes` over the times from `min` to `max`,
    /// both inclusive, in `unit`; and not so narrow that these fall into more than 16 windows. From a second to
    /// a year.
    pub fn for_rate(bytes: u64, (min, max): (i64, i64), unit: TimeUnit) -> Duration {
        const WINDOW_BYTES: u128 = 1 << 30;
        const WINDOWS_MAX: u128 = 16;
        const YEAR: u64 = 31_536_000;
        const SECONDS: [u64; 11] = [
            1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800, 2_592_000, 7_776_000, YEAR,
        ];
        let per_second = 1_000_000_000 / nanos(unit);
        let span = (i128::from(max) - i128::from(min)).max(0) / per_second + 1;
        let span = span as u128;
        let by_bytes = span.saturating_mul(WINDOW_BYTES) / u128::from(bytes.max(1));
        let wanted = by_bytes.max(span / WINDOWS_MAX);
        let round = SECONDS
            .into_iter()
            .find(|&width| u128::from(width) >= wanted);
        Duration::from_secs(round.unwrap_or(YEAR))
    }

    /// The window that holds `time`.
    pub fn window_of(self, time: i64) -> Window {
        self.nth(time.div_euclid(self.0))
    }

    /// Window *n* of width *w* holds the times from *n·w* to *(n+1)·w*, cut off at the ends of `i64`.
    pub fn nth(self, number: i64) -> Window {
        Window {
            start: number.saturating_mul(self.0),
            end: number.saturating_add(1).saturating_mul(self.0),
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
            assert_eq!(width.window_of(time), width.nth(window), "{time}");
            assert!(width.nth(window).times().contains(time));
        }
        for time in [i64::MIN, i64::MAX - 1, i64::MAX] {
            assert!(width.window_of(time).times().contains(time), "{time}");
        }
        assert!(WindowWidth::new(Duration::from_millis(999), TimeUnit::Second).is_err());
    }
}
