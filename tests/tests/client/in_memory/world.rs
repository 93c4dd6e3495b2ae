//! Two processes on one table, either in memory or an embedded DynamoDB, and what happens to them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weirgate::{
    ConfigLevel, Decision, Entity, EpochMillis, Error, FakeClock, Grant, Prefetch, RateLimiter,
    StoredLease,
};
use weirgate_shared::{Attr, attr};
use weirgate_store::{MemoryTable, Table};
use weirgate_testkit::{Dynamo, attributes};

use super::quiet::quiet;
use super::step::{
    ENTITIES, LIMITS, RESOURCES, Step, Take, configured, entity, level, limits, list,
};
use weirgate_tests::fleet::{START, millis, pass, secs};
use weirgate_tests::sharded::run;

/// The time begins here, so that an hour ends while the steps run.
const BEFORE_AN_HOUR: EpochMillis = EpochMillis(START.0 - 20_000);

/// Where the items are.
enum Items {
    Memory(MemoryTable),
    Dynamo(Dynamo),
}

pub struct World {
    table: Table,
    items: Items,
    processes: [RateLimiter; 2],
    grants: Vec<Grant>,
    step: u64,
}

/// An item, by its attributes' names.
pub type Shown = BTreeMap<String, String>;

impl World {
    pub async fn in_memory() -> Self {
        let (memory, clock) = (MemoryTable::default(), FakeClock::at(BEFORE_AN_HOUR));
        let tables = [(); 3].map(|()| Table::in_memory(&memory, clock.clone()));
        Self::of(tables, Items::Memory(memory)).await
    }

    pub async fn embedded() -> Self {
        let clock = FakeClock::at(BEFORE_AN_HOUR);
        let dynamo = Dynamo::new().await.with_clock(clock.clone());
        let tables = [
            quiet(&dynamo, &clock).await,
            quiet(&dynamo, &clock).await,
            quiet(&dynamo, &clock).await,
        ];
        Self::of(tables, Items::Dynamo(dynamo)).await
    }

    async fn of([one, other, table]: [Table; 3], items: Items) -> Self {
        fastrand::seed(0);
        let builder = |table| RateLimiter::builder("weirgate").table(table).owner("test");
        let other = builder(other).prefetch(RESOURCES[2], Prefetch::default());
        let processes = [
            builder(one).build().await.unwrap(),
            other.build().await.unwrap(),
        ];
        let config = configured(0);
        let set = processes[0].set_config(&ConfigLevel::System, &config);
        set.await.unwrap();
        Self {
            table,
            items,
            processes,
            grants: vec![],
            step: 0,
        }
    }

    /// Runs a step, and returns what it answered.
    pub async fn run(&mut self, step: &Step) -> String {
        // The same pauses after a lost race on both tables.
        self.step += 1;
        fastrand::seed(self.step);
        let answer = self.answer(step).await;
        pass(millis(10)).await;
        answer
    }

    async fn answer(&mut self, step: &Step) -> String {
        let one = self.processes[0].clone();
        // Some keys come again, for the same change or another one.
        let key = format!("ticket-{}", self.step % 9);
        match step {
            Step::Take(take) => self.take(take).await,
            Step::Adjust(at, limit, to) => match self.grant(*at) {
                Some(mut grant) => {
                    let settled = grant.adjust(LIMITS[*limit], *to).await;
                    self.grants.push(grant);
                    shown(settled)
                }
                None => String::new(),
            },
            Step::Renew(at, seconds) => match self.grant(*at) {
                Some(mut grant) => {
                    let settled = grant.renew(secs(*seconds)).await;
                    self.grants.push(grant);
                    shown(settled)
                }
                None => String::new(),
            },
            Step::Release(at) => match self.grant(*at) {
                Some(grant) => shown(grant.release().await),
                None => String::new(),
            },
            Step::RollBack(at) => match self.grant(*at) {
                Some(grant) => shown(grant.roll_back().await),
                None => String::new(),
            },
            Step::Drop(at) => {
                drop(self.grant(*at));
                String::new()
            }
            Step::Peek(process, entity, resource) => {
                let peek = self.processes[*process].peek(ENTITIES[*entity], RESOURCES[*resource]);
                shown(peek.need("rpm", 5).send().await)
            }
            Step::Configure(at, Some(config)) => {
                shown(one.set_config(&level(*at), &configured(*config)).await)
            }
            Step::Configure(at, None) => shown(one.delete_config(&level(*at)).await),
            Step::Parent(child, parent, cascades) => {
                let entity = Entity {
                    id: entity(*child),
                    parent: parent.map(entity),
                    cascades: *cascades,
                };
                shown(one.set_entity(&entity).await)
            }
            Step::Forget(at) => shown(one.delete_entity(&entity(*at)).await),
            Step::Shards(resource, shards) => {
                let limits = limits();
                let set = one.set_shards(ENTITIES[0], RESOURCES[*resource], &limits, *shards);
                shown(set.await)
            }
            Step::ReleaseLease(entity, resource) => {
                let (entity, resource) = (ENTITIES[*entity], RESOURCES[*resource]);
                let leases = one.leases(entity, resource).await.unwrap().items;
                // Ids are random, so they neither order the leases nor show.
                let by_text = leases.iter().map(|lease| {
                    let id = String::new();
                    let text = format!(
                        "{:?}",
                        StoredLease {
                            id,
                            ..lease.clone()
                        }
                    );
                    (text, &lease.id)
                });
                let by_text: BTreeMap<_, _> = by_text.collect();
                let released = match by_text.first_key_value() {
                    Some((_, id)) => shown(one.release_lease(entity, resource, id).await),
                    None => String::new(),
                };
                format!("{:?} {released}", by_text.keys())
            }
            Step::TakeMore(at, limit, tokens) => match self.grant(*at) {
                Some(mut grant) => {
                    let more = grant.take_more(LIMITS[*limit], *tokens).await;
                    self.grants.push(grant);
                    shown(more)
                }
                None => String::new(),
            },
            Step::GiveBack(at, limit, tokens) => match self.grant(*at) {
                Some(mut grant) => {
                    let settled = grant.give_back(LIMITS[*limit], *tokens).await;
                    self.grants.push(grant);
                    shown(settled)
                }
                None => String::new(),
            },
            Step::Switch(at, next) => {
                let level = level(*at);
                let edit = match next {
                    Some(true) => one.stop(&level),
                    Some(false) => one.exempt(&level),
                    None => one.start(&level),
                };
                shown(edit.idempotency_key(key).send().await)
            }
            Step::Edit(resource, limit, tokens) => {
                let edit = one.edit_balances(ENTITIES[0], RESOURCES[*resource]);
                let edit = match tokens {
                    Some(tokens) => edit.top_up(LIMITS[*limit], *tokens),
                    None => edit.drain(LIMITS[*limit]),
                };
                shown(edit.idempotency_key(key).send().await)
            }
            Step::ApplyLimits(resource) => {
                let edit = one.apply_limits(ENTITIES[0], RESOURCES[*resource]);
                shown(edit.idempotency_key(key).send().await)
            }
            Step::Reconcile => {
                let now = self.table.skew().now();
                format!("{:?}", run(&self.table, now).await)
            }
            Step::List(at) => list(&one, *at).await,
            Step::Pass(ms) => {
                pass(millis(*ms)).await;
                String::new()
            }
        }
    }

