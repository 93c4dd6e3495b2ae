//! The machine of a shard, by lists of events: what the explorer does not distinguish, or does not do.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, advance};
use weirgate_shared::{MilliTokens, Shard};
use weirgate_store::{Consistency, ErrorKind, StoreError};

use super::super::machine::{Command, Written};
use super::super::pace::ContentionBackoff;
use super::super::shard_state::ShardState;
use super::super::waiter::{Reply, Waiter};
use super::explorer::{Process, START, Wish, failed, key, limits, names, one_token, process};
use crate::values::{Error, Outcome};

const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);

/// A shard with these tokens and free slots.
fn shard(write_seq: i64, [rate, slots]: [i64; 2]) -> Shard {
    let mut shard = Shard { write_seq, ..Shard::full(key(), &limits(), START) };
    for (name, left) in names().iter().zip([rate, slots]) {
        let state = shard.limits.get_mut(name).expect("the limits have it");
        state.available = MilliTokens::from_tokens(left);
    }
    shard
}

/// A process whose time is confirmed, with this view.
fn with_view(view: Shard) -> (Process, Arc<ShardState>) {
    let process = process();
    process.env.ages.confirm(process.env.ages.jumps());
    let state = Arc::clone(process.machine.shard());
    state.record_view(view);
    (process, state)
}

/// A request that comes now.
fn arrive(process: &mut Process, wish: &Wish) -> u64 {
    let now = Instant::now();
    let waiter = Waiter::new(wish.request(), now, now + wish.timeout);
    process.machine.arrive(waiter)
}

/// The error of the only reply.
fn last_error(process: &mut Process) -> Option<Arc<StoreError>> {
    match process.machine.take_replies().pop() {
        Some((_, Err(Error::Timeout { last, .. }))) => last,
        other => panic!("a timeout was due, got {other:?}"),
    }
}

/// A replica that lags, or an item that is gone, does not bring a newer view: it is not read again at
/// once.
#[tokio::test(start_paused = true)]
async fn an_outgrown_view_is_read_once() {
    for shown in [Some(9), Some(10), None] {
        let (mut process, state) = with_view(shard(10, [40, 3]));
        advance(MOMENT).await;
        state.summary.record_shard_count(2, process.env.ages.now());
        arrive(&mut process, &one_token());
        let read = process.machine.poll(&process.env);
        assert!(matches!(read, Command::Read(_)), "{read:?}");
        let found = Ok(shown.map(|write_seq| shard(write_seq, [40, 3])));
        process.machine.read_done(&process.env, found);
        let next = process.machine.poll(&process.env);
        assert!(matches!(next, Command::Write(_)), "{shown:?}: {next:?}");
    }
}

/// A release whose response came first has freed the slot that the read does not show.
#[tokio::test(start_paused = true)]
async fn a_read_replaces_no_view_that_came_while_it_was_under_way() {
    let (mut process, state) = with_view(shard(5, [40, 0]));
    // Too old a view to deny by.
    advance(SECOND).await;
    let slot = Wish { lease: Some(SECOND), ..one_token() };
    arrive(&mut process, &slot);
    let read = process.machine.poll(&process.env);
    assert!(matches!(read, Command::Read(Consistency::Strong)), "{read:?}");
    state.record_response(shard(6, [40, 1]), process.env.ages.sent());
    process.machine.read_done(&process.env, Ok(Some(shard(5, [40, 0]))));
    let next = process.machine.poll(&process.env);
    assert!(matches!(next, Command::Write(_)), "{next:?}");
    assert_eq!(state.view().expect("it was seen").shard.write_seq, 6);
}

/// Otherwise each request would read before a write that is refused again.
#[tokio::test(start_paused = true)]
async fn a_write_that_access_is_denied_to_leaves_the_view() {
    let (mut process, state) = with_view(shard(5, [40, 3]));
    arrive(&mut process, &one_token());
    let write = process.machine.poll(&process.env);
    assert!(matches!(write, Command::Write(_)), "{write:?}");
    let refused = Err(failed(ErrorKind::AccessDenied));
    process.machine.written(&process.env, refused);
    let replies = process.machine.take_replies();
    assert!(matches!(replies[..], [(1, Err(Error::Store(_)))]), "{replies:?}");
    assert!(state.view().is_some());
}

/// A request with much time behind it does not prolong the doubt of those that have none left.
#[tokio::test(start_paused = true)]
async fn a_doubt_is_looked_up_once_no_request_of_its_write_has_time() {
    let (mut process, _state) = with_view(shard(5, [40, 3]));
    let short = Wish { timeout: Duration::from_millis(5), ..one_token() };
    arrive(&mut process, &short);
    let began = Instant::now();
    let _ = process.machine.poll(&process.env);
    arrive(&mut process, &one_token());
    for _ in 0..20 {
        let lost = Err(failed(ErrorKind::Unconfirmed));
        process.machine.written(&process.env, lost);
        let wait = match process.machine.poll(&process.env) {
            Command::Wait(until) => until,
            _ => continue,
        };
        assert!(wait <= began + short.timeout, "{:?}", wait - began);
        advance(wait - Instant::now()).await;
        match process.machine.poll(&process.env) {
            Command::LookUp => return,
            next => assert!(matches!(next, Command::Write(_)), "{next:?}"),
        }
    }
    panic!("it was never looked up");
}

