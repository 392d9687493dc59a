//! How much memory there is for tasks, where the configuration does not say: a share of what the control group that
//! the process is in allows, or of what the machine has. Linux only.

use std::{fs, path::Path};

use crate::config::Bytes;

/// What is left to the process itself is a quarter.
const SHARE: (u64, u64) = (3, 4);
/// Where nothing can be found out.
const UNKNOWN: Bytes = Bytes::mib(1024);
/// A node that has less is of no use.
const MIN: Bytes = Bytes::mib(64);

/// Memory for tasks, in bytes.
pub(super) fn found() -> Bytes {
    found_under(Path::new("/"))
}

/// The same by the files under `root`, which has `proc` and `sys`.
fn found_under(root: &Path) -> Bytes {
    let all = [group_limit(root), machine(root)];
    let Some(bytes) = all.into_iter().flatten().min() else {
        return UNKNOWN;
    };
    let (of, parts) = SHARE;
    Bytes(bytes / parts * of).max(MIN)
}

/// The least that the process's control group and those around it allow.
fn group_limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    // Version 2 has one line, `0::/path`; version 1 one for each controller, `7:memory:/path`.
    let paths = groups.lines().filter_map(|line| {
        let mut words = line.splitn(3, ':').skip(1);
        let (controllers, path) = (words.next()?, words.next()?);
        match controllers {
            "" => Some(("sys/fs/cgroup", "memory.max", path)),
            _ if controllers.split(',').any(|word| word == "memory") => {
                Some(("sys/fs/cgroup/memory", "memory.limit_in_bytes", path))
            }
            _ => None,
        }
    });
    let limits = paths.flat_map(|(mount, file, path)| {
        let mount = root.join(mount);
        let inner = mount.join(path.trim_start_matches('/'));
        let inside = inner.ancestors().filter(|dir| dir.starts_with(&mount));
        // A limit that is none is a word, or a number beyond all memory.
        let limits = inside.filter_map(|dir| number(&dir.join(file)));
        limits.min()
    });
    limits.min()
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn machine(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_with(files: &[(&str, &str)]) -> Bytes {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        found_under(root.path())
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\n");

    #[test]
    fn three_quarters_of_the_least_limit() {
        let of = |gib: u64| Bytes((gib << 30) / 4 * 3);
        assert_eq!(found_with(&[]), UNKNOWN);
        assert_eq!(found_with(&[MACHINE]), of(8));
        let two = ("proc/self/cgroup", "0::/pods/one\n");
        let limit = ("sys/fs/cgroup/pods/one/memory.max", "4294967296\n");
        assert_eq!(found_with(&[MACHINE, two, limit]), of(4));
        let around = ("sys/fs/cgroup/pods/memory.max", "2147483648\n");
        assert_eq!(found_with(&[MACHINE, two, limit, around]), of(2));
        let none = ("sys/fs/cgroup/pods/one/memory.max", "max\n");
        assert_eq!(found_with(&[MACHINE, two, none]), of(8));
        let one = ("proc/self/cgroup", "7:cpu,memory:/a\n3:pids:/a\n");
        let limit = (
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "1073741824\n",
        );
        assert_eq!(found_with(&[MACHINE, one, limit]), of(1));
        let none = (
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        assert_eq!(found_with(&[MACHINE, one, none]), of(8));
        let tiny = ("sys/fs/cgroup/pods/one/memory.max", "4096\n");
        assert_eq!(found_with(&[MACHINE, two, tiny]), MIN);
    }
}
