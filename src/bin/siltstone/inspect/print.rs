//! Reports as text.

use siltstone::{
    config::Bytes,
    manifest::inspect::{CatalogReport, ManifestReport, RecordReport, VersionReport},
    sst::inspect::SstReport,
    wal::inspect::SegmentReport,
};

use crate::admin::{align_right, new_table};

pub(super) fn catalog(report: &CatalogReport, log: bool) {
    println!(
        "catalog, epoch {}, {} records",
        report.epoch,
        report.log.len()
    );
    let mut table = new_table(["table", "id"]);
    for (name, id) in &report.tables {
        table.add_row([name, id]);
    }
    println!("{table}");
    if let Some(wal) = &report.wal {
        let clean = if report.is_wal_clean {
            ", with nothing left in it"
        } else {
            ""
        };
        println!("WAL of the last engine: {wal}{clean}");
    }
    if log {
        records(&report.log);
    }
    faults(&report.faults);
}

pub(super) fn manifest(report: &ManifestReport, log: bool) {
    let (table, epoch) = (&report.table, report.epoch);
    println!(
        "manifest of table {table}, epoch {epoch}, {} records",
        report.log.len()
    );
    match &report.version {
        Some(version) => print_version(version, log),
        None => println!("what the records add up to cannot be found out"),
    }
    if log {
        records(&report.log);
    }
    faults(&report.faults);
}

fn print_version(version: &VersionReport, log: bool) {
    println!(
        "{} table, schema version {}, key ({}), flushed up to seq {}",
        version.write_mode,
        version.schema_version,
        version.key.join(", "),
        version.flushed_seq
    );
    for column in &version.columns {
        println!("  {column}");
    }
    for job in &version.jobs {
        println!(
            "job {} merges {} ssts of window {} into level {}, in {} tasks",
            job.id,
            job.inputs.len(),
            job.window,
            job.level_target,
            job.tasks
        );
    }
    for (seq, start, end) in &version.range_deletes {
        println!("times {start} to {end} deleted at seq {seq}");
    }
    if !log {
        let mut table = new_table([
            "sst",
            "window",
            "level",
            "rows",
            "tombstones",
            "bytes",
            "seqs",
        ]);
        for sst in &version.ssts {
            let (min, max) = sst.seqs;
            table.add_row([
                match &sst.home {
                    None => sst.id.clone(),
                    Some(home) => format!("{} of {home}", sst.id),
                },
                sst.window.to_string(),
                sst.level.to_string(),
                sst.rows.to_string(),
                sst.tombstones.to_string(),
                Bytes(sst.bytes).to_string(),
                format!("{min} to {max}"),
            ]);
        }
        align_right(&mut table, 1..6);
        println!("{table}");
    }
    if !version.obsolete.is_empty() {
        println!(
            "{} ssts are obsolete and not deleted yet",
            version.obsolete.len()
        );
    }
}

fn records(records: &[RecordReport]) {
    let mut table = new_table(["record", "kind", "epoch", "bytes", "what it does"]);
    for record in records {
        table.add_row([
            record.number.to_string(),
            record.kind.to_owned(),
            record.epoch.to_string(),
            record.bytes.to_string(),
            record.summary.clone(),
        ]);
    }
    align_right(&mut table, [0, 2, 3]);
    println!("{table}");
}

pub(super) fn segment(name: &str, report: &SegmentReport) {
    let number = report.number.map(|number| format!("segment {number}, "));
    let end = match (report.epoch, report.ended) {
        (Some(epoch), _) => format!("an object of epoch {epoch}"),
        (None, true) => "ended".into(),
        (None, false) => "without an end mark".into(),
    };
    println!(
        "{name}: {}{}, {} records, {end}",
        number.unwrap_or_default(),
        Bytes(report.bytes),
        report.records.len()
    );
    let mut table = new_table(["offset", "bytes", "table", "seq", "kind", "rows"]);
    for record in &report.records {
        table.add_row([
            record.offset.to_string(),
            record.bytes.to_string(),
            record.table.clone(),
            record.seq.to_string(),
            record.kind.to_owned(),
            record.rows.to_string(),
        ]);
    }
    align_right(&mut table, [0, 1, 3, 5]);
    println!("{table}");
    faults(&report.faults);
}

pub(super) fn sst(report: &SstReport, verify: bool) {
    println!(
        "{} in {} row groups of {} columns, {} of which {} are footer",
        rows(report.rows),
        report.row_groups.len(),
        report.columns.len(),
        Bytes(report.bytes),
        Bytes(report.footer_bytes)
    );
    if let Some(writer) = &report.created_by {
        println!("written by {writer}");
    }
    for (key, value) in &report.key_values {
        println!("  {key} = {value}");
    }
    let mut table = new_table([
        "group",
        "rows",
        "column",
        "offset",
        "bytes",
        "uncompressed",
        "values",
        "encodings",
        "pages",
        "largest page",
    ]);
    for (at, group) in report.row_groups.iter().enumerate() {
        for chunk in &group.chunks {
            let largest = chunk.pages.iter().max();
            table.add_row([
                at.to_string(),
                group.rows.to_string(),
                chunk.column.clone(),
                chunk.offset.to_string(),
                chunk.bytes.to_string(),
                chunk.bytes_uncompressed.to_string(),
                chunk.values.to_string(),
                chunk.encodings.join(" "),
                chunk.pages.len().to_string(),
                largest.map(i32::to_string).unwrap_or_default(),
            ]);
        }
    }
    align_right(&mut table, [0, 1, 3, 4, 5, 6, 8, 9]);
    println!("{table}");
    if verify {
        let (chunks, pages) = (report.chunks_verified, report.pages_verified);
        let decoded = rows(report.rows_decoded);
        let keys = report.keys_decoded.map(|keys| format!(" of {keys} keys"));
        println!(
            "verified the checksums of {chunks} column chunks and {pages} pages; decoded {decoded}{}",
            keys.unwrap_or_default()
        );
    }
    faults(&report.faults);
}

fn rows(rows: u64) -> String {
    match rows {
        1 => "1 row".into(),
        _ => format!("{rows} rows"),
    }
}

fn faults(faults: &[String]) {
    for fault in faults {
        println!("damaged: {fault}");
    }
}
