//! Engines that attend, as messages and back.

use std::time::Duration;

use super::{all, list, millis, required};
use crate::{
    compaction::{
        QuarantinedSst,
        remote::{Attendance, Orders, RetryOrder},
    },
    error::{Error, Result},
    meta::{EngineInfo, QuarantineInfo},
    proto as pb,
    types::{OwnerId, TableId},
};

/// A table's id, or nothing for all tables.
pub(super) fn table_or_all(table: &str) -> Result<Option<TableId>> {
    (!table.is_empty()).then(|| table.parse()).transpose()
}

/// The text for it.
pub(super) fn text_of(table: Option<TableId>) -> String {
    table.map_or_else(String::new, |table| table.to_string())
}

/// An attendance and how long it waits.
pub(in crate::rpc) fn attendance_to_proto(
    attendance: Attendance,
    wait: Duration,
) -> pb::AttendRequest {
    pb::AttendRequest {
        owner: attendance.owner.0,
        session: attendance.session,
        host: attendance.host,
        version: attendance.version,
        quarantine: all(attendance.quarantine),
        left_out: attendance.left_out,
        carried_out: attendance.carried_out,
        wait_ms: millis(wait),
    }
}

impl TryFrom<pb::AttendRequest> for Attendance {
    type Error = Error;

    fn try_from(request: pb::AttendRequest) -> Result<Self> {
        if request.owner.is_empty() {
            return Err(Error::invalid("engine without a name"));
        }
        Ok(Self {
            owner: OwnerId(request.owner),
            session: request.session,
            host: request.host,
            version: request.version,
            quarantine: list(request.quarantine)?,
            left_out: request.left_out,
            carried_out: request.carried_out,
        })
    }
}

impl From<QuarantinedSst> for pb::QuarantinedSst {
    fn from(sst: QuarantinedSst) -> Self {
        Self {
            table: sst.table,
            table_id: sst.table_id.to_string(),
            sst: sst.sst,
            reason: sst.reason,
            failures: sst.failures,
            since_ms: sst.since_ms,
            retry_in_ms: sst.retry_in_ms,
        }
    }
}

impl TryFrom<pb::QuarantinedSst> for QuarantinedSst {
    type Error = Error;

    fn try_from(sst: pb::QuarantinedSst) -> Result<Self> {
        Ok(Self {
            table: sst.table,
            table_id: sst.table_id.parse()?,
            sst: sst.sst,
            reason: sst.reason,
            failures: sst.failures,
            since_ms: sst.since_ms,
            retry_in_ms: sst.retry_in_ms,
        })
    }
}

impl From<Orders> for pb::AttendReply {
    fn from(orders: Orders) -> Self {
        let retries = orders.retries.into_iter().map(|order| pb::RetryOrder {
            number: order.number,
            table: text_of(order.table),
        });
        Self {
            retries: retries.collect(),
            namesakes: orders.namesakes,
        }
    }
}

impl TryFrom<pb::AttendReply> for Orders {
    type Error = Error;

    fn try_from(reply: pb::AttendReply) -> Result<Self> {
        let retries = reply.retries.into_iter().map(|order| {
            Ok(RetryOrder {
                number: order.number,
                table: table_or_all(&order.table)?,
            })
        });
        Ok(Self {
            retries: retries.collect::<Result<_>>()?,
            namesakes: reply.namesakes,
        })
    }
}

impl From<EngineInfo> for pb::EngineListing {
    fn from(info: EngineInfo) -> Self {
        Self {
            session: info.session,
            host: info.host,
            version: info.version,
            attends: info.attends,
            silent_ms: millis(info.silent),
            has_namesakes: info.has_namesakes,
            quarantined: info.quarantined,
        }
    }
}

impl From<pb::EngineListing> for EngineInfo {
    fn from(listing: pb::EngineListing) -> Self {
        Self {
            session: listing.session,
            host: listing.host,
            version: listing.version,
            attends: listing.attends,
            silent: Duration::from_millis(listing.silent_ms),
            has_namesakes: listing.has_namesakes,
            quarantined: listing.quarantined,
        }
    }
}

impl From<QuarantineInfo> for pb::QuarantineListing {
    fn from(info: QuarantineInfo) -> Self {
        Self {
            owner: info.owner.0,
            engine: Some(info.engine.into()),
            ssts: all(info.ssts),
            left_out: info.left_out,
        }
    }
}

impl TryFrom<pb::QuarantineListing> for QuarantineInfo {
    type Error = Error;

    fn try_from(listing: pb::QuarantineListing) -> Result<Self> {
        Ok(Self {
            owner: OwnerId(listing.owner),
            engine: required(listing.engine, "engine")?.into(),
            ssts: list(listing.ssts)?,
            left_out: listing.left_out,
        })
    }
}
