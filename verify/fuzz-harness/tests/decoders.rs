//! Any bytes, real ones, and real ones with something broken in them: every decoder answers, in its
//! time and without a panic. `make fuzz` fuzzes each folder of the corpus.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Map, Value, json};
use weirgate_aggregator::parse;
use weirgate_fuzz_harness::{ALL, item, stream};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the inputs of a decoder, in the order of their names.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = std::fs::read_dir(root().join("fuzz/corpus").join(name)).expect(name);
    let mut inputs: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    let read = |path: &PathBuf| std::fs::read(path).unwrap();
    inputs.iter().map(read).collect()
}

/// Every input that the fuzz targets start from or that one of them has ever found.
#[test]
fn every_input_of_the_corpus_is_answered() {
    for (name, decode) in ALL {
        let inputs = corpus(name);
        assert!(inputs.len() >= 2, "{name} starts from something");
        for (at, input) in inputs.iter().enumerate() {
            // Seen with the backtrace, if it is the last one.
            println!("{name} {at}");
            decode(input);
        }
    }
    let folders = std::fs::read_dir(root().join("fuzz/corpus")).unwrap().count();
    assert_eq!(folders, ALL.len(), "every folder is some decoder's");
}

/// What happens to bytes on their way.
#[derive(Debug, Clone)]
enum Damage {
    Flip(Index, u8),
    Cut(Index, Index),
    Double(Index, Index),
    /// A piece of another input comes in.
    Splice(Index, Index, Index, Index),
    /// A number becomes another one.
    Number(Index, String),
}

/// A number that an item could have, at an edge or not.
fn number() -> impl Strategy<Value = String> {
    let edges = "9223372036854775807 -9223372036854775808 4294967295 2147483648 70380767 0 1 -1 1000 \
        1795195341000 1795195341000000 1e99 1.5";
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        prop::sample::select(edges.split_whitespace().collect::<Vec<_>>()).prop_map(str::to_owned),
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<Index>;
    prop_oneof![
        1 => (at(), 1..=255_u8).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        1 => (at(), at()).prop_map(|(from, to)| Damage::Cut(from, to)),
        1 => (at(), at()).prop_map(|(from, to)| Damage::Double(from, to)),
        1 => (at(), at(), at(), at()).prop_map(|(at, other, from, to)| Damage::Splice(at, other, from, to)),
        3 => (at(), number()).prop_map(|(at, number)| Damage::Number(at, number)),
    ]
}

fn range(len: usize, from: Index, to: Index) -> std::ops::Range<usize> {
    let (from, to) = (from.index(len + 1), to.index(len + 1));
    from.min(to)..from.max(to)
}

fn damaged(mut bytes: Vec<u8>, all: &[Vec<u8>], damage: &Damage) -> Vec<u8> {
    let len = bytes.len();
    match damage {
        Damage::Flip(at, bits) if len > 0 => bytes[at.index(len)] ^= bits,
        Damage::Flip(..) => {}
        Damage::Cut(from, to) => drop(bytes.drain(range(len, *from, *to))),
        Damage::Double(from, to) => {
            let range = range(len, *from, *to);
            let piece = bytes[range.clone()].to_vec();
            bytes.splice(range.end..range.end, piece);
        }
        Damage::Splice(at, other, from, to) => {
            let (at, other) = (at.index(len + 1), &all[other.index(all.len())]);
            bytes.splice(at..at, other[range(other.len(), *from, *to)].iter().copied());
        }
        Damage::Number(at, number) => {
            let starts: Vec<_> = (0..len)
                .filter(|at| {
                    bytes[*at].is_ascii_digit() && (*at == 0 || !bytes[at - 1].is_ascii_digit())
                })
                .collect();
            if !starts.is_empty() {
                let from = starts[at.index(starts.len())];
                let to =
                    from + bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(from..to, number.bytes());
            }
        }
    }
    bytes
}

