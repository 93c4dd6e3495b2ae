//! Random requests of every kind to a table in memory, to the embedded DynamoDB and to Redis: the same
//! outcomes, old items of failed conditions and pages of lists included.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use weirgate::{EpochMillis, FakeClock};
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};
use weirgate_shared::{Attr, ItemKey, MilliTotal, WriteId, attr};
use weirgate_store::{
    ActionOutcome, CHILDREN, Consistency, Item, MemoryTable, Order, Query, RedisOptions,
    ReturnValues, SortKeys, Table, TransactOutcome, WriteOutcome,
};
use weirgate_testkit::{Dynamo, RedisCluster, RedisServer};

use weirgate_tests::fleet::{START, config, runtime};

#[derive(Debug, Clone)]
enum Request {
    Update(Update, ReturnValues),
    Transact(Vec<Action>),
    /// Prefix of the sort keys, whether descending, and items on a page.
    List(&'static str, bool, i32),
    Due(i64, Order, i32),
}

const KEYS: usize = 4;

fn key(at: usize) -> ItemKey {
    ItemKey { pk: format!("p/{}", at / 2), sk: format!("#S{at}") }
}

fn number() -> Path {
    Path::of("number")
}

fn map() -> Path {
    Path::of("map")
}

/// The numbers of the attributes.
#[derive(Debug, Clone, Copy)]
enum Numbers {
    /// Few, so that they meet.
    Small,
    /// At the edges of 64 bits and of Lua's doubles.
    Edges,
}

impl Numbers {
    fn value(self) -> BoxedStrategy<Value> {
        let int = |count: i128| i64::try_from(count).map_or(Value::Count(count), Value::Int);
        let tokens = |thousandths| Value::Tokens(MilliTotal(thousandths));
        match self {
            Self::Small => (-2..4_i64).prop_map(Value::Int).boxed(),
            Self::Edges => prop_oneof![
                edge().prop_map(int),
                edge().prop_map(tokens),
                any::<i64>().prop_map(Value::Int),
                (-2_000..2_000_i128).prop_map(tokens),
            ]
            .boxed(),
        }
    }

    /// Returns a number of a set.
    fn member(self) -> BoxedStrategy<i64> {
        let edges = vec![i64::MIN, -10, -9, 0, 2, 9, 10, 11, i64::MAX - 1, i64::MAX];
        match self {
            Self::Small => (0..3_i64).boxed(),
            Self::Edges => prop::sample::select(edges).boxed(),
        }
    }

