//! Seqs, and the order in which batches become visible and durable.

use arrow::{
    array::{Int64Array, RecordBatch},
    datatypes::{DataType, Field, Schema},
};

use super::*;
use crate::types::TableOptions;

fn memory() -> Arc<Memory> {
    let columns = Schema::new(vec![Field::new("k", DataType::Int64, false)]);
    let options = TableOptions::default();
    let schema = TableSchema::new(Arc::new(columns), &["k"], None, options).unwrap();
    Arc::new(Memory::new(schema, Seq(4), Seq(0)))
}

fn insert(memory: &Memory, ticket: &Ticket, key: i64) {
    let keys = Arc::new(Int64Array::from(vec![key]));
    let schema = memory.schema();
    let batch = RecordBatch::try_new(schema.columns().clone(), vec![keys]).unwrap();
    let stored = schema.puts(&batch, ticket.seq).unwrap();
    ticket.slot.memtable.insert(&stored).unwrap();
}

#[test]
fn entries_are_recovered_in_any_order() {
    let memory = memory();
    for seq in [6, 5, 8] {
        let ticket = memory.recover(Seq(seq));
        insert(&memory, &ticket, seq as i64);
    }
    memory.recovered();
    assert_eq!((memory.rows(), memory.visible()), (3, Seq(8)));
    assert_eq!(memory.begin().seq, Seq(9));
}

#[test]
fn batches_become_visible_in_order() {
    let memory = memory();
    let (first, second) = (memory.begin(), memory.begin());
    insert(&memory, &second, 2);
    drop(second);
    assert_eq!(memory.visible(), Seq(4));
    drop(first);
    assert_eq!(memory.visible(), Seq(6));
}

#[tokio::test]
async fn a_frozen_memtable_is_complete_when_its_last_ticket_is_gone() {
    let memory = memory();
    let ticket = memory.begin();
    assert_eq!(memory.freeze_all(), Some(Seq(5)));
    let slot = memory.oldest_frozen().unwrap();
    let complete = tokio::spawn(async move { slot.wait_complete().await });
    assert_eq!(memory.begin().seq, Seq(6));
    insert(&memory, &ticket, 1);
    assert!(!complete.is_finished());
    drop(ticket);
    complete.await.unwrap();
    let (seq, view) = memory.view(|| ((), Seq(5)));
    assert_eq!((seq, view.memtables.len()), ((), 1));
}

#[test]
fn batches_become_durable_in_order() {
    let memory = memory();
    let durable = || memory.durable();
    let mut tickets: Vec<_> = (0..4).map(|_| memory.begin()).collect();
    for (ticket, is_later) in tickets.iter_mut().zip([true, false, true, true]) {
        ticket.is_durable_later = is_later;
    }
    drop(tickets);
    assert_eq!((memory.visible(), durable()), (Seq(8), Seq(4)));
    memory.settle(Seq(7));
    assert_eq!(durable(), Seq(4));
    memory.settle(Seq(5));
    assert_eq!(durable(), Seq(7));
    let mut last = memory.begin();
    last.is_durable_later = true;
    insert(&memory, &last, 1);
    drop(last);
    assert_eq!(memory.freeze_all(), Some(Seq(9)));
    memory.forget_flushed(Seq(9));
    assert_eq!(durable(), Seq(9));
}

#[tokio::test]
async fn seqs_that_an_import_skips_hold_nobody_up() {
    let memory = memory();
    let ahead = memory.seq_ahead();
    let (first, second) = (memory.begin(), memory.begin());
    insert(&memory, &first, 1);
    drop(first);
    let (ticket, frozen) = memory.begin_ahead(ahead).unwrap();
    assert_eq!((ticket.seq, frozen), (ahead, Some(Seq(6))));
    assert!(memory.begin_ahead(ahead).is_none());
    let after = memory.begin();
    assert_eq!(after.seq, Seq(ahead.0 + 1));
    insert(&memory, &after, 2);
    drop(after);
    ticket.show();
    assert_eq!((memory.visible(), memory.durable()), (Seq(5), Seq(5)));
    drop(second);
    assert_eq!(memory.visible(), Seq(ahead.0 + 1));
    assert_eq!(memory.durable(), Seq(ahead.0 - 1));
    // What came after is not complete before the import is.
    memory.freeze_all();
    memory.forget_flushed(Seq(6));
    let slot = memory.oldest_frozen().unwrap();
    let complete = tokio::spawn(async move { slot.wait_complete().await });
    tokio::task::yield_now().await;
    assert!(!complete.is_finished());
    drop(ticket);
    complete.await.unwrap();
    assert_eq!(memory.durable(), Seq(ahead.0 + 1));
    // Without a write in between there is no gap to fall into.
    let next = memory.seq_ahead();
    let (ticket, _) = memory.begin_ahead(next).unwrap();
    drop(ticket);
    assert_eq!((memory.visible(), memory.durable()), (next, next));
    assert!(memory.lock().gaps.is_empty());
}

#[test]
fn a_write_that_came_to_nothing_leaves_nothing_to_flush() {
    let memory = memory();
    drop(memory.begin());
    assert_eq!(memory.freeze_all(), None);
}
