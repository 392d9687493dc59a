//! A log on the object store: a numbered log of segments, one for each group of entries.
//!
//! * One append is in flight at a time; what is queued meanwhile, and for a linger after that, is the
//!   next segment.
//! * Opening claims the engine's epoch in the log: an engine before, even if it does nothing but write,
//!   meets the claim and is fenced.
//! * A store that is away delays appends, for as long as it takes; whether a lost one took effect is told
//!   by its attempt id, so that a segment is there once.
//! * Each segment says at which one a reader begins: the oldest that is needed. What is before it is
//!   deleted only once a segment that says so is durable; so what is missing after it is damage. Claims
//!   stay for the log's grace: they are what keeps an engine out that slept meanwhile.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::TryStreamExt;
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    Wal, WalEntry, group,
    handle::{Append, Group, Message, Shared},
    segments::{Segment, Segments},
};
use crate::{
    clock::{Backoff, Env},
    config::WalConfig,
    error::{Error, ErrorKind, Result},
    store::log::{Log, LogWriter, RecordKind},
    threads,
    types::{Epoch, Seq, TableId},
};

/// Bytes of a segment at most, unless a single entry is larger.
const SEGMENT_BYTES_MAX: usize = 8 << 20;

/// What an object WAL is opened with.
#[derive(Debug)]
pub struct ObjectWalOptions {
    /// Its log.
    pub log: Log,
    /// The engine's epoch, which it claims.
    pub epoch: Epoch,
    /// Since when the root has used no other log: what is older was given up.
    pub since: Epoch,
    /// Randomness for attempt ids.
    pub env: Env,
}

impl Wal {
    /// Opens a log on the object store, fencing whoever has it open: passes every entry that was not
    /// released to `replay`, in the order they were appended. `replay` runs where blocking is allowed.
    ///
    /// # Errors
    /// `Fenced` when a newer engine has it; `Corrupt`, naming the object, when the log is damaged,
    /// incomplete or of a newer version; `Unavailable`; the first error of `replay`.
    pub async fn open_object(
        options: ObjectWalOptions,
        config: &WalConfig,
        mut replay: impl FnMut(WalEntry) -> Result<()> + Send + 'static,
    ) -> Result<Wal> {
        let ObjectWalOptions {
            log,
            epoch,
            since,
            env,
        } = options;
        let (wal, inbox, shared) = Wal::new(log.folder().to_owned(), config.bytes_max.0);
        let writer = LogWriter::open_tail(log, epoch, || env.random()).await?;
        let handle = Handle::current();
        let recovering = threads::run(move || {
            let segments = threads::wait(&handle, recover(&writer, since, &mut replay))?;
            Ok::<_, Error>((writer, segments))
        });
        let recovered = recovering.await;
        let (log, segments) = recovered
            .map_err(|error| Error::internal("wal replay panicked").with_source(error))??;
        let writer = Writer {
            log,
            env,
            linger: config.linger.duration(),
            segments,
            shared,
        };
        writer.shared.report(&writer.segments, 0, 0);
        tokio::spawn(writer.run(inbox));
        Ok(wal)
    }
}

/// Replays what precedes the writer's claim.
async fn recover(
    writer: &LogWriter,
    since: Epoch,
    replay: &mut impl FnMut(WalEntry) -> Result<()>,
) -> Result<Segments> {
    let mut segments = Segments::default();
    let mut records = Box::pin(writer.log().records(writer.base()..writer.last()));
    while let Some(record) = records.try_next().await? {
        if record.kind == RecordKind::Claim || record.epoch < since {
            continue;
        }
        let mut segment = Segment {
            bytes: record.body.len() as u64,
            ..Segment::default()
        };
        let (folder, number) = (writer.log().folder(), record.number);
        group::decode(&record.body, |entry| {
            segment.note(entry.table, entry.seq);
            replay(entry)
        })
        .map_err(|error| error.context(format!("wal segment {number} in {folder}")))?;
        segments.insert(number, segment);
    }
    Ok(segments)
}

/// The task's state.
struct Writer {
    log: LogWriter,
    env: Env,
    linger: Duration,
    segments: Segments,
    shared: Arc<Shared>,
}