    fn set(self) -> impl Strategy<Value = Value> {
        prop::collection::btree_set(self.member(), 1..4).prop_map(Value::Numbers)
    }
}

fn edge() -> impl Strategy<Value = i128> {
    let doubles = [0, 1 << 52, 1 << 53, 1 << 63, 1 << 64];
    let decimals = [999_999_999_999_999, 10_i128.pow(16), 10_i128.pow(30)];
    let edges = [&doubles[..], &decimals].concat();
    let signs = prop::sample::select(vec![-1, 1]);
    (prop::sample::select(edges), -3..4_i128, signs)
        .prop_map(|(edge, near, sign)| (edge + near) * sign)
}

fn condition(numbers: Numbers) -> impl Strategy<Value = Condition> {
    let value = || numbers.value();
    prop_oneof![
        Just(Condition::Absent(number())),
        Just(Condition::Present(number())),
        value().prop_map(|value| Condition::Equals(number(), value)),
        value().prop_map(|value| Condition::Differs(number(), value)),
        value().prop_map(|value| Condition::AtLeast(number(), value)),
        value().prop_map(|value| Condition::AtMost(number(), value)),
        numbers.member().prop_map(|number| Condition::Lacks(Path::of("set"), number)),
        numbers.set().prop_map(|value| Condition::Equals(Path::of("set"), value)),
        (value(), any::<bool>()).prop_map(|(value, is_least)| {
            let one = if is_least { Condition::AtLeast } else { Condition::AtMost };
            Condition::AbsentOr(number(), Box::new(one(number(), value)))
        }),
    ]
}

/// Changes of one attribute each, and what they require to be valid.
fn changes(
    of: Numbers,
    at: usize,
) -> impl Strategy<Value = (Vec<Condition>, Vec<AttributeUpdate>)> {
    let one = |change: AttributeUpdate| (vec![], vec![change]);
    let numbers = prop_oneof![
        1 => of.value().prop_map(|value| AttributeUpdate::Set(number(), value)),
        1 => of.value().prop_map(|value| AttributeUpdate::SetIfAbsent(number(), value)),
        2 => of.value().prop_map(|value| AttributeUpdate::Add(number(), value)),
        1 => Just(AttributeUpdate::Remove(number())),
    ];
    let copied = AttributeUpdate::Copy(Path::of("copy"), number());
    let copied = (vec![Condition::Present(number())], vec![copied]);
    let next = |first| (vec![], vec![AttributeUpdate::Next(Path::of("next"), number(), first)]);
    let next = (-2..4_i64).prop_map(next);
    let sets = prop_oneof![
        of.set().prop_map(|value| AttributeUpdate::Add(Path::of("set"), value)),
        of.set().prop_map(|value| AttributeUpdate::DeleteFrom(Path::of("set"), value)),
    ];
    let inside = of.value().prop_map(|value| {
        let change = AttributeUpdate::Set(map().then("x.y"), value);
        (vec![Condition::Present(map())], vec![change])
    });
    let maps = prop_oneof![
        Just(one(AttributeUpdate::Set(map(), Value::Map(BTreeMap::new())))),
        inside,
        Just(one(AttributeUpdate::Remove(map()))),
        Just((vec![], vec![])),
    ];
    // No two items have the same sort key of an index, which orders them.
    let text = move |letter: char| Value::Text(format!("{letter}{at}"));
    let indexed = prop_oneof![
        prop::char::range('a', 'c').prop_map(move |letter| vec![
            AttributeUpdate::Set(Path::of(attr::GSI1PK), Value::text("parent")),
            AttributeUpdate::Set(Path::of(attr::GSI1SK), text(letter)),
        ]),
        Just(vec![AttributeUpdate::Remove(Path::of(attr::GSI1SK))]),
    ];
    let at = i64::try_from(at).expect("there are few");
    let due = prop_oneof![
        (0..12_i64).prop_map(move |due| vec![
            AttributeUpdate::Set(Path::of(attr::DUE_SHARD), Value::text("DUE#1")),
            AttributeUpdate::Set(Path::of(attr::DUE), Value::Int(due * 10 + at)),
        ]),
        Just(vec![AttributeUpdate::Remove(Path::of(attr::DUE))]),
    ];
    let maybe = |all: BoxedStrategy<Vec<AttributeUpdate>>| {
        prop_oneof![Just(vec![]), all].prop_map(|changes| (vec![], changes))
    };
    let parts = (
        numbers.prop_map(one),
        prop_oneof![2 => Just((vec![], vec![])), 1 => Just(copied), 1 => next],
        maybe(sets.prop_map(|change| vec![change]).boxed()),
        maps,
        maybe(indexed.boxed()),
        maybe(due.boxed()),
    );
    parts.prop_map(|(a, b, c, d, e, f)| {
        let parts = [a, b, c, d, e, f];
        let (conditions, changes): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        (conditions.concat(), changes.concat())
    })
}

fn update(of: Numbers, at: usize) -> impl Strategy<Value = Update> {
    let required = prop::collection::vec(condition(of), 0..2);
    (required, changes(of, at)).prop_map(move |(conditions, (valid, changes))| Update {
        key: key(at),
        conditions: [conditions, valid].concat(),
        changes,
    })
}

fn action(of: Numbers, at: usize) -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => update(of, at).prop_map(Action::Update),
        1 => prop::collection::vec(condition(of), 0..2)
            .prop_map(move |conditions| Action::Delete(key(at), conditions)),
        1 => condition(of).prop_map(move |condition| Action::Check(key(at), vec![condition])),
    ]
}

