//! Compiles the protocol with protox, so that no protoc is needed.

use std::{env, error::Error, fs, path::PathBuf};

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
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(&files)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(
        out.join("siltstone.v1.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    let descriptors = compiler.file_descriptor_set();
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
