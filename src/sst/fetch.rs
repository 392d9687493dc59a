//! Fetches parts of an SST from a cache or the store, and verifies them: whole column chunks, or single pages.

use std::ops::Range;

use bytes::Bytes;

use super::{
    cache::Page,
    chunks::SparseObject,
    file::{Opened, SstFile},
    index::ChunkIndex,
    reader::SstAccess,
    rows::RowRanges,
};
use crate::error::{Error, ErrorKind, Result};

/// A part of an object that has a checksum of its own.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) range: Range<u64>,
    crc: u32,
    leaf: usize,
    kind: PieceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceKind {
    Chunk,
    Dictionary,
    Page(usize),
}

impl Piece {
    /// Whether it is a data page.
    pub(super) fn is_page(&self) -> bool {
        matches!(self.kind, PieceKind::Page(_))
    }

    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn page(&self) -> Page {
        Page {
            offset: self.range.start,
            crc: self.crc,
        }
    }
}

/// Size of all of `pieces`.
pub(super) fn total_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(Piece::bytes).sum()
}

/// What must be fetched to decode `rows` of the columns `leaves` of a row group.
pub(super) fn pieces(
    opened: &Opened,
    group: usize,
    leaves: &[usize],
    rows: &RowRanges,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for &leaf in leaves {
        let (chunk, crc) = opened.chunk(group, leaf);
        let Some((own, pages)) = pages(opened, group, leaf) else {
            pieces.push(Piece {
                range: chunk,
                crc,
                leaf,
                kind: PieceKind::Chunk,
            });
            continue;
        };
        let piece = |range, crc, kind| Piece {
            range,
            crc,
            leaf,
            kind,
        };
        let first = pages.first().map_or(chunk.end, |page| page.bytes.start);
        if first > chunk.start {
            let dictionary = chunk.start..first;
            pieces.push(piece(dictionary, own.dictionary_crc, PieceKind::Dictionary));
        }
        let wanted = pages.into_iter().enumerate();
        let wanted = wanted.filter(|(_, page)| rows.overlaps(&page.rows));
        pieces.extend(wanted.map(|(at, page)| {
            let kind = PieceKind::Page(at);
            piece(page.bytes, own.page_crcs[at], kind)
        }));
    }
    pieces
}

/// How many data pages the columns `leaves` of a row group have; 0 where they are not known.
pub(super) fn count_pages(opened: &Opened, group: usize, leaves: &[usize]) -> u64 {
    let Some(index) = &opened.index else {
        return 0;
    };
    let chunks = &index.groups[group].chunks;
    let pages = leaves.iter().map(|&leaf| chunks[leaf].page_crcs.len());
    pages.sum::<usize>() as u64
}

/// A data page.
pub(super) struct PagePlace {
    pub(super) bytes: Range<u64>,
    /// Positions in the row group.
    pub(super) rows: Range<usize>,
}

/// The data pages of a column chunk; `None` where they are not known.
pub(super) fn pages(
    opened: &Opened,
    group: usize,
    leaf: usize,
) -> Option<(&ChunkIndex, Vec<PagePlace>)> {
    let own = &opened.index.as_ref()?.groups[group].chunks[leaf];
    let locations = opened.parquet.metadata().offset_index()?[group][leaf].page_locations();
    let starts = locations.iter().map(|page| page.first_row_index as usize);
    let ends = starts.clone().skip(1).chain([opened.group_rows(group)]);
    let places = locations.iter().zip(starts.zip(ends));
    let places = places.map(|(page, (start, end))| {
        let offset = page.offset as u64;
        PagePlace {
            bytes: offset..offset + page.compressed_page_size as u64,
            rows: start..end,
        }
    });
    Some((own, places.collect()))
}

