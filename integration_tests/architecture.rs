//! Checks the shape of the code itself: who may import whom, and what each part may touch. The
//! tables are the architecture; widening one is a decision to review.
//!
//! It reads text: paths through `super::super::` and imports made by macros escape it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// `(path, modules it may import)`, most specific path first. `error`, `types` and `config` are
/// open to all; a path not listed may import nothing else. `proto` holds generated code and its
/// conversions: only codecs and `rpc` see it. `compose` puts the parts together, as an engine's
/// configuration says; `cli` is what the binaries share.
#[rustfmt::skip]
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("compaction/planner", &["manifest"]),
    ("compaction/codec",   &["proto"]),
    ("manifest/codec",     &["proto"]),
    ("meta/codec",         &["proto", "compaction"]),
    ("store",      &["clock"]),
    ("wal",        &["clock", "store", "threads"]),
    ("memtable",   &[]),
    ("merge",      &[]),
    ("sst",        &["store", "threads"]),
    ("manifest",   &["clock", "store", "threads"]),
    ("compaction", &["clock", "store", "sst", "merge", "manifest", "threads"]),
    ("gc",         &["clock", "store", "manifest"]),
    ("verify",     &["store", "manifest", "sst", "compaction", "threads"]),
    ("engine",     &["clock", "store", "wal", "memtable", "sst", "merge", "manifest", "compaction", "gc", "metrics", "threads"]),
    ("meta",       &["clock", "store", "compaction", "metrics"]),
    ("node",       &["clock", "store", "sst", "compaction", "metrics", "threads"]),
    ("rpc",        &["clock", "compaction", "meta", "node", "proto"]),
    ("cli",        &["clock", "meta", "node", "rpc"]),
    ("compose",    &["clock", "store", "engine", "compaction", "meta", "node", "rpc"]),
];

const OPEN_TO_ALL: &[&str] = &["error", "types", "config"];

/// `(text, the only paths that may contain it)`.
#[rustfmt::skip]
const CONFINED: &[(&str, &[&str])] = &[
    ("object_store::",  &["store"]),
    // The demo reads its source, a Parquet file, and writes none. `parquet_files` is for plain Parquet files, which
    // `import` reads and `export` writes: they are no SSTs.
    ("parquet::",       &["sst", "bin/siltstone/flights", "bin/siltstone/parquet_files"]),
    ("foyer::",         &["sst/cache"]),
    ("tonic::",         &["rpc", "proto"]),
    ("prost::",         &["rpc", "proto"]),
    ("SystemTime::now", &["clock"]),
    ("Instant::now",    &["clock"]),
    // Work that blocks takes its turn in a simulation. Local files and the command line are not simulated.
    ("spawn_blocking",  &["threads", "wal/local", "store", "bin"]),
    (".block_on(",      &["threads", "cli"]),
    ("thread::Builder", &["threads", "wal/local"]),
    // The local WAL is files, written by one and read back by the other; the local store makes its
    // files survive a power cut.
    // `golden` compares with files, in unit tests only.
    // `wal/binding` keeps a file beside the segments that ties them to their root.
    ("std::fs",         &["bin", "cli", "golden", "wal/local", "wal/replay", "wal/binding", "store/local", "node/memory"]),
];

/// `(path, text it may not contain)`: the parts that must stay pure.
#[rustfmt::skip]
const PURE: &[(&str, &[&str])] = &[
    ("types",              &["async ", "tokio::"]),
    ("merge",              &["tokio::"]),
    ("manifest/version",   &["async ", "tokio::"]),
    ("compaction/planner", &["async ", "tokio::", "rand::"]),
    ("compaction/split",   &["async ", "tokio::", "rand::"]),
    ("compaction/chain",   &["async ", "tokio::", "rand::"]),
    ("compaction/progress", &["async ", "tokio::", "rand::"]),
    ("compaction/proof",   &["async ", "tokio::", "rand::"]),
    ("compaction/cost",    &["async ", "tokio::", "rand::"]),
    ("compaction/share",   &["async ", "tokio::", "rand::"]),
    ("gc/candidates",      &["async ", "tokio::"]),
    ("gc/verdict",         &["async ", "tokio::"]),
    ("meta/state",         &["async ", "tokio::", "rand::"]),
    ("meta/placement",     &["async ", "tokio::", "rand::"]),
];

