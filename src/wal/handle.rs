//! The handle on a log, and what it sends to the log's one writer.
//!
//! 1. `queue` encodes the entry in the caller, waits for room, and queues it. Where a large entry must not
//!    hold the caller up, `Encoded::new` and `queue_encoded` are the two halves.
//! 2. The writer takes everything queued, makes it durable at once, and answers all. What arrives
//!    meanwhile is the next group: the slower the log, the larger the groups.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{WalEntry, WalStats, record::Payload, segments::Segments};
use crate::{
    error::{Error, Result},
    types::{Seq, TableId},
};

/// Bytes that wait for the writer at most; entries beyond them wait before they are queued.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Unit in which queued bytes are counted.
const PERMIT_BYTES: usize = 1 << 10;

/// The write-ahead log of one engine. A handle: cheap to clone. When the last handle is dropped without
/// [`close`](Self::close), the writer makes durable what is queued and ends, a moment later.
#[derive(Clone, Debug)]
pub struct Wal {
    place: Arc<str>,
    queue: mpsc::UnboundedSender<Message>,
    /// Room in the queue.
    room: Arc<Semaphore>,
    shared: Arc<Shared>,
}

/// What handles and writer share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Bytes of the log above which the tables that hold it back are told.
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct State {
    stats: WalStats,
    /// Why nothing can be appended any more.
    failure: Option<Error>,
    /// Why appends are delayed, or failed last.
    trouble: Option<String>,
    /// Tables whose entries keep the log longer than it should be.
    pins: Vec<TableId>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// # Errors
    /// Why nothing can be appended any more.
    pub fn check(&self) -> Result<()> {
        self.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// From now on every append fails with `error`.
    pub fn fail(&self, error: &Error) {
        tracing::error!(%error, "the wal takes no more entries");
        self.lock().failure.get_or_insert_with(|| error.clone());
    }

    /// Says why appends are delayed or fail, or that they are not.
    pub fn trouble(&self, trouble: Option<&Error>) {
        self.lock().trouble = trouble.map(Error::to_string);
    }

    /// Counts what was appended, and what the log holds now.
    pub fn report(&self, segments: &Segments, appends: u64, syncs: u64) {
        let bytes = segments.bytes();
        let pins = match bytes > self.bytes_max {
            true => segments.pins(),
            false => Vec::new(),
        };
        let mut state = self.lock();
        state.stats.appends += appends;
        state.stats.syncs += syncs;
        state.stats.segments = segments.len();
        state.stats.bytes = bytes;
        state.pins = pins;
    }
}

/// What the writer is asked for.
#[derive(Debug)]
pub(super) enum Message {
    Append(Append),
    Release(TableId, Seq),
    /// Answered with whether entries are left that somebody needs.
    Close(oneshot::Sender<Result<bool>>),
    /// Has the writer write to another file, for tests of what follows a failure.
    #[cfg(test)]
    Replace(super::local::SegmentFile),
}

/// An entry that waits for the writer.
#[derive(Debug)]
pub(super) struct Append {
    pub table: TableId,
    pub seq: Seq,
    pub payload: Payload,
    answer: oneshot::Sender<Result<()>>,
    _room: OwnedSemaphorePermit,
}

/// What was taken from the queue at once.
#[derive(Default)]
pub(super) struct Group {
    pub appends: Vec<Append>,
    /// Bytes of their payloads.
    pub bytes: usize,
    pub releases: Vec<(TableId, Seq)>,
    pub close: Option<oneshot::Sender<Result<bool>>>,
    #[cfg(test)]
    pub replace: Option<super::local::SegmentFile>,
}

impl Group {
    /// Adds a message.
    pub fn add(&mut self, message: Message) {
        match message {
            Message::Append(append) => {
                self.bytes += append.payload.bytes().len();
                self.appends.push(append);
            }
            Message::Release(table, seq) => self.releases.push((table, seq)),
            Message::Close(answer) => self.close = Some(answer),
            #[cfg(test)]
            Message::Replace(file) => self.replace = Some(file),
        }
    }

    /// Adds what is queued, until there are `bytes_max` bytes.
    pub fn fill(&mut self, inbox: &mut mpsc::UnboundedReceiver<Message>, bytes_max: usize) {
        while self.bytes < bytes_max && self.close.is_none() {
            match inbox.try_recv() {
                Ok(message) => self.add(message),
                Err(_) => break,
            }
        }
    }

    /// Answers all its appends.
    pub fn answer(appends: Vec<Append>, result: &Result<()>) {
        for append in appends {
            // A caller that has gone needs no answer.
            drop(append.answer.send(result.clone()));
        }
    }
}

/// An entry in the form in which it is written.
#[derive(Debug)]
pub struct Encoded {
    table: TableId,
    seq: Seq,
    payload: Payload,
}

impl Encoded {
    /// Encodes an entry. Takes a moment for each MiB.
    ///
    /// # Errors
    /// `TooLarge` when the entry takes 4 GiB.
    pub fn new(entry: &WalEntry) -> Result<Self> {
        Ok(Self {
            table: entry.table,
            seq: entry.seq,
            payload: Payload::encode(entry)?,
        })
    }
}

/// An entry that was queued.
#[derive(Debug)]
pub struct Queued {
    answered: oneshot::Receiver<Result<()>>,
    wal: Wal,
}

impl Queued {
    /// Waits until the entry is durable, together with its neighbours.
    ///
    /// # Errors
    /// As for [`Wal::append`].
    pub async fn durable(self) -> Result<()> {
        self.answered.await.map_err(|_| self.wal.closed())?
    }
}

impl Wal {
    /// A handle on the log at `place`, and the other end of its queue.
    pub(super) fn new(
        place: String,
        bytes_max: u64,
    ) -> (Self, mpsc::UnboundedReceiver<Message>, Arc<Shared>) {
        let (queue, inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            bytes_max,
        });
        let wal = Self {
            place: place.into(),
            queue,
            room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX / PERMIT_BYTES)),
            shared: shared.clone(),
        };
        (wal, inbox, shared)
    }

    /// Appends an entry; returns once it is durable, together with its neighbours. When the future is
    /// dropped before the entry is queued nothing is appended, afterwards the entry takes effect all the
    /// same; never a part of it.
    ///
    /// # Errors
    /// `Unavailable` when a local disk could not be written: the entry may or may not be replayed, until
    /// another append succeeds. `Fenced` when another engine has taken over. `Closed` after
    /// [`close`](Self::close). `TooLarge` when the entry takes 4 GiB.
    pub async fn append(&self, entry: WalEntry) -> Result<()> {
        self.queue(entry).await?.durable().await
    }

    /// Queues an entry, once there is room. Entries become durable in the order they were queued.
    ///
    /// # Errors
    /// `Fenced`, `Closed` and `TooLarge` as for [`Self::append`].
    pub async fn queue(&self, entry: WalEntry) -> Result<Queued> {
        self.shared.check()?;
        self.queue_encoded(Encoded::new(&entry)?).await
    }

    /// As [`Self::queue`], for an entry that is encoded already.
    ///
    /// # Errors
    /// `Fenced` and `Closed` as for [`Self::append`].
    pub async fn queue_encoded(&self, entry: Encoded) -> Result<Queued> {
        self.shared.check()?;
        let payload = entry.payload;
        let permits = payload.bytes().len().min(QUEUE_BYTES_MAX) / PERMIT_BYTES + 1;
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
        let wal = self.clone();
        Ok(Queued { answered, wal })
    }

    /// Every entry of `table` up to `seq` is in SSTs: segments that are needed no more are deleted, soon.
    /// For a table that was dropped `seq` is `Seq(u64::MAX)`. A failure to delete is traced, and made up
    /// for by the next release.
    pub fn release(&self, table: TableId, seq: Seq) {
        // A closed log keeps its segments; they are replayed and released again.
        drop(self.queue.send(Message::Release(table, seq)));
    }

    /// What the log holds, and has done since it was opened.
    pub fn stats(&self) -> WalStats {
        self.shared.lock().stats
    }

    /// Why appends are delayed, or failed last; `None` while all is well.
    pub fn trouble(&self) -> Option<String> {
        self.shared.lock().trouble.clone()
    }

    /// Tables to be flushed because the log, held by their entries, is longer than it should be.
    pub fn pins(&self) -> Vec<TableId> {
        self.shared.lock().pins.clone()
    }

    /// Waits for what is queued, and gives the log up. Answers whether it still holds entries that were not
    /// released; `true`, too, when it was closed before.
    ///
    /// # Errors
    /// `Unavailable` when the end could not be written, `Fenced`; it is closed nevertheless.
    pub async fn close(&self) -> Result<bool> {
        let (answer, answered) = oneshot::channel();
        if self.queue.send(Message::Close(answer)).is_err() {
            return Ok(true);
        }
        // Dropped unanswered: another close was faster.
        answered.await.unwrap_or(Ok(true))
    }

    fn closed(&self) -> Error {
        let failure = self.shared.lock().failure.clone();
        failure.unwrap_or_else(|| Error::closed(format!("wal {} is closed", self.place)))
    }

    /// Has the thread write to `file` from now on.
    #[cfg(test)]
    pub(super) fn replace_file(&self, file: super::local::SegmentFile) {
        self.queue.send(Message::Replace(file)).unwrap();
    }
}
