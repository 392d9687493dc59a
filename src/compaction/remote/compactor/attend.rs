//! Keeps one attendance at the meta service outstanding: tells it what is in quarantine, as soon as that changes,
//! and carries out what it orders.

use std::{convert::Infallible, time::Duration};

use tracing::{debug, info, warn};

use super::RemoteCompactor;
use crate::{
    clock::Backoff,
    compaction::{
        QuarantineView,
        remote::attendance::{Attendance, Orders, host_name},
    },
};

/// How long meta may take to answer when there is nothing to say.
const WAIT: Duration = Duration::from_secs(20);
/// Rest after a change, for changes come in bunches.
const CHANGE_REST: Duration = Duration::from_millis(100);

impl RemoteCompactor {
    /// Attends until it is dropped.
    pub(super) async fn attend_for(&self, quarantine: &dyn QuarantineView) -> Infallible {
        let host = host_name();
        let mut backoff = Backoff::for_outage();
        let mut carried_out = 0;
        let mut namesakes = Vec::new();
        loop {
            let listed = quarantine.list();
            let attendance = Attendance {
                owner: self.owner.clone(),
                session: quarantine.session(),
                host: host.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                quarantine: listed.clone(),
                left_out: 0,
                carried_out,
            };
            let answer = tokio::select! {
                biased;
                answer = self.service.attend(attendance.bounded(), WAIT) => answer,
                () = quarantine.changed(&listed) => {
                    tokio::time::sleep(CHANGE_REST).await;
                    continue;
                }
            };
            match answer {
                Ok(orders) => {
                    backoff = Backoff::for_outage();
                    carried_out = carry_out(&orders, carried_out, quarantine);
                    self.mind(&mut namesakes, orders.namesakes);
                }
                Err(error) => {
                    debug!(%error, "meta does not hear that this engine is there");
                    backoff.pause_jittered(&self.env).await;
                }
            }
        }
    }

    /// Warns of other engines that have begun to attend under this one's name.
    fn mind(&self, known: &mut Vec<String>, namesakes: Vec<String>) {
        if !namesakes.is_empty() && *known != namesakes {
            let (owner, hosts) = (&self.owner, namesakes.join(", "));
            warn!(
                %owner, %hosts,
                "other engines use this engine's name, and share its turns at the nodes: give each a name of its own"
            );
        }
        *known = namesakes;
    }
}

/// Carries out what is new among `orders`; returns the number of the latest.
fn carry_out(orders: &Orders, carried_out: u64, quarantine: &dyn QuarantineView) -> u64 {
    let new = orders.retries.iter();
    new.filter(|order| order.number > carried_out)
        .fold(carried_out, |latest, order| {
            let ssts = quarantine.retry(order.table);
            info!(
                ssts,
                "an operator wants what is in quarantine to be tried again"
            );
            latest.max(order.number)
        })
}
