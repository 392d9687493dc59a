//! A store that fails, delays, tears and lies by script, for tests.
//!
//! A [`Fault`] says which operations it meets (by kind and by a part of the object's name), what happens
//! to them, and how often. Faults are added and cleared while the store is in use. An operation waits
//! for every [`Effect::Delay`] and [`Effect::Block`] that it meets; then the first other fault it meets,
//! in the order they were added, decides how it ends.
//!
//! An upload in parts meets faults once, as [`Operation::Upload`], when it is completed. Small uploads go
//! up in one request and are puts.
//!
//! Besides the script there is [`Weather`]: faults by chance.

mod weather;

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result as StoreResult, UploadPart, path::Path,
};
use tokio::sync::watch;

pub use super::Operation;
use super::Store;
use crate::clock::Env;
pub use weather::Weather;

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is done; the answer is an error of kind `Unavailable`.
    Fail,
    /// It is done, but the answer is an error of kind `Unavailable`.
    LoseAnswer,
    /// A create replaces what is there and says that the object is new: what a store must not do.
    Overwrite,
    /// It is done after this time.
    Delay(Duration),
    /// It waits until [`Faults::release`].
    Block,
    /// Only so many bytes are written or read: a torn write, a short read.
    Truncate {
        /// Length of what is left.
        bytes: usize,
        /// Whether the answer is an error nevertheless.
        reported: bool,
    },
}

/// One line of the script.
#[derive(Clone, Debug)]
pub struct Fault {
    operation: Operation,
    name: String,
    effect: Effect,
    times: u32,
}

impl Fault {
    /// `effect` on every `operation` whose object's name contains `name`.
    pub fn new(operation: Operation, name: impl Into<String>, effect: Effect) -> Self {
        Self {
            operation,
            name: name.into(),
            effect,
            times: u32::MAX,
        }
    }

    /// The same fault, but only on the next `times` operations that it meets.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { times, ..self }
    }
}

/// The script of a store, and what the store has been asked for.
#[derive(Debug, Default)]
pub struct Faults {
    script: Mutex<Script>,
    released: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Script {
    faults: Vec<Fault>,
    counts: [u64; Operation::COUNT],
    blocked: usize,
    weather: Option<(Weather, Env)>,
}

impl Faults {
    const LOCKED: &'static str = "no panic under this lock";

    /// Adds a fault to the end of the script.
    pub fn add(&self, fault: Fault) {
        let mut script = self.script.lock().expect(Self::LOCKED);
        script.faults.push(fault);
    }

    /// Empties the script, and lets blocked operations go on.
    pub fn clear(&self) {
        self.script.lock().expect(Self::LOCKED).faults.clear();
        self.released.send_modify(|releases| *releases += 1);
    }

    /// Lets blocked operations go on, and takes [`Effect::Block`] out of the script.
    pub fn release(&self) {
        let mut script = self.script.lock().expect(Self::LOCKED);
        script.faults.retain(|fault| fault.effect != Effect::Block);
        drop(script);
        self.released.send_modify(|releases| *releases += 1);
    }

    /// Has operations that the script leaves alone fail by `weather`, with chance from `env`.
    pub fn set_weather(&self, weather: Weather, env: &Env) {
        let mut script = self.script.lock().expect(Self::LOCKED);
        script.weather = Some((weather, env.clone()));
    }

    /// How many operations of a kind have begun.
    pub fn count(&self, operation: Operation) -> u64 {
        self.script.lock().expect(Self::LOCKED).counts[operation as usize]
    }

    /// How many operations are blocked now.
    pub fn blocked(&self) -> usize {
        self.script.lock().expect(Self::LOCKED).blocked
    }

