//! A tenant with the fenced caller policy that writes arbitrary values under its own keys, in its
//! own namespace.

use fastrand::Rng;
use serde_json::{Value, json};
use weirgate_shared::{BUCKET_SK, attr};

use crate::fault::Kind;
use crate::stored_shard::{HOSTILE_NAMESPACE, is_hostile};
use crate::stream_check::Sender;
use crate::world::World;

/// Writes or deletes an item, if the random generator says so.
pub fn act(world: &World) {
    if !world.strikes(Kind::HostileWrite) {
        return;
    }
    let mut rng = world.aws_rng();
    let shards = ["0", "1", "2", "31", "63", "64", "1000", "4294967295", "x", ""];
    let pk = format!(
        "{HOSTILE_NAMESPACE}BUCKET#h-{}#api#{}",
        rng.u32(..3),
        shards[rng.usize(..shards.len())]
    );
    let sk = if rng.u32(..8) == 0 { "#STATE#" } else { BUCKET_SK };
    if rng.u32(..6) == 0 {
        world.dynamo().delete(&pk, sk);
    } else {
        let mut item = if rng.bool() { copied(world, &mut rng) } else { json!({}) };
        damage(&mut item, &mut rng);
        item[attr::PK] = json!({"S": pk});
        item[attr::SK] = json!({"S": sk});
        world.dynamo().put(&item);
    }
    drop(rng);
    world.check_stream(&Sender {
        name: "hostile",
        is_told: true,
        sent: world.now(),
        is_alone: true,
    });
}

/// Returns a copy of an honest bucket's item, with index keys of this tenant.
fn copied(world: &World, rng: &mut Rng) -> Value {
    let mut honest: Vec<_> = world.dynamo().items();
    honest.retain(|item| {
        item["SK"]["S"] == BUCKET_SK && !is_hostile(item["PK"]["S"].as_str().unwrap_or_default())
    });
    if honest.is_empty() {
        return json!({});
    }
    let mut item = honest.swap_remove(rng.usize(..honest.len()));
    for (_, value) in item.as_object_mut().into_iter().flatten() {
        if let Some(text) = value["S"].as_str().filter(|text| text.contains("/RESOURCE#")) {
            let own = text
                .split_once('/')
                .map_or_else(String::new, |(_, rest)| format!("{HOSTILE_NAMESPACE}{rest}"));
            *value = json!({"S": own});
        }
    }
    item
}

/// Gives some attributes values that Weirgate never writes.
fn damage(item: &mut Value, rng: &mut Rng) {
    let names = [
        attr::REFILLED_AT,
        attr::WRITE_SEQ,
        attr::BIRTH,
        attr::HOUR,
        attr::SHARD_COUNT,
        attr::TAKES,
        attr::LEASES,
        attr::HOT,
        attr::SAMPLE_AT,
        attr::MIN_SHARDS,
        attr::VERSION,
        attr::BOUNDARY,
        attr::LAST_WRITE_ID,
        "b_rate_tk",
        "b_rate_cp",
        "b_rate_ra",
        "b_rate_rp",
        "b_rate_tc",
    ];
    for _ in 0..rng.u32(0..4) {
        item[names[rng.usize(..names.len())]] = value(rng);
    }
    if rng.bool() {
        let due = ["0", "-1", "0.5", "1796083200000", "9999999999999999"];
        item[attr::DUE] = json!({"N": due[rng.usize(..due.len())]});
        item[attr::DUE_SHARD] = json!({"S": format!("DUE#{:02}", rng.u32(..16))});
    }
    if rng.u32(..4) == 0 {
        item["x"] = json!({"S": "x".repeat(rng.usize(..30_000))});
    }
}

fn value(rng: &mut Rng) -> Value {
    let number = "0 1 -1 0.5 9223372036854775807 99999999999999999999 1795172400000"
        .split(' ')
        .collect::<Vec<_>>();
    match rng.u32(..6) {
        0 | 1 => json!({"N": number[rng.usize(..number.len())]}),
        2 => json!({"S": "text"}),
        3 => json!({"M": {"lease": {"M": {"e": {"N": "1"}, "t": {"S": "?"}}}}}),
        4 => json!({"L": [{"N": "1"}]}),
        _ => json!({"NULL": true}),
    }
}
