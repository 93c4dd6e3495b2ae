//! The parts of a run: each can be measured alone, by its name.

use super::row::{Rounds, Row};
use super::run::Run;
use super::scenario::Rival;
use super::{acquire, aggregator, cost, edge, function, heat, local, rivals};

/// The names of all parts: five rivals, what depends on the machine, and what runs on virtual time.
pub const PARTS: &str =
    "peer on-redis redis limitador governor edge aggregator function local cost shards heat";

/// Measures a bare write, which other times are multiples of, and these parts. Prints each row of the
/// committed run when it is measured.
pub async fn measured(parts: &[String], committed: &Run) -> Result<Vec<Row>, String> {
    let names = || PARTS.split(' ');
    if let Some(unknown) = parts.iter().find(|part| names().all(|name| name != *part)) {
        return Err(format!("PARTS must be some of {PARTS}, got {unknown:?}"));
    }
    let has = |part| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let mut rows = vec![];
    let mut take = |measured: Vec<Rounds>| -> Result<(), String> {
        for (id, rounds) in measured {
            let row = committed.row(&id)?.measured(&rounds);
            println!("{row}");
            rows.push(row);
        }
        Ok(())
    };
    take(acquire::rows().await)?;
    let rivals = [Rival::OnRedis, Rival::Peer, Rival::Redis, Rival::Limitador, Rival::Governor];
    // The ratio of limitador is to Weirgate on the same server.
    let has_rival =
        |of: &Rival| has(of.part()) || *of == Rival::OnRedis && has(Rival::Limitador.part());
    let rivals: Vec<_> = rivals.into_iter().filter(has_rival).collect();
    if !rivals.is_empty() {
        rivals::run(&rivals, &mut take).await?;
    }
    for part in names().filter(|part| has(part)) {
        take(match part {
            "edge" => edge::rows().await,
            "aggregator" => aggregator::rows().await,
            "function" => function::rows().await,
            "local" => local::rows().await,
            _ => vec![],
        })?;
    }
    // Nothing there is a matter of how fast the machine is, so they may share it.
    let of = async |part| match part {
        "cost" if has(part) => cost::rows().await,
        "shards" if has(part) => heat::rows_of_shards().await,
        "heat" if has(part) => heat::rows().await,
        _ => vec![],
    };
    let (cost, shards, heat) = tokio::join!(of("cost"), of("shards"), of("heat"));
    take([cost, shards, heat].concat())?;
    Ok(rows)
}
