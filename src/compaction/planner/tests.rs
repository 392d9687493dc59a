//! Planner decisions as text: a drawing of a version, a command, the answer. The cases are in `testdata/`;
//! `REWRITE_PLANS=1` writes the answers that are given now into them: read the difference.
//!
//! A case is a few lines, `----`, and the answer, up to an empty line:
//!
//! * `planner <kind>`, `append`: the table's options. Default: time_window, upsert.
//! * `snapshot <seq>`: a reader pins that seq.
//! * `limits <key>=<value> ...`: `bytes`, `ssts`, `memory`. Default: 100 bytes, no others.
//! * `window <n>`: the SSTs that follow lie in it, 10 s wide. Default: 0.
//! * `L<level> <first key>-<last key> <bytes> [claimed] [held] [tombstones=<n>] [seqs=<min>-<max>]`: an SST
//!   of ten rows; those of level 0 are listed oldest first. All were written at 50 s.
//! * `plan [<ms>]`: what is planned then; by default right after the flushes. `manual [<keys>]`.
//! * `explain [<ms>]`: why each window is planned for, or is not.
//! * `order <level>: <ssts>`: whether merging the SSTs with these numbers, from 0, into the level keeps the
//!   order, and if not, what would.

use std::{collections::HashSet, fmt::Write, fs, path::Path, sync::Arc};

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::{
    CompactRange, LeveledConfig, PlannerConfig, Situation, TieredConfig, explain, manual, order,
    plan,
};
use crate::{
    compaction::{Claims, Footprint, Limits, Plan},
    manifest::{Edit, Pins, Version},
    types::{
        Key, KeyRange, PlannerKind, Seq, SstId, SstMeta, TableOptions, TableSchema, Window,
        WriteMode,
    },
};

/// When the SSTs of the drawings were written.
const WRITTEN_MS: u64 = 50_000;

fn config() -> PlannerConfig {
    PlannerConfig {
        l0_runs_trigger: 3,
        settle_ms: 1_000,
        limits: Limits {
            input_bytes_max: 100,
            ssts_max: usize::MAX,
            memory_bytes_max: u64::MAX,
            sst_bytes_target: 20,
        },
        leveled: LeveledConfig {
            level_bytes_min: 20,
            level_ratio: 4,
        },
        tiered: TieredConfig {
            tier_runs: 3,
            tier_ratio: 1.0,
        },
    }
}

/// The drawing of a case.
struct Drawing {
    options: TableOptions,
    config: PlannerConfig,
    window: Window,
    ssts: Vec<Arc<SstMeta>>,
    claimed: Vec<Arc<SstMeta>>,
    held: HashSet<SstId>,
    pinned: Vec<Seq>,
}

impl Drawing {
    fn new() -> Self {
        Self {
            options: TableOptions {
                window: std::time::Duration::from_secs(10).into(),
                planner: Some(PlannerKind::TimeWindow),
                ..TableOptions::default()
            },
            config: config(),
            window: Window::new(0, 10),
            ssts: Vec::new(),
            claimed: Vec::new(),
            held: HashSet::new(),
            pinned: Vec::new(),
        }
    }

