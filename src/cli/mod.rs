//! What the binaries share: the services as commands, configuration files, signals, exit codes. Not part
//! of the library's interface.

pub mod http;
pub mod meta;
pub mod node;

use std::{fs, future::Future, io, path::Path, process::ExitCode};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::error::{Error, ErrorKind, Result};

/// Sends logs to stderr: those that `RUST_LOG` asks for, else from `level` up.
pub fn init_logging(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .init();
}

/// Runs `command` to its end on a runtime of its own. The exit code is 0 for success, 2 for a wrong call
/// or configuration, 1 for all else; the error goes to stderr after `name`.
pub fn run(name: &str, command: impl Future<Output = Result<()>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| Error::internal("tokio does not start").with_source(error));
    let Err(error) = runtime.and_then(|runtime| runtime.block_on(command)) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{name}: {error}");
    match error.kind() {
        ErrorKind::Invalid => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// A configuration file's name and text; an empty text when there is no file.
///
/// # Errors
/// `Invalid`, naming the file, when it cannot be read.
pub fn read_config(file: Option<&Path>) -> Result<(String, String)> {
    let Some(file) = file else {
        return Ok(("(none)".to_owned(), String::new()));
    };
    let origin = file.display().to_string();
    let text = fs::read_to_string(file);
    let text =
        text.map_err(|error| Error::invalid(format!("configuration {origin}")).with_source(error))?;
    Ok((origin, text))
}

/// Cancelled when the process is asked to end, by SIGTERM or SIGINT. Call it before anything is started, so
/// that no signal is missed.
fn asked_to_end() -> Result<CancellationToken> {
    let failed = |error| Error::internal("signal handler").with_source(error);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let end = CancellationToken::new();
    let asked = end.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        asked.cancel();
    });
    Ok(end)
}
