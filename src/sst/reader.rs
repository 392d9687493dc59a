//! Opens SSTs.
//!
//! 1. Fetch the end of the object with one request, and more when the footer is longer.
//! 2. Check the footer's checksum, parse it, and compare it with what the manifest says of the SST.
//! 3. To read [by pages](SstAccess::by_pages), the same with the index and Parquet's page index, which lie in
//!    front of the footer: the request for the end is so large that it has them nearly always.
//! 4. Hand out [sources](SstReader::source).
//!
//! A reader holds what was parsed, nothing else, and is cheap to clone.

use std::{fmt, ops::Range, sync::Arc};

use bytes::Bytes;
use tokio::{runtime::Handle, sync::OnceCell};

use super::{
    cache::{SstCache, SstKey},
    fetch,
    file::{Opened, SstFile},
    filter::KeyFilter,
    footer::{self, Place, TRAILER_BYTES},
    schema::requested,
    source::{ReadRequest, SstSource},
    stats::ReadStats,
};
use crate::{
    error::{Error, Result},
    store::{Store, layout},
    types::{Key, SstMeta, TableId, TableSchema},
};

/// What is fetched at first to read by chunks: enough for the footer of most SSTs.
const TAIL_BYTES: u64 = 64 << 10;
/// What is fetched at first to read by pages: this part of the object, but no less than [`TAIL_BYTES`], is
/// enough for footer and indexes of most SSTs.
const TAIL_SHARE: u64 = 128;
const TAIL_BYTES_MAX: u64 = 1 << 20;

/// How SSTs are reached, and how they are read. Cheap to clone.
#[derive(Clone)]
pub struct SstAccess {
    pub(super) store: Store,
    pub(super) stats: Arc<ReadStats>,
    pub(super) by_pages: bool,
    pub(super) cache: Option<SstCache>,
}

impl SstAccess {
    /// To read parts: SSTs are opened with their indexes, and single pages are fetched. What it costs is counted
    /// in `stats`.
    pub fn by_pages(store: &Store, stats: Arc<ReadStats>) -> Self {
        Self {
            store: store.clone(),
            stats,
            by_pages: true,
            cache: None,
        }
    }

    /// To read everything, as compactions do: whole column chunks, and the index of no SST.
    pub fn by_chunks(store: &Store) -> Self {
        Self {
            store: store.clone(),
            stats: Arc::default(),
            by_pages: false,
            cache: None,
        }
    }

    /// The same, with `cache` asked first, and filled with what is read.
    #[must_use]
    pub fn cached(self, cache: &SstCache) -> Self {
        Self {
            cache: Some(cache.clone()),
            ..self
        }
    }

    /// The same, with what it costs counted in `stats`.
    #[must_use]
    pub fn counted(&self, stats: Arc<ReadStats>) -> Self {
        Self {
            stats,
            ..self.clone()
        }
    }

    /// Where the costs of everything that is opened through this are counted.
    pub fn stats(&self) -> &Arc<ReadStats> {
        &self.stats
    }
}

/// An open SST.
#[derive(Clone)]
pub struct SstReader {
    pub(super) file: Arc<SstFile>,
}

impl fmt::Debug for SstReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SstReader({})", self.file.name)
    }
}

/// One row group, seen from outside: where an SST can be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGroupBound {
    /// Its first key. The last versions of a key may be followed by more in the next row group.
    pub first_key: Key,
    /// Rows in it.
    pub rows: u64,
    /// Encoded bytes of it.
    pub bytes: u64,
}

/// Some rows that follow one another: the smallest part of an SST whose place is known by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockBound {
    /// Key of its first row. Versions of it may lie at the end of the block before, unless
    /// [keys are unique](SstReader::keys_are_unique).
    pub first_key: Key,
    /// Rows in it.
    pub rows: u64,
    /// The row group that it is part of.
    pub row_group: usize,
}