/// `pieces` of an SST, in that order, not verified: from its cache, and what is not there from the store, where
/// neighbours are fetched together.
///
/// # Errors
/// As for [`ranges`].
pub(super) async fn fetch(file: &SstFile, pieces: &[Piece]) -> Result<Vec<Bytes>> {
    let Some(cache) = &file.access.cache else {
        return from_store(file, pieces).await;
    };
    let wanted: Vec<Page> = pieces.iter().map(Piece::page).collect();
    let mut parts = cache.pages(file.sst, &wanted).await;
    let missing = pieces.iter().zip(&parts);
    let missing = missing.filter(|(_, part)| part.is_none());
    let missing: Vec<Piece> = missing.map(|(piece, _)| piece.clone()).collect();
    let mut fetched = from_store(file, &missing).await?.into_iter();
    for part in parts.iter_mut().filter(|part| part.is_none()) {
        *part = fetched.next();
    }
    let parts: Option<Vec<Bytes>> = parts.into_iter().collect();
    parts.ok_or_else(|| Error::internal("a piece was not fetched"))
}

async fn from_store(file: &SstFile, pieces: &[Piece]) -> Result<Vec<Bytes>> {
    if pieces.is_empty() {
        return Ok(Vec::new());
    }
    let mut joined: Vec<Range<u64>> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.end == piece.range.start => last.end = piece.range.end,
            _ => joined.push(piece.range.clone()),
        }
    }
    let parts = ranges(&file.access, &file.name, file.meta.bytes, &joined).await?;
    let mut parts = joined.into_iter().zip(parts);
    let mut current = parts.next();
    let cut = pieces.iter().map(|piece| {
        while let Some((range, part)) = &current {
            if piece.range.end <= range.end && piece.range.start >= range.start {
                let start = (piece.range.start - range.start) as usize;
                return Ok(part.slice(start..start + piece.bytes() as usize));
            }
            current = parts.next();
        }
        Err(Error::internal("a piece was not fetched"))
    });
    cut.collect()
}

/// Checks that `parts` are the pieces `pieces` of `group`, has the file's cache keep them, and makes them readable.
///
/// # Errors
/// `Corrupt`, naming the column.
pub(super) fn verify(
    file: &SstFile,
    group: usize,
    pieces: &[Piece],
    parts: Vec<Bytes>,
) -> Result<SparseObject> {
    for (piece, part) in pieces.iter().zip(&parts) {
        if crc32fast::hash(part) != piece.crc {
            let column = file.opened.parquet.parquet_schema().column(piece.leaf);
            let what = match piece.kind {
                PieceKind::Chunk => String::new(),
                PieceKind::Dictionary => "the dictionary of ".into(),
                PieceKind::Page(page) => format!("page {page} of "),
            };
            return Err(Error::corrupt(format!(
                "checksum of {what}column {} in row group {group} does not match",
                column.path()
            )));
        }
        if let Some(cache) = &file.access.cache {
            cache.keep(file.sst, piece.range.start, part);
        }
    }
    let starts = pieces.iter().map(|piece| piece.range.start);
    Ok(SparseObject::new(file.meta.bytes, starts.zip(parts)))
}

/// Byte ranges of an object that should have `bytes` bytes.
///
/// # Errors
/// `Corrupt` when it has another size; the store's own otherwise.
pub(super) async fn ranges(
    access: &SstAccess,
    name: &str,
    bytes: u64,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    let wanted = |range: &Range<u64>| range.end - range.start;
    let fetched = access.store.get_ranges(name, ranges).await;
    match &fetched {
        Ok(parts) => {
            let complete = parts.iter().map(|part| part.len() as u64);
            if complete.eq(ranges.iter().map(wanted)) {
                access.stats.add_bytes(ranges.iter().map(wanted).sum());
                return fetched;
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return fetched,
        Err(_) => {}
    }
    // Some stores answer a range past the end with an error like any other, some with fewer bytes.
    match access.store.size(name).await? {
        Some(size) if size != bytes => Err(Error::corrupt(format!(
            "sst {name}: the object has {size} bytes, the manifest says {bytes}"
        ))),
        Some(_) => fetched.and_then(|_| {
            Err(Error::unavailable(format!(
                "read {name}: the store sent fewer bytes than asked for"
            )))
        }),
        None => Err(Error::not_found(format!(
            "read {name}: there is no such object"
        ))),
    }
}
