//! What befalls a cluster while its databases work.

use std::time::Duration;

use siltstone::store::faulty::Weather;
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;

const NODES_MAX: usize = 4;

/// Lets things happen for as long as `patience` lasts.
pub async fn rage(cluster: &mut Cluster, patience: Duration) {
    let world = cluster.world.clone();
    let began = Instant::now();
    while began.elapsed() < patience {
        sleep(Duration::from_secs(1) + world.up_to(Duration::from_secs(20))).await;
        let fate = world.below(16);
        match fate {
            0 | 1 => lose_node(cluster, false).await,
            2 => lose_node(cluster, true).await,
            3..=5 => cluster.start_node_if_below(NODES_MAX),
            6 => lose_meta(cluster).await,
            7 => {
                // The one before finds out by itself.
                world.count("metas overtaken", u64::from(cluster.meta().is_some()));
                cluster.start_meta().await;
            }
            8 => outage(cluster).await,
            9 | 10 => bad_weather(cluster).await,
            11 | 12 => cut_somebody_from_meta(cluster).await,
            13 => suspend_node(cluster).await,
            _ => kill_engine(cluster),
        }
    }
}

async fn lose_node(cluster: &mut Cluster, politely: bool) {
    if cluster.nodes.is_empty() {
        return;
    }
    let world = cluster.world.clone();
    let node = cluster
        .nodes
        .swap_remove(world.below(cluster.nodes.len() as u64) as usize);
    let name = node.host.name.clone();
    if !politely {
        world.tell(format!("{name} is killed"));
        world.count("nodes killed", 1);
        node.host.kill();
        node.run.abort();
        cluster.farewell(&node);
        return;
    }
    world.tell(format!("{name} drains"));
    world.count("nodes drained", 1);
    node.shutdown.cancel();
    // It may take as long as it needs to tell meta, which may be away; a node that is fenced says so.
    let (view, host) = (node.view.clone(), node.host.clone());
    tokio::spawn(async move {
        let _ = node.run.await.unwrap();
        world.tell(format!("{name} has drained"));
        host.kill();
        drop(view);
    });
}

async fn lose_meta(cluster: &mut Cluster) {
    let world = cluster.world.clone();
    if let Some(meta) = cluster.meta() {
        world.tell(format!("{} is killed", meta.host.name));
        world.count("metas killed", 1);
        meta.host.kill();
    }
    sleep(world.up_to(Duration::from_secs(30))).await;
    cluster.start_meta().await;
}

/// All stores and links are away for everybody.
async fn outage(cluster: &Cluster) {
    let world = &cluster.world;
    world.tell("an outage begins");
    world.count("outages", 1);
    for host in world.hosts() {
        host.set_weather(Weather::CUT);
    }
    sleep(world.up_to(Duration::from_secs(90))).await;
    clear_up(cluster);
}

/// Requests fail and lose their answers, for some or for all.
async fn bad_weather(cluster: &Cluster) {
    let world = &cluster.world;
    let weather = Weather {
        fails: world.below(30) as f64 / 100.0,
        loses_answers: world.below(30) as f64 / 100.0,
        delay_max: world.up_to(Duration::from_secs(2)),
    };
    world.tell(format!("{weather:?}"));
    world.count("storms", 1);
    for host in world.hosts() {
        if world.below(3) > 0 {
            host.set_weather(weather);
        }
    }
    sleep(world.up_to(Duration::from_secs(60))).await;
    clear_up(cluster);
}

fn clear_up(cluster: &Cluster) {
    cluster.world.tell("the weather is fair");
    for host in cluster.world.hosts() {
        host.set_weather(cluster.world.fair);
    }
}

async fn cut_somebody_from_meta(cluster: &Cluster) {
    let world = &cluster.world;
    let hosts = world.hosts();
    let host = &hosts[world.below(hosts.len() as u64) as usize];
    world.tell(format!("{} is cut from meta", host.name));
    host.cut_from_meta();
    sleep(world.up_to(Duration::from_secs(60))).await;
    host.heal();
}

async fn suspend_node(cluster: &Cluster) {
    let world = &cluster.world;
    if let Some(node) = cluster.nodes.first() {
        world.tell(format!("{} is suspended", node.host.name));
        node.host.cut();
        sleep(world.up_to(Duration::from_secs(60))).await;
        node.host.heal();
        world.tell(format!("{} goes on", node.host.name));
    }
}

fn kill_engine(cluster: &Cluster) {
    let world = &cluster.world;
    let hosts = world.hosts();
    let engines: Vec<_> = hosts
        .iter()
        .filter(|host| host.name.starts_with("engine"))
        .collect();
    if !engines.is_empty() {
        let engine = engines[world.below(engines.len() as u64) as usize];
        world.tell(format!("{} is killed", engine.name));
        world.count("engines killed", 1);
        engine.kill();
    }
}