/// Otherwise an operator would search for a hanging network where there was none.
#[tokio::test(start_paused = true)]
async fn a_timeout_names_a_request_that_hangs_and_none_that_was_never_made() {
    let (mut process, _state) = with_view(shard(5, [40, 3]));
    let id = arrive(&mut process, &one_token());
    advance(one_token().timeout).await;
    process.machine.deadline_passed(&process.env, id);
    assert!(last_error(&mut process).is_none());
    for hangs_for in [SECOND - MOMENT, SECOND] {
        let (mut process, _state) = with_view(shard(5, [40, 3]));
        arrive(&mut process, &one_token());
        let _ = process.machine.poll(&process.env);
        let late = arrive(&mut process, &one_token());
        advance(hangs_for).await;
        process.machine.deadline_passed(&process.env, late);
        let last = last_error(&mut process);
        assert_eq!(last.is_some(), hangs_for == SECOND, "{last:?}");
        let names = |error: Arc<StoreError>| error.request.starts_with("UpdateItem of default/");
        assert!(last.is_none_or(names));
    }
}

/// Those that came first may be served by tokens that are still to come.
#[tokio::test(start_paused = true)]
async fn a_request_is_denied_by_a_view_only_in_its_turn() {
    let (mut process, _state) = with_view(shard(5, [2, 3]));
    arrive(&mut process, &one_token());
    let write = process.machine.poll(&process.env);
    assert!(matches!(write, Command::Write(_)), "{write:?}");
    let large = Wish { rate: MilliTokens::from_tokens(20), ..one_token() };
    let second = arrive(&mut process, &large);
    assert!(process.machine.take_replies().is_empty());
    let applied = Ok(Written::Applied(Some(shard(6, [1, 3]))));
    process.machine.written(&process.env, applied);
    let _ = process.machine.poll(&process.env);
    let replies = process.machine.take_replies();
    let [(1, Ok(Outcome::Granted(_))), (id, Ok(Outcome::Denied(_)))] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!(*id, second);
}

fn denials(process: &mut Process) -> Vec<Option<Duration>> {
    let denied = |(_, reply): (u64, Reply)| match reply {
        Ok(Outcome::Denied(denied)) => Some(denied.retry_after),
        _ => None,
    };
    process.machine.take_replies().into_iter().filter_map(denied).collect()
}

/// A daily limit that is used up is contended for the one token of a minute: a request between two
/// of them would wait for its denial.
#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_what_comes_later_than_the_wait_ends() {
    for _ in 0..20 {
        let (mut process, state) = with_view(shard(5, [0, 3]));
        (0..10).for_each(|_| state.with_backoff(ContentionBackoff::lost_race));
        // Too old a view to deny by.
        advance(SECOND).await;
        let all = Wish { rate: MilliTokens::from_tokens(40), ..one_token() };
        arrive(&mut process, &all);
        let read = process.machine.poll(&process.env);
        assert!(matches!(read, Command::Read(_)), "{read:?}");
    }
}

/// A slot may have been released since.
#[tokio::test(start_paused = true)]
async fn slots_that_an_old_view_lacks_deny_nothing_while_the_shard_is_throttled() {
    for (age, denies) in [(SECOND / 2, true), (SECOND * 2, false)] {
        let (mut process, _state) = with_view(shard(5, [40, 0]));
        advance(age).await;
        let slot = Wish { lease: Some(SECOND), ..one_token() };
        let id = arrive(&mut process, &slot);
        let read = process.machine.poll(&process.env);
        assert!(matches!(read, Command::Read(_)), "{read:?}");
        let throttled = Err(failed(ErrorKind::Throttled { key_range: true }));
        process.machine.read_done(&process.env, throttled);
        assert_eq!(denials(&mut process).len(), usize::from(denies), "{age:?}");
        if !denies {
            advance(slot.timeout).await;
            process.machine.deadline_passed(&process.env, id);
            assert_eq!(denials(&mut process), [], "at the deadline");
        }
    }
}

/// What was too little when the write was planned may be enough when a slow answer comes.
#[tokio::test(start_paused = true)]
async fn a_slow_answer_denies_nothing_that_has_come_in_meanwhile() {
    for (takes, denies) in [(MOMENT * 10, true), (SECOND, false)] {
        let (mut process, _state) = with_view(shard(5, [40, 3]));
        for rate in [30, 20] {
            let wish = Wish { rate: MilliTokens::from_tokens(rate), ..one_token() };
            arrive(&mut process, &wish);
        }
        let write = process.machine.poll(&process.env);
        assert!(matches!(write, Command::Write(_)), "{write:?}");
        advance(takes).await;
        let applied = Ok(Written::Applied(Some(shard(6, [10, 3]))));
        process.machine.written(&process.env, applied);
        let waits = denials(&mut process);
        assert_eq!(waits.len(), usize::from(denies), "{takes:?}: {waits:?}");
        assert!(waits.iter().flatten().all(|wait| !wait.is_zero()), "{waits:?}");
    }
}

/// The item refused nothing: it did not get the writes.
#[tokio::test(start_paused = true)]
async fn doubts_that_end_without_a_take_are_no_refusals() {
    let (mut process, _state) = with_view(shard(5, [40, 3]));
    let env = Arc::get_mut(&mut process.env).expect("nothing else has it");
    env.timeout = SECOND / 5;
    let wish = Wish { timeout: SECOND * 10, ..one_token() };
    arrive(&mut process, &wish);
    let mut doubts = 0;
    while doubts < 9 {
        match process.machine.poll(&process.env) {
            Command::Write(_) => {
                let lost = Err(failed(ErrorKind::Unconfirmed));
                process.machine.written(&process.env, lost);
            }
            Command::Wait(until) => advance(until - Instant::now()).await,
            Command::Stop => panic!("a request waits"),
            read => {
                doubts += i32::from(matches!(read, Command::LookUp));
                let found = Ok(Some(shard(5, [40, 3])));
                process.machine.read_done(&process.env, found);
            }
        }
        let replies = process.machine.take_replies();
        assert!(replies.is_empty(), "{replies:?} after {doubts} doubts");
    }
}
