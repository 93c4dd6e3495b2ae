//! What lists and erasures cost: the table of `docs/guide/lists.md`, a paragraph of
//! `docs/guide/lifecycle.md`.

use serde_json::json;
use weirgate::{
    AuditSubject, Config, ConfigFilter, ConfigLevel, LiveLeases, Page, PageToken, RateLimiter,
};
use weirgate_store::{CapacityMeter, ConsumedUnits};
use weirgate_tests::stored::{set_config, set_entity};

use weirgate_tests::fleet::{Fleet, pass, secs};
use weirgate_tests::stored::{child, entity, resource, rpm};

async fn take(limiter: &RateLimiter, entity: &str, resource: &str) {
    let limits = [rpm(60)];
    let acquire = limiter.acquire(entity, resource).limits(&limits);
    let decision = acquire.take("rpm", 1).send().await.unwrap();
    assert!(decision.is_granted());
}

/// Buckets of one, four and eight shards on a resource, configurations, and children.
async fn world(fleet: &Fleet) {
    let limiter = fleet.limiter().await;
    for of in ["gpt-4", "gpt-40", "gpt-400"] {
        take(&limiter, "three", of).await;
    }
    for (name, shards) in [("four", 4), ("eight", 8)] {
        take(&limiter, name, "gpt-4").await;
        let limits = [rpm(60)];
        let done = limiter.admin().set_shards(name, "gpt-4", &limits, shards);
        assert_eq!(done.await.unwrap(), shards);
    }
    for name in ["kid-1", "kid-2"] {
        set_entity(&limiter, &child(name, "team")).await;
    }
    for level in [
        ConfigLevel::Resource(resource("gpt-4")),
        ConfigLevel::Resource(resource("gpt-40")),
        ConfigLevel::EntityResource(entity("kid-1"), resource("gpt-4")),
    ] {
        let limits = Config::of([rpm(600)]);
        set_config(&limiter, &level, &limits).await;
    }
    pass(secs(5)).await;
}

/// A process that has met nothing, and what each of its calls costs.
struct Reader(RateLimiter, CapacityMeter);

impl Reader {
    async fn new(fleet: &Fleet) -> Self {
        let (limiter, meter) = fleet.metered().await;
        let _ = meter.take();
        Self(limiter, meter)
    }

    /// Returns the read units since the last call.
    fn units(&self) -> f64 {
        self.1.take().read
    }

    /// Reads all pages of a list. Returns how many, and the items.
    async fn all<T>(
        &self,
        mut page: impl AsyncFnMut(&RateLimiter, Option<&PageToken>) -> Page<T>,
    ) -> (u32, usize) {
        let (mut pages, mut items, mut after) = (0, 0, None);
        loop {
            let read = page(&self.0, after.as_ref()).await;
            (pages, items) = (pages + 1, items + read.items.len());
            after = read.next;
            if after.is_none() {
                return (pages, items);
            }
        }
    }

    async fn entity_buckets(&self, name: &str) -> f64 {
        let id = entity(name);
        self.all(async |limiter, after| limiter.admin().entity_buckets(&id, after).await.unwrap())
            .await;
        self.units()
    }

    async fn bucket(&self, name: &str) -> f64 {
        let (id, gpt4) = (entity(name), resource("gpt-4"));
        self.0.admin().bucket(&id, &gpt4).await.unwrap();
        self.units()
    }

    async fn leases(&self, name: &str) -> f64 {
        self.0.admin().leases(name, "gpt-4").await.unwrap();
        self.units()
    }

    async fn configs(&self, filter: ConfigFilter, count: usize) -> f64 {
        let list = async |limiter: &RateLimiter, after: Option<&PageToken>| {
            limiter.admin().configs(&filter, after).await.unwrap()
        };
        assert_eq!(self.all(list).await, (1, count), "{filter:?}");
        self.units()
    }
}

/// Checks the last cell of the row of a call.
fn assert_row(call: &str, units: &str) {
    let page = include_str!("../../../../docs/guide/lists.md");
    let row = page
        .lines()
        .find(|row| row.starts_with(&format!("| {call} |")))
        .unwrap_or_else(|| panic!("docs/guide/lists.md lacks a row of {call}"));
    assert!(
        row.ends_with(&format!("| {units} |")),
        "{call} costs: {units}; docs/guide/lists.md: {row}"
    );
}

#[tokio::test(start_paused = true)]
async fn lists_of_buckets_and_leases_cost_the_units_of_the_page() {
    let fleet = Fleet::new().await;
    world(&fleet).await;
    let reader = Reader::new(&fleet).await;

    let page = reader.entity_buckets("none").await;
    let bucket = (reader.entity_buckets("three").await - page) / 3.0;
    let four = reader.entity_buckets("four").await - page;
    let eight = reader.entity_buckets("eight").await - page;
    let shard = (eight - four) / 4.0;
    let split = four - 4.0 * shard;
    assert_row(
        "`entity_buckets`",
        &format!(
            "{page} for each page, and {bucket} for each bucket; a split one costs {split}, and {shard} for each shard"
        ),
    );

    // Of a process that has not met the shards.
    let reader = Reader::new(&fleet).await;
    let gpt4 = resource("gpt-4");
    let (pages, found) = reader
        .all(async |limiter, after| limiter.admin().resource_buckets(&gpt4, after).await.unwrap())
        .await;
    assert_eq!(found, 3);
    assert_eq!(reader.units(), f64::from(pages) * page + bucket + four + eight);
    assert_row("`resource_buckets`", &format!("the same, in {pages} pages at least"));

    let reader = Reader::new(&fleet).await;
    let one = reader.leases("three").await;
    assert_eq!([reader.leases("four").await, reader.leases("eight").await], [four, eight]);
    assert_eq!(
        [reader.bucket("three").await, reader.bucket("four").await, reader.bucket("eight").await],
        [one, four, eight]
    );
    let costs = format!("{one}; a split bucket costs {split}, and {shard} for each shard");
    assert_row("`bucket`", &costs);
    assert_row(
        "`leases`",
        &format!("{one}; a split bucket costs {split}, and {shard} for each shard"),
    );
}

