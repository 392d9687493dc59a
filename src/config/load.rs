//! How a configuration comes about: defaults, under a TOML text, under environment variables.

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// Environment variables that begin with this override an engine's file: the rest of the name is the key in
/// upper case, sections parted by two underscores: `SILTSTONE_COMPACTION__MODE=remote`.
pub const ENV_PREFIX: &str = "SILTSTONE_";
/// The same for a meta service. An engine passes such variables by, so that one environment can serve both.
pub const META_ENV_PREFIX: &str = "SILTSTONE_META_";
/// The same for a compaction node.
pub const NODE_ENV_PREFIX: &str = "SILTSTONE_NODE_";

/// The rest of the variable `name`, if it is one of those with `prefix`.
fn key<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    let others = [META_ENV_PREFIX, NODE_ENV_PREFIX];
    let is_anothers = others
        .iter()
        .any(|other| *other != prefix && name.starts_with(other));
    name.strip_prefix(prefix).filter(|_| !is_anothers)
}

/// Reads `text`, found at `origin` (a file name, for messages), overlaid by those variables of `environment`
/// that begin with `prefix`.
///
/// # Errors
/// `Invalid`, naming origin and key: not TOML, an unknown key, a value of the wrong form.
pub(super) fn parse<C: DeserializeOwned>(
    origin: &str,
    text: &str,
    prefix: &str,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<C> {
    let invalid = |error: toml::de::Error| {
        Error::invalid(format!(
            "configuration {origin}: {}",
            error.to_string().trim()
        ))
    };
    let mut table: toml::Table = toml::from_str(text).map_err(invalid)?;
    let mut overridden = false;
    for (name, value) in environment {
        if let Some(key) = key(&name, prefix) {
            overlay(&mut table, &name, key, value)?;
            overridden = true;
        }
    }
    if overridden {
        // Positions in the text are lost once variables are laid over it.
        table.try_into().map_err(invalid)
    } else {
        toml::from_str(text).map_err(invalid)
    }
}

fn overlay(table: &mut toml::Table, name: &str, key: &str, value: String) -> Result<()> {
    let path: Vec<String> = key.split("__").map(str::to_lowercase).collect();
    let (last, sections) = path.split_last().expect("split gives at least one part");
    let mut table = table;
    for section in sections {
        let entry = table
            .entry(section.clone())
            .or_insert_with(|| toml::Table::new().into());
        table = entry
            .as_table_mut()
            .ok_or_else(|| Error::invalid(format!("{name}: {section:?} is not a section")))?;
    }
    table.insert(last.clone(), plain_value(value));
    Ok(())
}

/// A variable's text as the TOML value that it spells, else as a string.
fn plain_value(text: String) -> toml::Value {
    let spelled = toml::from_str::<toml::Table>(&format!("value = {text}")).ok();
    let value = spelled.and_then(|mut table| table.remove("value"));
    value.unwrap_or(toml::Value::String(text))
}

/// Collects faults, so that all are reported at once.
#[derive(Default)]
pub(crate) struct Faults(Vec<String>);

impl Faults {
    pub(crate) fn check(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.0.push(fault());
        }
    }

    pub(crate) fn into_result(self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "configuration: {}",
            self.0.join("; ")
        )))
    }
}
