//! A table on Redis: its lost answers, its errors, and limiters on it. A real redis-server runs
//! for each test.

mod clusters;
mod durable;
mod errors;
mod limiters;
mod lists;
mod lost;
mod proxy;
mod refused;
mod usage;
mod worker;

use weirgate_shared::ItemKey;
use weirgate_shared::write::{AttributeUpdate, Condition, Path, Update, Value};
use weirgate_store::{Item, RedisOptions, Table};
use weirgate_testkit::RedisServer;

/// A table on a server.
fn table(server: &RedisServer) -> Table {
    Table::on_redis(&RedisOptions::new(server.url())).expect("the URL is one")
}

fn key(name: &str) -> ItemKey {
    ItemKey { pk: format!("ns/ENTITY#{name}"), sk: "#S".to_owned() }
}

/// An update that adds to `a`.
fn add(key: ItemKey, value: Value) -> Update {
    Update { key, conditions: vec![], changes: vec![AttributeUpdate::Add(Path::of("a"), value)] }
}

fn only_if(condition: Condition, update: Update) -> Update {
    Update { conditions: vec![condition], ..update }
}

/// What an item has as `name`.
fn shown(item: &Item, name: &str) -> Option<String> {
    let mut attributes = item.attributes();
    attributes.find_map(|(known, value)| (known == name).then(|| format!("{value:?}")))
}

/// Sends a command of Redis itself.
async fn command(server: &RedisServer, words: &[&str]) -> redis::RedisResult<redis::Value> {
    let client = redis::Client::open(server.url()).expect("the URL is one");
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut connection).await
}
