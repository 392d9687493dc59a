//! Compiles the protocol with protox, so that no protoc is needed.

use std::{error::Error, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let mut files: Vec<_> = fs::read_dir("proto/siltstone/v1")?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "proto")
    });
    files.sort();
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    println!("cargo::rerun-if-changed=proto/build.rs");
    println!("cargo::rerun-if-changed=proto/siltstone/v1");
    let descriptors = protox::compile(&files, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
