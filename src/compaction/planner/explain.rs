//! Why a window is being compacted, or is not: it is planned as ever, and what was found on the way is told.

use super::{PlannerConfig, Situation, leveled, plan_window, rest, scene::Scene, tiered};
use crate::types::{PlannerKind, Window};

/// What a planner thinks of one window.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowExplanation {
    /// The window.
    pub window: Window,
    /// How it stands to each trigger.
    pub triggers: Vec<String>,
    /// What is to be merged next, and why.
    pub plans: Vec<String>,
    /// What was thought of and rejected, with the rule.
    pub rejected: Vec<String>,
    /// When there may be more to do although nothing has happened, in milliseconds since the Unix epoch.
    pub due_ms: Option<u64>,
}

/// What the planner of `situation` thinks of each window.
pub fn explain(situation: &Situation<'_>, config: &PlannerConfig) -> Vec<WindowExplanation> {
    let scenes = Scene::all(situation, config);
    let explained = scenes.map(|scene| {
        let plans = plan_window(&scene).into_iter().map(|plan| {
            let (inputs, bytes) = (plan.inputs.len(), plan.input_bytes());
            let what = if plan.moves { "moved" } else { "merged" };
            let (level, reason, score) = (plan.level_target, plan.reason, plan.score);
            format!(
                "{inputs} SSTs ({bytes} bytes) are to be {what} into level {level}, for {reason}, score {score:.2}"
            )
        });
        let plans = plans.collect();
        let mut rejected: Vec<String> = Vec::new();
        for pick in scene.rejected() {
            let text = pick.to_string();
            if !rejected.contains(&text) {
                rejected.push(text);
            }
        }
        WindowExplanation {
            window: scene.window,
            triggers: triggers(&scene),
            plans,
            rejected,
            due_ms: rest::due_ms(&scene),
        }
    });
    explained.collect()
}

fn triggers(scene: &Scene<'_>) -> Vec<String> {
    let (free, all) = (scene.level_0().len(), scene.ssts.l0.len());
    let trigger = scene.config.l0_runs_trigger;
    let mut level_0 = format!("level 0 has {free} runs of {trigger} that call for a merge");
    let (claimed, held) = scene.level_0_taken();
    if free < all {
        let blocked = all - free - claimed - held.min(all - free - claimed);
        level_0 += &format!(
            ", besides {claimed} that a job has, {held} in quarantine, and {blocked} that must wait for those"
        );
    }
    let mut triggers = vec![level_0];
    triggers.extend(match scene.version.schema.planner() {
        PlannerKind::TimeWindow => Vec::new(),
        PlannerKind::Leveled => leveled::triggers(scene),
        PlannerKind::Tiered => tiered::triggers(scene),
    });
    triggers.extend(rest::triggers(scene));
    triggers
}
