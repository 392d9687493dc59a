//! A log in files on a local disk, and the one thread that owns them.
//!
//! The thread writes a group (up to [`GROUP_BYTES_MAX`]) in one piece, fsyncs once, and answers all. A
//! full segment gets its end mark before the next one is created, so no group spans two segments.
//!
//! After a failed write or fsync nobody knows what the file's end looks like, and a second fsync must not
//! be believed: the kernel may have marked the pages clean and dropped them (Rebello et al., "Can
//! Applications Recover from fsync Failures?", USENIX ATC 2020). So the group fails, and before the next
//! one the segment is written anew, up to what was confirmed, and sealed; a new one follows. Until that
//! succeeds, as on a full disk, every append fails with the reason.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use tokio::sync::mpsc;

use super::{
    Wal, WalEntry,
    binding::{self, Binding},
    handle::{Append, Group, Message, Shared},
    record::{SEGMENT_HEADER_BYTES, end_mark, segment_header},
    replay::{self, Recovered, failed, marker_path, remove, seal, segment_path, sync_dir},
    segments::{Segment, Segments},
};
use crate::{
    config::WalConfig,
    error::{Error, Result},
    types::{Epoch, Seq, TableId},
};

/// The file of a segment, for tests that put another in its place.
#[cfg(test)]
pub(super) type SegmentFile = File;

/// Bytes that one fsync makes durable at most, unless a single entry is larger.
const GROUP_BYTES_MAX: usize = 4 << 20;

/// A log that nobody else can open. Dropping it lets others.
#[derive(Debug)]
pub struct WalLock {
    dir: PathBuf,
    id: String,
    binding: Option<Binding>,
    file: File,
}

impl WalLock {
    /// The log's id, made when its directory was; it goes where the directory goes.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The id of the root that it belongs to, if it was ever used.
    pub fn root(&self) -> Option<&str> {
        self.binding.as_ref().map(|binding| &binding.root[..])
    }

    /// Has it belong to the root `root`, whose engine with `epoch` takes it. What an engine before `since`
    /// left, since when the root has used no other log, was given up: it is removed.
    ///
    /// # Errors
    /// `Unavailable` when the directory cannot be changed.
    pub async fn bind(mut self, root: &str, epoch: Epoch, since: Epoch) -> Result<WalLock> {
        let root = root.to_owned();
        let binding = tokio::task::spawn_blocking(move || {
            let bound = Binding { root, epoch };
            binding::bind(&self.dir, &bound, since)?;
            self.binding = Some(bound);
            Ok(self)
        });
        let bound = binding.await;
        bound.map_err(|error| Error::internal("wal binding panicked").with_source(error))?
    }

    /// The log's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Wal {
    /// Takes the log in `dir`, which is created when it is missing, so that nobody else can; to be opened
    /// with [`Wal::open_local`]. `random` makes the id of a new log.
    ///
    /// # Errors
    /// `Unavailable` when another engine has it, or the directory cannot be made.
    pub async fn lock(dir: &Path, random: u128) -> Result<WalLock> {
        let dir = dir.to_path_buf();
        let locking = tokio::task::spawn_blocking(move || {
            let file = replay::lock(&dir)?;
            let id = binding::identify(&dir, random)?;
            let binding = binding::binding(&dir)?;
            Ok(WalLock {
                dir,
                id,
                binding,
                file,
            })
        });
        let locked = locking.await;
        locked.map_err(|error| Error::internal("wal lock panicked").with_source(error))?
    }

    /// Opens a log on a local disk: passes every entry that was not released to `replay`, in the order they
    /// were appended, then starts a new segment. `replay` runs where blocking is allowed.
    ///
    /// # Errors
    /// `Unavailable` when a file cannot be read or written; `Corrupt`, naming the segment file and the
    /// offset, when the log is damaged, incomplete or of a newer version; the first error of `replay`.
    pub async fn open_local(
        lock: WalLock,
        config: &WalConfig,
        mut replay: impl FnMut(WalEntry) -> Result<()> + Send + 'static,
    ) -> Result<Wal> {
        let segment_bytes = config.segment_bytes.0;
        let place = lock.dir.display().to_string();
        let (wal, inbox, shared) = Wal::new(place, config.bytes_max.0);
        let begin = move || {
            let recovered = replay::recover(&lock.dir, &mut replay)?;
            let writer = Writer::start(lock, segment_bytes, recovered, shared)?;
            let thread = thread::Builder::new().name("siltstone-wal".into());
            let spawned = thread.spawn(move || writer.run(inbox));
            spawned
                .map(drop)
                .map_err(|error| Error::unavailable("wal thread cannot start").with_source(error))
        };
        let begun = tokio::task::spawn_blocking(begin).await;
        begun.map_err(|error| Error::internal("wal replay panicked").with_source(error))??;
        Ok(wal)
    }
}