#[tokio::test(start_paused = true)]
async fn other_lists_cost_the_units_of_the_page() {
    let fleet = Fleet::new().await;
    world(&fleet).await;
    let reader = Reader::new(&fleet).await;
    let each = |units: f64| format!("{units} for each page");

    let (pages, found) =
        reader.all(async |limiter, after| limiter.admin().entities(after).await.unwrap()).await;
    assert_eq!(found, 2);
    let units = each(reader.units() / f64::from(pages));
    assert_row("`entities`, `plan_entities`", &format!("{units}, in {pages} pages at least"));

    let namespaces = async |limiter: &RateLimiter, after: Option<&PageToken>| {
        limiter.admin().namespaces(after).await.unwrap()
    };
    assert_eq!(reader.all(namespaces).await, (1, 1));
    assert_row("`namespaces`", &each(reader.units()));

    let of_entity = reader.configs(ConfigFilter::Entity(entity("kid-1")), 1).await;
    assert_row("`configs` of an entity or a plan", &each(of_entity));
    let page = reader.configs(ConfigFilter::Entities, 0).await;
    let two = reader.configs(ConfigFilter::Resources, 2).await;
    let config = (two - page) / 2.0;
    let on_one = reader.configs(ConfigFilter::Resource(resource("gpt-4")), 2);
    assert_eq!(on_one.await, two);
    assert_row(
        "`configs` of a resource, or of all resources, entities or plans",
        &format!("{}, and {config} for each configuration", each(page)),
    );
    let list = async |limiter: &RateLimiter, after: Option<&PageToken>| {
        let admin = limiter.admin();
        admin.configs(&ConfigFilter::All, after).await.unwrap()
    };
    let (pages, found) = reader.all(list).await;
    // The system's level is read, and has none.
    assert_eq!((found, reader.units()), (3, f64::from(pages) * page + 4.0 * config));
    let each_page = format!("{}, in {pages} pages at least", each(page));
    assert_row("`configs` of all", &format!("{each_page}, and {config} for each configuration"));

    let team = entity("team");
    let children = async |limiter: &RateLimiter, after: Option<&PageToken>| {
        limiter.admin().children(&team, after).await.unwrap()
    };
    assert_eq!(reader.all(children).await, (1, 2));
    assert_row("`children`", &each(reader.units()));

    let subject = AuditSubject::Entity(entity("kid-1"));
    let audit = async |limiter: &RateLimiter, after: Option<&PageToken>| {
        limiter.admin().audit(&subject, after).await.unwrap()
    };
    let (pages, found) = reader.all(audit).await;
    assert!(pages == 1 && found > 0);
    assert_row("`audit`", &each(reader.units()));
    let last = reader.0.admin().last_changes(&subject, 1).await.unwrap();
    assert_eq!(last.items.len(), 1);
    assert_row("`last_changes`", &reader.units().to_string());
    let audit = async |limiter: &RateLimiter, after: Option<&PageToken>| {
        limiter.admin().audit_all(after).await.unwrap()
    };
    let (pages, found) = reader.all(audit).await;
    assert_eq!(pages, 1);
    let change = 1.0;
    let page = reader.units() - change * f64::from(u32::try_from(found).unwrap());
    assert_row("`audit_all`", &format!("{}, and {change} for each change", each(page)));
}

/// Erases an entity with so many buckets and snapshots. Returns what that costs.
async fn erase(buckets: usize, snapshots: usize) -> ConsumedUnits {
    let (fleet, [limiter]) = Fleet::of().await;
    for bucket in 0..buckets {
        take(&limiter, "e-1", &format!("model-{bucket}")).await;
    }
    for hour in 0..snapshots {
        fleet.dynamo.put(&json!({
            "PK": {"S": "default/ENTITY#e-1"},
            "SK": {"S": format!("#USAGE#model-0#hourly#2026-01-02T{hour:02}:00:00Z")},
        }));
    }
    pass(secs(5)).await;
    let (operator, meter) = fleet.metered().await;
    let _ = meter.take();
    let id = entity("e-1");
    let erased = operator.admin().erase_entity(&id, LiveLeases::Refuse);
    let report = erased.await.unwrap();
    assert_eq!((report.shards, report.snapshots), (buckets, snapshots));
    meter.take()
}

#[tokio::test(start_paused = true)]
async fn an_erasure_costs_the_units_of_the_page() {
    let (none, one, two) = (erase(0, 0).await, erase(1, 0).await, erase(2, 0).await);
    let (five, each) = (one.total - (two.total - one.total), two.total - one.total);
    let snapshot = (erase(1, 3).await.total - one.total) / 3.0;
    let read = one.read - none.read;
    assert_eq!((two.read - one.read, read), (read, 3.0 * 65.0));
    assert_eq!(each, 6.0, "the shard, its entries in two indexes, and its shared denial");
    let states = format!(
        "It costs {} read units, and {read} for each resource: 65 to look for leases, 65 to delete its bucket, \
         65 to see that it is gone. It costs {five} write units for its audit event, {each} for each bucket with one \
         shard, and {snapshot} for each snapshot;",
        none.read
    );
    let page = include_str!("../../../../docs/guide/lifecycle.md");
    let words: Vec<_> = page.split_whitespace().collect();
    assert!(words.join(" ").contains(&states), "docs/guide/lifecycle.md lacks: {states}");
}
