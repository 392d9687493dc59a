//! An object store whose every request passes the [`Limits`]. What a request costs is what the network
//! sees: a range that was fetched, a part that was sent, a page-wise listing, a bulk deletion.
//!
//! ETags are never compared here: creates ask for "no object", not for a version, and the ETag of a part goes
//! back to the store as it came.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartId,
    MultipartUpload, OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
    UploadPart, coalesce_ranges,
    multipart::{MultipartStore, PartId},
    path::Path,
};

use super::{limits::Limits, stats::Operation};

/// Objects that one request deletes at most; the bound of S3.
const DELETES_MAX: usize = 1_000;

/// `objects` behind `limits`.
#[derive(Debug)]
pub(super) struct Limited {
    pub(super) objects: Arc<dyn ObjectStore>,
    /// The same store, where a part can be sent twice.
    pub(super) parts: Option<Parts>,
    pub(super) limits: Arc<Limits>,
}

/// A store with parts that have numbers.
#[derive(Clone)]
pub(super) struct Parts(pub(super) Arc<dyn MultipartStore>);

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Parts")
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limited({})", self.objects)
    }
}

impl Limited {
    /// Reads what `options` ask for, to its last byte.
    async fn read(&self, location: &Path, options: &GetOptions) -> StoreResult<GetResult> {
        let head = self.objects.get_opts(location, options.clone());
        let result = self.limits.in_time(0, head).await?;
        if options.head {
            return Ok(result);
        }
        let (meta, range) = (result.meta.clone(), result.range.clone());
        let attributes = result.attributes.clone();
        let body = result.bytes();
        let bytes = self.limits.in_time(range.end - range.start, body).await?;
        self.limits.received(bytes.len() as u64);
        let payload = GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed());
        Ok(GetResult {
            payload,
            meta,
            range,
            attributes,
        })
    }

    async fn read_range(&self, location: &Path, range: Range<u64>) -> StoreResult<Bytes> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            ..GetOptions::default()
        };
        self.get_opts(location, options).await?.bytes().await
    }
}

