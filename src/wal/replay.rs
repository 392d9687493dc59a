//! Reads what an earlier process left in a WAL directory, and leaves the directory so that a new segment
//! can follow.
//!
//! Files of a directory: `LOCK`, held by the engine that has the log open; `ID`, the log's id, which tells
//! it from every other wherever the directory is moved; `<20 digits>.wal`, the
//! segments, numbered without a gap; and `<20 digits>.released`, empty, in the place of a segment that
//! is needed no more while older ones still are. A marker makes the segment of its number void, so that
//! a crash between making it and removing the segment is harmless.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{
    WalEntry,
    record::{
        Found, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHead, check_segment_header,
        decode, end_mark, look, written_after_sync_of,
    },
    segments::Segment,
};
use crate::error::{Error, Result};

/// What an earlier process left behind.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    /// Its segments by number; all of them end with an end mark.
    pub segments: BTreeMap<u64, Segment>,
    /// Numbers of the markers.
    pub markers: BTreeSet<u64>,
    /// Number of the segment to be written next.
    pub next: u64,
}

/// Name of segment `number` in `dir`.
pub(super) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.wal"))
}

/// Name of the marker in the place of segment `number`.
pub(super) fn marker_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.released"))
}

/// Creates `dir` and takes its lock, which is held until the file is dropped.
///
/// # Errors
/// `Unavailable` when another engine holds it, or the directory cannot be made.
pub(super) fn lock(dir: &Path) -> Result<File> {
    let mut missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
    missing.reverse();
    for dir in missing
        .into_iter()
        .filter(|dir| !dir.as_os_str().is_empty())
    {
        match fs::create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created.map_err(|error| failed("create directory", dir, error))?,
        }
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_dir(parent.unwrap_or(Path::new(".")))?;
    }
    let path = dir.join("LOCK");
    let mut options = OpenOptions::new();
    let file = options.create(true).write(true).truncate(false).open(&path);
    let file = file.map_err(|error| failed("open", &path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(Error::unavailable(format!(
            "wal directory {} is in use by another engine",
            dir.display()
        ))),
        Err(fs::TryLockError::Error(error)) => Err(failed("lock", &path, error)),
    }
}

/// Passes every entry in `dir` to `replay`, in the order they were appended, and cuts a torn tail off.
///
/// # Errors
/// `Corrupt`, naming the file and the offset, when something is damaged, missing or of a newer version;
/// `Unavailable` when a file cannot be read; the error of `replay`.
pub(super) fn recover(
    dir: &Path,
    replay: &mut dyn FnMut(WalEntry) -> Result<()>,
) -> Result<Recovered> {
    let (numbers, markers) = list(dir)?;
    let mut recovered = Recovered {
        next: markers.last().map_or(1, |&number| number + 1),
        ..Recovered::default()
    };
    let mut previous = None;
    for &number in &numbers {
        if let Some(previous) = previous
            && let Some(missing) = (previous + 1..number).find(|number| !markers.contains(number))
        {
            let path = segment_path(dir, missing);
            return Err(Error::corrupt(format!(
                "wal segment {} is missing",
                path.display()
            )));
        }
        previous = Some(number);
        let segment = recover_segment(dir, number, Some(&number) == numbers.last(), replay)?;
        recovered.next = recovered.next.max(number + u64::from(segment.is_some()));
        recovered
            .segments
            .extend(segment.map(|segment| (number, segment)));
    }
    recovered.markers = markers;
    Ok(recovered)
}

