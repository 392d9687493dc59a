//! Loads what takes the place of pages that readers had in the cache: after a compaction the same rows lie in other SSTs.
//!
//! 1. Each page that is here of an SST that left says that its column is wanted, between the keys of its rows.
//! 2. Of the SSTs that came, the pages of these columns with keys in between are read, from the first on, until they
//!    have as many bytes as the others had.
//! 3. What left is forgotten: whoever still reads it, reads it from the store.

use std::{collections::HashMap, sync::Arc};

use crate::{
    error::{Error, Result},
    sst::{
        SstAccess, SstReader,
        fetch::{self, Piece},
        file::Opened,
        rows::RowRanges,
    },
    threads,
    types::{Key, SstMeta, TableId, TableSchema, column_id},
};

/// A leaf column, whatever it is called: the id of its column, and its place among the leaves of that.
type Leaf = (u32, usize);

/// What was wanted.
#[derive(Default)]
struct Hot {
    /// Spans of keys, both inclusive, by column.
    spans: HashMap<Leaf, Vec<(Key, Key)>>,
    bytes: u64,
}

/// Has the cache of `access` load pages of `added` in place of those that it has of `removed`. Answers how many it
/// loaded.
///
/// # Errors
/// As for [`SstReader::open`], of `added`.
pub async fn warm(
    access: &SstAccess,
    schema: &TableSchema,
    table: TableId,
    removed: &[Arc<SstMeta>],
    added: &[Arc<SstMeta>],
) -> Result<u64> {
    let Some(cache) = &access.cache else {
        return Ok(0);
    };
    let mut hot = Hot::default();
    for sst in removed {
        let key = SstReader::key_of(table, sst);
        let pages = cache.pages_of(key);
        if pages.is_empty() {
            continue;
        }
        // Most likely it is opened; if not, and its object has gone, its pages tell nothing.
        if let Ok(reader) = SstReader::open(access, schema, table, sst.clone()).await {
            hot.learn(&reader, &pages);
        }
        cache.forget(key);
    }
    hot.join();
    let mut left = hot.bytes;
    let mut loaded = 0;
    for sst in added {
        if left == 0 {
            break;
        }
        let reader = SstReader::open(access, schema, table, sst.clone()).await?;
        loaded += hot.load(&reader, &mut left).await?;
    }
    cache.note_warmed(loaded);
    Ok(loaded)
}

/// The leaf columns of an SST.
fn leaves(opened: &Opened) -> Vec<Option<Leaf>> {
    let (fields, parquet) = (
        opened.parquet.schema().fields(),
        opened.parquet.parquet_schema(),
    );
    let mut seen = HashMap::<usize, usize>::new();
    let leaves = (0..opened.leaves()).map(|leaf| {
        let root = parquet.get_column_root_idx(leaf);
        let place = seen.entry(root).or_default();
        *place += 1;
        Some((column_id(&fields[root])?, *place))
    });
    leaves.collect()
}

impl Hot {
    /// Notes that the pages at `pages` of `reader`, as offsets and bytes, were wanted.
    fn learn(&mut self, reader: &SstReader, pages: &[(u64, u64)]) {
        let file = &reader.file;
        let leaves = leaves(&file.opened);
        for group in 0..file.opened.footer.row_group_keys.len() {
            for (leaf, id) in leaves.iter().enumerate() {
                let (Some(id), Some((_, places))) = (id, fetch::pages(&file.opened, group, leaf))
                else {
                    continue;
                };
                for place in places {
                    let at = pages.binary_search_by_key(&place.bytes.start, |(offset, _)| *offset);
                    let Ok(at) = at else { continue };
                    self.bytes += pages[at].1;
                    let has_rows = |rows: &std::ops::Range<usize>| {
                        rows.start < place.rows.end && place.rows.start < rows.end
                    };
                    let blocks = file.blocks(group).filter(|block| has_rows(&block.rows));
                    let spans = blocks.map(|block| (block.first.clone(), block.last.clone()));
                    self.spans.entry(*id).or_default().extend(spans);
                }
            }
        }
    }

    /// Makes the spans of each column ascend without overlap.
    fn join(&mut self) {
        for spans in self.spans.values_mut() {
            spans.sort_unstable();
            spans.dedup_by(|next, last| {
                let meets = next.0 <= last.1;
                if meets && next.1 > last.1 {
                    last.1 = next.1.clone();
                }
                meets
            });
        }
    }

    /// Has the wanted pages of `reader` loaded, as long as bytes are left for them.
    async fn load(&self, reader: &SstReader, left: &mut u64) -> Result<u64> {
        let file = &reader.file;
        let leaves = leaves(&file.opened);
        let mut loaded = 0;
        for group in 0..file.opened.footer.row_group_keys.len() {
            let mut pieces: Vec<Piece> = Vec::new();
            for (leaf, id) in leaves.iter().enumerate() {
                let Some(spans) = id.and_then(|id| self.spans.get(&id)) else {
                    continue;
                };
                let is_wanted = |first: &Key, last: &Key| {
                    let next = spans.partition_point(|(_, max)| max < first);
                    spans.get(next).is_some_and(|(min, _)| min <= last)
                };
                let blocks = file.blocks(group);
                let rows =
                    blocks.map(|block| (block.rows.clone(), is_wanted(block.first, block.last)));
                let rows = RowRanges::of(rows);
                if rows.is_empty() {
                    continue;
                }
                for piece in fetch::pieces(&file.opened, group, &[leaf], &rows) {
                    let bytes = piece.range.end - piece.range.start;
                    if bytes <= *left {
                        *left -= bytes;
                        pieces.push(piece);
                    }
                }
            }
            let parts = fetch::fetch(file, &pieces).await?;
            loaded += pieces.iter().filter(|piece| piece.is_page()).count() as u64;
            let file = file.clone();
            let verified =
                threads::run(move || fetch::verify(&file, group, &pieces, parts).map(drop));
            verified
                .await
                .map_err(|error| Error::internal("warming panicked").with_source(error))??;
        }
        Ok(loaded)
    }
}