impl SstReader {
    /// Opens the SST that the manifest of the table `table`, whose schema is now `schema`, describes as
    /// `meta`.
    ///
    /// # Errors
    /// All name the object. `NotFound` when there is none; `Unavailable`; `Corrupt` when it is damaged, of
    /// another format, or not what `meta` says.
    pub async fn open(
        access: &SstAccess,
        schema: &TableSchema,
        table: TableId,
        meta: Arc<SstMeta>,
    ) -> Result<Self> {
        let table = meta.home_in(table);
        let name = layout::sst(table, meta.id);
        let sst = Self::key_of(table, &meta);
        let opened = open_object(access, sst, &name, meta.bytes).await?;
        let file = SstFile {
            access: access.clone(),
            sst,
            name,
            meta,
            schema: schema.clone(),
            opened,
        };
        let checked = file.check_identity(table);
        checked.map_err(|error| naming(&file.name, error))?;
        Ok(Self {
            file: Arc::new(file),
        })
    }

    /// By which caches know the SST that a manifest of `table` describes as `meta`.
    pub(super) fn key_of(table: TableId, meta: &SstMeta) -> SstKey {
        SstKey {
            table: meta.home_in(table),
            id: meta.id,
        }
    }

    /// Name of its object.
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// What the manifest knows of it.
    pub fn meta(&self) -> &Arc<SstMeta> {
        &self.file.meta
    }

    /// Where its costs are counted: those of the access it was opened through.
    pub fn stats(&self) -> &Arc<ReadStats> {
        &self.file.access.stats
    }

    /// Whether no key has two versions in it, so that its rows need no merge among themselves.
    pub fn keys_are_unique(&self) -> bool {
        self.file.opened.keys_are_unique()
    }

    /// Whether a row may have this key: false is certain; true is wrong for about one in a hundred, and where
    /// the SST has no filter. Fetches the filter once.
    ///
    /// # Errors
    /// As for [`Self::key_filter`].
    pub async fn may_contain(&self, key: &Key) -> Result<bool> {
        let filter = self.key_filter().await?;
        Ok(filter.is_none_or(|filter| filter.may_contain(&key.0)))
    }

    /// The filter over its keys, fetched once; `None` when it was written without one.
    ///
    /// # Errors
    /// `NotFound` when the object is gone; `Unavailable`; `Corrupt` when the filter is damaged.
    pub async fn key_filter(&self) -> Result<Option<KeyFilter>> {
        let filter = &self.file.opened.filter;
        let filter = filter.get_or_try_init(|| self.fetch_filter());
        filter.await.cloned()
    }

    async fn fetch_filter(&self) -> Result<Option<KeyFilter>> {
        let file = &self.file;
        let Some(place) = &file.opened.footer.filter else {
            return Ok(None);
        };
        let range = place.range.clone();
        let blocks = one_range(&file.access, &file.name, file.meta.bytes, range).await?;
        let filter = parse_filter(place, blocks);
        filter.map(Some).map_err(|error| naming(&file.name, error))
    }

    /// Its row groups, in order.
    pub fn row_group_bounds(&self) -> Vec<RowGroupBound> {
        let opened = &self.file.opened;
        let keys = opened.footer.row_group_keys.iter();
        keys.enumerate()
            .map(|(group, key)| RowGroupBound {
                first_key: key.clone(),
                rows: opened.group_rows(group) as u64,
                bytes: (0..opened.leaves())
                    .map(|leaf| opened.chunk(group, leaf).0)
                    .map(|range| range.end - range.start)
                    .sum(),
            })
            .collect()
    }

    /// Its blocks, in order; where it was opened to be read by chunks, its row groups.
    pub fn blocks(&self) -> Vec<BlockBound> {
        let groups = 0..self.file.opened.footer.row_group_keys.len();
        let blocks = groups.flat_map(|row_group| {
            self.file.blocks(row_group).map(move |block| BlockBound {
                first_key: block.first.clone(),
                rows: block.rows.len() as u64,
                row_group,
            })
        });
        blocks.collect()
    }

    /// The rows that `request` asks for, as a sorted source. The first of them are being fetched when this
    /// returns. The source blocks, on requests that run on `handle`: use it on a thread that may.
    ///
    /// # Errors
    /// `Invalid` for a projection of unknown columns; `Corrupt` when the file lacks columns.
    pub fn source(&self, request: &ReadRequest, handle: Handle) -> Result<SstSource> {
        let file = &self.file;
        let output = requested(&file.schema, request.projection.as_deref(), request.exact)?;
        SstSource::new(file.clone(), request, output, handle)
            .map_err(|error| naming(&file.name, error))
    }
}