impl Writer {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        while let Some(first) = inbox.recv().await {
            let mut group = Group::default();
            group.add(first);
            self.gather(&mut group, &mut inbox).await;
            self.commit(group.appends).await;
            self.release(&group.releases).await;
            if let Some(answer) = group.close {
                inbox.close();
                let left = self.segments.oldest_needed().is_some();
                drop(answer.send(self.shared.check().map(|()| left)));
                break;
            }
        }
    }

    /// Takes what is queued and, if an entry waits, what arrives within the linger.
    async fn gather(&self, group: &mut Group, inbox: &mut mpsc::UnboundedReceiver<Message>) {
        group.fill(inbox, SEGMENT_BYTES_MAX);
        let mut linger = std::pin::pin!(tokio::time::sleep(self.linger));
        while !group.appends.is_empty() && group.bytes < SEGMENT_BYTES_MAX && group.close.is_none()
        {
            tokio::select! {
                biased;
                () = &mut linger => break,
                message = inbox.recv() => match message {
                    Some(message) => group.add(message),
                    None => break,
                },
            }
        }
    }

    /// Makes a group durable and answers it.
    async fn commit(&mut self, appends: Vec<Append>) {
        if appends.is_empty() {
            return;
        }
        let result = self.write(&appends).await;
        Group::answer(appends, &result);
        if result.is_ok() {
            self.delete_released().await;
        }
    }

    async fn write(&mut self, appends: &[Append]) -> Result<()> {
        let body = group::encode(appends);
        let mut segment = Segment {
            bytes: body.len() as u64,
            ..Segment::default()
        };
        for append in appends {
            segment.note(append.table, append.seq);
        }
        let number = self.append(body).await?;
        self.segments.insert(number, segment);
        self.shared.report(&self.segments, appends.len() as u64, 1);
        Ok(())
    }

    /// Appends a segment; tries for as long as the store is away.
    async fn append(&mut self, body: Bytes) -> Result<u64> {
        self.shared.check()?;
        let mut attempts = Vec::new();
        let mut backoff = Backoff::for_outage();
        loop {
            let error = match self.attempt(&body, &mut attempts).await {
                Ok(number) => {
                    self.shared.trouble(None);
                    return Ok(number);
                }
                Err(error) => error,
            };
            self.shared.trouble(Some(&error));
            if !error.is_unavailable() {
                if error.kind() == ErrorKind::Fenced {
                    self.shared.fail(&error);
                }
                return Err(error);
            }
            tracing::warn!(%error, "wal segment cannot be written, and will be tried again");
            backoff.pause().await;
        }
    }

    /// Tries to append a segment of which `attempts` were made before.
    async fn attempt(&mut self, body: &Bytes, attempts: &mut Vec<u128>) -> Result<u64> {
        self.log
            .begin_at(self.segments.oldest_needed().unwrap_or(u64::MAX));
        let attempt = self.env.random();
        attempts.push(attempt);
        match self
            .log
            .append(RecordKind::Edit, body.clone(), attempt)
            .await
        {
            // One whose answer was lost is there after all, or another's is in the way.
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let found = self.log.catch_up().await?;
                let ours = found
                    .iter()
                    .find(|record| attempts.contains(&record.attempt));
                ours.map(|record| record.number)
                    .ok_or_else(|| Error::unavailable(error.message()))
            }
            appended => appended,
        }
    }

    async fn release(&mut self, releases: &[(TableId, Seq)]) {
        if releases.is_empty() {
            return;
        }
        self.segments.release(releases);
        let needed = self.segments.oldest_needed();
        if self
            .segments
            .first()
            .is_some_and(|first| needed.is_none_or(|needed| first < needed))
        {
            // Says at which segment a reader begins; entries may be long in coming.
            match self.append(Bytes::new()).await {
                Ok(_) => self.delete_released().await,
                Err(error) => tracing::warn!(%error, "released wal segments stay for now"),
            }
        }
        self.segments.forget_releases();
        self.shared.report(&self.segments, 0, 0);
    }

    /// Deletes the segments before the one at which a reader of the log begins.
    async fn delete_released(&mut self) {
        let (first, base) = (self.segments.first(), self.log.base());
        let dead: Vec<u64> = (first.unwrap_or(base)..base)
            .filter(|number| self.segments.contains(*number))
            .collect();
        for &number in &dead {
            self.segments.remove(number);
        }
        if let Err(error) = self.log.log().remove(dead).await {
            tracing::warn!(%error, "released wal segments stay for now");
        }
        self.log.trim().await;
    }
}
