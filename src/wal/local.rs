//! The handle on the log, and the one thread that owns its files.
//!
//! 1. `append` encodes the entry in the caller, and queues it.
//! 2. The thread takes everything queued (up to [`GROUP_BYTES_MAX`]), writes it in one piece, fsyncs
//!    once, and answers all. What arrives meanwhile is the next group: the slower the disk, the larger
//!    the groups.
//! 3. A full segment gets its end mark before the next one is created, so no group spans two segments.
//!
//! After a failed write or fsync the log is poisoned: every later append answers the same error. A
//! second fsync must not be believed: the kernel may have marked the pages clean and dropped them
//! (Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020). Opening the log
//! again reads what the disk really has.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{
    WalEntry, WalStats,
    record::{Payload, SEGMENT_HEADER_BYTES, end_mark, segment_header},
    replay::{self, Recovered, Segment, failed, marker_path, remove, segment_path, sync_dir},
};
use crate::{
    error::{Error, Result},
    types::{Seq, TableId},
};

/// Bytes that one fsync makes durable at most, unless a single entry is larger.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// Bytes that wait for the thread at most; appends beyond them wait before they are queued.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Unit in which queued bytes are counted.
const PERMIT_BYTES: usize = 1 << 10;

/// The write-ahead log of one engine. A handle: cheap to clone. When the last handle is dropped without
/// [`close`](Self::close), the thread writes what is queued and ends, a moment later.
#[derive(Clone, Debug)]
pub struct LocalWal {
    dir: Arc<Path>,
    queue: mpsc::UnboundedSender<Message>,
    /// Room in the queue.
    room: Arc<Semaphore>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stats: WalStats,
    /// The first failed write or fsync.
    poison: Option<Error>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn check(&self) -> Result<()> {
        self.lock().poison.clone().map_or(Ok(()), Err)
    }
}

#[derive(Debug)]
enum Message {
    Append(Append),
    Release(TableId, Seq),
    Close(oneshot::Sender<Result<()>>),
    /// Has the thread write to another file, for tests of what follows a failure.
    #[cfg(test)]
    Replace(File),
}

#[derive(Debug)]
struct Append {
    table: TableId,
    seq: Seq,
    payload: Payload,
    answer: oneshot::Sender<Result<()>>,
    _room: OwnedSemaphorePermit,
}

/// A log that nobody else can open. Dropping it lets others.
#[derive(Debug)]
pub struct WalLock {
    dir: PathBuf,
    file: File,
}

impl LocalWal {
    /// Opens the log in `dir`, which is created when it is missing: passes every entry that was not
    /// released to `replay`, in the order they were appended, then starts a new segment.
    /// `segment_bytes` is the size at which a segment ends. `replay` runs where blocking is allowed.
    ///
    /// # Errors
    /// `Unavailable` when another engine has it open, or a file cannot be read or written; `Corrupt`,
    /// naming the segment file and the offset, when the log is damaged, incomplete or of a newer
    /// version; the first error of `replay`.
    pub async fn open(
        dir: &Path,
        segment_bytes: u64,
        replay: impl FnMut(WalEntry) -> Result<()> + Send + 'static,
    ) -> Result<LocalWal> {
        let lock = Self::lock(dir).await?;
        Self::open_locked(lock, segment_bytes, replay).await
    }

    /// Takes the log in `dir`, which is created when it is missing, so that nobody else can; to be opened
    /// later with [`LocalWal::open_locked`].
    ///
    /// # Errors
    /// `Unavailable` when another engine has it, or the directory cannot be made.
    pub async fn lock(dir: &Path) -> Result<WalLock> {
        let dir = dir.to_path_buf();
        let locking = tokio::task::spawn_blocking(move || {
            let file = replay::lock(&dir)?;
            Ok(WalLock { dir, file })
        });
        let locked = locking.await;
        locked.map_err(|error| Error::internal("wal lock panicked").with_source(error))?
    }