#[async_trait]
impl ObjectStore for Limited {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        let operation = match options.mode {
            PutMode::Overwrite => Operation::Put,
            // Both decide something: neither is sent twice.
            PutMode::Create | PutMode::Update(_) => Operation::Create,
        };
        let bytes = payload.content_length() as u64;
        let put = || {
            self.objects
                .put_opts(location, payload.clone(), options.clone())
        };
        self.limits.run(operation, bytes, put).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        let Some(parts) = &self.parts else {
            let begin = || self.objects.put_multipart_opts(location, options.clone());
            let upload = self.limits.run(Operation::Upload, 0, begin).await?;
            let limits = self.limits.clone();
            return Ok(Box::new(LimitedUpload { upload, limits }));
        };
        let begin = || parts.0.create_multipart(location);
        let id = self.limits.run(Operation::Upload, 0, begin).await?;
        Ok(Box::new(NumberedUpload {
            objects: self.objects.clone(),
            parts: parts.clone(),
            limits: self.limits.clone(),
            location: location.clone(),
            id: Arc::new(id),
            next: 0,
            bytes: 0,
            sent: Arc::default(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        let read = || self.read(location, &options);
        self.limits.run(Operation::Get, 0, read).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> StoreResult<Vec<Bytes>> {
        if self.parts.is_some() {
            let fetch = |range| self.read_range(location, range);
            return coalesce_ranges(ranges, fetch, OBJECT_STORE_COALESCE_DEFAULT).await;
        }
        let wanted = ranges
            .iter()
            .map(|range| range.end.saturating_sub(range.start))
            .sum();
        let read = || {
            let parts = self.objects.get_ranges(location, ranges);
            self.limits.in_time(wanted, parts)
        };
        let parts = self.limits.run(Operation::Get, 0, read).await?;
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        self.limits.received(bytes);
        Ok(parts)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        let (objects, limits) = (self.objects.clone(), self.limits.clone());
        locations
            .try_chunks(DELETES_MAX)
            .map_err(|error| error.1)
            .and_then(move |names| delete_all(objects.clone(), limits.clone(), names).map(Ok))
            .map_ok(stream::iter)
            .try_flatten()
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        let (objects, limits) = (self.objects.clone(), self.limits.clone());
        let prefix = prefix.cloned();
        let list = async move {
            let list = || list_all(&limits, objects.list(prefix.as_ref()));
            let listed = limits.run(Operation::List, 0, list).await?;
            Ok::<_, object_store::Error>(stream::iter(listed.into_iter().map(Ok)))
        };
        list.into_stream().try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        let list = || {
            self.limits
                .in_time(0, self.objects.list_with_delimiter(prefix))
        };
        self.limits.run(Operation::List, 0, list).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// A whole listing, of which each next piece must come in time.
async fn list_all(
    limits: &Limits,
    mut listing: BoxStream<'static, StoreResult<ObjectMeta>>,
) -> StoreResult<Vec<ObjectMeta>> {
    let mut objects = Vec::new();
    while let Some(object) = limits.in_time(0, listing.try_next()).await? {
        objects.push(object);
    }
    Ok(objects)
}

/// The answers to the deletion of `count` objects.
///
/// # Errors
/// The one error by which a request is answered that failed as a whole, or that had one object only; and when
/// there are fewer answers than objects: of which ones, nobody knows.
fn one_for_each(
    count: usize,
    mut answers: Vec<StoreResult<Path>>,
) -> StoreResult<Vec<StoreResult<Path>>> {
    if answers.len() >= count && count > 1 {
        return Ok(answers);
    }
    if let Some(at) = answers.iter().position(Result::is_err) {
        answers.swap_remove(at)?;
    }
    if answers.len() < count {
        let known = answers.len();
        return Err(object_store::Error::Generic {
            store: "Limited",
            source: format!("of {count} objects to be deleted, the store answered for {known}")
                .into(),
        });
    }
    Ok(answers)
}

/// Deletes `names` with one request; an answer for each, in their order.
async fn delete_all(
    objects: Arc<dyn ObjectStore>,
    limits: Arc<Limits>,
    names: Vec<Path>,
) -> Vec<StoreResult<Path>> {
    let delete = || async {
        let locations = stream::iter(names.clone().into_iter().map(Ok)).boxed();
        let answers = objects.delete_stream(locations).collect().await;
        one_for_each(names.len(), answers)
    };
    match limits.run(Operation::Delete, 0, delete).await {
        Ok(answers) => answers,
        Err(error) => {
            let text = error.to_string();
            let others = (1..names.len()).map(|_| {
                Err(object_store::Error::Generic {
                    store: "Limited",
                    source: text.clone().into(),
                })
            });
            std::iter::once(Err(error)).chain(others).collect()
        }
    }
}

/// An upload whose parts cannot be sent twice.
#[derive(Debug)]
struct LimitedUpload {
    upload: Box<dyn MultipartUpload>,
    limits: Arc<Limits>,
}

#[async_trait]
impl MultipartUpload for LimitedUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let bytes = payload.content_length() as u64;
        let limits = self.limits.clone();
        let part = self.upload.put_part(payload);
        async move { limits.run_once(Operation::Part, bytes, part).await }.boxed()
    }

    async fn complete(&mut self) -> StoreResult<PutResult> {
        let complete = self.upload.complete();
        self.limits.run_once(Operation::Upload, 0, complete).await
    }

    async fn abort(&mut self) -> StoreResult<()> {
        let abort = self.upload.abort();
        self.limits.run_once(Operation::Upload, 0, abort).await
    }
}

/// An upload whose parts have numbers, so that one that failed is sent again.
#[derive(Debug)]
struct NumberedUpload {
    objects: Arc<dyn ObjectStore>,
    parts: Parts,
    limits: Arc<Limits>,
    location: Path,
    id: Arc<MultipartId>,
    /// Number of the next part.
    next: usize,
    bytes: u64,
    /// Parts that the store has, by number.
    sent: Arc<Mutex<BTreeMap<usize, PartId>>>,
}

impl NumberedUpload {
    /// Completes the upload. When an answer was lost, the store may know the upload no more because it is
    /// complete: then the object is there, in its size.
    async fn try_complete(&self, ids: Vec<PartId>) -> StoreResult<PutResult> {
        let (parts, location) = (&self.parts.0, &self.location);
        let completed = parts.complete_multipart(location, &self.id, ids).await;
        if let Err(object_store::Error::NotFound { .. }) = &completed
            && let Ok(meta) = self.objects.head(location).await
            && meta.size == self.bytes
        {
            return Ok(PutResult {
                e_tag: meta.e_tag,
                version: meta.version,
            });
        }
        completed
    }
}

#[async_trait]
impl MultipartUpload for NumberedUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let (parts, limits, sent) = (self.parts.clone(), self.limits.clone(), self.sent.clone());
        let (location, id, number) = (self.location.clone(), self.id.clone(), self.next);
        let bytes = payload.content_length() as u64;
        self.next += 1;
        self.bytes += bytes;
        let send = async move {
            let put = || parts.0.put_part(&location, &id, number, payload.clone());
            let part = limits.run(Operation::Part, bytes, put).await?;
            let mut sent = sent.lock().expect("no panic under this lock");
            sent.insert(number, part);
            Ok(())
        };
        send.boxed()
    }

    async fn complete(&mut self) -> StoreResult<PutResult> {
        let ids: Vec<PartId> = {
            let sent = self.sent.lock().expect("no panic under this lock");
            sent.values().cloned().collect()
        };
        if ids.len() != self.next {
            let (sent, made) = (ids.len(), self.next);
            return Err(object_store::Error::Generic {
                store: "Limited",
                source: format!("{sent} of {made} parts were sent").into(),
            });
        }
        let complete = || self.try_complete(ids.clone());
        self.limits.run(Operation::Upload, 0, complete).await
    }

    async fn abort(&mut self) -> StoreResult<()> {
        let abort = || self.parts.0.abort_multipart(&self.location, &self.id);
        self.limits.run(Operation::Upload, 0, abort).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_without_an_answer_has_failed() {
        let ok = || Ok(Path::from("a"));
        let failed = || {
            let source = "no".into();
            let store = "test";
            Err(object_store::Error::Generic { store, source })
        };
        let answered = |count, answers| one_for_each(count, answers);
        assert_eq!(answered(1, vec![ok()]).unwrap().len(), 1);
        assert_eq!(answered(2, vec![ok(), failed()]).unwrap().len(), 2);
        for (count, answers) in [
            (1, vec![]),
            (1, vec![failed()]),
            (2, vec![ok()]),
            (3, vec![failed(), ok()]),
        ] {
            answered(count, answers).unwrap_err();
        }
    }
}
