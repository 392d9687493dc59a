//! Progress of commands that take long: a bar on a terminal, a line now and then elsewhere.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use siltstone::{clock::Env, error::Error};

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of one phase. Ends when dropped.
pub struct Phase {
    name: String,
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
    env: Env,
    spoke_at: Duration,
}

impl Phase {
    /// Begins a phase of `total` steps; 0 when nobody knows how many.
    pub fn new(name: String, total: u64, env: &Env) -> Self {
        let bar = stderr().is_terminal().then(|| bar(&name, total));
        Self {
            name,
            total,
            done: 0,
            bar,
            env: env.clone(),
            spoke_at: env.monotonic(),
        }
    }

    /// `steps` more steps are done; `note` is what else there is to say.
    pub fn advance(&mut self, steps: u64, note: impl FnOnce() -> String) {
        self.done += steps;
        if let Some(bar) = &self.bar {
            bar.inc(steps);
            bar.set_message(note());
        } else if self.env.monotonic() - self.spoke_at >= LINE_EVERY {
            self.spoke_at = self.env.monotonic();
            let of = match self.total {
                0 => String::new(),
                // What is expected can be less than what comes.
                total => format!(" {}%", (self.done * 100 / total).min(100)),
            };
            eprintln!("{}{of} {}", self.name, note());
        }
    }
}

/// Waits for an interrupt, and answers the error that a command ends with then.
pub async fn interrupted() -> Error {
    match tokio::signal::ctrl_c().await {
        Ok(()) => Error::closed("interrupted"),
        Err(error) => Error::internal("interrupts cannot be heard").with_source(error),
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(name: &str, total: u64) -> ProgressBar {
    let (bar, template) = match total {
        0 => (ProgressBar::new_spinner(), "{prefix:16} {spinner} {msg}"),
        total => (
            ProgressBar::new(total),
            "{prefix:16} {bar:32} {human_pos}/{human_len} {msg}",
        ),
    };
    let style =
        ProgressStyle::with_template(template).expect("the template is a constant that parses");
    let bar = bar.with_style(style).with_prefix(name.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
