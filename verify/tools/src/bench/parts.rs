//! The parts of a run: each can be measured alone, by its name.

use super::aggregator::Memory;
use super::row::Row;
use super::scenario::Rival;
use super::{acquire, aggregator, cost, edge, function, heat, local, prefetch, reconciler, rivals};

/// The names of all parts: three rivals, what depends on the machine, and what runs on virtual time.
pub const PARTS: [&str; 12] = [
    "peer",
    "redis",
    "governor",
    "edge",
    "aggregator",
    "prefetch",
    "reconciler",
    "function",
    "local",
    "cost",
    "shards",
    "heat",
];

/// Measures a bare write, which other times are multiples of, and these parts. Prints each row when
/// it is measured.
///
/// # Errors
/// If a part has another name.
///
/// # Panics
/// If a part cannot be measured.
pub async fn measured(parts: &[String], memory: Memory) -> Result<Vec<Row>, String> {
    if let Some(unknown) = parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        let names = PARTS.join(", ");
        return Err(format!("PARTS must be some of {names}, got {unknown:?}"));
    }
    let has = |part| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let mut rows = vec![];
    let mut take = |row: Row| {
        println!("{row}");
        rows.push(row);
    };
    acquire::rows().await.into_iter().for_each(&mut take);
    let rivals = [Rival::Peer, Rival::Redis, Rival::Governor];
    let rivals: Vec<_> = rivals.into_iter().filter(|of| has(of.part())).collect();
    if !rivals.is_empty() {
        rivals::run(&rivals, &mut take).await;
    }
    for part in PARTS.into_iter().filter(|part| has(part)) {
        let of_part = match part {
            "edge" => edge::rows().await,
            "aggregator" => aggregator::rows(memory).await,
            "prefetch" => prefetch::rows().await,
            "reconciler" => reconciler::rows().await,
            "function" => function::rows().await,
            "local" => local::rows().await,
            _ => vec![],
        };
        of_part.into_iter().for_each(&mut take);
    }
    // Nothing there is a matter of how fast the machine is, so they may share it.
    let of = async |part| match part {
        "cost" if has(part) => cost::rows().await,
        "shards" if has(part) => heat::rows_of_shards().await,
        "heat" if has(part) => heat::rows().await,
        _ => vec![],
    };
    let (cost, shards, heat) = tokio::join!(of("cost"), of("shards"), of("heat"));
    cost.into_iter()
        .chain(shards)
        .chain(heat)
        .for_each(&mut take);
    Ok(rows)
}