    /// Counts an operation and has it wait; returns what else is to happen to it.
    async fn meet(&self, operation: Operation, name: &str) -> Option<Effect> {
        let mut releases = self.released.subscribe();
        let (delay, block, outcome) = {
            let mut script = self.script.lock().expect(Self::LOCKED);
            script.counts[operation as usize] += 1;
            script.meet(operation, name)
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if block {
            let _blocked = Blocked::new(self);
            // The sender is ours, so it cannot have gone.
            drop(releases.changed().await);
        }
        outcome
    }
}

impl Script {
    fn meet(&mut self, operation: Operation, name: &str) -> (Duration, bool, Option<Effect>) {
        let (mut delay, mut block, mut outcome) = (Duration::ZERO, false, None);
        for fault in &mut self.faults {
            let meets = fault.operation == operation && name.contains(&fault.name);
            if !meets || fault.times == 0 {
                continue;
            }
            match fault.effect {
                Effect::Delay(time) => delay += time,
                Effect::Block => block = true,
                _ if outcome.is_some() => continue,
                effect => outcome = Some(effect),
            }
            fault.times = fault
                .times
                .saturating_sub(u32::from(fault.times != u32::MAX));
        }
        if let Some((weather, env)) = &self.weather {
            let (takes, effect) = weather.meet(env);
            delay += takes;
            outcome = outcome.or(effect);
        }
        (delay, block, outcome)
    }
}

/// Counts a blocked operation until it goes on or is given up.
struct Blocked<'a>(&'a Faults);

impl<'a> Blocked<'a> {
    fn new(faults: &'a Faults) -> Self {
        faults.script.lock().expect(Faults::LOCKED).blocked += 1;
        Self(faults)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.script.lock().expect(Faults::LOCKED).blocked -= 1;
    }
}

impl Store {
    /// The same store, but obeying the script that is returned with it. Clones taken before do not.
    pub fn with_faults(self) -> (Store, Arc<Faults>) {
        let faults = Arc::<Faults>::default();
        let faulty = Faulty {
            objects: self.objects,
            faults: faults.clone(),
        };
        let store = Store {
            objects: Arc::new(faulty),
            ..self
        };
        (store, faults)
    }
}

/// A store that obeys a script.
#[derive(Debug)]
struct Faulty {
    objects: Arc<dyn ObjectStore>,
    faults: Arc<Faults>,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({})", self.objects)
    }
}

fn scripted(operation: Operation, name: &str) -> object_store::Error {
    object_store::Error::Generic {
        store: "Faulty",
        source: format!("scripted fault on {operation:?} of {name}").into(),
    }
}

/// How an operation that may have to be cut short ends.
struct Outcome {
    runs: bool,
    bytes_max: usize,
    fails: bool,
    overwrites: bool,
}

impl Outcome {
    fn of(effect: Option<Effect>) -> Self {
        let whole = Self {
            runs: true,
            bytes_max: usize::MAX,
            fails: false,
            overwrites: false,
        };
        match effect {
            Some(Effect::Fail) => Self {
                runs: false,
                fails: true,
                ..whole
            },
            Some(Effect::LoseAnswer) => Self {
                fails: true,
                ..whole
            },
            Some(Effect::Truncate { bytes, reported }) => Self {
                bytes_max: bytes,
                fails: reported,
                ..whole
            },
            Some(Effect::Overwrite) => Self {
                overwrites: true,
                ..whole
            },
            Some(Effect::Delay(_) | Effect::Block) | None => whole,
        }
    }

    fn cut(&self, bytes: Bytes) -> Bytes {
        bytes.slice(..bytes.len().min(self.bytes_max))
    }
}

impl Faulty {
    /// Runs `work` as the script wants it, with what is to become of its bytes.
    async fn run<T>(
        &self,
        operation: Operation,
        name: &str,
        work: impl AsyncFnOnce(&Outcome) -> StoreResult<T>,
    ) -> StoreResult<T> {
        let outcome = Outcome::of(self.faults.meet(operation, name).await);
        if !outcome.runs {
            return Err(scripted(operation, name));
        }
        let answer = work(&outcome).await;
        if outcome.fails {
            return Err(scripted(operation, name));
        }
        answer
    }

