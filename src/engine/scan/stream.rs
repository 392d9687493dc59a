//! The rows of a scan on their way: threads read pieces, the stream hands them out in order.
//!
//! ```text
//!  thread 1 ── piece 0 ──▶ [batch batch]  ┐
//!  thread 2 ── piece 1 ──▶ [batch batch]  ├─ in the order of the pieces ──▶ ScanStream
//!  thread 1 ── piece 2 ──▶ [batch]        ┘
//! ```
//! A thread takes the next piece when it is done with one, and waits while two batches of it are not taken, or as many
//! pieces as there are threads: what is in memory is bounded, however slow the reader is. When the stream is dropped, or has what it
//! needs, the threads end at their next batch.
//!
//! Threads of their own: one that waits for a slow reader must not keep others from theirs. An end is always said:
//! a thread that is lost is an error, never the end of the rows.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, atomic::Ordering},
    task::{Context, Poll, ready},
};

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;

use super::{
    ScanStats, Touched,
    pieces::{Piece, ReadSet},
    stretch::Stretch,
};
use crate::{
    engine::view::ReadCounters,
    error::{Error, Result},
    threads,
};

/// Batches of a piece that wait for a slow reader.
const BATCHES_AHEAD: usize = 2;
/// Threads of one scan at most.
const THREADS_MAX: usize = 4;
/// Who wants no more rows than these is served by one thread.
const FEW_ROWS: usize = 64 << 10;

/// The rows of a scan, in key order, as batches of the requested columns. Dropping it ends the scan.
/// What it reads stays readable until then, whatever is compacted or deleted meanwhile.
pub struct ScanStream {
    schema: SchemaRef,
    /// Rows that may still come.
    left: usize,
    counters: Arc<ReadCounters>,
    touched: Arc<Touched>,
    /// In the order of the scan; `None` once it has ended.
    pieces: Option<mpsc::Receiver<Next>>,
    current: Option<mpsc::Receiver<Part>>,
}

/// What follows in the order of the scan.
enum Next {
    Piece(mpsc::Receiver<Part>),
    End,
}

/// What a thread has to say of its piece.
enum Part {
    Batch(RecordBatch),
    Failed(Error),
    End,
}

impl std::fmt::Debug for ScanStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScanStream")
            .field("schema", &self.schema)
            .field("ended", &self.pieces.is_none())
            .finish_non_exhaustive()
    }
}

impl ScanStream {
    /// The columns of each batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// What it has touched so far, and what it has left alone.
    pub fn stats(&self) -> ScanStats {
        self.touched.stats()
    }

    /// All remaining batches.
    ///
    /// # Errors
    /// The first error of the scan.
    pub async fn collect(mut self) -> Result<Vec<RecordBatch>> {
        let mut batches = Vec::new();
        while let Some(batch) = self.next().await {
            batches.push(batch?);
        }
        Ok(batches)
    }

    /// Lets go of the threads, and of all that they hold.
    fn end(&mut self) {
        self.pieces = None;
        self.current = None;
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Part> {
        loop {
            if let Some(current) = &mut self.current {
                match ready!(current.poll_recv(context)) {
                    Some(Part::End) => self.current = None,
                    Some(part) => return Poll::Ready(part),
                    None => return Poll::Ready(Part::Failed(lost())),
                }
            }
            let Some(pieces) = &mut self.pieces else {
                return Poll::Ready(Part::End);
            };
            match ready!(pieces.poll_recv(context)) {
                Some(Next::Piece(piece)) => self.current = Some(piece),
                Some(Next::End) => return Poll::Ready(Part::End),
                None => return Poll::Ready(Part::Failed(lost())),
            }
        }
    }
}

fn lost() -> Error {
    Error::internal("a thread of the scan is lost")
}

impl Stream for ScanStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let part = match self.left {
            0 => Part::End,
            _ => ready!(self.poll_part(context)),
        };
        Poll::Ready(match part {
            Part::Batch(mut batch) => {
                if batch.num_rows() > self.left {
                    batch = batch.slice(0, self.left);
                }
                self.left -= batch.num_rows();
                if self.left == 0 {
                    self.end();
                }
                self.counters.read(&batch);
                Some(Ok(batch))
            }
            Part::Failed(error) => {
                self.end();
                Some(Err(error))
            }
            Part::End => {
                self.end();
                None
            }
        })
    }
}