/// Opens `sst`, whose object is `name` and has `bytes` bytes, or finds it opened.
async fn open_object(
    access: &SstAccess,
    sst: SstKey,
    name: &str,
    bytes: u64,
) -> Result<Arc<Opened>> {
    let Some(cache) = &access.cache else {
        let tail = Tail::fetch(access, name, bytes).await?;
        return tail.open().await.map(Arc::new);
    };
    let (access, name, by_pages) = (access.clone(), name.to_owned(), access.by_pages);
    let open = async move { Tail::fetch(&access, &name, bytes).await?.open().await };
    cache.opened((sst, by_pages), open).await
}

/// The end of an object, from `start` on.
struct Tail<'a> {
    access: &'a SstAccess,
    name: &'a str,
    /// Of the object.
    bytes: u64,
    start: u64,
    content: Bytes,
}

impl<'a> Tail<'a> {
    async fn fetch(access: &'a SstAccess, name: &'a str, bytes: u64) -> Result<Self> {
        if bytes < TRAILER_BYTES as u64 {
            let error = format!("its {bytes} bytes are too few for an sst");
            return Err(naming(name, Error::corrupt(error)));
        }
        let wanted = match access.by_pages {
            true => (bytes / TAIL_SHARE).clamp(TAIL_BYTES, TAIL_BYTES_MAX),
            false => TAIL_BYTES,
        };
        let start = bytes.saturating_sub(wanted);
        let content = one_range(access, name, bytes, start..bytes).await?;
        Ok(Self {
            access,
            name,
            bytes,
            start,
            content,
        })
    }

    async fn open(mut self) -> Result<Opened> {
        let name = self.name;
        let named = |error| naming(name, error);
        let footer_bytes = footer::footer_bytes(&self.content).map_err(named)?;
        let Some(footer_start) = self.bytes.checked_sub(footer_bytes as u64) else {
            let bytes = self.bytes;
            let error =
                format!("a footer of {footer_bytes} bytes does not fit into its {bytes} bytes");
            return Err(named(Error::corrupt(error)));
        };
        self.reach(footer_start).await?;
        let footer = self.from(footer_start);
        let mut opened = Opened::parse(&footer, self.bytes).map_err(named)?;
        if self.access.by_pages {
            let start = opened.footer.index.range.start;
            self.reach(start).await?;
            let tail = self.from(start);
            opened = opened.with_index(&tail, footer_bytes).map_err(named)?;
            let filter = self.filter(opened.footer.filter.as_ref()).map_err(named)?;
            if let Some(filter) = filter {
                opened.filter = OnceCell::new_with(Some(Some(filter)));
            }
        }
        Ok(opened)
    }

    /// Fetches what is missing from `start` on.
    async fn reach(&mut self, start: u64) -> Result<()> {
        if start < self.start {
            let head = one_range(self.access, self.name, self.bytes, start..self.start).await?;
            self.content = [head, self.content.clone()].concat().into();
            self.start = start;
        }
        Ok(())
    }

    /// From `start` on, which has been reached.
    fn from(&self, start: u64) -> Bytes {
        self.content.slice((start - self.start) as usize..)
    }

    /// The filter at `place`, if it was fetched with the rest.
    fn filter(&self, place: Option<&Place>) -> Result<Option<KeyFilter>> {
        let Some(place) = place.filter(|place| place.range.start >= self.start) else {
            return Ok(None);
        };
        let length = (place.range.end - place.range.start) as usize;
        let block = self.from(place.range.start).slice(..length);
        // A copy, so as not to keep all of the tail.
        parse_filter(place, Bytes::copy_from_slice(&block)).map(Some)
    }
}

fn parse_filter(place: &Place, block: Bytes) -> Result<KeyFilter> {
    if crc32fast::hash(&block) != place.crc {
        return Err(Error::corrupt("checksum of its key filter does not match"));
    }
    KeyFilter::parse(block).ok_or_else(|| Error::corrupt("its key filter is not one"))
}

async fn one_range(access: &SstAccess, name: &str, bytes: u64, range: Range<u64>) -> Result<Bytes> {
    let mut parts = fetch::ranges(access, name, bytes, std::slice::from_ref(&range)).await?;
    let part = parts.pop();
    part.ok_or_else(|| Error::internal(format!("sst {name}: the store sent nothing")))
}

/// `error` of the SST whose object is `name`.
pub(super) fn naming(name: &str, error: Error) -> Error {
    error.context(format_args!("sst {name}"))
}