fn request(of: Numbers) -> impl Strategy<Value = Request> {
    let answers = vec![ReturnValues::AllNew, ReturnValues::None, ReturnValues::Never];
    let update = (0..KEYS).prop_flat_map(move |at| update(of, at));
    let subset = prop::sample::subsequence((0..KEYS).collect::<Vec<_>>(), 1..=KEYS);
    let transact = subset.prop_flat_map(move |keys| {
        let actions = keys.into_iter().map(|at| action(of, at));
        actions.collect::<Vec<_>>()
    });
    let prefix = prop::sample::select(vec!["", "a", "c"]);
    let order = prop::sample::select(vec![Order::OldestFirst, Order::NewestFirst]);
    prop_oneof![
        4 => (update, prop::sample::select(answers)).prop_map(|(one, how)| Request::Update(one, how)),
        3 => transact.prop_map(Request::Transact),
        1 => (prefix, any::<bool>(), 1..4_i32)
            .prop_map(|(prefix, is_descending, page)| Request::List(prefix, is_descending, page)),
        1 => (0..120_i64, order, 1..4_i32).prop_map(|(due, order, page)| Request::Due(due, order, page)),
    ]
}

fn requests(of: Numbers) -> impl Strategy<Value = Vec<Request>> {
    prop::collection::vec(request(of), 1..30)
}

/// Requests for tables of which some have few numbers, and the others those at edges.
fn of_tables(tables: usize) -> impl Strategy<Value = Vec<Vec<Request>>> {
    let few = prop::collection::vec(requests(Numbers::Small), tables);
    let edges = prop::collection::vec(requests(Numbers::Edges), tables);
    (few, edges).prop_map(|(few, edges)| [few, edges].concat())
}

/// An item, by its attributes' names.
type Shown = BTreeMap<String, String>;

fn show(item: &Item) -> Shown {
    item.attributes().map(|(name, value)| (name.to_owned(), text(&value))).collect()
}

/// The value, with what has no order sorted.
fn text(value: &Attr<'_>) -> String {
    match value {
        Attr::M(entries) => {
            let entries = entries.iter().map(|(key, value)| (*key, text(value)));
            format!("{:?}", entries.collect::<BTreeMap<_, _>>())
        }
        Attr::Numbers(numbers) => format!("{:?}", numbers.iter().collect::<BTreeSet<_>>()),
        value => format!("{value:?}"),
    }
}

fn shown(item: Option<&Item>) -> Option<Shown> {
    item.map(show)
}

async fn answer(table: &Table, request: &Request, number: u64) -> String {
    match request {
        Request::Update(update, answer) => match table.update(update, *answer).await.unwrap() {
            WriteOutcome::Applied(new) => format!("applied {:?}", shown(new.as_ref())),
            WriteOutcome::ConditionFailed(old) => format!("failed {:?}", shown(old.as_ref())),
        },
        Request::Transact(actions) => {
            let token = WriteId::from_bits(number);
            match table.transact(actions, &token).await.unwrap() {
                TransactOutcome::Applied => "applied".to_owned(),
                TransactOutcome::ConditionFailed(outcomes) => {
                    let outcomes = outcomes.iter().map(|outcome| match outcome {
                        ActionOutcome::ConditionFailed(old) => Some(shown(old.as_ref())),
                        ActionOutcome::NotReported => None,
                    });
                    format!("{:?}", outcomes.collect::<Vec<_>>())
                }
            }
        }
        Request::List(prefix, is_descending, page) => {
            let query = Query {
                is_descending: *is_descending,
                limit: Some(*page),
                ..Query::of_index(CHILDREN, "parent", SortKeys::StartingWith(prefix))
            };
            let (mut items, mut after) = (vec![], None);
            loop {
                let found = table.query(query, after.as_ref()).await.unwrap();
                items.extend(found.items.iter().map(|item| shown(Some(item))));
                after = found.next;
                if after.is_none() {
                    return format!("{items:?}");
                }
            }
        }
        Request::Due(due, order, page) => {
            let (mut items, mut after) = (vec![], None);
            loop {
                let now = EpochMillis(*due);
                let found = table.query_due("DUE#1", now, *order, *page, after.as_ref());
                let found = found.await.unwrap();
                items.extend(found.due);
                after = found.next;
                if after.is_none() {
                    return format!("{items:?}");
                }
            }
        }
    }
}

