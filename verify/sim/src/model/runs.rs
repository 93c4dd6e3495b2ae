//! Runs of the protocol, as the aggregator and a reader of usage see them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use stateright::Model;
use weirgate_aggregator::parse::{After, Record};
use weirgate_aggregator::plan;
use weirgate_shared::write::UsageCopy;
use weirgate_shared::{EpochMillis, Meter, Usage, Window};

use crate::model::protocol::Protocol;
use crate::model::table::{Row, counted};

/// The states of shards after the writes of a run, each with its shard.
type Stream = Vec<(usize, Option<Arc<Row>>)>;

/// One window of a run. Sets of records are bits, by their place in the stream.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) window: Window,
    pub(crate) start: EpochMillis,
    pub(crate) batches: Vec<Batch>,
    /// After no write, after one, and so on.
    pub(crate) moments: Vec<Moment>,
    /// Usage that each life of a shard counts in the window, by shard index and birth.
    pub(crate) lives: BTreeMap<(u32, i64), Usage>,
}

/// Consecutive records of one shard.
#[derive(Debug, PartialEq)]
pub(crate) struct Batch {
    /// Copies that the aggregator writes to the window's snapshot.
    pub(crate) copies: Vec<UsageCopy>,
    /// The records among them that end the window for a life of the shard.
    pub(crate) ends: u32,
    /// Earlier deletions of the shard, which a stream delivers first and a replay does not.
    pub(crate) follows: u32,
    /// Number of writes when the last of them happens.
    pub(crate) last: usize,
}

/// State between two writes.
#[derive(Debug)]
pub(crate) struct Moment {
    /// Usage counted in the window.
    pub(crate) truth: Usage,
    /// Shards as a reader finds them.
    pub(crate) live: Vec<Meter>,
    /// Records so far that end the window for a life of a shard.
    pub(crate) ends: u32,
}

/// Returns all windows of all runs of `protocol` that differ.
pub(crate) fn cases(protocol: &Protocol) -> Vec<Case> {
    let mut known = HashSet::new();
    let all = streams(protocol).into_iter().flat_map(|stream| windows(&stream));
    all.filter(|case| known.insert(format!("{case:?}"))).collect()
}

/// Returns the streams of all runs. A deleted item is created again later than its last write, by
/// the clocks of both.
fn streams(protocol: &Protocol) -> HashSet<Stream> {
    let (mut seen, mut streams) = (HashSet::new(), HashSet::new());
    let mut open = protocol.init_states();
    while let Some(state) = open.pop() {
        let next = protocol.next_states(&state);
        if next.is_empty() {
            streams.insert(state.stream);
        }
        open.extend(
            next.into_iter()
                .filter(|state| !state.table.has_reused_v && seen.insert(state.clone())),
        );
    }
    streams
}

fn windows(stream: &Stream) -> Vec<Case> {
    let mut items = [const { None }; 3];
    let write = |(index, (shard, after)): (usize, &(usize, Option<Arc<Row>>))| {
        let before = std::mem::replace(&mut items[*shard], after.clone());
        let before = before.map(|row| row.meter.clone());
        let live = items.iter().flatten().map(|row| row.read()).collect();
        let after = match after.as_deref() {
            None => After::Gone,
            Some(row) if row.is_merged() => After::Merged(row.meter.clone()),
            Some(row) => After::Live(Box::new(row.bucket().clone())),
        };
        (Record { index, at: EpochMillis::default(), before, after }, live)
    };
    let (records, live): (Vec<_>, Vec<_>) = stream.iter().enumerate().map(write).unzip();
    let meters = stream.iter().filter_map(|(_, row)| Some(&row.as_ref()?.meter));
    let all: BTreeSet<_> =
        meters.flat_map(|meter| Window::ALL.map(|window| (window, meter.start(window)))).collect();
    all.into_iter().map(|(window, start)| case(stream, &records, &live, window, start)).collect()
}

fn case(
    stream: &Stream,
    records: &[Record],
    live: &[Vec<Meter>],
    window: Window,
    start: EpochMillis,
) -> Case {
    let is_in = |meter: &&Meter| meter.start(window) == start;
    let life = |meter: &Meter| (meter.key.shard, meter.birth_seq);
    let (mut moments, mut lives) = (vec![], BTreeMap::<_, Usage>::new());
    let (mut truth, mut ends, mut deletions) = (Usage::default(), 0, 0);
    moments.push(Moment { truth: truth.clone(), live: vec![], ends });
    for (at, (Record { before, .. }, (_, after))) in records.iter().zip(stream).enumerate() {
        let before = before.as_ref();
        let after_in = after.as_ref().map(|row| &row.meter).filter(is_in);
        if before.is_some_and(|before| is_in(&before)) && after_in.is_none() {
            ends |= 1 << at;
            deletions |= u32::from(after.is_none()) << at;
        }
        if let Some(after) = after_in {
            let counted = counted(before, after);
            truth.add(&counted);
            lives.entry(life(after)).or_default().add(&counted);
        }
        moments.push(Moment { truth: truth.clone(), live: live[at].clone(), ends });
    }
    let mut batches: Vec<Batch> = vec![];
    for shard in 0..2 {
        let of: Vec<_> = records.iter().filter(|record| stream[record.index].0 == shard).collect();
        let bits = |of: &[&Record]| of.iter().map(|record| 1 << record.index).sum::<u32>();
        for (from, to) in
            (0..of.len()).flat_map(|from| (from + 1..=of.len()).map(move |to| (from, to)))
        {
            let shards = plan::shards(of[from..to].iter().copied().cloned().collect());
            let copies = plan::copies(&shards, 1).map(|(copy, _)| copy);
            let copies: Vec<_> = copies
                .filter(|copy| (copy.key.window, copy.key.start) == (window, start))
                .collect();
            let (ends, follows) = (ends & bits(&of[from..to]), deletions & bits(&of[..from]));
            let last = of[to - 1].index + 1;
            // More records that change nothing only make it later.
            let is_same = |known: &&mut Batch| {
                (&known.copies, known.ends, known.follows) == (&copies, ends, follows)
            };
            match batches.iter_mut().find(is_same) {
                Some(known) => known.last = known.last.min(last),
                None if copies.is_empty() && ends == 0 => {}
                None => batches.push(Batch { copies, ends, follows, last }),
            }
        }
    }
    Case { window, start, batches, moments, lives }
}