    /// Takes in a line; the answer, when it is a command.
    fn line(&mut self, line: &str) -> Option<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "planner" => {
                self.options.planner = Some(match words[1] {
                    "time_window" => PlannerKind::TimeWindow,
                    "leveled" => PlannerKind::Leveled,
                    "tiered" => PlannerKind::Tiered,
                    other => panic!("{other:?} is no planner"),
                })
            }
            "snapshot" => self.pinned.push(Seq(words[1].parse().unwrap())),
            "append" => self.options.write_mode = WriteMode::Append,
            "limits" => words[1..].iter().for_each(|limit| self.limit(limit)),
            "window" => {
                let number: i64 = words[1].parse().unwrap();
                self.window = Window::new(number * 10, number * 10 + 10);
            }
            "plan" => {
                let now_ms = words.get(1).map_or(WRITTEN_MS, |ms| ms.parse().unwrap());
                return Some(self.plan(now_ms));
            }
            "explain" => {
                let now_ms = words.get(1).map_or(WRITTEN_MS, |ms| ms.parse().unwrap());
                return Some(self.explain(now_ms));
            }
            "manual" => return Some(self.manual(words.get(1).copied())),
            "order" => return Some(self.order(&words[1..])),
            _ => self.sst(&words),
        }
        None
    }

    fn limit(&mut self, limit: &str) {
        let (key, value) = limit.split_once('=').unwrap();
        let value: u64 = value.parse().unwrap();
        match key {
            "bytes" => self.config.limits.input_bytes_max = value,
            "ssts" => self.config.limits.ssts_max = value as usize,
            "memory" => self.config.limits.memory_bytes_max = value,
            other => panic!("{other:?} is no limit"),
        }
    }

    fn sst(&mut self, words: &[&str]) {
        let number = self.ssts.len() as u64;
        let level: u8 = words[0].strip_prefix('L').unwrap().parse().unwrap();
        let id = SstId::flushed(WRITTEN_MS, number.into());
        // Level 0 as listed, above all levels; the deeper, the older.
        let seq = match level {
            0 => 1_000 + number,
            level => 100 - u64::from(level),
        };
        let (mut seqs, mut tombstones) = ((seq, seq), 0);
        for word in &words[3..] {
            match word.split_once('=') {
                Some(("tombstones", count)) => tombstones = count.parse().unwrap(),
                Some(("seqs", range)) => {
                    let (min, max) = range.split_once('-').unwrap();
                    seqs = (min.parse().unwrap(), max.parse().unwrap());
                }
                _ => assert!(matches!(*word, "claimed" | "held"), "{word:?}"),
            }
        }
        let sst = Arc::new(SstMeta {
            level,
            window: self.window,
            bytes: words[2].parse().unwrap(),
            rows: 10,
            tombstones,
            seq_min: Seq(seqs.0),
            seq_max: Seq(seqs.1),
            times: Some((self.window.times().start, self.window.times().end - 1)),
            ..SstMeta::sample(id, words[1])
        });
        if words.contains(&"claimed") {
            self.claimed.push(sst.clone());
        }
        if words.contains(&"held") {
            self.held.insert(id);
        }
        self.ssts.push(sst);
    }

    fn version(&self) -> Version {
        let time = DataType::Timestamp(TimeUnit::Second, None);
        let columns = Schema::new(vec![
            Field::new("t", time, false),
            Field::new("v", DataType::Int64, true),
        ]);
        let options = self.options.clone();
        let schema = TableSchema::new(Arc::new(columns), &["t"], Some("t"), options).unwrap();
        let edit = Edit {
            added: self.ssts.clone(),
            flushed_seq: Some(Seq(10_000)),
            ..Edit::default()
        };
        let version = Version::new(schema).apply(&edit).unwrap();
        crate::manifest::invariants::check(&version).unwrap();
        version
    }

    /// Asks `ask` about the situation that is drawn: one job has all that is claimed.
    fn ask<T>(&self, now_ms: u64, ask: impl FnOnce(&Situation<'_>) -> T) -> T {
        let claims = Claims::default();
        let window = self.claimed.first().map_or(self.window, |sst| sst.window);
        let level = self.claimed.iter().map(|sst| sst.level).max().unwrap_or(0);
        let footprint = Footprint::new(window, &self.claimed, level.max(1));
        let _claim = (!self.claimed.is_empty()).then(|| claims.claim(footprint).unwrap());
        let (version, claimed) = (self.version(), claims.claimed());
        let pins = Pins {
            read_points: self.pinned.clone(),
            expiry: None,
        };
        ask(&Situation {
            version: &version,
            claimed: &claimed,
            held: &self.held,
            pins: &pins,
            now_ms,
        })
    }

    fn plan(&self, now_ms: u64) -> String {
        let planned = self.ask(now_ms, |situation| plan(situation, &self.config));
        let mut text = show(&planned.plans);
        if let Some(due_ms) = planned.due_ms {
            writeln!(text, "look again at {due_ms}").unwrap();
        }
        text
    }

    fn explain(&self, now_ms: u64) -> String {
        let mut text = String::new();
        for window in self.ask(now_ms, |situation| explain(situation, &self.config)) {
            writeln!(text, "window {}", window.window.times().start / 10).unwrap();
            for (name, lines) in [
                ("trigger", &window.triggers),
                ("plan", &window.plans),
                ("rejected", &window.rejected),
            ] {
                for line in lines {
                    writeln!(text, "  {name}: {line}").unwrap();
                }
            }
        }
        text
    }

    fn manual(&self, keys: Option<&str>) -> String {
        let keys = keys.map_or(KeyRange::ALL, |keys| {
            let (first, last) = keys.split_once('-').unwrap();
            KeyRange::closed(&Key::from(first.as_bytes()), &Key::from(last.as_bytes()))
        });
        let range = CompactRange { keys, times: None };
        let (config, goal) = (&self.config, Seq(10_000));
        self.ask(WRITTEN_MS, |situation| {
            show(&manual(situation, config, &range, goal))
        })
    }

    fn order(&self, words: &[&str]) -> String {
        let level: u8 = words[0].trim_end_matches(':').parse().unwrap();
        let inputs: Vec<Arc<SstMeta>> = words[1..]
            .iter()
            .map(|number| self.ssts[number.parse::<usize>().unwrap()].clone())
            .collect();
        let version = self.version();
        let ssts = &version.windows[&self.window];
        if order::keeps_order(ssts, &inputs, level) {
            return "keeps the order\n".into();
        }
        let whole = order::complete(ssts, inputs, level, &HashSet::new());
        format!("leaves something out; whole: {}\n", show_ssts(&whole))
    }
}