#[test]
fn imports_follow_the_table() {
    check_sources(|path, code| {
        let module = path.split('/').next().unwrap_or_default();
        if matches!(module, "lib" | "bin") {
            return vec![];
        }
        let allowed = MAY_IMPORT.iter().find(|(prefix, _)| within(path, prefix));
        let allowed = allowed.map_or(&[][..], |(_, modules)| *modules);
        let mut imports = members(code, "crate::");
        imports.retain(|import| {
            let import = import.as_str();
            import != module && !OPEN_TO_ALL.contains(&import) && !allowed.contains(&import)
        });
        imports
            .into_iter()
            .map(|import| format!("may not import `{import}`"))
            .collect()
    });
}

#[test]
fn effects_stay_where_they_belong() {
    check_sources(|path, code| {
        let mut findings = Vec::new();
        // `use std::{fs, …}` is `std::fs` too.
        let std_fs = members(code, "std::").contains("fs");
        for (text, homes) in CONFINED {
            let used = code.contains(text) || (*text == "std::fs" && std_fs);
            if used && !homes.iter().any(|home| within(path, home)) {
                findings.push(format!("uses `{text}`, which belongs to {homes:?}"));
            }
        }
        for (_, banned) in PURE.iter().filter(|(prefix, _)| within(path, prefix)) {
            for text in banned.iter().filter(|text| code.contains(**text)) {
                findings.push(format!("must stay free of `{text}`"));
            }
        }
        findings
    });
}

/// Of branches that are ready together the first one is taken, and not one by chance: what a simulation does follows
/// from its seed alone.
#[test]
fn no_select_is_left_to_chance() {
    check_sources(|path, code| {
        if ["rpc", "cli", "bin"]
            .iter()
            .any(|other| within(path, other))
        {
            return vec![];
        }
        let selects = code.split("select! {").skip(1);
        let by_chance = selects.filter(|select| !select.trim_start().starts_with("biased;"));
        by_chance
            .map(|_| "has a `select!` without `biased;`".to_owned())
            .collect()
    });
}

#[test]
fn every_file_is_introduced() {
    let folders = ["src", "integration_tests", "examples", "benches", "proto"];
    let files = folders.iter().flat_map(|dir| rust_files(Path::new(dir)));
    let silent: Vec<_> = files
        .filter(|file| !fs::read_to_string(file).unwrap().starts_with("//!"))
        .collect();
    assert!(silent.is_empty(), "do not open with `//!`: {silent:?}");
}

#[test]
fn nothing_is_left_unfinished() {
    let unfinished = [
        "todo!(",
        "unimplemented!(",
        "under construction",
        "placeholder",
    ];
    check_sources(|_, code| {
        let found = unfinished.iter().filter(|text| code.contains(**text));
        found.map(|text| format!("contains `{text}`")).collect()
    });
}

/// Runs `check` over every file of `src/` and fails, listing all it found. Comments are left out, and
/// so are unit tests: they may use whatever tests them best.
fn check_sources(check: impl Fn(&str, &str) -> Vec<String>) {
    let mut findings = Vec::new();
    for file in rust_files(Path::new("src")) {
        let source = fs::read_to_string(&file).unwrap();
        let source = source
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let code = source
            .lines()
            .filter(is_code)
            .collect::<Vec<_>>()
            .join("\n");
        let path = file.strip_prefix("src").unwrap().with_extension("");
        let path = path.display().to_string();
        if path
            .split('/')
            .any(|part| part == "tests" || part.ends_with("_tests"))
        {
            continue;
        }
        findings.extend(
            check(&path, &code)
                .into_iter()
                .map(|f| format!("src/{path}.rs {f}")),
        );
    }
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

fn within(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What is named right after `root`, in both `root::a` and `root::{a, b}` form.
fn members(code: &str, root: &str) -> BTreeSet<String> {
    let is_ident = |c: &char| c.is_alphanumeric() || *c == '_';
    let ident = |text: &str| text.chars().take_while(is_ident).collect::<String>();
    let mut found = BTreeSet::new();
    for tail in code.split(root).skip(1) {
        let Some(group) = tail.strip_prefix('{') else {
            found.insert(ident(tail));
            continue;
        };
        let (mut depth, mut at_item) = (1, true);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => at_item = true,
                c if at_item && !c.is_whitespace() => {
                    found.insert(ident(&group[at..]));
                    at_item = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
