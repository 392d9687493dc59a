//! An engine's attendance against a scripted meta service, in paused time.

use tokio::sync::mpsc;

use super::*;
use crate::{
    compaction::{QuarantineView, QuarantinedSst, remote::RetryOrder},
    types::TableId,
};

/// Hands every attendance to the test, which answers it.
struct Desk {
    calls: mpsc::UnboundedSender<Call>,
}

type Call = (Attendance, tokio::sync::oneshot::Sender<Result<Orders>>);

#[async_trait]
impl JobService for Desk {
    async fn submit(&self, _job: JobSubmission) -> Result<()> {
        Err(Error::unavailable("scripted"))
    }

    async fn watch(&self, _job: JobId, _seen: u64, _wait: Duration) -> Result<JobStatus> {
        Err(Error::unavailable("scripted"))
    }

    async fn attend(&self, attendance: Attendance, _wait: Duration) -> Result<Orders> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.calls.send((attendance, answer)).unwrap();
        answered.await.unwrap()
    }

    async fn release(&self, _job: JobId) -> Result<()> {
        Err(Error::unavailable("scripted"))
    }

    async fn fleet(&self, _needs: &Needs) -> Result<Fleet> {
        Err(Error::unavailable("scripted"))
    }
}

/// A quarantine that the test fills.
#[derive(Default)]
struct Ward {
    ssts: tokio::sync::watch::Sender<Vec<QuarantinedSst>>,
    retried: Mutex<Vec<Option<TableId>>>,
}

#[async_trait]
impl QuarantineView for Ward {
    fn session(&self) -> u64 {
        17
    }

    fn list(&self) -> Vec<QuarantinedSst> {
        self.ssts.borrow().clone()
    }

    fn retry(&self, table: Option<TableId>) -> u64 {
        self.retried.lock().unwrap().push(table);
        self.ssts.send_replace(vec![]).len() as u64
    }

    async fn changed(&self, known: &[QuarantinedSst]) {
        let mut ssts = self.ssts.subscribe();
        let changed = ssts.wait_for(|ssts| !QuarantinedSst::are_as_in(known, ssts));
        drop(changed.await);
    }
}

fn table() -> TableId {
    TableId::from_parts(1, 1)
}

fn sst(failures: u32) -> QuarantinedSst {
    QuarantinedSst {
        table: "events".into(),
        table_id: table(),
        sst: "1".into(),
        reason: "it is torn".into(),
        failures,
        since_ms: 1,
        retry_in_ms: 60_000,
    }
}

async fn next(calls: &mut mpsc::UnboundedReceiver<Call>) -> Call {
    let call = tokio::time::timeout(Duration::from_secs(60), calls.recv()).await;
    call.expect("a call in time").unwrap()
}

/// An engine of owner "o" that attends, what it has in quarantine, and its calls.
fn attending() -> (
    tokio::task::JoinHandle<()>,
    Arc<Ward>,
    mpsc::UnboundedReceiver<Call>,
) {
    let (calls, received) = mpsc::unbounded_channel();
    let (config, env) = (RemoteConfig::default(), Env::default());
    let desk = Arc::new(Desk { calls });
    let compactor = RemoteCompactor::new(desk, memory(), "o".into(), config, env);
    let ward = Arc::new(Ward::default());
    let attended = ward.clone();
    let attend = async move { match compactor.attend(&*attended).await {} };
    (tokio::spawn(attend), ward, received)
}

#[tokio::test(start_paused = true)]
async fn a_change_is_told_at_once() {
    let (attending, ward, mut calls) = attending();
    let (first, unanswered) = next(&mut calls).await;
    assert_eq!((&first.owner.0[..], first.session), ("o", 17));
    assert_eq!((first.quarantine, first.carried_out), (vec![], 0));
    assert!(!first.host.is_empty());
    ward.ssts.send_replace(vec![sst(1)]);
    let (second, _answer) = next(&mut calls).await;
    assert!(unanswered.is_closed());
    assert_eq!(second.quarantine, [sst(1)]);
    // That less time is left is no change.
    let mut later = sst(1);
    later.retry_in_ms = 1;
    ward.ssts.send_replace(vec![later]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(calls.try_recv().is_err());
    ward.ssts.send_replace(vec![sst(2)]);
    let (third, _answer) = next(&mut calls).await;
    assert_eq!(third.quarantine, [sst(2)]);
    attending.abort();
}

#[tokio::test(start_paused = true)]
async fn an_order_that_is_heard_twice_is_carried_out_once() {
    let (attending, ward, mut calls) = attending();
    ward.ssts.send_replace(vec![sst(1)]);
    let orders = |numbers: &[u64]| Orders {
        retries: numbers
            .iter()
            .map(|&number| RetryOrder {
                number,
                table: (number % 2 == 0).then(table),
            })
            .collect(),
        namesakes: vec!["elsewhere".into()],
    };
    let mut told = Vec::new();
    for numbers in [&[4][..], &[4], &[4, 5], &[]] {
        // A change may have cut a call short.
        let (attendance, answer) = loop {
            let call = next(&mut calls).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            if !call.1.is_closed() {
                break call;
            }
        };
        told.push((attendance.carried_out, attendance.quarantine.len()));
        answer.send(Ok(orders(numbers))).unwrap();
    }
    assert_eq!(told, [(0, 1), (4, 0), (4, 0), (5, 0)]);
    assert_eq!(*ward.retried.lock().unwrap(), [Some(table()), None]);
    attending.abort();
}

#[tokio::test(start_paused = true)]
async fn a_meta_that_is_away_is_asked_again_less_and_less_often() {
    let (attending, _ward, mut calls) = attending();
    let started = tokio::time::Instant::now();
    for _ in 0..20 {
        let (_, answer) = next(&mut calls).await;
        answer.send(Err(Error::unavailable("scripted"))).unwrap();
    }
    let passed = started.elapsed();
    let wanted = Duration::from_secs(50)..Duration::from_secs(130);
    assert!(wanted.contains(&passed), "{passed:?}");
    attending.abort();
}