    async fn take(&mut self, take: &Take) -> String {
        let process = self.processes[take.process].clone();
        let limits = limits();
        let mut acquire = process.acquire(ENTITIES[take.entity], RESOURCES[take.resource]);
        if take.has_limits {
            acquire = acquire.limits(&limits);
        }
        for (limit, amount) in LIMITS.iter().zip(take.amounts) {
            acquire = match (amount, take.least) {
                (Some(amount), Some(least)) if *limit == "rpm" => {
                    acquire.take_up_to(limit, least, least + amount)
                }
                (Some(amount), _) => acquire.take(limit, amount),
                (None, _) => acquire,
            };
        }
        // One take reclaims 8 expired leases, in the order of their random ids.
        if let Some(seconds) = take.lease_s.filter(|_| self.grants.len() < 8) {
            acquire = acquire.lease(secs(seconds));
        }
        if take.cascades {
            acquire = acquire.cascading();
        }
        match acquire.wait_up_to(secs(take.wait_s)).send().await {
            Ok(Decision::Granted(grant)) => {
                let (held, denied) = (grant.limits().to_vec(), grant.would_deny());
                let taken = LIMITS.map(|limit| grant.amount(limit));
                let text = format!(
                    "granted {taken:?} {held:?} {denied:?} {:?} {:?}",
                    grant.lease_id().is_some(),
                    grant.expires_at(),
                );
                self.grants.push(grant);
                text
            }
            other => shown(other),
        }
    }

    fn grant(&mut self, at: usize) -> Option<Grant> {
        let at = at.checked_rem(self.grants.len())?;
        Some(self.grants.swap_remove(at))
    }

    /// Ends the grants and the prefetched tokens.
    pub async fn end(&mut self) {
        // One after the other, because writes to one shard at the same time may leave `due` behind.
        while let Some(grant) = self.grants.pop() {
            drop(grant);
            pass(millis(10)).await;
        }
        for process in &self.processes {
            process.shutdown().await.unwrap();
        }
        pass(Duration::from_secs(10)).await;
    }

    /// All items, in the order of their keys.
    pub fn items(&self) -> Vec<Shown> {
        let mut items: Vec<Shown> = match &self.items {
            Items::Memory(memory) => memory
                .items()
                .iter()
                .map(|item| show(item.attributes()))
                .collect(),
            Items::Dynamo(dynamo) => dynamo
                .items()
                .iter()
                .map(|item| show(attributes(item)))
                .collect(),
        };
        items.sort();
        items
    }
}

pub fn shown(answer: Result<impl std::fmt::Debug, Error>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => error.to_string(),
    }
}

pub fn show<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>) -> Shown {
    item.map(|(name, value)| (name.to_owned(), text(name, &value)))
        .collect()
}

/// The value, without random ids, and with what has no order sorted.
fn text(name: &str, value: &Attr<'_>) -> String {
    match value {
        Attr::S(_) if [attr::LAST_WRITE_ID, attr::LEASE].contains(&name) => "an id".to_owned(),
        Attr::N(_) if name == attr::EDIT => "an id".to_owned(),
        Attr::S(key) if key.starts_with("#AUDIT#") => "an event".to_owned(),
        Attr::M(entries) => {
            let of = |(key, value): &(&str, Attr<'_>)| {
                let key = if name == attr::LEASES { "an id" } else { key };
                format!("{key}: {}", text(key, value))
            };
            let mut entries: Vec<_> = entries.iter().map(of).collect();
            entries.sort();
            format!("{entries:?}")
        }
        Attr::Numbers(numbers) => format!("{:?}", numbers.iter().collect::<BTreeSet<_>>()),
        value => format!("{value:?}"),
    }
}
