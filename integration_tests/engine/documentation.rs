//! What the README and the reference say is true.

use std::{fs, path::Path};

use siltstone::config::{EngineConfig, MetaConfig, NodeConfig};

#[path = "../../examples/embed.rs"]
mod embed;

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The fenced block of `text` that begins with `fence`.
fn block<'a>(text: &'a str, fence: &str) -> &'a str {
    let (_, rest) = text
        .split_once(fence)
        .unwrap_or_else(|| panic!("no block {fence:?}"));
    let (block, _) = rest.split_once("```").expect("a block ends");
    block.trim()
}

#[test]
fn the_embedding_example_runs() {
    embed::main().unwrap();
}

#[test]
fn the_readme_shows_the_embedding_example() {
    let example = text("examples/embed.rs");
    let (_, code) = example
        .split_once("\n\nuse ")
        .expect("the example has imports");
    let code = format!("use {code}");
    assert_eq!(block(&text("README.md"), "```rust\n"), code.trim());
}

#[test]
fn the_reference_gives_the_defaults_of_the_engine() {
    let reference = text("docs/configuration.md");
    let shown = block(&reference, "```toml\n# engine\n");
    let parsed = EngineConfig::from_toml_and_env("docs/configuration.md", shown, []).unwrap();
    let mut defaults = EngineConfig::new("file:///var/lib/siltstone");
    // Shown where they have no default.
    defaults.wal.dir = parsed.wal.dir.clone();
    defaults.compaction.remote.meta = parsed.compaction.remote.meta.clone();
    assert_eq!(parsed, defaults);
    every_field_is_shown(&parsed, shown, &["serve"]);
}

#[test]
fn the_reference_gives_the_defaults_of_meta_and_node() {
    let reference = text("docs/configuration.md");
    let shown = block(&reference, "```toml\n# meta\n");
    let parsed = MetaConfig::from_toml("docs/configuration.md", shown).unwrap();
    assert_eq!(parsed, MetaConfig::default());
    every_field_is_shown(&parsed, shown, &[]);

    let shown = block(&reference, "```toml\n# node\n");
    let parsed = NodeConfig::from_toml("docs/configuration.md", shown).unwrap();
    let mut defaults = NodeConfig::default();
    // Shown where the default depends on the machine.
    defaults.id.clone_from(&parsed.id);
    defaults.slots = parsed.slots;
    assert_eq!(parsed, defaults);
    every_field_is_shown(&parsed, shown, &[]);
}

/// Every field that `config` prints is a key in `shown`, apart from those `without` a value.
fn every_field_is_shown(config: &impl std::fmt::Debug, shown: &str, without: &[&str]) {
    let printed = format!("{config:#?}");
    let fields = printed
        .lines()
        .filter_map(|line| line.trim().split_once(": "));
    let fields: Vec<&str> = fields.map(|(name, _)| name).collect();
    assert!(fields.len() > 5, "{printed}");
    for field in fields.iter().filter(|field| !without.contains(field)) {
        let is_shown = |line: &str| {
            let line = line
                .trim_start_matches(['[', '#', ' '])
                .trim_end_matches(']');
            let key = line.split(" = ").next().unwrap_or_default();
            key.rsplit('.').next() == Some(field)
        };
        assert!(
            shown.lines().any(is_shown),
            "{field} is missing from the reference"
        );
    }
}