/// Numbers of the segments and of the markers in `dir`. Removes segments that have a marker.
pub(super) fn list(dir: &Path) -> Result<(BTreeSet<u64>, BTreeSet<u64>)> {
    let (mut segments, mut markers) = (BTreeSet::new(), BTreeSet::new());
    let entries = fs::read_dir(dir).map_err(|error| failed("list", dir, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed("list", dir, error))?;
        let name = entry.file_name();
        let Some((stem, extension)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        let Some(number) = (stem.len() == 20).then(|| stem.parse().ok()).flatten() else {
            continue;
        };
        match extension {
            "wal" => segments.insert(number),
            "released" => markers.insert(number),
            _ => continue,
        };
    }
    for &number in markers.intersection(&segments) {
        remove(&segment_path(dir, number))?;
    }
    segments.retain(|number| !markers.contains(number));
    Ok((segments, markers))
}

/// Replays one segment; `None` when it was being created as the process died, and is gone now.
fn recover_segment(
    dir: &Path,
    number: u64,
    is_last: bool,
    replay: &mut dyn FnMut(WalEntry) -> Result<()>,
) -> Result<Option<Segment>> {
    let path = segment_path(dir, number);
    let bytes = fs::read(&path).map_err(|error| failed("read", &path, error))?;
    let corrupt = |offset: usize, what: &str| {
        let path = path.display();
        Error::corrupt(format!("wal segment {path} at offset {offset}: {what}"))
    };
    let head = check_segment_header(&bytes, number).map_err(|error| corrupt(8, error.message()))?;
    if head == SegmentHead::Bad {
        // The header is fsynced before the first record is written.
        if is_last && bytes.len() <= SEGMENT_HEADER_BYTES {
            remove(&path)?;
            return Ok(None);
        }
        return Err(corrupt(0, "no segment header"));
    }
    let mut segment = Segment::default();
    let mut offset = SEGMENT_HEADER_BYTES;
    loop {
        match look(&bytes, number, offset) {
            Found::Record(payload) => {
                let end = payload.end;
                let entry = decode(&bytes[payload])
                    .map_err(|error| error.context(corrupt(offset, "entry").message()))?;
                segment.note(entry.table, entry.seq);
                replay(entry)?;
                offset = end;
            }
            Found::EndMark => {
                let end = offset + RECORD_HEADER_BYTES;
                if end != bytes.len() {
                    return Err(corrupt(end, "something follows the end mark"));
                }
                segment.bytes = end as u64;
                return Ok(Some(segment));
            }
            Found::Nothing if !is_last => return Err(corrupt(offset, "end mark is missing")),
            Found::Bad(what) if !is_last => return Err(corrupt(offset, what)),
            Found::Bad(what) if let Some(later) = written_after_sync_of(&bytes, number, offset) => {
                let what = format!("{what}, but offset {later} was written later");
                return Err(corrupt(offset, &what));
            }
            Found::Bad(_) | Found::Nothing => break,
        }
    }
    let torn_bytes = bytes.len() - offset;
    if torn_bytes > 0 {
        tracing::warn!(segment = %path.display(), offset, torn_bytes, "cut a torn tail off the wal");
    }
    segment.bytes = seal(&path, number, &bytes[..offset])?;
    Ok(Some(segment))
}

/// Replaces the segment by its good `content` and an end mark, so that it may have a successor. Returns
/// its length.
///
/// It is written anew, not cut off in place: after a failed fsync the kernel may hold pages that look
/// written and never will be, and another fsync of the same file would confirm them.
pub(super) fn seal(path: &Path, number: u64, content: &[u8]) -> Result<u64> {
    let mark = end_mark(number, content.len() as u64);
    let staged = path.with_extension("tmp");
    let sealed = (|| {
        let mut file = File::create(&staged)?;
        file.write_all(content)?;
        file.write_all(&mark)?;
        file.sync_all()?;
        fs::rename(&staged, path)
    })();
    sealed.map_err(|error| failed("seal", path, error))?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))?;
    Ok((content.len() + mark.len()) as u64)
}

/// Removes a file; one that is not there counts as removed.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|error| failed("remove", path, error)),
    }
}

/// Makes the names in `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| failed("fsync directory", dir, error))
}

/// What failed, where, and why.
pub(super) fn failed(doing: &str, path: &Path, error: io::Error) -> Error {
    Error::unavailable(format!("wal: {doing} {}", path.display())).with_source(error)
}