/// What the end of the newest segment looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    /// A group can follow.
    Open,
    /// A write or fsync failed: anything may follow what was confirmed.
    Unknown,
    /// It has its end mark, and its successor could not be created yet.
    Sealed,
}

/// The thread's state.
struct Writer {
    dir: PathBuf,
    segment_bytes: u64,
    /// Segment being written.
    file: File,
    number: u64,
    tail: Tail,
    /// All segments; the last is the one being written.
    segments: Segments,
    markers: BTreeSet<u64>,
    /// Records of the group being written.
    buffer: Vec<u8>,
    shared: Arc<Shared>,
    _lock: File,
}

impl Writer {
    fn start(
        lock: WalLock,
        segment_bytes: u64,
        recovered: Recovered,
        shared: Arc<Shared>,
    ) -> Result<Self> {
        let file = create_segment(&lock.dir, recovered.next)?;
        let mut writer = Self {
            dir: lock.dir,
            segment_bytes,
            file,
            number: recovered.next,
            tail: Tail::Open,
            segments: recovered.segments.into(),
            markers: recovered.markers,
            buffer: Vec::new(),
            shared,
            _lock: lock.file,
        };
        writer.segments.insert(writer.number, new_segment());
        writer.report(0, 0);
        Ok(writer)
    }

    fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        let group_bytes_max = GROUP_BYTES_MAX.min(self.segment_bytes as usize);
        let mut close = None;
        while close.is_none() {
            let mut group = Group::default();
            let Some(first) = inbox.blocking_recv() else {
                break;
            };
            group.add(first);
            group.fill(&mut inbox, group_bytes_max);
            #[cfg(test)]
            if let Some(file) = group.replace.take() {
                self.file = file;
            }
            self.commit(group.appends);
            self.release(&group.releases);
            close = group.close;
        }
        inbox.close();
        let ended = self.end();
        let ended = ended.map(|()| self.segments.oldest_needed().is_some());
        // The directory's lock goes before the answer.
        drop(self);
        if let Some(answer) = close {
            drop(answer.send(ended));
        }
    }

    /// Makes a group durable and answers it.
    fn commit(&mut self, appends: Vec<Append>) {
        if appends.is_empty() {
            return;
        }
        let result = self.write(&appends);
        if let Err(error) = &result {
            tracing::error!(%error, "wal entries could not be written");
        }
        self.shared.trouble(result.as_ref().err());
        Group::answer(appends, &result);
    }

    fn write(&mut self, appends: &[Append]) -> Result<()> {
        if self.tail != Tail::Open {
            self.repair()?;
        }
        let bytes: usize = appends.iter().map(|a| a.payload.record_bytes()).sum();
        let filled = self.active().bytes;
        if filled > SEGMENT_HEADER_BYTES as u64 && filled + bytes as u64 > self.segment_bytes {
            self.write_end_mark()?;
            self.begin_segment()?;
        }
        let group = self.active().bytes;
        self.buffer.clear();
        self.buffer.shrink_to(2 * GROUP_BYTES_MAX);
        for append in appends {
            append
                .payload
                .append_to(&mut self.buffer, self.number, group);
        }
        self.tail = Tail::Unknown;
        let written = self.file.write_all(&self.buffer);
        written
            .and_then(|()| self.file.sync_data())
            .map_err(|error| failed("append to", &segment_path(&self.dir, self.number), error))?;
        self.tail = Tail::Open;
        let active = self.active();
        active.bytes += bytes as u64;
        for append in appends {
            active.note(append.table, append.seq);
        }
        self.report(appends.len() as u64, 1);
        Ok(())
    }

    /// Keeps what was confirmed of the newest segment, and begins another.
    fn repair(&mut self) -> Result<()> {
        if self.tail == Tail::Unknown {
            let path = segment_path(&self.dir, self.number);
            let confirmed = self.active().bytes as usize;
            let content = fs::read(&path).map_err(|error| failed("read", &path, error))?;
            let content = content.get(..confirmed).ok_or_else(|| {
                let (path, bytes) = (path.display(), content.len());
                let what = format!("{bytes} bytes, but {confirmed} were fsynced");
                Error::corrupt(format!("wal segment {path}: {what}"))
            })?;
            self.active().bytes = seal(&path, self.number, content)?;
            self.tail = Tail::Sealed;
        }
        self.begin_segment()
    }

    /// Creates the successor of a sealed segment.
    fn begin_segment(&mut self) -> Result<()> {
        let next = self.number + 1;
        // What an attempt before may have left.
        remove(&segment_path(&self.dir, next))?;
        self.file = create_segment(&self.dir, next)?;
        self.number = next;
        self.tail = Tail::Open;
        self.segments.insert(self.number, new_segment());
        tracing::debug!(number = self.number, "began a wal segment");
        Ok(())
    }

    fn write_end_mark(&mut self) -> Result<()> {
        let mark = end_mark(self.number, self.active().bytes);
        self.tail = Tail::Unknown;
        let written = self.file.write_all(&mark);
        written
            .and_then(|()| self.file.sync_data())
            .map_err(|error| failed("end", &segment_path(&self.dir, self.number), error))?;
        self.active().bytes += mark.len() as u64;
        self.tail = Tail::Sealed;
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        match self.tail {
            Tail::Open => self.write_end_mark(),
            Tail::Unknown => self.repair(),
            Tail::Sealed => Ok(()),
        }
    }

    fn release(&mut self, releases: &[(TableId, Seq)]) {
        if releases.is_empty() {
            return;
        }
        self.segments.release(releases);
        if let Err(error) = self.delete_released() {
            tracing::warn!(%error, "released wal segments stay for now");
        }
        self.segments.forget_releases();
        self.report(0, 0);
    }

    /// Deletes segments none of whose entries are needed. Each is first replaced by a marker, so that a
    /// segment that is missing is told from one that was deleted, whichever deletions a crash undoes.
    fn delete_released(&mut self) -> Result<()> {
        let mut dead = self.segments.dead();
        dead.retain(|number| *number != self.number);
        if dead.is_empty() {
            return Ok(());
        }
        for &number in &dead {
            let path = marker_path(&self.dir, number);
            File::create(&path).map_err(|error| failed("create", &path, error))?;
            self.markers.insert(number);
        }
        sync_dir(&self.dir)?;
        for &number in &dead {
            remove(&segment_path(&self.dir, number))?;
            self.segments.remove(number);
        }
        sync_dir(&self.dir)?;
        tracing::debug!(segments = ?dead, "deleted released wal segments");
        // Markers below the oldest segment stand between nothing and nothing.
        let oldest = self.segments.first();
        while let Some(&marker) = self.markers.first()
            && oldest.is_none_or(|oldest| marker < oldest)
        {
            remove(&marker_path(&self.dir, marker))?;
            self.markers.remove(&marker);
        }
        Ok(())
    }

    fn active(&mut self) -> &mut Segment {
        self.segments.at(self.number)
    }

    fn report(&self, appends: u64, syncs: u64) {
        self.shared.report(&self.segments, appends, syncs);
    }
}

fn new_segment() -> Segment {
    Segment {
        bytes: SEGMENT_HEADER_BYTES as u64,
        ..Segment::default()
    }
}

/// Creates segment `number`, durable before its first record.
fn create_segment(dir: &Path, number: u64) -> Result<File> {
    let path = segment_path(dir, number);
    let created = (|| {
        let mut file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(&path)?;
        file.write_all(&segment_header(number))?;
        file.sync_all()?;
        Ok(file)
    })();
    let file = created.map_err(|error| failed("create", &path, error))?;
    sync_dir(dir)?;
    Ok(file)
}