    /// Opens a log that was locked. As [`LocalWal::open`] in all else.
    pub async fn open_locked(
        lock: WalLock,
        segment_bytes: u64,
        mut replay: impl FnMut(WalEntry) -> Result<()> + Send + 'static,
    ) -> Result<LocalWal> {
        let WalLock { dir, file: lock } = lock;
        let dir: Arc<Path> = dir.into();
        let shared = Arc::<Shared>::default();
        let (queue, inbox) = mpsc::unbounded_channel();
        let begin = {
            let (dir, shared) = (dir.to_path_buf(), shared.clone());
            move || {
                let recovered = replay::recover(&dir, &mut replay)?;
                let writer = Writer::start(dir, segment_bytes, lock, recovered, shared)?;
                let thread = thread::Builder::new().name("siltstone-wal".into());
                let spawned = thread.spawn(move || writer.run(inbox));
                spawned.map(drop).map_err(|error| {
                    Error::unavailable("wal thread cannot start").with_source(error)
                })
            }
        };
        let begun = tokio::task::spawn_blocking(begin).await;
        begun.map_err(|error| Error::internal("wal replay panicked").with_source(error))??;
        Ok(Self {
            dir,
            queue,
            room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX / PERMIT_BYTES)),
            shared,
        })
    }

    /// Appends an entry; returns once it is fsynced, together with its neighbours. When the future is
    /// dropped before the entry is queued nothing is appended, afterwards the entry takes effect all the
    /// same; never a part of it.
    ///
    /// # Errors
    /// `Unavailable` after a failed write or fsync, of this entry or of an earlier one: the log stays
    /// like that until it is opened anew, and the entry may or may not be replayed then. `Closed` after
    /// [`close`](Self::close). `TooLarge` when the entry takes 4 GiB.
    pub async fn append(&self, entry: WalEntry) -> Result<()> {
        self.shared.check()?;
        let payload = Payload::encode(&entry)?;
        let permits = payload.record_bytes().min(QUEUE_BYTES_MAX) / PERMIT_BYTES + 1;
        let permits = permits.min(QUEUE_BYTES_MAX / PERMIT_BYTES) as u32;
        let room = self.room.clone().acquire_many_owned(permits).await;
        let (answer, answered) = oneshot::channel();
        let append = Append {
            table: entry.table,
            seq: entry.seq,
            payload,
            answer,
            _room: room.map_err(|_| self.closed())?,
        };
        self.queue
            .send(Message::Append(append))
            .map_err(|_| self.closed())?;
        answered.await.map_err(|_| self.closed())?
    }

    /// Every entry of `table` up to `seq` is in SSTs: segments that hold nothing else are deleted, soon.
    /// For a table that was dropped `seq` is `Seq(u64::MAX)`. The segment being written stays. A failure
    /// to delete is traced, and made up for by the next release.
    pub fn release(&self, table: TableId, seq: Seq) {
        // A closed log keeps its segments; they are replayed and released again.
        drop(self.queue.send(Message::Release(table, seq)));
    }

    /// What the log holds, and has done since it was opened.
    pub fn stats(&self) -> WalStats {
        self.shared.lock().stats
    }

    /// Waits for what is queued, ends the segment, and gives the directory up. Closing again does
    /// nothing.
    ///
    /// # Errors
    /// `Unavailable` when the log is poisoned; it is closed nevertheless.
    pub async fn close(&self) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        if self.queue.send(Message::Close(answer)).is_err() {
            return Ok(());
        }
        // Dropped unanswered: another close was faster.
        answered.await.unwrap_or(Ok(()))
    }

    fn closed(&self) -> Error {
        let poison = self.shared.lock().poison.clone();
        poison.unwrap_or_else(|| Error::closed(format!("wal {} is closed", self.dir.display())))
    }

    /// Has the thread write to `file` from now on.
    #[cfg(test)]
    pub(super) fn replace_file(&self, file: File) {
        self.queue.send(Message::Replace(file)).unwrap();
    }
}

/// The thread's state.
struct Writer {
    dir: PathBuf,
    segment_bytes: u64,
    /// Segment being written.
    file: File,
    number: u64,
    /// All segments; the last is the one being written.
    segments: BTreeMap<u64, Segment>,
    markers: BTreeSet<u64>,
    /// Up to where each table's entries are needed no more.
    released: HashMap<TableId, Seq>,
    /// Records of the group being written.
    buffer: Vec<u8>,
    shared: Arc<Shared>,
    _lock: File,
}

/// What was taken from the queue at once.
#[derive(Default)]
struct Group {
    appends: Vec<Append>,
    bytes: usize,
    releases: Vec<(TableId, Seq)>,
    close: Option<oneshot::Sender<Result<()>>>,
    #[cfg(test)]
    replace: Option<File>,
}

impl Group {
    fn add(&mut self, message: Message) {
        match message {
            Message::Append(append) => {
                self.bytes += append.payload.record_bytes();
                self.appends.push(append);
            }
            Message::Release(table, seq) => self.releases.push((table, seq)),
            Message::Close(answer) => self.close = Some(answer),
            #[cfg(test)]
            Message::Replace(file) => self.replace = Some(file),
        }
    }
}

