//! The meta service: takes jobs from engines, finds nodes, and shares the tasks out among them.
//!
//! ```text
//! engines ──submit, watch, attend───┐
//! nodes ────poll────────────────────┤► MetaService ► core ► state      what is planned (pure)
//! operators ─nodes, jobs────────────┘                   ├─ registry   which nodes are there (soft)
//!                                                       ├─ engines    which engines are, and their quarantine (soft)
//!                                                       ├─ dispatch   who gets what: fairness, placement (pure)
//!                                                       └─ plan_log   what must survive
//! ```
//!
//! Meta moves tasks; it never reads a manifest, and what it loses can only delay work: results are
//! objects, and engines submit again what meta has forgotten. Every change is appended to the plan log
//! before its effect is told to anyone.

mod admin;
mod codec;
mod core;
mod dispatch;
mod engines;
mod fairness;
mod hedging;
mod placement;
mod plan_log;
mod publish;
mod registry;
mod service;
pub mod state;
mod stats;
#[cfg(test)]
pub(crate) mod tests;
mod update;

pub use admin::{
    EngineInfo, Explanation, JobInfo, Listing, NodeInfo, NodeState, OwnerInfo, QuarantineInfo,
    TaskInfo, Wish,
};
pub use plan_log::{MemoryPlanLog, ObjectPlanLog, PlanLog, Replay, open_plan_log};
pub use service::MetaService;
pub use stats::{MetaEvents, MetaStats};
pub use update::{
    Assigned, Cancelled, Cause, Completed, Failed, NewJob, PlanSnapshot, PlanUpdate, Renewed,
    Requeued,
};
