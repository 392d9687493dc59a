//! What a version looks like, in sums: for stats, and for whoever looks at a root from outside. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Version;
use crate::types::Window;

/// The SSTs of a version by level and by window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// By level, over all windows.
    pub levels: BTreeMap<u8, LevelShape>,
    /// By window; windows without SSTs are left out.
    pub windows: BTreeMap<Window, WindowShape>,
}

/// Some SSTs in sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LevelShape {
    /// How many.
    pub ssts: u64,
    /// Bytes of their objects.
    pub bytes: u64,
    /// Rows in them, shadowed versions and tombstones included.
    pub rows: u64,
}

/// One window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WindowShape {
    /// Sorted runs: what the read of one key may have to look into.
    pub runs: u64,
    /// Its SSTs by level.
    pub levels: BTreeMap<u8, LevelShape>,
}

impl WindowShape {
    /// All of its SSTs.
    pub fn total(&self) -> LevelShape {
        total(&self.levels)
    }

    fn level_0(&self) -> LevelShape {
        self.levels.get(&0).copied().unwrap_or_default()
    }
}

fn total(levels: &BTreeMap<u8, LevelShape>) -> LevelShape {
    levels
        .values()
        .fold(LevelShape::default(), |sum, level| LevelShape {
            ssts: sum.ssts + level.ssts,
            bytes: sum.bytes + level.bytes,
            rows: sum.rows + level.rows,
        })
}

impl Shape {
    /// The shape of `version`.
    pub fn of(version: &Version) -> Self {
        let mut shape = Self::default();
        for (window, ssts) in &version.windows {
            let mut of_window = WindowShape {
                runs: ssts.runs() as u64,
                ..WindowShape::default()
            };
            for sst in ssts.ssts() {
                for levels in [&mut of_window.levels, &mut shape.levels] {
                    let level = levels.entry(sst.level).or_default();
                    level.ssts += 1;
                    level.bytes += sst.bytes;
                    level.rows += sst.rows;
                }
            }
            shape.windows.insert(*window, of_window);
        }
        shape
    }

    /// All SSTs.
    pub fn total(&self) -> LevelShape {
        total(&self.levels)
    }

    /// What compaction is behind by: bytes of level 0 in windows with `l0_runs_trigger` level-0 SSTs or more.
    pub fn debt_bytes(&self, l0_runs_trigger: usize) -> u64 {
        let level_0 = self.windows.values().map(WindowShape::level_0);
        let behind = level_0.filter(|level| level.ssts >= l0_runs_trigger as u64);
        behind.map(|level| level.bytes).sum()
    }

    /// Sorted runs that the read of one key may have to look into: of the worst window, and on average over
    /// the windows. Both 0 without SSTs.
    pub fn read_runs(&self) -> (u64, f64) {
        let runs = self.windows.values().map(|window| window.runs);
        let max = runs.clone().max().unwrap_or(0);
        let mean = runs.sum::<u64>() as f64 / self.windows.len().max(1) as f64;
        (max, mean)
    }

    /// Bytes of all live SSTs, divided by those of each window's last level: what it would about come to if
    /// all were merged. 1 without SSTs, and at rest.
    pub fn space_amplification(&self) -> f64 {
        let last = self.windows.values().filter_map(|window| {
            let (_, level) = window.levels.last_key_value()?;
            Some(level.bytes)
        });
        match last.sum::<u64>() {
            0 => 1.0,
            merged => self.total().bytes as f64 / merged as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(levels: &[(u8, u64, u64)], runs: u64) -> WindowShape {
        let levels = levels.iter().map(|&(level, ssts, bytes)| {
            let rows = bytes / 10;
            (level, LevelShape { ssts, bytes, rows })
        });
        WindowShape {
            runs,
            levels: levels.collect(),
        }
    }

    #[test]
    fn amplification_and_debt_follow_from_levels_and_windows() {
        let empty = Shape::default();
        assert_eq!((empty.read_runs(), empty.debt_bytes(1)), ((0, 0.0), 0));
        assert_eq!(empty.space_amplification(), 1.0);
        let windows = [
            window(&[(0, 4, 40), (1, 2, 160)], 5),
            window(&[(1, 1, 100)], 1),
            window(&[(0, 3, 40)], 3),
        ];
        let shape = Shape {
            levels: [(0, 7, 80), (1, 3, 260)]
                .into_iter()
                .map(|(level, ssts, bytes)| {
                    let rows = bytes / 10;
                    (level, LevelShape { ssts, bytes, rows })
                })
                .collect(),
            windows: (0..)
                .map(|start| Window::new(start, start + 1))
                .zip(windows)
                .collect(),
        };
        assert_eq!(shape.total().bytes, 340);
        assert_eq!(shape.windows[&Window::new(0, 1)].total().ssts, 6);
        assert_eq!(shape.read_runs(), (5, 3.0));
        assert_eq!((shape.debt_bytes(4), shape.debt_bytes(3)), (40, 80));
        assert_eq!(shape.space_amplification(), 340.0 / 300.0);
    }
}