fn show_ssts(ssts: &[Arc<SstMeta>]) -> String {
    let text = |key: &Key| String::from_utf8(key.0.to_vec()).unwrap();
    let ssts = ssts.iter().map(|sst| {
        let (first, last) = (text(&sst.key_min), text(&sst.key_max));
        format!("L{} {first}-{last} {}", sst.level, sst.bytes)
    });
    ssts.collect::<Vec<_>>().join(", ")
}

fn show(plans: &[Plan]) -> String {
    let mut shown = String::new();
    for plan in plans {
        let (window, reason, score) = (plan.window.times().start / 10, plan.reason, plan.score);
        let (verb, target) = (if plan.moves { "move" } else { "merge" }, plan.level_target);
        let inputs = show_ssts(&plan.inputs);
        writeln!(
            shown,
            "window {window}: {verb} {inputs} -> L{target} ({reason}, {score:.1})"
        )
        .unwrap();
    }
    shown
}

/// Answers every case of `text`, and returns it with the answers.
fn answered(text: &str) -> String {
    let mut result = String::new();
    let mut drawing = Drawing::new();
    let mut answer = String::new();
    let mut in_answer = false;
    for line in text.lines() {
        match line {
            "----" => {
                in_answer = true;
                result += "----\n";
                result += if answer.is_empty() {
                    "nothing\n"
                } else {
                    &answer
                };
            }
            "" => {
                in_answer = false;
                (drawing, answer) = (Drawing::new(), String::new());
                result += "\n";
            }
            _ if in_answer => {}
            _ => {
                if !line.starts_with('#') {
                    answer += &drawing.line(line).unwrap_or_default();
                }
                result += line;
                result += "\n";
            }
        }
    }
    result
}

#[test]
fn plans_are_as_drawn() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/compaction/planner/testdata");
    for name in [
        "order",
        "time_window",
        "leveled",
        "tiered",
        "rest",
        "explain",
    ] {
        let file = folder.join(format!("{name}.txt"));
        let text = fs::read_to_string(&file).unwrap();
        let answered = answered(&text);
        if std::env::var_os("REWRITE_PLANS").is_some() {
            fs::write(&file, &answered).unwrap();
        } else {
            assert!(
                answered == text,
                "{name}: the answers are others now:\n{answered}"
            );
        }
    }
}