/// The items by their keys, those of each partition by a listing of the table, and all by a scan.
async fn all(table: &Table) -> String {
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let mut read = table.read_all(&keys, Consistency::Strong).await.unwrap();
    read.sort_by_key(Item::key);
    let mut shown: Vec<_> = read.iter().map(|item| self::shown(Some(item))).collect();
    for partition in ["p/0", "p/1"] {
        let query = Query::new(partition, SortKeys::Between("#S1", "#S2"));
        let found = table.query(query, None).await.unwrap();
        shown.extend(found.items.iter().map(|item| self::shown(Some(item))));
    }
    let (mut scanned, mut after) = (BTreeSet::new(), None);
    loop {
        let page = table.scan("p/", 3, after.as_ref()).await.unwrap();
        scanned.extend(page.items.iter().map(show));
        after = page.next;
        if after.is_none() {
            return format!("{shown:?} {scanned:?}");
        }
    }
}

async fn told(table: &Table, requests: &[Request]) -> Vec<String> {
    let mut told = vec![];
    for (request, number) in requests.iter().zip(1..) {
        told.push(answer(table, request, number).await);
        told.push(all(table).await);
    }
    told
}

/// Answers of a table on Redis with the items of no other one.
async fn on_redis(url: String, requests: &[Request]) -> Vec<String> {
    static TABLES: AtomicU32 = AtomicU32::new(0);
    let options = RedisOptions {
        table: format!("t{}", TABLES.fetch_add(1, Ordering::Relaxed)),
        use_server_time: false,
        ..RedisOptions::new(url)
    };
    told(&Table::on_redis(&options).expect("the URL is one"), requests).await
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn a_table_on_redis_answers_every_request_as_one_in_memory(
        all in of_tables(4),
    ) {
        let server = RedisServer::start();
        // Its time goes on by itself, because timeouts of a paused one end while a socket is waited for.
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            for requests in &all {
                let memory = Table::in_memory(&MemoryTable::default(), FakeClock::at(START));
                let (one, other) = (told(&memory, requests).await, on_redis(server.url(), requests).await);
                for (at, (one, other)) in one.iter().zip(&other).enumerate() {
                    prop_assert_eq!(one, other, "after request {}: {:?}", at / 2, requests[at / 2]);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_table_in_memory_answers_every_request_as_dynamodb(requests in requests(Numbers::Small)) {
        runtime().block_on(async {
            let clock = FakeClock::at(START);
            let memory = Table::in_memory(&MemoryTable::default(), clock.clone());
            let dynamo = Dynamo::new().await.with_clock(clock);
            let (one, other) = (told(&memory, &requests).await, told(&dynamo.table().await, &requests).await);
            for (at, (one, other)) in one.iter().zip(&other).enumerate() {
                prop_assert_eq!(one, other, "after request {}: {:?}", at / 2, requests[at / 2]);
            }
            Ok(())
        })?;
    }
}

proptest! {
    #![proptest_config(config(3))]

    #[test]
    fn a_table_in_a_cluster_answers_every_request_as_one_in_memory(
        all in of_tables(4),
    ) {
        let cluster = RedisCluster::start();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            for (requests, node) in all.iter().zip(cluster.nodes().iter().cycle()) {
                let memory = Table::in_memory(&MemoryTable::default(), FakeClock::at(START));
                let (one, other) = (told(&memory, requests).await, on_redis(node.url(), requests).await);
                for (at, (one, other)) in one.iter().zip(&other).enumerate() {
                    prop_assert_eq!(one, other, "after request {}: {:?}", at / 2, requests[at / 2]);
                }
            }
            Ok(())
        })?;
    }
}