impl Writer {
    fn start(
        dir: PathBuf,
        segment_bytes: u64,
        lock: File,
        recovered: Recovered,
        shared: Arc<Shared>,
    ) -> Result<Self> {
        let file = create_segment(&dir, recovered.next)?;
        let mut writer = Self {
            dir,
            segment_bytes,
            file,
            number: recovered.next,
            segments: recovered.segments,
            markers: recovered.markers,
            released: HashMap::new(),
            buffer: Vec::new(),
            shared,
            _lock: lock,
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
            while group.bytes < group_bytes_max && group.close.is_none() {
                match inbox.try_recv() {
                    Ok(message) => group.add(message),
                    Err(_) => break,
                }
            }
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
        let poison = self.shared.lock().poison.clone();
        let result = match poison {
            Some(error) => Err(error),
            None => self.write(&appends).inspect_err(|error| self.poison(error)),
        };
        for append in appends {
            // A caller that has gone needs no answer.
            drop(append.answer.send(result.clone()));
        }
    }

    fn write(&mut self, appends: &[Append]) -> Result<()> {
        let bytes: usize = appends.iter().map(|a| a.payload.record_bytes()).sum();
        let filled = self.active().bytes;
        if filled > SEGMENT_HEADER_BYTES as u64 && filled + bytes as u64 > self.segment_bytes {
            self.rotate()?;
        }
        let group = self.active().bytes;
        self.buffer.clear();
        self.buffer.shrink_to(2 * GROUP_BYTES_MAX);
        for append in appends {
            append
                .payload
                .append_to(&mut self.buffer, self.number, group);
        }
        let written = self.file.write_all(&self.buffer);
        written
            .and_then(|()| self.file.sync_data())
            .map_err(|error| failed("append to", &segment_path(&self.dir, self.number), error))?;
        let active = self.active();
        active.bytes += bytes as u64;
        for append in appends {
            active.note(append.table, append.seq);
        }
        self.report(appends.len() as u64, 1);
        Ok(())
    }

    /// Ends the segment and begins the next.
    fn rotate(&mut self) -> Result<()> {
        self.write_end_mark()?;
        self.number += 1;
        self.file = create_segment(&self.dir, self.number)?;
        self.segments.insert(self.number, new_segment());
        tracing::debug!(number = self.number, "began a wal segment");
        Ok(())
    }

    fn write_end_mark(&mut self) -> Result<()> {
        let mark = end_mark(self.number, self.active().bytes);
        let written = self.file.write_all(&mark);
        written
            .and_then(|()| self.file.sync_data())
            .map_err(|error| failed("end", &segment_path(&self.dir, self.number), error))?;
        self.active().bytes += mark.len() as u64;
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.shared.check()?;
        self.write_end_mark()
            .inspect_err(|error| self.poison(error))
    }

    fn release(&mut self, releases: &[(TableId, Seq)]) {
        if releases.is_empty() {
            return;
        }
        for &(table, seq) in releases {
            let released = self.released.entry(table).or_default();
            *released = seq.max(*released);
        }
        if let Err(error) = self.delete_released() {
            tracing::warn!(%error, "released wal segments stay for now");
        }
        let segments = &self.segments;
        // A dropped table is remembered: an append of it may still be on its way.
        self.released.retain(|table, seq| {
            *seq == Seq(u64::MAX) || segments.values().any(|s| s.seqs.contains_key(table))
        });
        self.report(0, 0);
    }

    /// Deletes segments none of whose entries are needed. Each is first replaced by a marker, so that a
    /// segment that is missing is told from one that was deleted, whichever deletions a crash undoes.
    fn delete_released(&mut self) -> Result<()> {
        let released = &self.released;
        let is_needed = |segment: &Segment| {
            let mut seqs = segment.seqs.iter();
            seqs.any(|(table, seq)| released.get(table).is_none_or(|released| seq > released))
        };
        let dead: Vec<u64> = self
            .segments
            .iter()
            .filter(|(number, segment)| **number != self.number && !is_needed(segment))
            .map(|(&number, _)| number)
            .collect();
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
            self.segments.remove(&number);
        }
        sync_dir(&self.dir)?;
        tracing::debug!(segments = ?dead, "deleted released wal segments");
        // Markers below the oldest segment stand between nothing and nothing.
        let oldest = self.segments.keys().next().copied();
        while let Some(&marker) = self.markers.first()
            && oldest.is_none_or(|oldest| marker < oldest)
        {
            remove(&marker_path(&self.dir, marker))?;
            self.markers.remove(&marker);
        }
        Ok(())
    }

    fn active(&mut self) -> &mut Segment {
        self.segments.entry(self.number).or_default()
    }

    fn poison(&self, error: &Error) {
        tracing::error!(%error, "the wal takes no more entries until it is opened anew");
        let mut state = self.shared.lock();
        state.poison.get_or_insert_with(|| error.clone());
    }

    fn report(&self, appends: u64, syncs: u64) {
        let mut state = self.shared.lock();
        state.stats.appends += appends;
        state.stats.syncs += syncs;
        state.stats.segments = self.segments.len() as u64;
        state.stats.bytes = self.segments.values().map(|segment| segment.bytes).sum();
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
