//! Configurations: any text, and any value of a variable. What is accepted must be valid.
#![no_main]

use libfuzzer_sys::fuzz_target;
use siltstone::config::{EngineConfig, MetaConfig, NodeConfig};

fuzz_target!(|text: &str| {
    if let Ok(config) = EngineConfig::from_toml_and_env("fuzz", text, []) {
        config.validate().expect("it was accepted");
    }
    let variable = (
        "SILTSTONE_STORE__REQUEST_TIMEOUT".to_owned(),
        text.to_owned(),
    );
    let root = "root = 'memory:///'\nwal.mode = 'none'";
    if let Ok(config) = EngineConfig::from_toml_and_env("fuzz", root, [variable]) {
        config.validate().expect("it was accepted");
    }
    let _ = MetaConfig::from_toml("fuzz", text);
    let _ = NodeConfig::from_toml("fuzz", text);
});
