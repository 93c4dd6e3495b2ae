//! The parts of a run, in their order: each can be measured alone.

use super::aggregator::Memory;
use super::row::Row;
use super::scenario::Rival;
use super::{acquire, aggregator, beside, cost, edge, function, heat, local, prefetch, reconciler};

/// A part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Weirgate beside zae-limiter.
    Peer,
    /// Weirgate beside Lua on Redis.
    Redis,
    /// Weirgate beside governor.
    Governor,
    /// The refill edge.
    Edge,
    /// The aggregator.
    Aggregator,
    /// Prefetched tokens.
    Prefetch,
    /// Costs of seven profiles.
    Cost,
    /// One to 64 shards.
    Shards,
    /// A bucket that becomes hot.
    Heat,
    /// The reconciler.
    Reconciler,
    /// The functions' binaries.
    Function,
    /// `weirgate local`.
    Local,
}

/// All of them.
pub const PARTS: [Part; 12] = [
    Part::Peer,
    Part::Redis,
    Part::Governor,
    Part::Edge,
    Part::Aggregator,
    Part::Prefetch,
    Part::Cost,
    Part::Shards,
    Part::Heat,
    Part::Reconciler,
    Part::Function,
    Part::Local,
];

impl Part {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Redis => "redis",
            Self::Governor => "governor",
            Self::Edge => "edge",
            Self::Aggregator => "aggregator",
            Self::Prefetch => "prefetch",
            Self::Cost => "cost",
            Self::Shards => "shards",
            Self::Heat => "heat",
            Self::Reconciler => "reconciler",
            Self::Function => "function",
            Self::Local => "local",
        }
    }

    /// The part of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(name: &str) -> Result<Self, String> {
        let names = PARTS.map(Self::name).join(", ");
        let mut parts = PARTS.into_iter();
        parts
            .find(|part| part.name() == name)
            .ok_or_else(|| format!("PARTS must be some of {names}, got {name:?}"))
    }

    const fn rival(self) -> Option<Rival> {
        match self {
            Self::Peer => Some(Rival::Peer),
            Self::Redis => Some(Rival::Redis),
            Self::Governor => Some(Rival::Governor),
            _ => None,
        }
    }

    const fn is_on_virtual_time(self) -> bool {
        matches!(self, Self::Cost | Self::Shards | Self::Heat)
    }

    async fn rows(self, memory: Memory) -> Vec<Row> {
        match self {
            // These are driven in turn, by one call of `beside`.
            Self::Peer | Self::Redis | Self::Governor => vec![],
            Self::Edge => edge::rows().await,
            Self::Aggregator => aggregator::rows(memory).await,
            Self::Prefetch => prefetch::rows().await,
            Self::Cost => cost::rows().await,
            Self::Shards => heat::rows_of_shards().await,
            Self::Heat => heat::rows().await,
            Self::Reconciler => reconciler::rows().await,
            Self::Function => function::rows().await,
            Self::Local => local::rows().await,
        }
    }
}

/// Measures a bare write, which other times are multiples of, and these parts. Prints each row when
/// it is measured.
///
/// # Panics
/// If a part cannot be measured.
pub async fn measured(parts: &[Part], memory: Memory) -> Vec<Row> {
    let mut rows = vec![];
    let mut take = |row: Row| {
        println!("{row}");
        rows.push(row);
    };
    acquire::rows().await.into_iter().for_each(&mut take);
    let rivals: Vec<_> = parts.iter().filter_map(|part| part.rival()).collect();
    if !rivals.is_empty() {
        beside::run(&rivals, &mut take).await;
    }
    let of = async |part: Part| {
        if parts.contains(&part) {
            part.rows(memory).await
        } else {
            vec![]
        }
    };
    for part in PARTS.into_iter().filter(|part| !part.is_on_virtual_time()) {
        of(part).await.into_iter().for_each(&mut take);
    }
    // Nothing there is a matter of how fast the machine is, so they may share it.
    let of_all = tokio::join!(of(Part::Cost), of(Part::Shards), of(Part::Heat));
    [of_all.0, of_all.1, of_all.2]
        .into_iter()
        .flatten()
        .for_each(&mut take);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_by_its_name() {
        for part in PARTS {
            assert_eq!(Part::named(part.name()), Ok(part));
        }
        assert_eq!(
            Part::named("peers").unwrap_err(),
            "PARTS must be some of peer, redis, governor, edge, aggregator, prefetch, cost, shards, heat, \
             reconciler, function, local, got \"peers\""
        );
    }
}
