//! What the demo prints at the end: numbers, checks, and where the files are.

use std::{fmt::Display, path::Path, time::Duration};

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::replay::Run;
use crate::flights::Answers;

/// `number` with its thousands apart.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn size(bytes: u64) -> String {
    siltstone::config::Bytes(bytes).to_string()
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Prints the numbers of all runs side by side, and what each node did.
pub fn print_runs(runs: &[Run]) {
    let mut table = new_table();
    table.set_header(
        std::iter::once(Cell::new("")).chain(
            runs.iter()
                .map(|run| right(format!("{} compaction", run.name))),
        ),
    );
    let mut line = |name: &str, value: &dyn Fn(&Run) -> String| {
        table.add_row(
            std::iter::once(Cell::new(name)).chain(runs.iter().map(|run| right(value(run)))),
        );
    };
    line("rows written", &|run| count(run.rows_written));
    line("rows live", &|run| count(run.answers.rows));
    line("rows a second, written", &|run| {
        count((run.rows_written as f64 / run.write_time.as_secs_f64()) as u64)
    });
    line("write p50", &|run| millis(run.write_latency(0.50)));
    line("write p99", &|run| millis(run.write_latency(0.99)));
    line("write max", &|run| millis(run.write_latency(1.0)));
    line("flushes", &|run| count(run.before.flushes));
    line("SSTs at the peak", &|run| count(run.ssts_peak));
    line("level-0 runs of a window at the peak", &|run| {
        count(run.l0_runs_peak)
    });
    line("SSTs before the last merge", &|run| count(run.before.ssts));
    line("SSTs after", &|run| count(run.after.ssts));
    line("bytes before the last merge", &|run| {
        size(run.before.sst_bytes)
    });
    line("bytes after", &|run| size(run.after.sst_bytes));
    line("compaction jobs", &|run| {
        count(run.compaction.jobs_committed)
    });
    line("time to write", &|run| seconds(run.write_time));
    line("time of the last merge", &|run| seconds(run.compact_time));
    println!("\n{table}");

    let mut table = new_table();
    let headings = [
        "compaction",
        "node",
        "tasks",
        "rows read",
        "bytes read",
        "bytes written",
    ];
    table.set_header(headings);
    for run in runs {
        for (node, did) in &run.compaction.nodes {
            table.add_row([
                Cell::new(run.name),
                Cell::new(node),
                right(count(did.tasks)),
                right(count(did.rows_read)),
                right(size(did.bytes_read)),
                right(size(did.bytes_written)),
            ]);
        }
    }
    println!("\n{table}");
}

/// Prints each check, the runs side by side; returns how many failed. `published` are the answers known
/// for the whole year.
pub fn print_checks(runs: &[Run], source: &Answers, published: Option<&Answers>) -> usize {
    let mut checks = Checks::default();
    for (column, run) in runs.iter().enumerate() {
        checks.column = column;
        if let Some(published) = published {
            checks.add_answers(published, &run.answers);
        }
        let equal = source == &run.answers;
        let found = if equal { "equal" } else { "different" };
        checks.add("these answers, from the source", equal, found);
        let difference = run.difference.as_deref();
        let found = difference.unwrap_or("equal");
        checks.add("rows and source, one by one", difference.is_none(), found);
        if run.nodes_started > 0 {
            checks.add_nodes(run);
        }
    }
    println!("\n{}", checks.table(runs));
    checks.failed
}

/// Says where the files are and how to look into them.
pub fn print_farewell(dir: &Path, runs: &[Run], elapsed: Duration) {
    print!("\nDone in {}", seconds(elapsed));
    if let Some(bytes) = memory_peak() {
        print!(", with {} of memory in this process", size(bytes));
    }
    println!(". The files stay in {}", dir.display());
    let Some(run) = runs.last() else { return };
    let table = dir
        .join(run.name)
        .join("tables")
        .join(run.after.id.to_string());
    println!("Any Parquet tool opens the SSTs; of each key the newest row counts. With DuckDB:");
    println!(
        "  select origin, count(*) from (from '{}/sst/*.parquet' qualify",
        table.display()
    );
    println!(
        "    row_number() over (partition by time_hour, carrier, flight order by __seq desc) = 1)"
    );
    println!("  where __op = 0 group by origin;");
}

/// The most memory that this process has had, where the system tells.
fn memory_peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kibibytes << 10)
}

/// The checks of all runs: a line a check, a column a run.
#[derive(Default)]
struct Checks {
    lines: Vec<(String, Vec<String>)>,
    column: usize,
    failed: usize,
}

impl Checks {
    fn add(&mut self, what: &str, holds: bool, found: impl Display) {
        self.failed += usize::from(!holds);
        let at = match self.lines.iter().position(|(name, _)| name == what) {
            Some(at) => at,
            None => {
                self.lines.push((what.to_owned(), Vec::new()));
                self.lines.len() - 1
            }
        };
        let cells = &mut self.lines[at].1;
        cells.resize(self.column, String::new());
        let verdict = if holds { "ok" } else { "FAILED" };
        cells.push(format!("{found}  {verdict}"));
    }

    fn add_answers(&mut self, wanted: &Answers, found: &Answers) {
        let numbers = [
            ("flights", wanted.rows, found.rows),
            (
                "dep_delay is null",
                wanted.dep_delay_nulls,
                found.dep_delay_nulls,
            ),
            ("tailnum is null", wanted.tailnum_nulls, found.tailnum_nulls),
        ];
        for (what, wanted, found) in numbers {
            self.add(what, wanted == found, count(found));
        }
        let (wanted_miles, miles) = (wanted.distance, found.distance);
        self.add(
            "sum of distance",
            wanted_miles == miles,
            count(miles.unsigned_abs()),
        );
        for (name, &(rows, miles)) in &wanted.origins {
            let found = found.origins.get(name).copied().unwrap_or_default();
            self.add(&format!("from {name}"), found.0 == rows, count(found.0));
            let what = format!("from {name}, sum of distance");
            self.add(&what, found.1 == miles, count(found.1.unsigned_abs()));
        }
        for (name, &rows) in &wanted.carriers {
            let found = found.carriers.get(name).copied().unwrap_or_default();
            self.add(&format!("with {name}"), found == rows, count(found));
        }
    }

    /// The remote run is worth nothing if nothing ran remotely.
    fn add_nodes(&mut self, run: &Run) {
        let compaction = &run.compaction;
        let tasks: u64 = compaction.nodes.values().map(|node| node.tasks).sum();
        let local = compaction.nodes.keys().any(|node| node.0 == "local");
        let fallbacks: u64 = compaction.fallbacks.values().sum();
        let on_nodes = fallbacks == 0 && !local;
        self.add(
            "every task ran on a node",
            on_nodes,
            format!("{fallbacks} fallbacks"),
        );
        let busy = compaction
            .nodes
            .values()
            .filter(|node| node.tasks > 0)
            .count();
        // With next to no tasks there is nothing to share out.
        let enough = tasks >= 2 * run.nodes_started as u64;
        let found = format!("{busy} of {} nodes", run.nodes_started);
        self.add(
            "every node ran tasks",
            busy == run.nodes_started || !enough,
            found,
        );
    }

    fn table(&self, runs: &[Run]) -> Table {
        let mut table = new_table();
        let headings = runs
            .iter()
            .map(|run| right(format!("{} compaction", run.name)));
        table.set_header(std::iter::once(Cell::new("check")).chain(headings));
        for (what, cells) in &self.lines {
            table.add_row(std::iter::once(Cell::new(what)).chain(cells.iter().map(right)));
        }
        table
    }
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table
}

fn right(text: impl Display) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}