/// Starts to read `set`.
pub(super) fn start(set: ReadSet) -> Result<ScanStream> {
    let counters = set.counters.clone();
    counters.scans.fetch_add(1, Ordering::Relaxed);
    let stretches: VecDeque<Stretch> = set.stretches().into();
    let threads = threads_for(&set);
    let (sender, pieces) = mpsc::channel(threads);
    let stream = ScanStream {
        schema: set.plan.columns.clone(),
        left: set.plan.limit,
        counters,
        touched: set.touched().clone(),
        pieces: Some(pieces),
        current: None,
    };
    let scan = Arc::new(Scan {
        set,
        threads,
        queue: Mutex::new(Queue {
            stretches,
            pieces: VecDeque::new(),
            order: Some(sender),
        }),
    });
    for number in 0..threads {
        let scan = scan.clone();
        match threads::start("siltstone-scan", move || scan.work()) {
            Ok(_) => {}
            // Fewer will do.
            Err(_) if number > 0 => break,
            Err(error) => {
                let message = "a scan's thread cannot start";
                return Err(Error::unavailable(message).with_source(error));
            }
        }
    }
    Ok(stream)
}

fn threads_for(set: &ReadSet) -> usize {
    match set.plan.limit <= FEW_ROWS || set.plan.points.is_some() {
        true => 1,
        false => threads::parallelism().min(THREADS_MAX),
    }
}

/// What the threads share.
struct Scan {
    set: ReadSet,
    threads: usize,
    queue: Mutex<Queue>,
}

/// What is still to be read.
struct Queue {
    stretches: VecDeque<Stretch>,
    /// Of the stretch before these.
    pieces: VecDeque<Piece>,
    /// Tells the stream what follows; `None` once the end is told.
    order: Option<mpsc::Sender<Next>>,
}

impl Scan {
    fn work(&self) {
        while let Some((piece, sender)) = self.next() {
            // A panic must not look like the end of the rows.
            let read = catch_unwind(AssertUnwindSafe(|| self.read(piece, &sender)));
            let read = read.unwrap_or_else(|_| Err(Error::internal("a scan panicked")));
            let last = match read {
                Ok(()) => Part::End,
                Err(error) => Part::Failed(error),
            };
            // A reader that has gone does not want to know.
            let _ = threads::send(&sender, last);
        }
    }

    fn read(&self, piece: Result<Piece>, sender: &mpsc::Sender<Part>) -> Result<()> {
        for batch in self.set.read(piece?)? {
            let batch = batch?;
            let is_taken = match batch.num_rows() {
                0 => !sender.is_closed(),
                _ => threads::send(sender, Part::Batch(batch)).is_ok(),
            };
            if !is_taken {
                break;
            }
        }
        Ok(())
    }

    /// The next piece, announced to the stream; `None` at the end, or when the stream has gone.
    fn next(&self) -> Option<(Result<Piece>, mpsc::Sender<Part>)> {
        // Whoever panicked here has not announced the end, and the stream finds that out.
        let mut queue = self.queue.lock().ok()?;
        if queue.order.as_ref()?.is_closed() {
            return None;
        }
        let piece = self.take(&mut queue).transpose();
        let order = queue.order.as_ref()?;
        let Some(piece) = piece else {
            let _ = threads::send(order, Next::End);
            queue.order = None;
            return None;
        };
        let (sender, parts) = mpsc::channel(BATCHES_AHEAD);
        // Waits under the lock: the others would have to wait as well.
        threads::send(order, Next::Piece(parts)).ok()?;
        if piece.is_err() {
            // What follows will not be read.
            queue.stretches.clear();
            queue.pieces.clear();
        }
        Some((piece, sender))
    }

    fn take(&self, queue: &mut Queue) -> Result<Option<Piece>> {
        loop {
            if let Some(piece) = queue.pieces.pop_front() {
                return Ok(Some(piece));
            }
            let Some(stretch) = queue.stretches.pop_front() else {
                return Ok(None);
            };
            queue.pieces = self.set.pieces(stretch, self.threads)?.into();
        }
    }
}