/// An attribute of any kind that DynamoDB has, nested as deep as it lets one be.
fn attribute() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        "\\PC{0,12}".prop_map(|text| json!({"S": text})),
        "-?[0-9]{1,38}(\\.[0-9]{1,9})?".prop_map(|number| json!({"N": number})),
        number().prop_map(|number| json!({"N": number})),
        any::<bool>().prop_map(|is| json!({"BOOL": is})),
        Just(json!({"NULL": true})),
        Just(json!({"B": "AA=="})),
        Just(json!({"SS": ["a", "b"]})),
        Just(json!({"NS": ["1", "-2", "3.5"]})),
    ];
    let nested = leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|list| json!({"L": list})),
            prop::collection::btree_map("\\PC{0,6}", inner, 0..4)
                .prop_map(|map| json!({"M": map.into_iter().collect::<Map<_, _>>()})),
        ]
    });
    // 32 levels are the most.
    (nested, 0..28_usize, any::<bool>()).prop_map(|(attribute, levels, is_map)| {
        (0..levels).fold(attribute, |inner, _| {
            if is_map { json!({"M": {"a": inner}}) } else { json!({"L": [inner]}) }
        })
    })
}

/// Names of attributes and fields.
const NAMES: &str = "rf v birth uh takes th td wcu cv cb shard_count h due due_shard op hot look_at \
    look_v min_shards split_bytes limits mode schedule zd status shadow escrow until n parent_id cascade \
    schema at principal action before after entity_id resource q0 final total_events #c #u0#1 \
    Keys dynamodb Records";

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(NAMES.split(' ').collect::<Vec<_>>()).prop_map(str::to_owned),
        "b_(rpm|tpm|)_(tk|tc|cp|ra|rp|bh|bd|we)",
        "(q|rpm#|#)[0-9c]{1,3}",
        "\\PC{1,8}",
    ]
}

fn sample() -> Value {
    serde_json::from_str(include_str!("../../../events/aggregator-modify.json")).unwrap()
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(192))]

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for (_, decode) in ALL {
            decode(&bytes);
        }
    }

    #[test]
    fn real_bytes_with_damage_are_answered(
        which in 0..ALL.len(), from in any::<Index>(), damages in prop::collection::vec(damage(), 1..5),
    ) {
        let (name, decode) = ALL[which];
        let all = corpus(name);
        let bytes = damages.iter().fold(all[from.index(all.len())].clone(), |bytes, damage| damaged(bytes, &all, damage));
        decode(&bytes);
    }

    #[test]
    fn an_item_with_any_attributes_is_answered(
        from in any::<Index>(), attributes in prop::collection::vec((name(), attribute()), 0..12),
    ) {
        let all = corpus("item");
        let mut read: Map<String, Value> = serde_json::from_slice(&all[from.index(all.len())]).unwrap();
        read.extend(attributes);
        item(Value::Object(read).to_string().as_bytes());
    }

    /// Whatever a tenant writes into one of its items, others' records of the same batch are read as
    /// if it were not there.
    #[test]
    fn no_item_spoils_the_records_of_others(
        new in prop::collection::vec((name(), attribute()), 0..6), old in prop::collection::vec((name(), attribute()), 0..6),
        keys in ("\\PC{0,30}", "\\PC{0,12}"),
        is_bucket in any::<bool>(),
    ) {
        let mut event = sample();
        let alone = event.to_string();
        let (pk, sk) = if is_bucket { ("other/BUCKET#e#r#0".to_owned(), "#STATE".to_owned()) } else { keys };
        let mut theirs = event["Records"][0].clone();
        theirs["dynamodb"]["Keys"] = json!({"PK": {"S": pk}, "SK": {"S": sk}});
        for (image, attributes) in [("NewImage", new), ("OldImage", old)] {
            theirs["dynamodb"][image].as_object_mut().unwrap().extend(attributes);
        }
        event["Records"].as_array_mut().unwrap().insert(1, theirs);
        let together = event.to_string();
        stream(together.as_bytes());
        let ours = |text: &str| {
            let batch = parse::records(text).expect("it is an event");
            let ours = batch.records.into_iter().filter(|record| match (&record.after, &record.before) {
                (parse::After::Live(bucket), _) => bucket.key.namespace.as_str() == "default",
                (_, before) => before.as_ref().is_some_and(|before| before.key.namespace.as_str() == "default"),
            });
            ours.map(|record| (record.at, record.before, record.after)).collect::<Vec<_>>()
        };
        prop_assert_eq!(ours(&together), ours(&alone));
    }
}