    fn list_faultily(
        &self,
        prefix: Option<&Path>,
        listing: BoxStream<'static, StoreResult<ObjectMeta>>,
    ) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        let faults = self.faults.clone();
        let name = prefix.map(Path::to_string).unwrap_or_default();
        let listing = async move {
            match Outcome::of(faults.meet(Operation::List, &name).await).fails {
                true => Err(scripted(Operation::List, &name)),
                false => Ok(listing),
            }
        };
        listing.into_stream().try_flatten().boxed()
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        let operation = match options.mode {
            PutMode::Create => Operation::Create,
            PutMode::Overwrite | PutMode::Update(_) => Operation::Put,
        };
        self.run(operation, location.as_ref(), async |outcome| {
            let payload = match outcome.bytes_max {
                usize::MAX => payload,
                _ => outcome.cut(payload.into()).into(),
            };
            let mut options = options;
            if outcome.overwrites {
                options.mode = PutMode::Overwrite;
            }
            self.objects.put_opts(location, payload, options).await
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        let upload = self.objects.put_multipart_opts(location, options).await?;
        Ok(Box::new(FaultyUpload {
            upload,
            location: location.clone(),
            objects: self.objects.clone(),
            faults: self.faults.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.run(Operation::Get, location.as_ref(), async |outcome| {
            let result = self.objects.get_opts(location, options).await?;
            if outcome.bytes_max == usize::MAX {
                return Ok(result);
            }
            let (meta, range) = (result.meta.clone(), result.range.clone());
            let attributes = result.attributes.clone();
            let bytes = outcome.cut(result.bytes().await?);
            let payload = GetResultPayload::Stream(async { Ok(bytes) }.into_stream().boxed());
            Ok(GetResult {
                payload,
                meta,
                range,
                attributes,
            })
        })
        .await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> StoreResult<Vec<Bytes>> {
        self.run(Operation::Get, location.as_ref(), async |outcome| {
            let parts = self.objects.get_ranges(location, ranges).await?;
            Ok(parts.into_iter().map(|part| outcome.cut(part)).collect())
        })
        .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        let (objects, faults) = (self.objects.clone(), self.faults.clone());
        locations
            .then(move |location| {
                let faulty = Faulty {
                    objects: objects.clone(),
                    faults: faults.clone(),
                };
                async move {
                    let location = location?;
                    let delete = async |_: &Outcome| faulty.objects.delete(&location).await;
                    let deleted = faulty.run(Operation::Delete, location.as_ref(), delete);
                    deleted.await.map(|()| location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.list_faultily(prefix, self.objects.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.list_faultily(prefix, self.objects.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        let name = prefix.map(Path::to_string).unwrap_or_default();
        self.run(Operation::List, &name, async |_| {
            self.objects.list_with_delimiter(prefix).await
        })
        .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// An upload that obeys the script when it is completed.
#[derive(Debug)]
struct FaultyUpload {
    upload: Box<dyn MultipartUpload>,
    location: Path,
    objects: Arc<dyn ObjectStore>,
    faults: Arc<Faults>,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        self.upload.put_part(payload)
    }

    async fn complete(&mut self) -> StoreResult<PutResult> {
        let name = self.location.as_ref();
        let outcome = Outcome::of(self.faults.meet(Operation::Upload, name).await);
        if !outcome.runs {
            return Err(scripted(Operation::Upload, name));
        }
        let mut answer = self.upload.complete().await?;
        if outcome.bytes_max != usize::MAX {
            let whole = self.objects.get(&self.location).await?.bytes().await?;
            let torn = outcome.cut(whole);
            answer = self.objects.put(&self.location, torn.into()).await?;
        }
        if outcome.fails {
            return Err(scripted(Operation::Upload, name));
        }
        Ok(answer)
    }

    async fn abort(&mut self) -> StoreResult<()> {
        self.upload.abort().await
    }
}

#[cfg(test)]
mod tests;
