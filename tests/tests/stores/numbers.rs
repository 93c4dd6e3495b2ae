//! Numbers on Redis are those of the evaluator, value by value, at the edges of 64 bits and of Lua's doubles.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weirgate::SystemClock;
use weirgate_shared::write::{AttributeUpdate, Condition, Path, Update, Value};
use weirgate_shared::{Attr, ItemKey, MilliTotal};
use weirgate_store::{Item, MemoryTable, ReturnValues, Table, WriteOutcome};
use weirgate_testkit::RedisServer;
use weirgate_tests::fleet::config;

use super::table;

fn edge() -> impl Strategy<Value = i128> {
    let edges = [
        0,
        1 << 52,
        1 << 53,
        1 << 63,
        1 << 64,
        999_999_999_999_999,
        10_i128.pow(16),
        10_i128.pow(30),
    ];
    (
        prop::sample::select(edges.to_vec()),
        -3..4_i128,
        any::<bool>(),
    )
        .prop_map(|(edge, near, is_negative)| (edge + near) * if is_negative { -1 } else { 1 })
}

fn number() -> impl Strategy<Value = Value> {
    let int = |count: i128| i64::try_from(count).map_or(Value::Count(count), Value::Int);
    prop_oneof![
        edge().prop_map(int),
        edge().prop_map(|thousandths| Value::Tokens(MilliTotal(thousandths))),
        any::<i64>().prop_map(Value::Int),
        (-2_000..2_000_i128).prop_map(|thousandths| Value::Tokens(MilliTotal(thousandths))),
    ]
}

fn set() -> impl Strategy<Value = Value> {
    let edges = vec![i64::MIN, -10, -9, 0, 2, 9, 10, 11, i64::MAX - 1, i64::MAX];
    let one = prop::sample::select(edges);
    prop::collection::btree_set(one, 1..4).prop_map(Value::Numbers)
}

fn changes() -> impl Strategy<Value = Vec<AttributeUpdate>> {
    let numbers = prop_oneof![
        1 => number().prop_map(|value| AttributeUpdate::Set(Path::of("a"), value)),
        4 => number().prop_map(|value| AttributeUpdate::Add(Path::of("a"), value)),
        1 => Just(AttributeUpdate::Next(Path::of("a"), Path::of("a"), 7)),
    ];
    let sets = prop_oneof![
        2 => set().prop_map(|value| AttributeUpdate::Add(Path::of("s"), value)),
        1 => set().prop_map(|value| AttributeUpdate::DeleteFrom(Path::of("s"), value)),
    ];
    (numbers, sets).prop_map(|(number, set)| vec![number, set])
}

fn condition() -> impl Strategy<Value = Condition> {
    let a = || Path::of("a");
    let of_number = (number(), 0..4_u8).prop_map(move |(value, kind)| match kind {
        0 => Condition::Equals(a(), value),
        1 => Condition::Differs(a(), value),
        2 => Condition::AtLeast(a(), value),
        _ => Condition::AtMost(a(), value),
    });
    prop_oneof![
        4 => of_number,
        1 => set().prop_map(|value| Condition::Equals(Path::of("s"), value)),
        1 => (-10..12_i64).prop_map(|number| Condition::Lacks(Path::of("s"), number)),
    ]
}

fn write() -> impl Strategy<Value = (Option<Condition>, Vec<AttributeUpdate>)> {
    (prop::option::weighted(0.6, condition()), changes())
}

/// All attributes, in order.
fn all(item: &Item) -> Vec<String> {
    let attribute = |(name, value): (&str, Attr<'_>)| match value {
        Attr::Numbers(mut numbers) => {
            numbers.sort_unstable();
            format!("{name} {numbers:?}")
        }
        value => format!("{name} {value:?}"),
    };
    let mut all: Vec<_> = item.attributes().map(attribute).collect();
    all.sort();
    all
}

async fn told(table: &Table, update: &Update) -> String {
    match table
        .update(update, ReturnValues::AllNew)
        .await
        .expect("it is decided")
    {
        WriteOutcome::Applied(new) => format!("applied {:?}", new.as_ref().map(all)),
        WriteOutcome::ConditionFailed(old) => format!("failed {:?}", old.as_ref().map(all)),
    }
}

#[test]
fn numbers_on_redis_are_those_of_the_evaluator() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    let (redis, memory) = (
        table(&server),
        Table::in_memory(&MemoryTable::default(), SystemClock),
    );
    let mut runner = TestRunner::new(Config {
        source_file: Some(file!()),
        ..config(400)
    });
    let number = Cell::new(0);
    let tried = runner.run(&prop::collection::vec(write(), 1..12), |writes| {
        number.set(number.get() + 1);
        let key = ItemKey {
            pk: format!("p/{}", number.get()),
            sk: "#S".to_owned(),
        };
        for (condition, changes) in writes {
            let update = Update {
                key: key.clone(),
                conditions: condition.into_iter().collect(),
                changes,
            };
            let on = |table| runtime.block_on(told(table, &update));
            prop_assert_eq!(on(&redis), on(&memory), "{:?}", update);
        }
        Ok(())
    });
    tried.unwrap_or_else(|error| panic!("{error}"));
}
