//! What the model test may do, and the tables that it does it to.

use std::{path::Path, sync::Arc, time::Duration};

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use proptest::prelude::*;
use siltstone::{
    config::{Bytes, EngineConfig, Millis, WalMode},
    engine::Durability,
    store::faulty::{Effect, Fault, Operation},
    types::{
        MergeOperator, PlannerKind, TableOptions, TableSchema, TimeRange, Windowing, WriteMode,
    },
};

use super::{
    condition::{Condition, condition},
    oracle::Id,
};

/// When the clock starts. Rows lie around it.
pub const NOW_MS: u64 = 10_000;

/// A table and an engine.
#[derive(Clone, Debug)]
pub struct Setup {
    mode: WriteMode,
    window: Windowing,
    wal: WalMode,
    planner: PlannerKind,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// Rows, and the number that their values are derived from.
    Write(Vec<(Id, i64)>, Durability),
    /// The same, all at once, beside the write-ahead log; and whether it has hardly any memory for it.
    Import(Vec<(Id, i64)>, bool),
    Delete(Vec<Id>),
    DeleteRange(TimeRange),
    Flush,
    Compact,
    Alter(Vec<Change>),
    /// Milliseconds.
    Advance(u64),
    Fault(Fault),
    Reopen,
    /// Another engine takes the root over, while the first is still there.
    TakeOver,
    Snapshot,
    DropSnapshot,
    Keep(Keep),
    /// One of those that are kept.
    Release(usize),
    CompactClones,
    Read(Read),
    /// By a reader.
    ReadBeside(Read),
}

/// What keeps the table as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    Checkpoint,
    Clone,
}

/// An alteration, before it is known which columns there are.
#[derive(Clone, Debug)]
pub enum Change {
    Add(usize),
    Drop(usize),
    Widen(usize),
    Rename(usize),
    Ttl(Option<u64>),
    Window(Windowing),
    Planner(PlannerKind),
}

#[derive(Clone, Debug, Default)]
pub struct Read {
    pub start: Option<Id>,
    pub end: Option<Id>,
    pub times: Option<(i64, i64)>,
    pub condition: Option<Condition>,
    pub limit: Option<usize>,
    pub descending: bool,
    /// Only some columns.
    pub narrow: bool,
    /// Keys to be got as well.
    pub get: Option<Vec<Id>>,
}

/// Value columns that a table begins with.
pub fn first_columns() -> Vec<(Field, MergeOperator)> {
    vec![
        (
            Field::new("last", DataType::Int32, true),
            MergeOperator::LastValue,
        ),
        (
            Field::new("known", DataType::Int8, true),
            MergeOperator::LastNonNull,
        ),
        (Field::new("sum", DataType::Int16, true), MergeOperator::Sum),
        (Field::new("min", DataType::Int8, true), MergeOperator::Min),
        (
            Field::new("max", DataType::Float32, true),
            MergeOperator::Max,
        ),
        (
            Field::new("log", DataType::Utf8, true),
            MergeOperator::BytesAppend,
        ),
    ]
}

impl Setup {
    pub fn configure(&self, config: &mut EngineConfig, wal: &Path) {
        config.wal.mode = self.wal;
        config.wal.dir = (self.wal == WalMode::Local).then(|| wal.to_owned());
        config.wal.segment_bytes = Bytes(64 << 10);
        config.wal.linger = Millis(0);
    }

    pub fn schema(&self) -> TableSchema {
        let time = DataType::Timestamp(TimeUnit::Millisecond, None);
        let mut fields = vec![
            Field::new("at", time, false),
            Field::new("id", DataType::Int32, true),
        ];
        let columns = first_columns();
        fields.extend(columns.iter().map(|(field, _)| field.clone()));
        let operators = columns
            .iter()
            .map(|(field, operator)| (field.name().clone(), *operator));
        let options = TableOptions {
            write_mode: self.mode,
            window: self.window,
            operators: operators
                .filter(|_| self.mode == WriteMode::Upsert)
                .collect(),
            planner: Some(self.planner),
            ..TableOptions::default()
        };
        let columns = Arc::new(Schema::new(fields));
        TableSchema::new(columns, &["at", "id"], Some("at"), options).unwrap()
    }
}

fn window() -> impl Strategy<Value = Windowing> {
    prop_oneof![
        2 => Just(Windowing::Fixed(Duration::from_secs(1))),
        1 => Just(Windowing::Fixed(Duration::from_millis(700))),
        1 => Just(Windowing::None),
        1 => Just(Windowing::Auto),
    ]
}

pub fn setup() -> impl Strategy<Value = Setup> {
    let mode = prop_oneof![3 => Just(WriteMode::Upsert), 1 => Just(WriteMode::Append)];
    let wal = prop_oneof![
        Just(WalMode::Local),
        Just(WalMode::ObjectStore),
        Just(WalMode::None),
    ];
    (mode, window(), wal, planner()).prop_map(|(mode, window, wal, planner)| Setup {
        mode,
        window,
        wal,
        planner,
    })
}

