//! A meta service and compaction nodes as child processes on loopback, on ports that the system picks.
//! They are this very program under its hidden commands. Dropping the cluster kills them.

use std::{path::Path, process::Stdio, time::Duration};

use siltstone::{
    config::ENV_PREFIX,
    error::{Error, Result},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// How long a service may take to say that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// Running services.
#[derive(Debug)]
pub struct Cluster {
    meta: String,
    children: Vec<Child>,
}

impl Cluster {
    /// Starts a meta service, whose plan log goes below `dir`, and `nodes` nodes with one slot each.
    /// What they log goes to files in `dir`.
    ///
    /// # Errors
    /// `Unavailable`, naming the service and its log, when one does not get ready.
    pub async fn start(dir: &Path, nodes: usize) -> Result<Self> {
        let log = url::Url::from_directory_path(dir)
            .map_err(|()| Error::invalid(format!("folder {} is not absolute", dir.display())))?;
        let meta = [
            "--listen",
            "127.0.0.1:0",
            "--plan-log",
            log.as_str(),
            "--lease",
            "5s",
        ];
        let (child, ready) = start(dir, "meta", "meta", &meta).await?;
        let address = ready.rsplit(' ').next().unwrap_or_default().to_owned();
        let mut children = vec![child];
        for number in 1..=nodes {
            let id = format!("node-{number}");
            let node = ["--meta", &address, "--id", &id, "--slots", "1"];
            children.push(start(dir, "node", &id, &node).await?.0);
        }
        Ok(Self {
            meta: address,
            children,
        })
    }

    /// Address of the meta service.
    pub fn meta(&self) -> &str {
        &self.meta
    }

    /// Ends all services and waits until they are gone.
    pub async fn stop(mut self) {
        for child in self.children.iter_mut().rev() {
            // A child that is gone already is what was wanted.
            child.kill().await.ok();
        }
    }
}

/// Starts one service; returns it with the line in which it says that it is ready.
async fn start(
    dir: &Path,
    command: &str,
    name: &str,
    arguments: &[&str],
) -> Result<(Child, String)> {
    let log = dir.join(format!("{name}.log"));
    let failed =
        |what: &str| Error::unavailable(format!("{name} {what}; its log is {}", log.display()));
    let program =
        std::env::current_exe().map_err(|error| failed("has no program").with_source(error))?;
    let stderr =
        std::fs::File::create(&log).map_err(|error| failed("has no log").with_source(error))?;
    let mut service = Command::new(program);
    // What configures some other service of the user's is not meant for this one.
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with(ENV_PREFIX) {
            service.env_remove(variable);
        }
    }
    let mut child = service
        .arg(command)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed("does not start").with_source(error))?;
    let stdout = child.stdout.take().ok_or_else(|| failed("has no output"))?;
    let mut lines = BufReader::new(stdout).lines();
    let first = timeout(READY_WITHIN, lines.next_line()).await;
    let ready = match first {
        Ok(Ok(Some(line))) => line,
        Ok(Ok(None)) => return Err(failed("ended before it was ready")),
        Ok(Err(error)) => return Err(failed("cannot be read").with_source(error)),
        Err(_) => return Err(failed("does not get ready")),
    };
    // Whatever else it prints must not fill the pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok((child, ready))
}