fn planner() -> impl Strategy<Value = PlannerKind> {
    prop_oneof![
        Just(PlannerKind::TimeWindow),
        Just(PlannerKind::Leveled),
        Just(PlannerKind::Tiered),
    ]
}

/// Few keys, so that they meet; in a few windows.
fn id() -> impl Strategy<Value = Id> {
    let id = prop_oneof![1 => Just(None), 4 => (-2..3_i32).prop_map(Some)];
    ((-8..8_i64).prop_map(|at| NOW_MS as i64 + at * 250), id)
}

fn ids() -> impl Strategy<Value = Vec<Id>> {
    proptest::collection::vec(id(), 1..6)
}

fn times() -> impl Strategy<Value = (i64, i64)> {
    let now = NOW_MS as i64;
    (now - 2_500..now + 2_500, 0..2_000_i64).prop_map(|(start, length)| (start, start + length))
}

fn read() -> impl Strategy<Value = Read> {
    let keys = (prop::option::of(id()), prop::option::of(id()));
    let limit = prop::option::of(0..20_usize);
    let read = (
        keys,
        prop::option::of(times()),
        prop::option::of(condition()),
        limit,
        (any::<bool>(), any::<bool>()),
        prop::option::of(ids()),
    );
    read.prop_map(
        |((start, end), times, condition, limit, (descending, narrow), get)| Read {
            start,
            end,
            times,
            condition,
            limit,
            descending,
            narrow,
            get,
        },
    )
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => (0..6_usize).prop_map(Change::Add),
        1 => (0..9_usize).prop_map(Change::Drop),
        1 => (0..9_usize).prop_map(Change::Widen),
        1 => (0..9_usize).prop_map(Change::Rename),
        // Seldom met otherwise, for time must pass as well.
        3 => prop::option::of(1_500..5_000_u64).prop_map(Change::Ttl),
        1 => window().prop_map(Change::Window),
        1 => planner().prop_map(Change::Planner),
    ]
}

/// Faults that end by themselves, and after which everything goes on.
fn fault() -> impl Strategy<Value = Fault> {
    let met = prop_oneof![
        Just((Operation::Get, "/sst/")),
        Just((Operation::Put, "/sst/")),
        Just((Operation::Create, "/manifest/")),
        Just((Operation::Create, "/results/")),
        Just((Operation::Create, "wal/")),
        Just((Operation::Get, "wal/")),
        Just((Operation::Get, "/manifest/")),
        Just((Operation::Delete, "/sst/")),
        Just((Operation::Create, "/checkpoints/")),
        Just((Operation::Get, "/checkpoints/")),
        Just((Operation::Delete, "/checkpoints/")),
    ];
    let effect = prop_oneof![
        3 => Just(Effect::Fail),
        3 => Just(Effect::LoseAnswer),
        1 => Just(Effect::Delay(Duration::from_millis(3))),
        1 => (0..200_usize).prop_map(|bytes| Effect::Truncate { bytes, reported: true }),
    ];
    (met, effect, 1..3_u32).prop_map(|((operation, name), effect, times)| {
        // A torn record of a log is damage, which is another test's.
        let torn = matches!(effect, Effect::Truncate { .. });
        let effect = if torn && operation != Operation::Put {
            Effect::Fail
        } else {
            effect
        };
        Fault::new(operation, name, effect).times(times)
    })
}

pub fn step() -> impl Strategy<Value = Step> {
    let rows = proptest::collection::vec((id(), -20..20_i64), 1..12);
    let many = proptest::collection::vec((id(), -20..20_i64), 0..40);
    let durability = prop_oneof![Just(Durability::Synced), Just(Durability::Buffered)];
    prop_oneof![
        12 => (rows, durability).prop_map(|(rows, durability)| Step::Write(rows, durability)),
        2 => (many, any::<bool>()).prop_map(|(rows, spills)| Step::Import(rows, spills)),
        3 => ids().prop_map(Step::Delete),
        2 => times().prop_map(|(start, end)| Step::DeleteRange(TimeRange { start, end })),
        4 => Just(Step::Flush),
        2 => Just(Step::Compact),
        2 => prop::collection::vec(change(), 1..3).prop_map(Step::Alter),
        2 => (0..1_500_u64).prop_map(Step::Advance),
        2 => fault().prop_map(Step::Fault),
        1 => Just(Step::Reopen),
        1 => Just(Step::TakeOver),
        2 => Just(Step::Snapshot),
        1 => Just(Step::DropSnapshot),
        1 => Just(Step::Keep(Keep::Checkpoint)),
        1 => Just(Step::Keep(Keep::Clone)),
        1 => any::<usize>().prop_map(Step::Release),
        1 => Just(Step::CompactClones),
        1 => read().prop_map(Step::ReadBeside),
        5 => read().prop_map(Step::Read),
    ]
}
